"""A member: one driver process that hosts some of the stages.

A member follows the journal, and the journal determines what it does: in which generation its stages run, for which
epochs they are cut, what its sinks publish. Announcements say that there is something to read, and carry the journal's
newest entry for members that lack only that one. Nothing in them counts unless it is in the journal, with one exception:
the leader's order to cut a checkpoint unaligned.

A member is a set of actors: procedures that the shell drives side by side, each until it waits. They share this object,
and none of them is interrupted between two effects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import TypeVar

from cutwater.protocol.base.barrier import Flags
from cutwater.protocol.base.chain import digest, follows
from cutwater.protocol.base.effects import (
    FAILED,
    FindState,
    Procedure,
    Send,
    Wait,
    ask,
)
from cutwater.protocol.base.errors import GraphChanged, StoreError, UserError
from cutwater.protocol.base.events import (
    CaughtUp,
    EpochCaptured,
    Event,
    StageFailed,
    StageGivenUp,
    TablePublished,
    TableRewound,
)
from cutwater.protocol.base.failures import FailureReason
from cutwater.protocol.base.log import follow
from cutwater.protocol.base.paths import entry_name, manifest_name, state_copies_prefix
from cutwater.protocol.base.records import (
    Aborted,
    BarrierAt,
    Begun,
    Manifest,
    SinkSpec,
    StageReport,
    Topology,
    encode,
    position_of,
)
from cutwater.protocol.base.replay_wire import AskRange, FetchEntries
from cutwater.protocol.base.replay_wire import Message as ReplayMessage
from cutwater.protocol.base.transitions import Table
from cutwater.protocol.base.watermark import UNKNOWN, lowest
from cutwater.protocol.base.wire import Ack, Announcement, Heartbeat, LogGrown, Phase, SourcesDone
from cutwater.protocol.member.activity import Pace
from cutwater.protocol.member.catchup import CatchUp
from cutwater.protocol.member.config import MemberConfig
from cutwater.protocol.member.ending import Ending
from cutwater.protocol.member.injector import BarrierInjector, Word
from cutwater.protocol.member.journal import Journal, begun_event
from cutwater.protocol.member.publish import CommitPermit, begin, duties, perform, read_manifest
from cutwater.protocol.member.stage import QueryEnd, Stage, StagePhase
from cutwater.protocol.member.stage_log import StageLog

T = TypeVar("T")


PATIENCE = 4
"""A query that failed because the machine was too busy is restarted this many times as often as others."""

LONGEST_BACKOFF_MS = 30_000

MAX_ASKED = 1_000
"""How many requests of members that are catching up may be queued; those members ask again."""


class CapturePhase(Enum):
    OPEN = "open"
    CAPTURED = "captured"
    REFUSED = "refused"
    DECIDED = "decided"


CAPTURE = Table(
    "capture",
    "One checkpoint, as a member sees it",
    CapturePhase.OPEN,
    {
        (CapturePhase.OPEN, "all_stages_cut"): CapturePhase.CAPTURED,
        (CapturePhase.OPEN, "stage_failed"): CapturePhase.REFUSED,
        (CapturePhase.OPEN, "decided"): CapturePhase.DECIDED,
        (CapturePhase.CAPTURED, "decided"): CapturePhase.DECIDED,
        (CapturePhase.REFUSED, "decided"): CapturePhase.DECIDED,
    },
)


class Member:
    """The state that the actors of one member share.

    The shell sets `now_ms` before each resumption. After it, the shell ends the actors in `ended`, spawns those in
    `spawned` and resumes those in `woken`. It may hand `events` to observers, which decide nothing. `word` makes the
    word of an injector.
    """

    def __init__(
        self, name: str, boot: str, topology: Topology, config: MemberConfig, word: Callable[[], Word]
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
        self.stages: dict[str, Stage] = {}
        self.timeless: frozenset[str] = frozenset()
        """The hosted stages whose plans have no event time; the shell says which, before anything starts."""
        self.native: frozenset[str] = frozenset()
        """The hosted stages with inputs that also read sources of their own; as above."""
        self.triggers_ms: Mapping[str, int] = {}
        """The trigger intervals of the hosted stages' queries; as above."""
        self.ticking: frozenset[str] = frozenset()
        """The hosted stages whose queries run batches as time passes, also without new data; as above."""
        self.wants_rest = False
        """Whether this process wants the pipeline drained. While it does, and leads, it keeps asking for a drain. The
        shell sets this for a signal; a cancellation clears it."""
        self.incarnations: dict[str, tuple[int, int]] = {}
        self.failures: dict[str, str] = {}
        """The stages that were given up, with the reason; the next generation starts them again."""
        self.hopeless = False
        """Whether one of them would always fail again: this member ends with the next checkpoint that fails."""
        self.tries: dict[str, int] = {}
        """Per stage, how often in a row its query has ended without a batch in between."""
        self.damage: str | None = None
        """Why the stages of the current generation cannot be started from the newest checkpoint."""
        self.given_up: str | None = None
        """Why this member should end: it has caused more failed checkpoints in a row than are tolerated."""
        self.unaligned: set[int] = set()
        self.acks: dict[int, Ack] = {}
        self.woken: list[str] = []
        self.spawned: dict[str, Procedure[None]] = {}
        self.ended: list[str] = []
        self.events: list[Event] = []
        """What has happened since the shell last took it from here. The core never reads it."""
        self._captures: dict[int, CapturePhase] = {}
        self._judged = 0
        self._own_failures: list[Aborted] = []
        self._asked: list[tuple[str, AskRange | FetchEntries]] = []
        self._word = word
        self._injectors: dict[str, BarrierInjector] = {}
        self._logs: dict[str, StageLog] = {}
        self._generation = 0
        self._heard = 0
        self._serving = False
        self._grown: set[str] = set()
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
        hosted = self.topology.hosted(self.name)
        roots = [self.stages.get(s) for s in hosted if not self.topology.stages[s].inputs]
        return self.config.once and self.live and all(root is not None and root.took_all for root in roots)

    @property
    def drained(self) -> bool:
        """Whether the run is over: the last epoch is committed and published everywhere, and nobody resumes."""
        return not self.resumes and self.ending.is_over

    def observe(self, event: Event) -> None:
        """Something has happened that observers may want to know."""
        self.events.append(event)

    def wake(self, actor: str) -> None:
        """Asks the shell to resume an actor that is waiting."""
        self.woken.append(actor)

    def log(self, stage: str) -> StageLog:
        """The log of a stage in the current generation, as far as this process knows it."""
        if stage not in self._logs:
            self._logs[stage] = StageLog(stage, self._generation)
        return self._logs[stage]

    def wake_readers(self, stage: str) -> None:
        """Wakes the hosted readers of a stage whose log has grown."""
        for reader in self.topology.readers(stage):
            if reader in self.stages:
                self.wake(f"stage {reader}")

    def notify_readers(self, stage: str) -> Procedure[None]:
        """Wakes the hosted readers of a stage whose log has grown, and notifies the members that host the others."""
        self.wake_readers(stage)
        hosts = {self.topology.stages[reader].member for reader in self.topology.readers(stage)}
        for host in sorted(hosts - {self.name}):
            yield Send(host, LogGrown(stage, self._generation, self.log(stage).view.last))

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
                self.manifest = found
                return found
            yield from follow(self.journal.view)
            if self.journal.state.head == checkpoint.epoch:  # it has not expired, so it is lost
                name = manifest_name(checkpoint.epoch, checkpoint.checkpoint_id)
                raise StoreError(
                    f"{name}, the manifest of the newest checkpoint, is missing; run `cutwater verify`, then "
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

    def take_effect(self) -> Procedure[None]:
        """Does what the journal asks of this member: go live, change generation, cut, publish."""
        state = self.journal.state
        if not self.live:
            self.live, self.resumes, self._judged = True, state.drained, self.journal.index
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
        if state.generation != self._generation and not state.drained:
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
            if begun.checkpoint_id > self._triggered and begun.generation == self._generation:
                self._triggered = begun.checkpoint_id
                self._trigger(begun.checkpoint_id, begun.flags)
        self._judge_failures()
        self._forget_decided()
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
        self.spawned["capture"] = self._capture()
        self.spawned["end"] = self.ending.run()

    def _start_generation(self) -> Procedure[None]:
        """Ends all stages of the previous generation and starts every hosted stage in the current one."""
        yield from self.head_manifest()
        generation = self.journal.state.generation
        if generation == self._generation:  # another actor has done this meanwhile
            return
        self.ended += [f"stage {name}" for name in self.stages]
        self._generation = generation
        self.failures, self.hopeless, self.tries, self.damage = {}, False, {}, None
        self._logs, self.stages, self.incarnations = {}, {}, {}
        self._grown.clear()
        self.acks, self._captures = {}, {}
        for name in self.topology.hosted(self.name):
            self.start_stage(name)
        remote = sorted(self._remote_inputs())
        if remote:
            self.ended.append("channels")
            self.spawned["channels"] = self._follow_channels(remote)

    def start_stage(self, name: str, pace: Pace | None = None) -> None:
        """Starts a new incarnation of a stage: at the start of a generation, after its query ended, or because it needs
        another pace. `None` is the usual pace."""
        injector = self._injectors.setdefault(name, BarrierInjector(self._word()))
        stage = Stage(self, self.topology.stages[name], self._generation, injector.handle(), pace)
        self.stages[name] = stage
        self.spawned[f"stage {name}"] = stage.run()
        for begun in self.journal.state.open.values():
            injector.trigger(begun.checkpoint_id, begun.flags)

    def query_ended(self, name: str, end: QueryEnd, error: str) -> int | None:
        """Handles the end of a running stage's query. Returns in how many ms the next query starts, or `None` if the
        stage is given up: then this member refuses every checkpoint with this error, until the next generation."""
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

    def _remote_inputs(self) -> set[str]:
        hosted = self.topology.hosted(self.name)
        return {i for s in hosted for i in self.topology.stages[s].inputs} - set(hosted)

    def _hosted_sinks(self) -> list[SinkSpec]:
        return [k for s in self.topology.hosted(self.name) for k in self.topology.stages[s].sinks]

    def _follow_channels(self, producers: list[str]) -> Procedure[None]:
        """The actor that follows the logs of stages on other members that hosted stages read."""
        while True:
            grown, self._grown = sorted(self._grown), set()
            for name in grown or producers:
                if (yield from follow(self.log(name).view)):
                    self.wake_readers(name)
            if not self._grown:
                yield Wait(self.config.poll_ms)

    # --- messages -------------------------------------------------------------------------------------

    def on_announcement(self, sender: str, announcement: Announcement) -> None:
        """Handles an announcement of the leader. Its term and journal index decide nothing; the journal does. From any
        other member than the leader that the journal names, it is only a reason to read the store."""
        self.catch_up.on_announcement(sender, announcement)
        if sender != self.journal.state.leader:
            self._hear(announcement.index)
            return
        if announcement.phase is Phase.PREPARE and announcement.flags & Flags.UNALIGNED:
            self.unaligned.add(announcement.checkpoint_id)
            self._trigger(announcement.checkpoint_id, announcement.flags)
            for name in self.stages:
                self.wake(f"stage {name}")
        self._take_entry(announcement)
        self._hear(announcement.index)

    def _take_entry(self, announcement: Announcement) -> None:
        """Applies the announced journal entry if it is the next one: what is announced is durable. Any other entry is
        read from the store."""
        view = self.journal.view
        if not self.live or announcement.index != view.last + 1:
            return
        try:
            sealed = view.open(entry_name(view.prefix, announcement.index), bytes(announcement.entry))
        except StoreError:
            return
        if follows(view.entries[-1] if view.entries else None, sealed):
            view.push(sealed)
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
        if grown.stage not in self.topology.stages:
            return
        if grown.generation == self._generation and grown.index > self.log(grown.stage).view.last:
            self._grown.add(grown.stage)
            self.wake("channels")

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

    # --- this member's part of a checkpoint -------------------------------------------------------------

    def _capture(self) -> Procedure[None]:
        """The actor that acks when all stages of this member have been cut."""
        while True:
            for epoch in sorted(self.journal.state.open):
                begun = self.journal.state.open.get(epoch)
                if begun is not None and (begun.generation == self._generation or self.damage):
                    yield from self._capture_one(begun)
            for ack in list(self.acks.values()):
                yield Send(self.journal.state.leader, ack)
            if self.sources_done and self.journal.state.leader not in (None, self.name):
                done = SourcesDone(self.name, self.boot, self._generation)
                yield Send(self.journal.state.leader, done)
            yield Wait(self.config.resend_ms)

    def _capture_one(self, begun: Begun) -> Procedure[None]:
        if begun.checkpoint_id in self.acks:
            return
        if self.failures or self.damage:
            failed = [f"stage {s} failed: {e}" for s, e in sorted(self.failures.items())]
            error = "; ".join([*failed, self.damage] if self.damage else failed)
            self._acknowledge(begun, "stage_failed", error, {})
            return
        barriers: dict[str, BarrierAt] = {}
        for name in self.topology.hosted(self.name):
            at = self.log(name).state.barriers.get(begun.epoch)
            if at is None or at.checkpoint_id != begun.checkpoint_id:
                return
            barriers[name] = at
        reports: dict[str, StageReport] = {}
        for name, at in barriers.items():
            report = yield from self._report(begun, name, at)
            if report is None:
                return
            reports[name] = report
        if begun.epoch in self.journal.state.open:
            self._acknowledge(begun, "all_stages_cut", None, reports)

    def _report(self, begun: Begun, name: str, at: BarrierAt) -> Procedure[StageReport | None]:
        copy_to = None
        if begun.flags & Flags.FULL_SNAPSHOT:
            copy_to = state_copies_prefix(begun.epoch, begun.checkpoint_id, name)
        files = yield from ask(FindState(name, begun.generation, at.incarnation, at.batch, copy_to))
        if files is FAILED:
            return None
        if files is None:
            error = f"the state of stage {name} at batch {at.batch} is missing"
            self._acknowledge(begun, "stage_failed", error, {})
            return None
        return StageReport(name, at.incarnation, at.batch, at.unaligned, files, **position_of(at))

    def _acknowledge(
        self, begun: Begun, event: str, error: str | None, reports: dict[str, StageReport]
    ) -> None:
        phase = self._captures.get(begun.checkpoint_id, CAPTURE.start)
        self._captures[begun.checkpoint_id] = CAPTURE.next(phase, event)
        watermark = lowest(r.watermark for r in reports.values()) if error is None else UNKNOWN
        self.acks[begun.checkpoint_id] = Ack(
            member=self.name,
            boot=self.boot,
            epoch=begun.epoch,
            checkpoint_id=begun.checkpoint_id,
            term=begun.term,
            ok=error is None,
            error=error,
            watermark=watermark,
            reports=reports,
        )
        if error is None:
            self.observe(EpochCaptured(begun.epoch))

    def _forget_decided(self) -> None:
        live = {begun.checkpoint_id for begun in self.journal.state.open.values()}
        for checkpoint_id in [c for c in self.acks if c not in live]:
            del self.acks[checkpoint_id]
            CAPTURE.next(self._captures.pop(checkpoint_id), "decided")
        self.unaligned &= live

    # --- failed checkpoints -----------------------------------------------------------------------------

    def _judge_failures(self) -> None:
        """Counts the checkpoints in a row that have failed because of this member since it started. Other members count
        their own: a bad stage ends its own member, not one leader after the other."""
        state = self.journal.state
        head = state.committed.get(state.head) if state.head is not None else None
        since = state.generations[state.generation].index
        if head is not None and head.generation == state.generation:
            since = max(since, head.checkpoint_id)  # a commit resets the count
        for aborted in state.aborted:
            if aborted.checkpoint_id > self._judged:
                self._judged = aborted.checkpoint_id
                if self._is_to_blame(aborted):
                    self._own_failures.append(aborted)
        self._own_failures = [a for a in self._own_failures if a.checkpoint_id > since]
        tolerated, failed = self.config.tolerated_failures, self._own_failures
        if tolerated is not None and len(failed) > (0 if self.hopeless else tolerated):
            last = f"the last with {failed[-1].reason}: {failed[-1].detail}"
            self.given_up = f"{len(failed)} checkpoints in a row have failed because of this member, {last}"

    def _is_to_blame(self, aborted: Aborted) -> bool:
        reason = FailureReason[aborted.reason.upper()]
        if reason is FailureReason.MEMBER_REFUSED:
            ack = self.acks.get(aborted.checkpoint_id)
            return ack is not None and not ack.ok
        if reason is FailureReason.DEADLINE:
            return self._was_late(aborted)
        return reason.counts  # the store is damaged, for all members alike

    def _was_late(self, aborted: Aborted) -> bool:
        """Whether the others waited for this member: nobody under its name had acked by the deadline, and a stage of
        its own could have been cut without waiting for another stage's barrier."""
        if self.name not in aborted.late or aborted.checkpoint_id in self.acks:
            return False
        if aborted.generation != self._generation:
            return False
        epoch = aborted.epoch
        uncut = [n for n in self.topology.hosted(self.name) if epoch not in self.log(n).state.barriers]
        inputs = {n: self.topology.stages[n].inputs for n in uncut}
        ready = [n for n in uncut if all(epoch in self.log(i).state.barriers for i in inputs[n])]
        return not uncut or bool(ready)

    # --- publishing -----------------------------------------------------------------------------------

    def _publish(self, sink: str) -> Procedure[None]:
        """The actor that brings one sink to the state that the journal requires, in order (rule 8)."""
        done = yield from begin(sink, self.journal)
        while True:
            self.ending.on_published(sink, done)
            for duty in duties(self.journal.state, done):
                mark = yield from perform(sink, duty)
                if mark is not None:
                    kind = TablePublished if isinstance(duty, CommitPermit) else TableRewound
                    self.observe(kind(sink, mark.epoch, mark.version))
                done = duty.index
                break  # the journal may have grown meanwhile, and have abandoned the next duty
            else:
                yield Wait(self.config.poll_ms)
