"""One modelled process: a member and its leader machine, their actors, its queries.

It drives the protocol's procedures exactly as the running system does: it performs the effects that they yield and
resumes them with the answers. After a crash they are never resumed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol, assert_never

from cutwater.protocol.base import effects as fx
from cutwater.protocol.base.errors import GraphChanged, PeerError
from cutwater.protocol.base.replay_wire import (
    AskRange,
    Compacted,
    EntriesChunk,
    FetchEntries,
    HaveRange,
    decode_replay,
)
from cutwater.protocol.base.replay_wire import Message as ReplayMessage
from cutwater.protocol.base.wire import (
    Ack,
    Announcement,
    Heartbeat,
    LogGrown,
    Reply,
    Request,
    SourcesDone,
    decode_message,
)
from cutwater.protocol.base.wire import Message as WireMessage
from cutwater.protocol.leader.inbox import Arrivals, Inbox
from cutwater.protocol.leader.leader import Leader, LeaderConfig, LeaderPhase
from cutwater.protocol.member.config import MemberConfig, StagePlan
from cutwater.protocol.member.injector import BarrierRequest, Counters
from cutwater.protocol.member.member import Member
from cutwater.protocol.member.next_query import QueryEnd
from cutwater.protocol.member.stage import Stage, StagePhase
from cutwater.sim.io import Io
from cutwater.sim.network import Network
from cutwater.sim.oracle import WatchedScene
from cutwater.sim.spark import GoneForZombie, Query
from cutwater.store.recording import Recorder

# Looking up the type is many times as fast as `isinstance`, which is slow for what is not a `Struct` of that type.
Inline = fx.Send | fx.ReadPrepared | fx.StartQuery
INLINE = frozenset((fx.Send, fx.ReadPrepared, fx.StartQuery))
"""The effects that are answered immediately: nothing else can happen in between."""


@lru_cache(maxsize=32)
def _decode(data: bytes) -> WireMessage | ReplayMessage:
    """Decodes what may be for several processes, once."""
    return decode_message(data) if data[:1] == b"{" else decode_replay(data)


class ProcessScene(WatchedScene, Protocol):
    """A world in which processes run."""

    member_config: MemberConfig
    leader_config: LeaderConfig

    @property
    def io(self) -> Io: ...

    @property
    def network(self) -> Network: ...


class SimWord:
    """The shared word of a modelled process. It needs no lock, because only one thing happens at a time."""

    def __init__(self) -> None:
        self.cell = [0]
        self._triggered = 0
        self._superseded = 0
        self._last = 0

    def swap(self, value: int) -> int:
        old, self.cell[0] = self.cell[0], value
        self._triggered += 1
        if old:
            self._superseded, self._last = self._superseded + 1, old
        return old

    def take(self, expected: int) -> bool:
        if self.cell[0] != expected:
            return False
        self.cell[0] = 0
        return True

    def counters(self) -> Counters:
        return Counters(
            self._triggered,
            self._superseded,
            BarrierRequest.unpack(self.cell[0]),
            BarrierRequest.unpack(self._last),
        )


class Actor:
    """One procedure of a process, and its state."""

    __slots__ = ("asked", "name", "poked", "procedure", "stage", "token", "waiting")

    def __init__(self, name: str, procedure: fx.Procedure[None], stage: Stage | None) -> None:
        self.name = name
        self.procedure = procedure
        self.stage = stage
        self.token = 0
        self.waiting = False
        self.poked = False
        self.asked: tuple[fx.AnyOperation, int] | None = None
        """The operation in progress that will be recorded, and the journal index known when it began."""


class HostingMember(Member):
    """A member whose queries are actors too: each looks for new input when a log that it reads has grown."""

    def wake_readers(self, stage: str) -> None:
        before = len(self.woken)
        super().wake_readers(stage)
        stages, self.woken[before:] = self.woken[before:], []
        for actor in stages:
            self.woken += (actor, f"query {actor.removeprefix('stage ')}")


class Process:
    """A process of a member; `boot` distinguishes it from the member's other processes."""

    def __init__(self, world: ProcessScene, name: str, boot: int) -> None:
        self.world = world
        self.name = name
        self.boot = boot
        self.alive = True
        self.paused = False
        self.leaving = False
        self.store_down_until_ms = 0
        self.started_ms = world.now_ms
        self.paused_ms = self.woke_ms = self.woke_before_ms = -(10**9)
        """When it was last paused, when it woke up, and when it woke up the time before."""
        self.beat_ms = -(10**9)
        """When it last sent a sign that it leads."""
        self.skew_ms = world.between(0, 100_000)
        """How far this process's clock is ahead; no two clocks agree."""
        self.backlog: list[tuple[Actor, int, Any]] = []
        self.mail: list[tuple[str, bytes]] = []
        plans = {
            n: StagePlan(m.event_time, m.native, world.trigger_ms[n], m.ticks)
            for n, m in world.model.stages.items()
        }
        config, graph = world.member_config, world.graph
        self.member = HostingMember(name, f"{name}{boot}", graph, config, SimWord, plans)
        if world.wants_rest:
            self.member.want_rest()
        self.leader = Leader(self.member, world.leader_config)
        self._watch_requests()
        self.inbox, self.arrivals = Inbox(self.leader), Arrivals()
        self.arrivals.look_first(world.chaos.askers.stored)
        self.recorder: Recorder | None = None
        if world.record is not None:
            self.recorder = Recorder.of_member(world.record, self.member, lambda: world.now_ms + self.skew_ms)
        self.actors: dict[str, Actor] = {}
        self.checked_index = 0
        self.must_know = world.oracle.ledger.last
        world.oracle.watch_replay(self)
        self.spawn("journal", self.member.follow_journal())
        self.spawn("lead", self.leader.run())
        self.spawn("beat", self.leader.beat())
        self.spawn("provide", self.member.provide())

    # --- actors ---------------------------------------------------------------------------------------

    def spawn(self, name: str, procedure: fx.Procedure[None]) -> None:
        stage = self.member.stages.get(name.removeprefix("stage ")) if name.startswith("stage ") else None
        actor = Actor(name, procedure, stage)
        self.actors[name] = actor
        self.world.schedule(0, self.resume, actor, actor.token, None)

    def end(self, name: str) -> None:
        actor = self.actors.pop(name, None)
        if actor is not None:
            actor.token = -1

    def poke(self, name: str) -> None:
        """Resumes a waiting actor. A busy one will skip its next wait."""
        actor = self.actors.get(name)
        if actor is None:
            return
        if actor.waiting:
            actor.waiting = False
            actor.token += 1
            self.world.schedule(1, self.resume, actor, actor.token, None)
        else:
            actor.poked = True

    def resume_later(self, delay_ms: int, actor: Actor, answer: Any) -> None:
        self.world.schedule(delay_ms, self.resume, actor, actor.token, answer)

    def resume(self, actor: Actor, token: int, answer: Any) -> None:
        if not self.alive or actor.token != token or token < 0:
            return
        if self.paused:
            self.backlog.append((actor, token, answer))
            return
        member = self.member
        member.now_ms = self.world.now_ms + self.skew_ms
        if self.recorder is not None and actor.asked is not None:
            asked, actor.asked = actor.asked, None
            self.recorder.answered(asked[0], answer, asked[1])
        actor.waiting = False
        actor.token += 1
        followed = self.leader.phase is LeaderPhase.FOLLOWING
        stage, send = actor.stage, actor.procedure.send
        try:
            effect: fx.Effect | None = send(answer)
            while type(effect) in INLINE:
                effect = send(self._perform_inline(effect))  # type: ignore[arg-type]
        except StopIteration:
            self.actors.pop(actor.name, None)
            effect = None
        except GraphChanged:
            self.world.chaos.graph_changed(self)
            return
        except GoneForZombie:
            self.world.trace(self, f"{actor.name} fails: what it needs is gone")
            self.member.stages[actor.name.removeprefix("query ")].query_ended(
                QueryEnd.FAILED, "what it needs is gone"
            )
            effect = None
        if followed and self.leader.phase is LeaderPhase.CAMPAIGNING:
            self.world.oracle.check_campaign(self)
        if effect is not None:
            if stage is not None and type(effect) is fx.Wait:
                self.world.oracle.check_working(stage)
            self._perform(actor, effect)
        if member.ended:
            for name in member.ended:
                self.end(name)
                self.end(f"query {name.removeprefix('stage ')}")
            member.ended.clear()
        if member.spawned:
            for name, procedure in member.spawned.items():
                self.end(name)
                self.spawn(name, procedure)
            member.spawned.clear()
        if member.woken:
            self._wake()
        journal = member.journal
        if journal.view.last != self.checked_index:
            self.world.oracle.check_journal(self)
        if actor.name.startswith("query "):
            self.world.oracle.check_configuration(self)
        if member.misconfigured is not None and not self.leaving:
            self.leaving = True
            self.world.chaos.ends(self, f"cannot run: {member.misconfigured}")
        if member.given_up is not None and not self.leaving:
            self.leaving = True
            self.world.oracle.check_give_up(self)
            self.world.chaos.ends(self, f"gives up: {member.given_up}")
        if journal.state.drained and not self.leaving and member.drained:
            self.leaving = True
            self.world.oracle.check_over(self)
            self.world.chaos.is_over(self)
        if stage is not None:
            self._check(stage)

    def _check(self, stage: Stage) -> None:
        """Looks at a stage whose appender was resumed."""
        if stage.asks_for_rest:
            self.poke(f"query {stage.name}")  # so that its host asks Spark
        if stage.quiet:
            self.world.oracle.check_quiet(stage)
        if stage.phase is not StagePhase.RUNNING:
            self.world.oracle.check_stage(stage)
            if self.member.superseded and not self.leaving:
                self.leaving = True
                self.world.chaos.ends(self, "superseded")

    def _perform(self, actor: Actor, effect: fx.Effect) -> None:
        if type(effect) is fx.Wait:
            if actor.poked:
                actor.poked = False
                self.world.schedule(1, self.resume, actor, actor.token, None)
            else:
                actor.waiting = True
                self.world.schedule(effect.ms, self.resume, actor, actor.token, None)
        elif type(effect) is fx.Sleep:
            self.world.schedule(effect.ms, self.resume, actor, actor.token, None)
        else:
            if self.recorder is not None:
                actor.asked = effect, self.recorder.knows  # type: ignore[assignment]
            self.world.io.perform(self, actor, effect)  # type: ignore[arg-type]

    def _perform_inline(self, effect: Inline) -> Any:
        match effect:
            case fx.ReadPrepared():
                return self.world.io.read_prepared(effect)
            case fx.Send():
                if self.recorder is not None:
                    self.recorder.sent(effect)
                return self.world.network.send(self, effect.to, effect.message)
            case fx.StartQuery():
                return self._start_query(effect)
            case _:
                assert_never(effect)

    # --- queries --------------------------------------------------------------------------------------

    def _start_query(self, effect: fx.StartQuery) -> None:
        stage = self.member.stages.get(effect.stage)
        if stage is None or stage.incarnation != effect.incarnation:
            return
        folder = self.world.folders[effect.stage, effect.generation, effect.incarnation]
        self.end(f"query {effect.stage}")
        self.spawn(f"query {effect.stage}", Query(self, stage, folder).run())

    def report(self, stage: Stage, fact: Callable[..., None], *args: int) -> None:
        """Reports a fact from a query's host in a separate turn; dropped if the next incarnation has begun."""
        if not self.alive or self.member.stages.get(stage.name) is not stage:
            return
        if self.paused:
            self.world.schedule(20, self.report, stage, fact, *args)
            return
        self.turn(lambda: fact(*args))

    # --- messages -------------------------------------------------------------------------------------

    def _watch_requests(self) -> None:
        """Lets the oracle see every request that the leader is given."""
        real = self.leader.on_message

        def on_message(message: Ack | Request) -> None:
            if type(message) is Request:
                self.world.chaos.askers.on_delivery(self, message.request_id)
            real(message)

        self.leader.on_message = on_message  # type: ignore[method-assign]

    def turn(self, task: Callable[[], object]) -> None:
        """Runs a task in a turn of its own."""
        self.member.now_ms = self.world.now_ms + self.skew_ms
        task()
        self._wake()

    def deliver(self, sender: str, data: bytes) -> None:
        if not self.alive:
            return
        if self.paused:
            self.mail.append((sender, data))
            return
        self.member.now_ms = self.world.now_ms + self.skew_ms
        try:
            message = _decode(data)
        except PeerError:
            return
        if self.recorder is not None:
            self.recorder.received(sender, message)
        match message:  # the most frequent first
            case LogGrown():
                self.member.on_log_grown(message)
            case Announcement():
                self.member.on_announcement(sender, message)
            case Ack() | Request():
                self.leader.on_message(message)
            case Heartbeat():
                self.member.on_heartbeat(message)
                self.leader.on_heartbeat(message)
            case AskRange() | FetchEntries() | HaveRange() | EntriesChunk() | Compacted():
                self.member.on_replay(sender, message)
            case SourcesDone():
                self.leader.on_sources_done(message)
            case Reply():
                pass  # it goes to the requester, not to a member
            case _:
                assert_never(message)
        self._wake()

    def notice(self, name: str, is_present: bool) -> None:
        """The links say that another member has appeared, or is gone."""
        if not self.alive:
            return
        self.turn(lambda: self.member.on_presence(name, is_present))

    def _wake(self) -> None:
        """Resumes the actors that the member has woken."""
        woken, self.member.woken = self.member.woken, []
        for name in woken:
            self.poke(name)

    # --- faults ---------------------------------------------------------------------------------------

    def crash(self) -> None:
        self.alive = False
        self.actors.clear()

    def pause(self) -> None:
        self.paused, self.paused_ms = True, self.world.now_ms

    def wake_up(self) -> None:
        """Continues where it was paused. Messages that it missed arrive soon, but its own timers may fire first."""
        self.paused = False
        self.woke_ms, self.woke_before_ms = self.world.now_ms, self.woke_ms
        backlog, self.backlog = self.backlog, []
        for actor, token, answer in backlog:
            self.world.schedule(0, self.resume, actor, token, answer)
        mail, self.mail = self.mail, []
        delay_ms = self.world.between(0, 5)
        for sender, data in mail:
            self.world.schedule(delay_ms, self.deliver, sender, data)

    def __str__(self) -> str:
        return f"{self.name}#{self.boot}"
