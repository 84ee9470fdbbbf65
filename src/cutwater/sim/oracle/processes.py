"""Invariants of processes: what they announce, believe and do."""

from __future__ import annotations

from typing import Any, assert_never

from cutwater.protocol.base import records as r
from cutwater.protocol.base.failures import FailureReason
from cutwater.protocol.base.replay_wire import AskRange, Compacted, EntriesChunk, FetchEntries, HaveRange
from cutwater.protocol.base.replay_wire import Message as ReplayMessage
from cutwater.protocol.base.wire import (
    Ack,
    Announcement,
    Heartbeat,
    LogGrown,
    Phase,
    Reply,
    Request,
    RequestKind,
    SourcesDone,
)
from cutwater.protocol.base.wire import Message as WireMessage
from cutwater.protocol.member.stage import Stage, StagePhase
from cutwater.sim.ledger import member_view
from cutwater.sim.oracle.facts import Facts
from cutwater.sim.scene import ProcessView


class Processes(Facts):
    """Checks the messages and decisions of processes."""

    def sending(self, process: ProcessView, message: WireMessage | ReplayMessage) -> None:
        """Nothing is announced before it is durable."""
        match message:  # the most frequent first
            case LogGrown():
                pass
            case Announcement():
                self._announced(message)
            case Ack():
                self.check_caught_up(process, "acks")
                what = message.member, message.epoch, message.checkpoint_id, message.term
                (self.acks if message.ok else self.refusals).add(what)
            case Heartbeat():
                process.beat_ms = self.world.now_ms
            case Reply():
                self.replied(message)
            case Request() | SourcesDone():
                pass
            case AskRange() | FetchEntries() | HaveRange() | EntriesChunk() | Compacted():
                pass
            case _:
                assert_never(message)

    def replied(self, reply: Reply) -> None:
        """If a request is answered as done, the user can rely on it. (A cancellation before the checkpoint has begun
        leaves nothing in the journal.)"""
        request = self.world.requests.get(reply.request_id)
        if request is not None and request.kind is RequestKind.CANCEL:
            return
        if reply.ok and reply.request_id not in self.ledger.requests:
            self.violation(f"request {reply.request_id} is answered as done, but it is not")
        if reply.ok and reply.epoch != self.ledger.requests[reply.request_id]:
            self.violation(f"request {reply.request_id} is answered with epoch {reply.epoch}")

    def check_delivery(
        self, process: ProcessView, request_id: str, was_given: bool, dead_ms: int | None
    ) -> None:
        """A leader is given a request once per term, and none of somebody who was killed before its process started."""
        if was_given:
            self.violation(f"{process} delivers request {request_id} twice in a term")
        if dead_ms is not None and dead_ms < process.started_ms:
            self.violation(f"{process} carries out request {request_id}, for which nobody waits")

    def check_forsaken(self, process: ProcessView, is_dead: bool) -> None:
        """A request is removed without an answer only if nobody waits for it."""
        if not is_dead:
            self.violation(f"{process} removes a request for which somebody waits")

    def _announced(self, message: Announcement) -> None:
        if (message.epoch, message.checkpoint_id) not in self.ledger.begun_ids:
            self.violation(f"epoch {message.epoch} was announced before it was begun in the journal")
        if message.phase is Phase.COMMIT and message.epoch not in self.ledger.history:
            self.violation(f"the commit of epoch {message.epoch} was announced before it was in the journal")

    def check_caught_up(self, process: ProcessView, what: str) -> None:
        """A member that was away acts only after it has caught up with what was decided before it came back."""
        if process.member.journal.index < process.must_know:
            self.violation(f"{process} {what} before it has caught up")

    def check_journal(self, process: ProcessView) -> None:
        """A process's journal must be a prefix of the real one, and lead to the same state."""
        journal = process.member.journal
        index = process.checked_index = journal.index
        if journal.view.entries[-1].hash != self.ledger.hashes.get(index):
            self.violation(f"{process} has a different journal entry {index} than the store")
        if member_view(journal.state) != self.ledger.states[index]:
            self.violation(
                f"{process} derives {member_view(journal.state)} at {index}, not {self.ledger.states[index]}"
            )

    def watch_replay(self, process: ProcessView) -> None:
        """An answer to a request that is no longer in flight changes nothing in a catch-up."""
        catch_up = process.member.catch_up
        real = catch_up.take

        def take(session: Any, peer: str, reply: Any) -> Any:
            source = session.sources.peers.get(peer)
            request = source and source.request
            in_flight = request is not None and request.id == reply.request_id
            before = session.pieces.size, session.progress().done, source and source.held
            actions = real(session, peer, reply)
            after = session.pieces.size, session.progress().done, source and source.held
            if not in_flight and before != after:
                self.violation(f"{process} took answer {reply.request_id} of {peer}, which came too late")
            return actions

        catch_up.take = take  # type: ignore[method-assign]

    def check_campaign(self, process: ProcessView) -> None:
        """A process that was paused does not mistake its own pause for silence of the leader."""
        now_ms, config = self.world.now_ms, process.leader.config
        slept_ms = process.woke_ms - process.paused_ms
        awake_ms, before_ms = now_ms - process.woke_ms, now_ms - process.woke_before_ms
        if (
            slept_ms <= 2 * config.heartbeat_ms
            or awake_ms >= config.timeout_ms
            or before_ms < 5 * config.timeout_ms
        ):
            return
        for leader in self.world.leaders():
            shows_itself = now_ms - leader.beat_ms <= 2 * config.heartbeat_ms and not leader.paused
            if leader.member.journal.state.term == self.ledger.term and shows_itself:
                self.violation(
                    f"{process} wakes up and tries to unseat {leader}, which leads and sends heartbeats"
                )

    def check_give_up(self, process: ProcessView) -> None:
        """A member gives up because of its own failures, not because others refused or were late; immediately if one
        of its stages can never start. It judges by what it has read: a restore may be in the journal by now."""
        tolerated = process.member.config.tolerated_failures
        enough = 0 if process.member.hopeless else tolerated
        late = FailureReason.DEADLINE.value
        own = [
            a
            for at_ms, a in self.ledger.aborted_in_a_row(process.member.journal.index)
            if at_ms >= process.started_ms
            and (
                (process.name, a.epoch, a.checkpoint_id, a.term) in self.refusals
                or (a.reason == late and process.name in a.detail)
            )
        ]
        if enough is None or tolerated is None or len(own) <= enough:
            self.violation(f"{process} gives up after {len(own)} own failures: {process.member.given_up}")

    def batch_began(self, process: ProcessView, stage: str) -> None:
        self._worked.add((process, stage))

    def query_refused(self, process: ProcessView, stage: str, always: bool) -> None:
        """Spark refuses a query: `always`, or until something outside works again."""
        if always or (process, stage) not in self._worked:
            self._cannot_run.add(process)

    def check_configuration(self, process: ProcessView) -> None:
        """A run ends because of its configuration if, and as soon as, that is why a query failed."""
        wrong = process.member.misconfigured
        if wrong is not None and process not in self._cannot_run:
            self.violation(f"{process} ends because of {wrong.stage}, which has worked")
        if wrong is None and process in self._cannot_run:
            self.violation(f"{process} goes on with a configuration that will never work")

    def check_over(self, process: ProcessView) -> None:
        """A run is over when its last epoch is published everywhere, according to the graph that the process knows: a
        restore that it has not read yet may have brought another one."""
        state = process.member.journal.state
        assert state.head is not None
        assert state.topology is not None
        index = state.committed[state.head].index
        marks = r.settled(list(self.world.store.objects))
        late = [sink for sink in state.topology.sinks() if marks.get(sink, 0) < index]
        if late or not state.drained:
            self.violation(
                f"{process} considers the run over before {late} have published epoch {state.head}"
            )

    def check_busy(self, stage: Stage) -> None:
        """A stage that is running a batch is not idle."""
        if stage.phase is StagePhase.RUNNING and stage.idle:
            self.violation(f"{stage.name} counts as idle while a batch is running")

    def check_quiet(self, stage: Stage) -> None:
        """The query of a quiet stage does nothing, and everything that it did is in the log."""
        incarnation = stage.name, stage.generation, stage.incarnation
        if incarnation in self.world.under_way:
            self.violation(f"{stage.name} counts as quiet while a batch is running")
        folder = self.world.folders[incarnation]
        if folder.last > stage.log.state.last:
            self.violation(f"{stage.name} counts as quiet, but its batch {folder.last} is not logged")

    def check_working(self, stage: Stage) -> None:
        """If a drain is aborted, a query that ended for it is followed by another. (Checked when the appender waits: by
        the second time it must have noticed.)"""
        has_ended = stage.phase is StagePhase.RUNNING and stage.took_all and not stage.draining
        if not has_ended or stage.member.config.once:
            self._without_query.discard(stage)
        elif stage in self._without_query:
            self.violation(f"{stage.name} has no query, and none is started")
        else:
            self._without_query.add(stage)

    def check_stage(self, stage: Stage) -> None:
        """A drained stage stops only after the commit, as far as its member knows the journal."""
        if stage.phase is StagePhase.STOPPED and stage not in self._stopped:
            self._stopped.append(stage)
            if not stage.member.journal.state.drained:
                self.violation(f"{stage.name} stopped before the drain was committed")
