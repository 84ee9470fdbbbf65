"""A running member: connects the protocol core with the store, Spark's queries, the sinks and the other members.

The core (`protocol/`) decides. The runtime performs its effects, keeps the feeds of the queries current, reports to the
core what the queries do, and moves requests and status through the store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from importlib import metadata
from threading import Event, Lock
from typing import assert_never

import msgspec

from cutwater.cluster.links import Heard, Hint, Links, Presence
from cutwater.plan.build import PlannedPipeline
from cutwater.protocol.base import effects as fx
from cutwater.protocol.base.errors import CutwaterError, PublishingFailed, StoreError, UserError
from cutwater.protocol.base.events import CatchingUp, SecondProcess
from cutwater.protocol.base.performer import perform
from cutwater.protocol.base.records import Checkpoint, JournalState, Manifest, StageReport
from cutwater.protocol.base.replay_wire import AskRange, Compacted, EntriesChunk, FetchEntries, HaveRange
from cutwater.protocol.base.wire import Ack, Announcement, Heartbeat, LogGrown, Reply, Request, SourcesDone
from cutwater.protocol.leader.inbox import Inbox
from cutwater.protocol.leader.leader import Leader
from cutwater.protocol.member.config import StagePlan
from cutwater.protocol.member.member import Member
from cutwater.runtime.dispatcher import Dispatcher, Observer
from cutwater.runtime.effects import MemberPerformer
from cutwater.runtime.event_lines import EventLines
from cutwater.runtime.kafka_groups import KafkaGroups
from cutwater.runtime.local_word import LocalWord
from cutwater.runtime.mailbox import Mailbox
from cutwater.runtime.member_status import About, Report, StageRules, status_of
from cutwater.runtime.reporter import Reporter
from cutwater.runtime.settings import Settings
from cutwater.runtime.shell import Shell
from cutwater.runtime.status_facts import StatusFacts
from cutwater.runtime.timings import RuleRows, Timings
from cutwater.runtime.troubles import Troubles
from cutwater.runtime.violations import Known, Violations, known_of
from cutwater.sinks.cleanup import tidy
from cutwater.sinks.contract import Sink
from cutwater.spark.checkpoint.folder import Cache
from cutwater.spark.errors import misconfigured, spark_is_gone
from cutwater.spark.host import StageHost
from cutwater.spark.host_context import HostContext
from cutwater.spark.internals.gateway import is_spark_gone
from cutwater.spark.rules import Rules
from cutwater.spark.stage import PlannedStage
from cutwater.store import failpoints, recording
from cutwater.store.at_rest import load_manifest
from cutwater.store.contract import Store
from cutwater.store.stage_status import RuleStatus
from cutwater.store.status import Status
from cutwater.telemetry.checkpoint_sizes import CheckpointSizes
from cutwater.telemetry.measures import Measures
from cutwater.telemetry.traces import new_traces

DISCARD_FIRST_S = 60.0
DISCARD_EVERY_S = 600.0
NO_ROWS = RuleRows(0, 0)
TIDYING = "removing staged leftovers"
JOURNAL_STATE = msgspec.json.Decoder(JournalState)
JOURNAL_STATE_BYTES = msgspec.json.Encoder().encode


class Runtime:
    """One member of a pipeline, running in this process. `log` is called with the log lines."""

    def __init__(
        self,
        planned: PlannedPipeline,
        store: Store,
        name: str,
        boot: str,
        settings: Settings,
        log: Callable[[str], None],
        links: Links,
    ) -> None:
        self.planned = planned
        self.store = store
        self.links = links
        self.boot = boot
        hosted = planned.topology.hosted(name)
        plans = {s: _plan_of(planned.stages[s]) for s in hosted}
        self.member = Member(name, boot, planned.topology, settings.member, LocalWord, plans)
        self.leader = Leader(self.member, settings.leader)
        self.sinks: Mapping[str, Sink] = planned.sinks
        self.troubles = Troubles(lambda event: self.dispatcher.emit(event))
        self.facts = StatusFacts(self.troubles)
        self.measures = Measures()
        self.caches = {s: Cache() for s in planned.topology.stages}
        self._rules = {s: rules for s in hosted if (rules := planned.stages[s].rules) is not None}
        names = {s: tuple(rules.conditions) for s, rules in self._rules.items()}
        self.violations = Violations(store, names, self._known_of, self.caches)
        observers: dict[str, Observer] = {
            "log lines": EventLines(name, log), "status": self.facts, "metrics": self.measures,
            "timings": Timings(store, name, self._kept_epochs, self.violations.at),
            "sizes": CheckpointSizes(store, self.measures, self._newest_manifest),
        }  # fmt: skip
        if self._rules:
            observers["bad rows"] = self.violations
        traces = new_traces(planned.name, name, planned.topology)
        if traces is not None:
            observers["traces"] = traces
        groups = {s: group for s in hosted if (group := planned.stages[s].commit_group) is not None}
        if groups:
            observers["Kafka groups"] = KafkaGroups(groups, self._newest_reports, self._commit_group, log)
        self.dispatcher = Dispatcher(observers, log)
        emit = self.dispatcher.emit
        self.done = Event()
        self.drained = False
        """Whether the last epoch is committed and published everywhere, as of the last turn."""
        self.failure: BaseException | None = None
        self.recorder = recording.from_environment(self.member)
        self.hosts: dict[str, StageHost] = {}
        self._performer = performer = MemberPerformer(
            store, planned.sinks, self.hosts, planned.spark.conf.get, emit, self.caches
        )
        act, send = recording.watched(self.recorder, partial(perform, performer), self._send)
        self.shell = Shell(
            self.member, act, send, self._on_ended, self._after_step, self._on_failure, performer.apart, emit,
            self.troubles,
        )  # fmt: skip
        context = self._host_context()
        self.hosts |= {s: StageHost(context, planned.stages[s]) for s in hosted}
        self.mailbox = Mailbox(
            store, Inbox(self.leader), links, self.shell, emit, lambda: self.failure, troubles=self.troubles
        )
        self.reporter = Reporter(
            name,
            boot,
            store,
            links,
            self.shell.look,
            self._status,
            {name: host.measure for name, host in self.hosts.items()},
            emit,
            _about(planned),
            self.troubles,
        )
        self._stopping = False
        self._has_second_process = False
        self._acked = 0
        self._progress_ms = 0

    def _newest_manifest(self, epoch: int) -> Manifest | None:
        """The manifest of a checkpoint; `None` if there is a newer one."""
        checkpoint = self.shell.look(lambda: self._newest(epoch))
        return load_manifest(self.store, checkpoint) if checkpoint is not None else None

    def _newest_reports(self, epoch: int) -> Mapping[str, StageReport] | None:
        """The stages' part of a checkpoint; `None` if there is a newer one."""
        manifest = self._newest_manifest(epoch)
        return manifest.stages if manifest is not None else None

    def _newest(self, epoch: int) -> Checkpoint | None:
        state = self.member.journal.state
        return state.committed.get(epoch) if state.head == epoch else None

    def _commit_group(self, stage: str, group: str, report: StageReport) -> None:
        self.hosts[stage].kafka.commit(group, report.offsets)

    def _kept_epochs(self) -> set[int]:
        return self.shell.look(lambda: set(self.member.journal.state.committed))

    def _known_of(self, epoch: int | None) -> Known | None:
        return self.shell.look(lambda: known_of(self.member, epoch))

    def _host_context(self) -> HostContext:
        """What the hosts of the stages need from this process."""
        shell = self.shell
        return HostContext(
            pipeline=self.planned.name,
            spark=self.planned.spark,
            store=self.store,
            caches=self.caches,
            find=lambda name: self.member.stages.get(name),
            look=shell.look,
            call=shell.call,
            work=shell.work,
            starting=Lock() if any(p.ticks for p in self.member.plans.values()) else nullcontext(),
        )

    # --- life -----------------------------------------------------------------------------------------

    def start(self) -> None:
        self.shell.spawn("journal", self.member.follow_journal())
        self.shell.spawn("lead", self.leader.run())
        self.shell.spawn("beat", self.leader.beat())
        self.shell.spawn("provide", self.member.provide())
        self.dispatcher.start()
        self.shell.start()
        self.links.start(self._on_message)
        self.mailbox.start()
        self.reporter.start()

        self.shell.call(lambda: self.shell.later(DISCARD_FIRST_S, self._discard_later))

    def _discard_later(self) -> None:
        self.shell.later(DISCARD_EVERY_S, self._discard_later)
        state = self.member.journal.state
        if state.head is not None:
            known = JOURNAL_STATE.decode(JOURNAL_STATE_BYTES(state))
            self.shell.work(lambda: self._discard(known))

    def _discard(self, state: JournalState) -> None:
        """Removes staged output that nobody will publish, and table history that no restore will need. Failures are
        retried with the next run of this task."""
        try:
            manifests = [load_manifest(self.store, checkpoint) for checkpoint in state.committed.values()]
            for stage in self.hosts.values():
                for sink in stage.planned.sinks:
                    tidy(sink, stage.name, state, manifests)
            self.troubles.worked(TIDYING)
        except (OSError, StoreError) as error:
            self.troubles.failed(TIDYING, str(error))

    def request(self, request: Request, timeout_s: float) -> Reply:
        """Sends a request to the leader and waits for the answer. Raises `UserError` if there is none in time."""
        return self.mailbox.ask(request, timeout_s)

    def stop(self) -> None:
        """Ends everything at once. The next start repeats what is not committed."""
        if self._stopping:
            return
        self._stopping = True
        for host in self.hosts.values():
            host.close()
        self.shell.stop()
        for host in self.hosts.values():
            host.join()
        self.dispatcher.close()
        if self.recorder is not None:
            self.recorder.ended("stopped" if self.failure is None else f"failed: {self.failure}")
        self.reporter.stop("failed" if self.failure is not None else "drained" if self.drained else "stopped")
        self.mailbox.stop()
        self.links.close()
        self.done.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits until the pipeline has been drained or has failed; `False` if it is still running after the timeout."""
        return self.done.wait(timeout_s)

    def _on_failure(self, error: BaseException) -> None:
        if self.failure is None:
            gone = not isinstance(error, CutwaterError) and is_spark_gone(error)
            self.failure = UserError(spark_is_gone(error)) if gone else error
            if isinstance(error, PublishingFailed):
                why = self._performer.table_errors.get(error.sink, "its table does not answer")
                self.failure = UserError(
                    f"{error}: {why}. The run ends; what is committed is kept. Correct the cause and start again: the "
                    "next start publishes it"
                )
        self.done.set()

    # --- after every step, with the turn held -----------------------------------------------------------

    def _after_step(self) -> None:
        member = self.member
        if member.catch_up.session is not None:
            self._emit_progress()
        for name, host in self.hosts.items():
            stage = member.stages.get(name)
            if stage is not None:
                host.attend(stage)
        if member.superseded and not self._stopping:
            raise UserError(
                "another process has taken over this pipeline's stages, so this one ends; nothing is lost. If this was "
                "not intended, check which other process runs this pipeline on this store"
            )
        if member.misconfigured is not None:
            sources = self.planned.stages[member.misconfigured.stage].plan.sources
            raise UserError(misconfigured(*member.misconfigured, sources))
        if member.given_up is not None:
            raise UserError(self._why_given_up(member.given_up))
        self.drained = member.drained
        if self.drained:
            self.done.set()

    def come_to_rest(self) -> None:
        """Drains the pipeline, with as many attempts as it takes, and then sets `done`."""
        self.shell.call(self.member.want_rest)

    def _why_given_up(self, why: str) -> str:
        failed = "; ".join(f"stage '{s}' failed: {e}" for s, e in sorted(self.member.failures.items()))
        many = (
            "no checkpoint can be taken"
            if self.member.hopeless
            else "too many checkpoints in a row have failed"
        )
        return f"{many}, so the run ends. {failed or why}"

    def _emit_progress(self) -> None:
        """Emits the progress of a long catch-up, once a second."""
        session, now_ms = self.member.catch_up.session, self.member.now_ms
        self._progress_ms = self._progress_ms or now_ms
        if session is not None and now_ms - self._progress_ms >= 1_000:
            self._progress_ms = now_ms
            progress = session.progress()
            self.dispatcher.emit(CatchingUp(progress.done, progress.total, progress.peers))

    def _on_ended(self, actor: str) -> None:
        if actor.startswith("stage "):
            self.hosts[actor.removeprefix("stage ")].end()

    # --- status ---------------------------------------------------------------------------------------

    def _status(self, report: Report) -> Status:
        queries = {s: self.hosts[s].facts() for s in self.planned.stages if s in self.hosts}
        return status_of(
            report, self.planned.name, self.member, self.leader, self.facts, self.failure, self.sinks, queries,
            {stage: self._rules_of(stage, rules) for stage, rules in self._rules.items()},
        )  # fmt: skip

    def _rules_of(self, stage: str, rules: Rules) -> StageRules:
        counted = self.violations.latest.get(stage, {})
        shown = ((name, counted.get(name, NO_ROWS)) for name in rules.conditions)
        return StageRules(
            tuple(RuleStatus(name, count.rows, count.total) for name, count in shown),
            rules.quarantine or rules.on_violation.value,
        )

    # --- what monitoring sees (`telemetry/routes.py`) ---------------------------------------------------

    @property
    def sink_names(self) -> list[str]:
        """The sinks that this member hosts."""
        return sorted(self.sinks)

    @property
    def latest_status(self) -> tuple[Status | None, float]:
        """The status that was last reported, and when, in seconds of `time.monotonic`."""
        return self.reporter.latest

    def turn(self, task: Callable[[], None]) -> None:
        """Schedules a task to run in a turn."""
        self.shell.call(task)

    # --- messages -------------------------------------------------------------------------------------

    def _send(self, effect: fx.Send) -> None:
        message = effect.message
        if isinstance(message, Reply):
            self.mailbox.on_reply(message)
        elif isinstance(message, Ack):
            self._acknowledge(effect.to, message)
        else:
            failpoints.reach("announcement", message.phase.value if isinstance(message, Announcement) else "")
            self.links.send(effect.to, message)

    def _acknowledge(self, to: str | None, ack: Ack) -> None:
        """Sends this member's part of a checkpoint, for the first time or again."""
        first = ack.ok and ack.checkpoint_id > self._acked
        self._acked = max(self._acked, ack.checkpoint_id if ack.ok else 0)
        if first:
            failpoints.reach("before part")
        if to == self.member.name:
            self.leader.on_message(ack)
        else:
            self.links.send(to, ack)
        if first:
            failpoints.reach("after part")

    def _on_message(self, sender: str, message: Heard) -> None:
        self.shell.call(lambda: self._take(sender, message))

    def _take(self, sender: str, message: Heard) -> None:
        """Handles a message of another member; the caller must hold the turn."""
        if isinstance(message, Hint):
            self.mailbox.look()
            return
        if isinstance(message, Presence):
            self.member.on_presence(sender, message.is_present)
            return
        if self.recorder is not None:
            self.recorder.received(sender, message)
        match message:
            case Announcement():
                self.member.on_announcement(sender, message)
            case Heartbeat():
                self._look_for_second_process()
                self.member.on_heartbeat(message)
                self.leader.on_heartbeat(message)
            case LogGrown():
                self.member.on_log_grown(message)
            case Ack():
                self.leader.on_message(message)
            case SourcesDone():
                self.leader.on_sources_done(message)
            case AskRange() | FetchEntries() | HaveRange() | EntriesChunk() | Compacted():
                self.member.on_replay(sender, message)
            case Request() | Reply():
                pass  # they travel through the store
            case _:
                assert_never(message)

    def _look_for_second_process(self) -> None:
        boots = self.links.alive().get(self.member.name, ())
        if len(boots) > 1 and not self._has_second_process:
            self._has_second_process = True
            self.dispatcher.emit(SecondProcess(len(boots)))


def _plan_of(stage: PlannedStage) -> StagePlan:
    """What the core needs to know of a stage's query."""
    plan = stage.plan
    return StagePlan(
        plan.has_watermark, stage.has_native_source, int(stage.trigger_s * 1000), plan.has_timers
    )


def _about(planned: PlannedPipeline) -> About:
    """What this process consists of."""
    try:
        version = metadata.version("cutwater")
    except metadata.PackageNotFoundError:
        version = ""  # run from a folder that is not installed
    return About(version, planned.spark.version, planned.spark.sparkContext.uiWebUrl)
