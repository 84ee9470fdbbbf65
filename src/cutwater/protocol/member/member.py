"""A member: one driver process that hosts some of the stages.

A member follows the journal, and the journal determines what it does: in which generation its stages run, for which
epochs they are cut, what its sinks publish. Announcements say that there is something to read, and carry the journal's
newest entry for members that lack only that one. Nothing in them counts unless it is in the journal, with one exception:
the leader's order to cut a checkpoint unaligned.

A member is a set of actors: procedures that the shell drives side by side, each until it waits. They share this object,
and none of them is interrupted between two effects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from cutwater.protocol.base.barrier import Flags
from cutwater.protocol.base.chain import digest
from cutwater.protocol.base.effects import (
    Pace,
    Procedure,
    Send,
    Wait,
)
from cutwater.protocol.base.errors import VERIFY_FIRST, GraphChanged, StoreError, UserError
from cutwater.protocol.base.events import (
    CaughtUp,
    Event,
    StageFailed,
    StageGivenUp,
    TablePublished,
    TableRewound,
)
from cutwater.protocol.base.log import follow, take_announced
from cutwater.protocol.base.paths import manifest_name
from cutwater.protocol.base.records import (
    Manifest,
    SinkSpec,
    Topology,
    encode,
)
from cutwater.protocol.base.replay_wire import AskRange, FetchEntries
from cutwater.protocol.base.replay_wire import Message as ReplayMessage
from cutwater.protocol.base.wire import Announcement, Heartbeat, LogGrown, Phase
from cutwater.protocol.member.capture import Capture
from cutwater.protocol.member.catchup import CatchUp
from cutwater.protocol.member.config import MemberConfig, StagePlan
from cutwater.protocol.member.ending import Ending
from cutwater.protocol.member.injector import BarrierInjector, Word
from cutwater.protocol.member.journal import Journal, begun_event
from cutwater.protocol.member.next_query import Misconfigured, QueryEnd
from cutwater.protocol.member.own_failures import OwnFailures
from cutwater.protocol.member.publish import (
    CommitPermit,
    Duty,
    Patience,
    begin,
    duties,
    in_force,
    perform,
    read_manifest,
)
from cutwater.protocol.member.stage import Stage, StagePhase
from cutwater.protocol.member.stage_log import StageLog
from cutwater.protocol.member.stage_logs import StageLogs

T = TypeVar("T")


PATIENCE = 4
"""A query that failed because the machine was too busy is restarted this many times as often as others."""

LONGEST_BACKOFF_MS = 30_000

MAX_ASKED = 1_000
"""How many requests of members that are catching up may be queued; those members ask again."""


class Member:
    """The state that the actors of one member share.

    The shell sets `now_ms` before each resumption. After it, the shell ends the actors in `ended`, spawns those in
    `spawned` and resumes those in `woken`. It may hand `events` to observers, which decide nothing. `word` makes the
    word of an injector. `plans`: of the hosted stages, as far as they differ from the usual.
    """

    def __init__(
        self,
        name: str,
        boot: str,
        topology: Topology,
        config: MemberConfig,
        word: Callable[[], Word],
        plans: Mapping[str, StagePlan] | None = None,
    ) -> None:
        if name not in topology.members():
            raise UserError(
                f"no stage names member '{name}'; the members are {', '.join(topology.members())}"
            )
        self.name = name
        self.boot = boot
        self.topology = topology
        self._topology_hash = digest(encode(topology))
        self.config = config
        self.now_ms = 0
        self.live = False
        self.resumes = False
        self.journal = Journal()
        peers = [peer for peer in topology.members() if peer != name]
        self.catch_up = CatchUp(self.journal, peers, config.replay, config.small_gap, lambda: self.now_ms)
        own = [sink for sink, stage in topology.sinks().items() if topology.stages[stage].member == name]
        self.ending = Ending(self.journal, topology, own, config.poll_ms)
        self.manifest: Manifest | None = None
        self.generation = 0
        """The generation whose stages run here."""
        self._logs = StageLogs(self)
        self._capture = Capture(self)
        self._own_failures = OwnFailures(self)
        self.stages: dict[str, Stage] = {}
        known = plans if plans is not None else {}
        self.plans = {stage: known.get(stage, StagePlan()) for stage in topology.hosted(name)}
        self.wants_rest = False
        """Whether this process wants the pipeline drained. While it does, and leads, it keeps asking for a drain."""
        self.incarnations: dict[str, tuple[int, int]] = {}
        self.failures: dict[str, str] = {}
        """The stages that were given up, with the reason; the next generation starts them again."""
        self.hopeless = False
        """Whether one of them would always fail again: this member ends with the next checkpoint that fails."""
        self.tries: dict[str, int] = {}
        """Per stage, how often in a row its query has ended without a batch in between."""
        self.worked: set[str] = set()
        """The stages whose queries have begun a batch in this run."""
        self.misconfigured: Misconfigured | None = None
        """Why the run must end at once, and be started with another configuration."""
        self.damage: str | None = None
        """Why the stages of the current generation cannot be started from the newest checkpoint."""
        self.given_up: str | None = None
        """Why this member should end: it has caused more failed checkpoints in a row than are tolerated."""
        self.unaligned: set[int] = set()
        self.woken: list[str] = []
        self.spawned: dict[str, Procedure[None]] = {}
        self.ended: list[str] = []
        self.events: list[Event] = []
        """What has happened since the shell last took it from here. The core never reads it."""
        self._asked: list[tuple[str, AskRange | FetchEntries]] = []
        self._word = word
        self._injectors: dict[str, BarrierInjector] = {}
        self._heard = 0
        self._serving = False
        self._triggered = 0
        self._nonces = 0

    # --- small things the actors share ----------------------------------------------------------------

    def nonce(self) -> str:
        """A string that is unique to this attempt to write something."""
        self._nonces += 1
        return f"{self.name}-{self.boot}-{self._nonces}"

    @property
    def superseded(self) -> bool:
        """Whether another process of this member has opened one of its stages. Then this process should end and say
        why; its supervisor may start it again when the other one is gone."""
        return any(stage.phase is StagePhase.FENCED for stage in self.stages.values())

    @property
    def sources_done(self) -> bool:
        """With `once`: whether the sources of this member's stages are exhausted."""
        if not self.config.once or not self.live:
            return False
        hosted = self.topology.hosted(self.name)
        roots = [self.stages.get(s) for s in hosted if not self.topology.stages[s].inputs]
        return all(root is not None and root.took_all for root in roots)

    @property
    def drained(self) -> bool:
        """Whether the run is over: the last epoch is committed and published everywhere, and nobody resumes."""
        return not self.resumes and self.ending.is_over

    def want_rest(self) -> None:
        """This process wants the pipeline drained, until somebody cancels that."""
        self.wants_rest = True
        self.wake("lead")

    def observe(self, event: Event) -> None:
        """Something has happened that observers may want to know."""
        self.events.append(event)

    def wake(self, actor: str) -> None:
        """Asks the shell to resume an actor that is waiting."""
        self.woken.append(actor)

    def log(self, stage: str) -> StageLog:
        """The log of a stage in the current generation, as far as this process knows it."""
        return self._logs.log(stage)

    def wake_readers(self, stage: str) -> None:
        """Wakes the hosted readers of a stage whose log has grown."""
        for reader in self.topology.readers(stage):
            if reader in self.stages:
                self.wake(f"stage {reader}")

    def notify_readers(self, stage: str) -> Procedure[None]:
        """The log of a hosted stage has grown: notifies its readers, here and on other members."""
        return self._logs.notify_readers(stage)

    def head_manifest(self) -> Procedure[Manifest | None]:
        """The manifest of the newest checkpoint in this timeline, according to the journal as it is known when this
        returns; also kept in `manifest`."""
        while True:
            state = self.journal.state
            if state.head is None:
                return None
            checkpoint = state.committed[state.head]
            if self.manifest is not None and self.manifest.epoch == checkpoint.epoch:
                return self.manifest
            found = yield from read_manifest(checkpoint)
            if self.journal.state.head != checkpoint.epoch:
                continue  # the head has moved on meanwhile: what was read is outdated
            if found is not None:
                self.manifest = found = in_force(found, state)
                return found
            yield from follow(self.journal.view)
            if self.journal.state.head == checkpoint.epoch:  # it has not expired, so it is lost
                name = manifest_name(checkpoint.epoch, checkpoint.checkpoint_id)
                raise StoreError(
                    f"{name}, the manifest of the newest checkpoint, is missing; {VERIFY_FIRST}"
                    "restore an older checkpoint"
                )

    # --- following ------------------------------------------------------------------------------------

    def follow_journal(self) -> Procedure[None]:
        """The actor that follows the journal and puts new entries into effect."""
        effective = -1
        yield from self.catch_up.run()
        while True:
            if self.journal.index == effective or self.journal.index < self._heard:
                yield from follow(self.journal.view, self._heard)
            if self.journal.index != effective:
                effective = self.journal.index
                yield from self.take_effect()
            yield Wait(self.config.poll_ms)

    def _was_drained(self) -> bool:
        """Whether the pipeline was drained when this process first looked, so that whoever started it wants to go on. A
        process that was starting while the pipeline was drained ends with the others."""
        state, found = self.journal.state, self.catch_up.found
        if not state.drained or state.head not in state.committed or found is None:
            return state.drained
        return state.committed[state.head].index <= found

    def take_effect(self) -> Procedure[None]:
        """Does what the journal asks of this member: go live, change generation, cut, publish."""
        state = self.journal.state
        if not self.live:
            self.live, self.resumes = True, self._was_drained()
            self._own_failures.start()
            self._observe_journal()
        if not state.drained:
            self.resumes = False
        if state.topology is None:
            return
        if state.topology_hash != self._topology_hash:
            raise GraphChanged(
                "the pipeline's graph has changed since this member was started; start it again, and it takes the new "
                "graph from the journal"
            )
        if not self._serving:
            self._serve()
        if state.generation != self.generation and not state.drained:
            try:
                yield from self._start_generation()
            except (
                StoreError
            ) as error:  # nothing starts, but a restore to an older checkpoint is still possible
                self.damage = str(error)
        for name, stage in self.stages.items():
            if stage.phase is StagePhase.STOPPED and not state.drained:
                self.start_stage(name)  # the pipeline was drained, and is started again
        for begun in state.open.values():
            if begun.checkpoint_id > self._triggered and begun.generation == self.generation:
                self._triggered = begun.checkpoint_id
                self._trigger(begun.checkpoint_id, begun.flags)
        self.given_up = self._own_failures.judge(self._capture.acks) or self.given_up
        self._capture.forget_decided()
        self.unaligned &= {begun.checkpoint_id for begun in state.open.values()}
        for actor in ("capture", "lead", "end", *(f"stage {s}" for s in self.stages)):
            self.wake(actor)
        for sink in self._hosted_sinks():
            self.wake(f"publish {sink.name}")

    def _observe_journal(self) -> None:
        """From now on this member emits what the journal's new entries make happen."""
        self.observe(CaughtUp(self.journal.index))
        for begun in self.journal.state.open.values():
            self.observe(begun_event(self.journal.state, begun))
        self.journal.observe = self.observe

    def _serve(self) -> None:
        """Starts the actors that every generation needs; epochs that are committed but not published come first."""
        self._serving = True
        for sink in self._hosted_sinks():
            self.spawned[f"publish {sink.name}"] = self._publish(sink.name)
        self.spawned["capture"] = self._capture.run()
        self.spawned["end"] = self.ending.run()

    def _start_generation(self) -> Procedure[None]:
        """Ends all stages of the previous generation and starts every hosted stage in the current one."""
        yield from self.head_manifest()
        generation = self.journal.state.generation
        if generation == self.generation:  # another actor has done this meanwhile
            return
        self.ended += [f"stage {name}" for name in self.stages]
        self.generation = generation
        self.failures, self.hopeless, self.tries, self.damage = {}, False, {}, None
        self.stages, self.incarnations = {}, {}
        self._logs.forget()
        self._capture.forget_all()
        for name in self.topology.hosted(self.name):
            self.start_stage(name)
        remote = self._logs.remote()
        if remote:
            self.ended.append("channels")
            self.spawned["channels"] = self._logs.follow_remote(remote)

    def start_stage(self, name: str, pace: Pace | None = None) -> None:
        """Starts a new incarnation of a stage: at the start of a generation, after its query ended, or because it needs
        another pace. `None` is the usual pace."""
        injector = self._injectors.setdefault(name, BarrierInjector(self._word()))
        stage = Stage(self, self.topology.stages[name], self.generation, injector.handle(), pace)
        self.stages[name] = stage
        self.spawned[f"stage {name}"] = stage.run()
        for begun in self.journal.state.open.values():
            injector.trigger(begun.checkpoint_id, begun.flags)

    def query_ended(self, name: str, end: QueryEnd, error: str) -> int | None:
        """Handles the end of a running stage's query. Returns in how many ms the next query starts, or `None` if the
        stage is given up: then this member refuses every checkpoint with this error, until the next generation. An error
        of the configuration ends the run."""
        if end is QueryEnd.UNFIT or (end is QueryEnd.REFUSED and name not in self.worked):
            self.misconfigured = Misconfigured(name, end, error)
            return None
        tries = self.tries[name] = self.tries.get(name, 0) + 1
        most = self.config.restarts * (PATIENCE if end is QueryEnd.OVERLOADED else 1)
        if end is QueryEnd.HOPELESS or tries > most:
            self.failures[name] = error
            self.hopeless |= end is QueryEnd.HOPELESS
            self.wake("capture")
            self.observe(StageGivenUp(name, error, tries))
            return None
        after_ms = min(
            self.config.backoff_ms << min(tries - 1, 16), max(LONGEST_BACKOFF_MS, self.config.backoff_ms)
        )
        self.observe(StageFailed(name, error, end is QueryEnd.STOPPED, tries, most, after_ms))
        return after_ms

    def _hosted_sinks(self) -> list[SinkSpec]:
        return [k for s in self.topology.hosted(self.name) for k in self.topology.stages[s].sinks]

    # --- messages -------------------------------------------------------------------------------------

    def on_announcement(self, sender: str, announcement: Announcement) -> None:
        """Handles an announcement of the leader. Its term and journal index decide nothing; the journal does. From any
        other member than the leader that the journal names, it is only a reason to read the store."""
        self.catch_up.on_announcement(sender, announcement)
        if sender != self.journal.state.leader:
            self._hear(announcement.index)
            return
        if announcement.phase is Phase.PREPARE and announcement.flags.has(Flags.UNALIGNED):
            self.unaligned.add(announcement.checkpoint_id)
            self._trigger(announcement.checkpoint_id, announcement.flags)
            for name in self.stages:
                self.wake(f"stage {name}")
        self._take_entry(announcement)
        self._hear(announcement.index)

    def _take_entry(self, announcement: Announcement) -> None:
        if self.live and take_announced(self.journal.view, announcement.index, bytes(announcement.entry)):
            self.wake("journal")

    def on_heartbeat(self, heartbeat: Heartbeat) -> None:
        """Handles a heartbeat, whose sender may know more of the journal."""
        self.catch_up.on_heartbeat(heartbeat)
        self._hear(heartbeat.index)

    def _hear(self, index: int) -> None:
        """Reads the journal up to `index` soon: another member says that it goes that far."""
        if index > self.journal.index:
            self._heard = index
            self.wake("journal")

    def on_presence(self, peer: str, is_present: bool) -> None:
        """The links have lost another member, or found it (again). Only a catch-up needs to know."""
        self.catch_up.on_presence(peer, is_present)
        if self.catch_up.session is not None:
            self.wake("journal")

    def on_log_grown(self, grown: LogGrown) -> None:
        """Follows the log of a stage on another member, which has grown."""
        self._logs.on_grown(grown)

    def on_replay(self, peer: str, message: ReplayMessage) -> None:
        """Handles a question of a member that is catching up, or an answer for this member's own catch-up."""
        if isinstance(message, AskRange | FetchEntries):
            if len(self._asked) < MAX_ASKED:
                self._asked.append((peer, message))
                self.wake("provide")
        else:
            self.catch_up.on_message(peer, message)
            self.wake("journal")

    def provide(self) -> Procedure[None]:
        """The actor that serves the journal to others, also while this member is catching up itself."""
        while True:
            while self._asked:
                peer, message = self._asked.pop(0)
                yield Send(peer, self.journal.provider.answer(message))
            yield Wait(self.config.resend_ms * 100)

    def _trigger(self, checkpoint_id: int, flags: int) -> None:
        """Triggers the appenders that cut without waiting for a barrier: those of roots, or all if unaligned."""
        for name in self.stages:
            if not self.topology.stages[name].inputs or flags & Flags.UNALIGNED:
                self._injectors[name].trigger(checkpoint_id, flags)

    # --- publishing -----------------------------------------------------------------------------------

    def _only_publishes(self) -> bool:
        """Whether the pipeline is drained, so that a run ends as soon as everything is published."""
        return self.live and self.journal.state.drained and not self.resumes

    def _duties(self, sink: str, done: int) -> Iterable[Duty]:
        """What the journal requires of a sink; nothing of one that a restore has dropped, whose table stays as it is."""
        graph = self.journal.state.topology
        return duties(self.journal.state, done) if graph is not None and sink in graph.sinks() else ()

    def _publish(self, sink: str) -> Procedure[None]:
        """The actor that brings one sink to the state that the journal requires, in order (rule 8)."""
        config = self.config
        patience = Patience(self._only_publishes, config.publish_tries, config.backoff_ms)
        done = yield from begin(sink, self.journal, patience)
        while True:
            self.ending.on_published(sink, done)
            for duty in self._duties(sink, done):
                mark = yield from perform(sink, duty, patience)
                if mark is not None:
                    kind = TablePublished if isinstance(duty, CommitPermit) else TableRewound
                    self.observe(kind(sink, mark.epoch, mark.version))
                done = duty.index
                break  # the journal may have grown in the meantime, and have abandoned the next duty
            else:
                yield Wait(self.config.poll_ms)
