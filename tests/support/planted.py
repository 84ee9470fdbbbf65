"""Planted bugs: each removes or breaks one thing, and the simulator must find it.

A bug is a function that breaks the product with pytest's monkeypatch. The product itself has no switches for this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from cutwater.protocol.base import effects as fx
from cutwater.protocol.base import log, paths, watermark
from cutwater.protocol.base import records as r
from cutwater.protocol.base.failures import FailureReason
from cutwater.protocol.base.log import AppendPhase
from cutwater.protocol.base.watermark import WatermarkKind
from cutwater.protocol.base.wire import Phase, Reply, RequestKind
from cutwater.protocol.leader import (
    coordinator,
    cut,
    housekeeping,
    in_flight,
    leader,
    quorum,
    requests,
    steering,
)
from cutwater.protocol.leader import sources as leader_sources
from cutwater.protocol.member import (
    activity,
    catchup,
    channel,
    ending,
    journal,
    member,
    publish,
    retention,
    stage,
    stage_log,
    staged,
)
from cutwater.protocol.member.journal import Fate, fate
from cutwater.protocol.member.stage import StagePhase
from cutwater.protocol.replay import sources
from cutwater.sim import io, spark, world

Patch = pytest.MonkeyPatch
BUGS: dict[str, Callable[[Patch], None]] = {}


def bug(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
    BUGS[plant.__name__] = plant
    return plant


def _changed(record: Any, **fields: Any) -> Any:
    return msgspec.structs.replace(record, **fields)


def _patch_append(patch: Patch, append: Any) -> None:
    for module in (log, leader, stage, steering):
        patch.setattr(module, "append", append)


def _patch_follow(patch: Patch, follow: Any) -> None:
    for module in (log, leader, stage, member, catchup, housekeeping, steering):
        patch.setattr(module, "follow", follow)


# --- rule 1: an error is not an answer -------------------------------------------------------------------


@bug
def rule_1_an_errored_append_is_taken_as_failed(patch: Patch) -> None:
    def append(view: Any, sealed: Any) -> Any:
        answer = yield fx.Create(paths.entry_name(view.prefix, sealed.entry.index), sealed.data)
        if answer is fx.FAILED:
            return AppendPhase.VOID
        if answer is fx.CREATED:
            view.push(sealed)
            return AppendPhase.MINE
        yield from log.follow(view)
        return AppendPhase.TAKEN

    _patch_append(patch, append)


@bug
def rule_1_an_existing_entry_is_taken_as_anothers(patch: Patch) -> None:
    def append(view: Any, sealed: Any) -> Any:
        while True:
            answer = yield fx.Create(paths.entry_name(view.prefix, sealed.entry.index), sealed.data)
            if answer is fx.CREATED:
                view.push(sealed)
                return AppendPhase.MINE
            if answer is fx.EXISTS:
                yield from log.follow(view)
                return AppendPhase.TAKEN

    _patch_append(patch, append)


@bug
def rule_1_other_bytes_are_put_at_the_same_index_after_an_error(patch: Patch) -> None:
    """With a new nonce for every attempt, a writer no longer recognizes its own entry."""
    real = log.append

    def append(view: Any, sealed: Any) -> Any:
        procedure = real(view, sealed)
        effect = next(procedure)
        tries = 0
        while True:
            if isinstance(effect, fx.Create):
                tries += 1
                entry = msgspec.structs.replace(sealed.entry, nonce=f"{sealed.entry.nonce}-{tries}")
                effect = fx.Create(effect.name, view.codec.seal(entry).data)
            answer = yield effect
            try:
                effect = procedure.send(answer)
            except StopIteration as stop:
                return stop.value

    _patch_append(patch, append)


# --- rule 2: leadership is a journal entry ---------------------------------------------------------------


@bug
def rule_2_a_former_leader_goes_on(patch: Patch) -> None:
    patch.setattr(leader.Leader, "leads", lambda self, term: True)


@bug
def rule_2_a_new_leader_does_not_void_open_epochs(patch: Patch) -> None:
    patch.setattr(journal, "_void_open", lambda state, reason, detail: None)


@bug
def rule_2_a_writer_does_not_look_for_a_snapshot(patch: Patch) -> None:
    def newest_snapshot(view: Any, index: int) -> Any:
        return 0
        yield

    patch.setattr(log, "newest_snapshot", newest_snapshot)


@bug
def rule_2_a_reader_does_not_look_for_a_snapshot_after_reading(patch: Patch) -> None:
    real = log.follow

    def follow(view: Any) -> Any:
        before = view.last
        while True:
            name = paths.entry_name(view.prefix, view.last + 1)
            data = yield from fx.insist(fx.Read(name))
            if data is None:
                break
            view.push(view.open(name, data))
        yield from real(view)
        return view.last - before

    _patch_follow(patch, follow)


@bug
def a_member_that_wakes_up_takes_its_sleep_for_the_leaders_silence(patch: Patch) -> None:
    def listen(self: Any) -> Any:
        silent_ms = self.member.now_ms - self._seen_ms
        yield fx.Wait(max(self.member.config.poll_ms, self._patience_ms - silent_ms))

    patch.setattr(leader.Leader, "_listen", listen)


# --- rule 3: every epoch has one fate --------------------------------------------------------------------


@bug
def rule_3_prepare_is_announced_before_begun_is_durable(patch: Patch) -> None:
    real = leader.Leader._begin

    def begin(self: Any, term: int, coordinator: Any, action: Any) -> Any:
        state = self.member.journal.state
        begun = r.Begun(
            term, state.generation, state.next_epoch, self.member.journal.index + 1, int(action.flags), ""
        )
        yield from self._announce(begun, Phase.PREPARE)
        return (yield from real(self, term, coordinator, action))

    patch.setattr(leader.Leader, "_begin", begin)


@bug
def the_decision_is_durable_only_after_its_announcement(patch: Patch) -> None:
    real = leader.Leader.record

    def record(self: Any, term: int, make: Any) -> Any:
        body = make(self.member.journal.index + 1)
        if isinstance(body, r.Committed):
            yield from self._announce(
                self.member.journal.state.open[body.epoch], Phase.COMMIT, watermark=body.watermark
            )
        return (yield from real(self, term, make))

    patch.setattr(leader.Leader, "record", record)


@bug
def a_committed_entry_of_a_void_epoch_counts(patch: Patch) -> None:
    """Epoch numbers begin again with each leader."""
    real = leader.Leader._begin

    def begin(self: Any, term: int, coordinator: Any, action: Any) -> Any:
        state = self.member.journal.state
        if state.next_epoch > 2 and not state.open and (state.next_epoch - 1) not in state.committed:
            state.next_epoch -= 1
        return (yield from real(self, term, coordinator, action))

    patch.setattr(leader.Leader, "_begin", begin)


# --- rule 4: nobody sees a batch before Spark has committed it -------------------------------------------


@bug
def rule_4_a_batch_is_visible_before_sparks_commit(patch: Patch) -> None:
    def read_prepared(self: Any, effect: Any) -> Any:
        return self.folders[effect.stage, effect.generation, effect.incarnation].prepared.get(effect.batch)

    patch.setattr(world.World, "read_prepared", read_prepared)


@bug
def rule_4_a_batch_that_spark_will_not_run_again_is_forgotten(patch: Patch) -> None:
    real = spark.copy_folder

    def copy_folder(source: Any, keep_plan: bool) -> Any:
        folder = real(source, keep_plan)
        folder.prepared.clear()
        return folder

    patch.setattr(io, "copy_folder", copy_folder)


# --- rule 5: positions count batches ---------------------------------------------------------------------


@bug
def rule_5_passing_a_barrier_moves_the_position(patch: Patch) -> None:
    real = spark.Query._next_position

    def next_position(self: Any, name: str, position: int) -> int:
        after = real(self, name, position)
        barriers = self.member.log(name).state.barriers.values()
        last = self.member.log(name).state.last
        return after + 1 if after < last and any(b.batch == after for b in barriers) else after

    patch.setattr(spark.Query, "_next_position", next_position)


# --- rule 6: the hold rule -------------------------------------------------------------------------------


@bug
def rule_6_a_reader_passes_an_open_barrier(patch: Patch) -> None:
    patch.setattr(channel, "readable", lambda state, reader, producer: producer.last)


@bug
def rule_6_what_is_not_known_does_not_hold(patch: Patch) -> None:
    real = channel.holds

    def holds(state: Any, reader: Any, barrier: Any) -> bool:
        return fate(state, barrier.epoch) is not Fate.UNKNOWN and real(state, reader, barrier)

    patch.setattr(channel, "holds", holds)


@bug
def rule_6_an_aborted_epoch_still_holds(patch: Patch) -> None:
    patch.setattr(
        channel,
        "holds",
        lambda state, reader, barrier: (
            barrier.epoch not in reader.barriers and fate(state, barrier.epoch) is not Fate.COMMITTED
        ),
    )


# --- rule 7: two of the same are harmless ----------------------------------------------------------------


@bug
def rule_7_a_new_incarnation_does_not_take_the_zombies_place(patch: Patch) -> None:
    """It continues under the incarnation that it finds, in its own folder."""
    real = stage.Stage._open

    def open_(self: Any) -> Any:
        yield from log.follow(self.log.view)
        if self.log.state.incarnation == 0:
            return (yield from real(self))
        self.incarnation = self.log.state.incarnation
        self._step("opened")
        yield fx.StartQuery(self.name, self.generation, self.incarnation, self.log.state.consumed)
        return None

    patch.setattr(stage.Stage, "_open", open_)


@bug
def rule_7_a_new_incarnation_works_in_its_predecessors_folder(patch: Patch) -> None:
    patch.setattr(io, "copy_folder", lambda source, keep_plan: source)


@bug
def rule_7_a_fenced_incarnation_goes_on_writing(patch: Patch) -> None:
    patch.setattr(stage.Stage, "_is_fenced", lambda self: False)


# --- rule 8: publishing is a function of the records -----------------------------------------------------


@bug
def rule_8_a_table_is_not_asked_what_it_has(patch: Patch) -> None:
    def perform(sink: str, duty: Any) -> Any:
        while True:
            head = yield from fx.insist(fx.ReadTable(sink))
            effect = yield from publish._table_commit(sink, duty, head)
            if effect is not None and isinstance((yield effect), int):
                break
        mark = r.Published(duty.epoch, sink, duty.index, head.version + 1)
        yield from fx.insist(fx.Create(paths.mark_name(duty.index, sink), r.encode(mark)))

    patch.setattr(member, "perform", perform)


@bug
def rule_8_a_zombies_older_transaction_is_not_refused(patch: Patch) -> None:
    """Neither by the table's transaction nor by the marks."""
    real = publish.perform

    def perform(sink: str, duty: Any) -> Any:
        procedure = real(sink, duty)
        effect, is_older = next(procedure), False
        while True:
            answer = yield effect
            if isinstance(answer, fx.TableHead) and answer.transaction > duty.index:
                answer, is_older = fx.TableHead(answer.version, 0), True
            elif is_older and isinstance(effect, fx.List):
                answer = []
            try:
                effect = procedure.send(answer)
            except StopIteration:
                return

    patch.setattr(member, "perform", perform)


@bug
def rule_8_a_table_that_forgot_is_believed(patch: Patch) -> None:
    """The marks, which say what is published, are not read."""

    def begin(sink: str, journal: Any) -> Any:
        head = yield from fx.insist(fx.ReadTable(sink))
        return head.transaction - 1

    def is_settled(sink: str, index: int) -> Any:
        return False
        yield

    patch.setattr(member, "begin", begin)
    patch.setattr(publish, "is_settled", is_settled)


@bug
def rule_8_a_zombie_believes_a_table_that_forgot(patch: Patch) -> None:
    """The marks are read once, when a process starts, and not before each commit."""

    def is_settled(sink: str, index: int) -> Any:
        return False
        yield

    patch.setattr(publish, "is_settled", is_settled)


@bug
def an_epoch_without_rows_is_settled_without_its_mark(patch: Patch) -> None:
    real = publish.perform

    def perform(sink: str, duty: Any) -> Any:
        if isinstance(duty, publish.CommitPermit):
            found = yield from publish.read_manifest(duty.checkpoint)
            if found is not None and not found.release.get(sink):
                return
        yield from real(sink, duty)

    patch.setattr(member, "perform", perform)


@bug
def epochs_are_published_out_of_order(patch: Patch) -> None:
    patch.setattr(member, "duties", lambda state, done: publish.duties(state, done)[::-1])


@bug
def held_rows_are_forgotten(patch: Patch) -> None:
    real = publish.contents
    patch.setattr(cut, "contents", lambda batches, sink, held, mark: real(batches, sink, (), mark))


@bug
def final_rows_are_shown_by_the_stages_own_watermark(patch: Patch) -> None:
    real = publish.contents

    def contents(batches: Any, sink: str, held: Any, mark: int | None) -> Any:
        batches = list(batches)
        local = max((b.watermark.ms or 0 for b in batches), default=0)
        return real(batches, sink, held, max(mark or 0, local))

    patch.setattr(cut, "contents", contents)


# --- cuts and quorum -------------------------------------------------------------------------------------


@bug
def an_ack_is_matched_on_its_epoch_only(patch: Patch) -> None:
    def on_ack(self: Any, ack: Any, now_ms: int) -> Any:
        for flight in self.in_flight():
            if flight.epoch == ack.epoch and flight.quorum is not None:
                ack = msgspec.structs.replace(ack, checkpoint_id=flight.checkpoint_id, term=self.term)
        return real(self, ack, now_ms)

    real = coordinator.Coordinator.on_ack
    patch.setattr(coordinator.Coordinator, "on_ack", on_ack)


@bug
def a_quorum_is_reached_with_one_missing(patch: Patch) -> None:
    patch.setattr(
        quorum.Quorum,
        "reached",
        property(lambda self: len(self._missing) <= 1 and self.refused is None and len(self._acks) > 0),
    )
    real = quorum.Quorum.outcome
    patch.setattr(
        quorum.Quorum,
        "outcome",
        lambda self: (
            quorum.Reached(dict(sorted(self._acks.items())), watermark.NONE)
            if len(self._missing) <= 1 and self.refused is None
            else real(self)
        ),
    )


@bug
def a_member_acks_before_all_its_stages_are_cut_and_nobody_checks(patch: Patch) -> None:
    """A stage that is not cut yet is reported at its current position."""
    patch.setattr(leader, "check_cut", lambda *args: [])
    real = member.Member._capture_one

    def capture_one(self: Any, begun: Any) -> Any:
        for name in self.topology.hosted(self.name):
            state = self.log(name).state
            if begun.epoch not in state.barriers and state.incarnation:
                state.barriers[begun.epoch] = r.BarrierAt(
                    state.incarnation,
                    begun.epoch,
                    begun.checkpoint_id,
                    begun.term,
                    state.last,
                    False,
                    state.consumed,
                    state.offsets,
                    state.watermark,
                )
        yield from real(self, begun)

    patch.setattr(member.Member, "_capture_one", capture_one)


@bug
def a_query_that_somebody_stops_is_not_missed(patch: Patch) -> None:
    real = stage.Stage.query_ended

    def query_ended(self: Any, end: Any, error: str) -> Any:
        return None if end is stage.QueryEnd.STOPPED else real(self, end, error)

    patch.setattr(stage.Stage, "query_ended", query_ended)


@bug
def a_query_that_ends_while_its_stage_rests_is_not_missed_after_the_drain(patch: Patch) -> None:
    real = stage.Stage._settle_drain

    def settle_drain(self: Any) -> None:
        self._has_query = True
        real(self)

    patch.setattr(stage.Stage, "_settle_drain", settle_drain)


@bug
def a_member_gives_up_for_what_others_have_refused(patch: Patch) -> None:
    patch.setattr(
        member.Member, "_is_to_blame", lambda self, story: FailureReason[story.reason.upper()].counts
    )


@bug
def an_idle_cut_is_placed_after_an_uncommitted_batch(patch: Patch) -> None:
    real = stage.Stage._barrier_entry

    def barrier_entry(self: Any, begun: Any, unaligned: bool) -> Any:
        entry = real(self, begun, unaligned)
        return entry if self.quiet else msgspec.structs.replace(entry, batch=entry.batch + 1)

    patch.setattr(stage.Stage, "_barrier_entry", barrier_entry)


@bug
def alignment_is_not_waited_for(patch: Patch) -> None:
    """A stage cuts at the first barrier that it sees, and calls that aligned."""
    patch.setattr(leader, "check_cut", lambda *args: [])
    real = stage.Stage._try

    def try_(self: Any, begun: Any) -> Any:
        seen = [self.member.log(i).state.barriers.get(begun.epoch) for i in self.spec.inputs]
        return False if any(seen) else real(self, begun)

    patch.setattr(stage.Stage, "_try", try_)


@bug
def in_flight_batches_are_not_in_the_manifest(patch: Patch) -> None:
    real = cut.make_manifest
    patch.setattr(leader, "make_manifest", lambda *args: msgspec.structs.replace(real(*args), in_flight=()))


# --- watermarks ------------------------------------------------------------------------------------------


@bug
def no_watermark_yet_counts_as_infinity(patch: Patch) -> None:
    real = watermark.lowest
    patch.setattr(
        watermark,
        "lowest",
        lambda reports: real(w for w in reports if w.kind is not WatermarkKind.UNKNOWN),
    )


@bug
def a_stage_without_event_time_holds_back_the_watermark(patch: Patch) -> None:
    """Until its first batch it says "unknown", as one that has event time."""
    real = stage.Stage._watermark

    def watermark_of(self: Any, drains: bool) -> Any:
        return watermark.UNKNOWN if self.log.state.last < 0 and not self.idle else real(self, drains)

    patch.setattr(stage.Stage, "_watermark", watermark_of)


@bug
def a_source_that_never_had_a_row_holds_back_the_watermark(patch: Patch) -> None:
    real = stage.Stage._watermark

    def watermark_of(self: Any, drains: bool) -> Any:
        mark = real(self, drains)
        return watermark.UNKNOWN if mark == watermark.idle() else mark

    patch.setattr(stage.Stage, "_watermark", watermark_of)


@bug
def a_stage_that_was_idle_at_a_checkpoint_is_idle_after_its_restore(patch: Patch) -> None:
    real = stage.Stage._watermark

    def watermark_of(self: Any, drains: bool) -> Any:
        logged = self.log.state.watermark
        return logged if logged.kind is WatermarkKind.IDLE else real(self, drains)

    patch.setattr(stage.Stage, "_watermark", watermark_of)


@bug
def the_watermark_is_kept_over_a_restore(patch: Patch) -> None:
    real = journal._restore

    def restore(state: Any, body: Any, index: int) -> None:
        before = state.watermark
        real(state, body, index)
        state.watermark = before

    patch.setattr(journal, "_restore", restore)


@bug
def a_watermark_is_taken_above_a_fan_in(patch: Patch) -> None:
    real = spark.input_progress
    patch.setattr(spark, "input_progress", lambda model, taken: [max(real(model, taken))])


# --- drain, restore, retention ---------------------------------------------------------------------------


@bug
def a_drain_stops_before_its_commit(patch: Patch) -> None:
    real = stage.Stage._settle_drain

    def settle_drain(self: Any) -> None:
        real(self)
        if self.phase is StagePhase.RESTING:
            self._step("drain_committed")

    patch.setattr(stage.Stage, "_settle_drain", settle_drain)


@bug
def a_drain_that_was_aborted_is_forgotten(patch: Patch) -> None:
    real = coordinator.Coordinator._failed

    def failed(self: Any, flight: Any, *why: Any) -> Any:
        actions = real(self, flight, *why)
        self._queue = [one for one in self._queue if not one.flags & 2]
        return actions

    patch.setattr(coordinator.Coordinator, "_failed", failed)
    patch.setattr(coordinator.Coordinator, "stays_asked", lambda self, epoch, reason: False)


@bug
def nobody_asks_for_the_drain_that_a_process_wants(patch: Patch) -> None:
    patch.setattr(coordinator.Coordinator, "want_drain", lambda self, now_ms: [])


@bug
def a_drained_stage_takes_new_input(patch: Patch) -> None:
    """It does not rest after its barrier, and cuts although it has more to do."""
    real = stage.Stage._try

    def try_(self: Any, begun: Any) -> Any:
        return real(self, msgspec.structs.replace(begun, flags=8 if begun.flags & 2 else begun.flags))

    patch.setattr(stage.Stage, "_try", try_)


@bug
def a_restore_does_not_end_the_old_generation(patch: Patch) -> None:
    real = member.Member._start_generation

    def start_generation(self: Any) -> Any:
        if self._generation == 0:
            yield from real(self)

    patch.setattr(member.Member, "_start_generation", start_generation)


@bug
def a_restore_does_not_heal_a_stage_that_was_given_up(patch: Patch) -> None:
    real = member.Member._start_generation

    def start_generation(self: Any) -> Any:
        failed = dict(self.failures)
        yield from real(self)
        self.failures = failed

    patch.setattr(member.Member, "_start_generation", start_generation)


@bug
def a_restore_starts_from_the_live_folder(patch: Patch) -> None:
    """The new generation takes over the state of the abandoned one."""
    real = world.World.state_of_report

    def state_of_report(self: Any, name: str, report: Any) -> Any:
        newest = [k for k in self.folders if k[0] == name and k[1] < self.oracle.ledger.generation]
        if report is None or not newest:
            return real(self, name, report)
        key = max(newest)
        return self.state_at(*key, self.folders[key].last)

    patch.setattr(world.World, "state_of_report", state_of_report)


@bug
def a_stage_that_is_reset_counts_its_batches_anew(patch: Patch) -> None:
    """Its readers have positions in its earlier output, and would wait forever, or continue in the middle."""
    real = stage.Stage._starting_report

    def starting_report(self: Any) -> Any:
        report, reset = yield from real(self)
        return _changed(report, batch=-1) if reset else report, reset

    patch.setattr(stage.Stage, "_starting_report", starting_report)


@bug
def a_stage_that_is_reset_reads_its_source_from_the_start(patch: Patch) -> None:
    """Its tables, and its readers, have those rows already."""
    real = stage.Stage._starting_report

    def starting_report(self: Any) -> Any:
        report, reset = yield from real(self)
        return _changed(report, offsets={}) if reset else report, reset

    patch.setattr(stage.Stage, "_starting_report", starting_report)


@bug
def a_stage_goes_that_others_read(patch: Patch) -> None:
    patch.setattr(r.Topology, "dangling", lambda self: {})


@bug
def retention_ignores_unpublished_sinks(patch: Patch) -> None:
    patch.setattr(retention, "is_settled", lambda state, index, settled: True)


@bug
def savepoints_expire(patch: Patch) -> None:
    real = retention.kept_epochs

    def kept_epochs(state: Any, retained: int, settled: Any) -> set[int]:
        bare = msgspec.structs.replace(state, savepoints={})
        return real(bare, retained, settled)

    patch.setattr(retention, "kept_epochs", kept_epochs)


@bug
def the_target_of_a_restore_is_not_kept(patch: Patch) -> None:
    real = retention.kept_epochs

    def kept_epochs(state: Any, retained: int, settled: Any) -> set[int]:
        newest = max(state.committed, default=None)
        kept = real(state, retained, settled)
        return kept - {state.head} if state.head != newest else kept

    patch.setattr(retention, "kept_epochs", kept_epochs)
    real_expire = retention.expire

    def expire(state: Any, retained: int, settled: Any, manifests: Any) -> Any:
        head = state.head
        if head is not None and head != max(state.committed):
            gone = tuple(sorted(state.committed.keys() - kept_epochs(state, retained, settled)))
            return r.Expired(state.term, state.generation, gone, (), {}, ()) if gone else None
        return real_expire(state, retained, settled, manifests)

    patch.setattr(housekeeping, "expire", expire)


@bug
def things_are_deleted_before_they_are_expired(patch: Patch) -> None:
    real = leader.Leader.record

    def record(self: Any, term: int, make: Any) -> Any:
        body = make(self.member.journal.index + 1)
        if isinstance(body, r.Expired):
            for epoch in body.epochs:
                checkpoint = self.member.journal.state.committed[epoch]
                name = paths.manifest_name(epoch, checkpoint.checkpoint_id)
                yield from fx.insist(fx.Delete((name,)))
        return (yield from real(self, term, make))

    patch.setattr(leader.Leader, "record", record)


@bug
def what_a_slow_reader_needs_is_deleted(patch: Patch) -> None:
    patch.setattr(
        retention,
        "stage_floors",
        lambda state, head: {name: head.stages[name].batch for name in state.topology.stages},
    )


@bug
def state_of_an_undecided_cut_is_deleted(patch: Patch) -> None:
    patch.setattr(
        stage,
        "deletable_states",
        lambda state, name, generation, logged, found, named: [
            f.name for f in found if f.batch < logged.last and not f.unknown
        ],
    )


@bug
def what_lies_in_a_folder_without_a_mark_is_deleted(patch: Patch) -> None:
    real = retention.deletable_states

    def deletable_states(state: Any, name: str, generation: int, logged: Any, found: Any, named: Any) -> Any:
        return real(state, name, generation, logged, found, ())

    patch.setattr(stage, "deletable_states", deletable_states)


@bug
def attempts_that_may_be_inherited_are_deleted(patch: Patch) -> None:
    real = retention.deletable_data

    def deletable_data(state: Any, name: str, logged: Any, found: Any) -> list[str]:
        found = list(found)
        return real(state, name, logged, found) + [f.name for f in found if f.batch > logged.last]

    patch.setattr(stage, "deletable_data", deletable_data)


@bug
def compaction_drops_open_barriers(patch: Patch) -> None:
    patch.setattr(stage, "trimmed", lambda state, floor, undecided: stage_log.trimmed(state, floor, ()))


@bug
def compaction_deletes_before_the_snapshot_is_durable(patch: Patch) -> None:
    real = log.compact

    def compact(view: Any, body: Any, nonce: str) -> Any:
        names = yield from fx.insist(fx.List(view.prefix))
        yield from fx.insist(fx.Delete(tuple(names)))
        return (yield from real(view, body, nonce))

    for module in (housekeeping, stage):
        patch.setattr(module, "compact", compact)


# --- catching up -----------------------------------------------------------------------------------------


@bug
def a_late_replay_answer_is_accepted(patch: Patch) -> None:
    """Any message of a peer is taken as the answer to the last question."""

    def answered(self: Any, request_id: int, *kinds: Any) -> Any:
        request, self.request = self.request, None
        return request if request is not None and request.kind in kinds else None

    patch.setattr(sources.Source, "answered", answered)


@bug
def a_member_acts_before_it_has_caught_up(patch: Patch) -> None:
    """It acts on every entry as it reads it, beginning with the first."""

    def follow_journal(self: Any) -> Any:
        while True:
            name = paths.entry_name(paths.JOURNAL_PREFIX, self.journal.index + 1)
            data = yield from fx.insist(fx.Read(name))
            if data is None:
                yield from log.follow(self.journal.view)
            else:
                self.journal.view.push(self.journal.view.open(name, data))
            yield from self.take_effect()
            yield fx.Wait(30)

    patch.setattr(member.Member, "follow_journal", follow_journal)


# --- steering: one door to the journal -------------------------------------------------------------------


@bug
def a_command_looks_before_it_leads_and_never_again(patch: Patch) -> None:
    """What was valid before may no longer be valid after somebody else led, expired or restored."""

    def command(journal: Any, name: str, nonce: Any, request: Any) -> Any:
        yield from log.follow(journal.view)
        lead = steering._Command(journal, 0, nonce)
        try:
            if request.kind is RequestKind.RESTORE:
                body: Any = yield from steering._restored(lead, request)
            else:
                body = steering._savepoint(lead, request, ())
        except steering.Refusal as refusal:
            return Reply(request.request_id, False, None, None, refusal.detail)
        while True:
            yield from log.follow(journal.view)
            lead = steering._Command(journal, journal.state.term + 1, nonce)
            entry = r.Leader(lead.term, name, resumes=False)
            if (yield from log.append(journal.view, journal.view.seal(entry, nonce()))) is AppendPhase.MINE:
                generation = journal.state.generation + isinstance(body, r.Restored)
                late = msgspec.structs.replace(body, term=lead.term, generation=generation)
                if (yield from lead.record(lambda _, late=late: late)):  # type: ignore[misc]
                    return Reply(request.request_id, True, body.epoch)

    patch.setattr("cutwater.sim.commands.command", command)


@bug
def an_entry_that_was_sent_is_taken_for_one_that_stands(patch: Patch) -> None:
    """The lead may be lost in between: then somebody else's entry is there, or none."""

    def record(self: Any, make: Any) -> Any:
        view = self.journal.view
        body = make(0)
        yield from log.append(view, view.seal(body, self._nonce()))
        self.journal.state.answers[body.request] = body.epoch
        return True

    patch.setattr(steering._Command, "record", record)


@bug
def a_request_is_done_as_often_as_it_is_heard(patch: Patch) -> None:
    def steer(writer: Any, request: Any, coming: Any = ()) -> Any:
        known = dict(writer.journal.state.answers)
        writer.journal.state.answers.clear()
        reply = yield from real(writer, request, coming)
        writer.journal.state.answers.update(known)
        return reply

    def answer_again(self: Any, request: Any) -> Any:
        return False
        yield

    real = steering.steer
    patch.setattr(requests, "steer", steer)
    patch.setattr(requests.Requests, "answer_again", answer_again)


@bug
def a_new_graph_comes_in_an_entry_of_its_own(patch: Patch) -> None:
    real = steering._Command.record

    def record(self: Any, make: Any) -> Any:
        body = make(0)
        if isinstance(body, r.Restored) and body.topology is not None:
            state = self.journal.state
            graph = r.TopologySet(self.term, state.generation, body.topology_hash, body.topology)
            yield from real(self, lambda _: graph)
        return (yield from real(self, make))

    patch.setattr(steering._Command, "record", record)


@bug
def a_command_sets_a_drained_pipeline_going(patch: Patch) -> None:
    patch.setattr(steering, "Leader", lambda term, name, resumes: r.Leader(term, name))


@bug
def a_stage_goes_without_being_named(patch: Patch) -> None:
    patch.setattr(steering, "_check_stages", lambda *_: None)


@bug
def an_epoch_that_no_table_has_is_restored(patch: Patch) -> None:
    def check(*_: Any) -> Any:
        return
        yield

    patch.setattr(steering, "_check_tables", check)


@bug
def what_others_did_to_a_table_is_undone_without_a_word(patch: Patch) -> None:
    def check(*_: Any) -> Any:
        return None
        yield

    patch.setattr(steering, "_check_history", check)


@bug
def a_savepoints_name_is_taken_away(patch: Patch) -> None:
    patch.setattr(steering, "may_name", lambda state, body: True)
    patch.setattr(journal, "may_name", lambda state, body: True)


# --- facts about queries, and what follows from them ------------------------------------------------------


@bug
def a_stage_is_called_quiet_while_a_batch_is_under_way(patch: Patch) -> None:
    """What Spark found before the batch began is taken as if it had been found afterwards."""

    def batch_began(self: Any, batch: int, now_ms: int) -> None:
        self._begun, self._active_ms, self.idle = batch, now_ms, False

    patch.setattr(activity.Activity, "batch_began", batch_began)
    patch.setattr(activity.Activity, "is_busy", lambda self, last: False)


@bug
def a_stage_is_called_idle_while_a_batch_is_under_way(patch: Patch) -> None:
    real = activity.Activity.batch_began

    def batch_began(self: Any, batch: int, now_ms: int) -> None:
        idle = self.idle
        real(self, batch, now_ms)
        self.idle = idle

    patch.setattr(activity.Activity, "batch_began", batch_began)


@bug
def a_stage_is_quiet_before_its_last_batch_is_logged(patch: Patch) -> None:
    real = activity.Activity.settle

    def settle(self: Any, inputs_done: bool, last: int, now_ms: int) -> None:
        real(self, inputs_done, 10**9, now_ms)

    patch.setattr(activity.Activity, "settle", settle)


@bug
def a_source_that_was_brought_to_rest_is_not_started_again(patch: Patch) -> None:
    """A drain was aborted, and the query that took everything for it has ended."""
    real = stage.Stage._settle_rest

    def settle_rest(self: Any) -> None:
        if self.draining or not self.took_all:
            real(self)

    patch.setattr(stage.Stage, "_settle_rest", settle_rest)


@bug
def a_drain_waits_for_a_source_that_never_falls_silent(patch: Patch) -> None:
    patch.setattr(stage.Stage, "_may_take_all", lambda self: False)


@bug
def staged_output_is_removed_that_a_checkpoint_has_yet_to_publish(patch: Patch) -> None:
    """It belongs to a batch before the newest cut, but its sink is late, or holds it back."""

    def contains(self: Any, attempt: str) -> bool:
        generation, _, batch, _ = attempt.split("-")
        return (int(generation), int(batch)) > (self._generation, self._cut)

    patch.setattr(staged.Needed, "__contains__", contains)


@bug
def once_ends_before_the_sources_of_other_members_are_done(patch: Patch) -> None:
    patch.setattr(leader_sources.Sources, "all_done", lambda self, members, generation, now_ms: True)


@bug
def a_run_ends_before_the_sinks_of_other_members_have_published(patch: Patch) -> None:
    real = ending.Ending.unpublished
    patch.setattr(ending.Ending, "unpublished", lambda self: real(self) & self._own)


@bug
def a_run_does_not_end_although_the_sinks_of_others_have_published(patch: Patch) -> None:
    def run(self: Any) -> Any:
        return
        yield

    patch.setattr(ending.Ending, "run", run)


# --- what a power cut leaves ------------------------------------------------------------------------------


@bug
def a_restore_tells_nobody_whose_request_it_ends(patch: Patch) -> None:
    def drop_all(self: Any, coordinator: Any) -> Any:
        self.of_epoch.clear()
        return
        yield

    patch.setattr(requests.Requests, "drop_all", drop_all)


@bug
def a_candidate_writes_the_term_that_was_free_when_it_looked(patch: Patch) -> None:
    patch.setattr(leader.Leader, "_is_next", lambda self, term: True)


@bug
def an_entry_is_taken_from_whoever_announces_it(patch: Patch) -> None:
    def on_announcement(self: Any, sender: str, announcement: Any) -> None:
        genuine(self, self.journal.state.leader, announcement)

    genuine = member.Member.on_announcement
    patch.setattr(member.Member, "on_announcement", on_announcement)


@bug
def what_is_in_flight_is_committed_without_being_made_durable(patch: Patch) -> None:
    def secured(manifest: Any, previous: Any) -> Any:
        return manifest
        yield

    patch.setattr(in_flight, "secured", secured)
