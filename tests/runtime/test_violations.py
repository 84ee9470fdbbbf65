"""How rows that violate rules are counted: per epoch and in all, also after a crash and a restore."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from cutwater.protocol.base import events as ev
from cutwater.protocol.base.paths import BASE, batch_file_name, notes_name, spark_prefix
from cutwater.protocol.base.records import seal
from cutwater.protocol.base.watermark import NONE
from cutwater.runtime.timings import EpochTimes, RuleRows
from cutwater.runtime.violations import Known, Violations
from cutwater.spark.checkpoint.folder import Cache
from cutwater.spark.checkpoint.prepared import Judged
from cutwater.store.local import LocalStore


class Stage:
    """The stage `s`, with the rules a and b, in generation 1. `batches`: the incarnation of each that its log has."""

    def __init__(self, folder: Path) -> None:
        self.store = LocalStore(folder)
        self.batches: dict[int, int] = {}
        self.timeline: list[tuple[int, int]] = []
        """The epochs with their cuts, newest first."""
        self.generation = 1
        self.fork = -1
        self.retained = 99

    def batch(self, number: int, incarnation: int = 1, is_logged: bool = True, **rows: int) -> None:
        folder = spark_prefix("s", self.generation, incarnation)
        record = Judged(
            number, (), {}, consumed={}, offsets={}, watermark=NONE, violations={"s": rows} if rows else {}
        )
        self.store.put(folder + BASE, seal({"base": -1}))
        self.store.put(folder + batch_file_name("prepared", number), seal(record))
        if is_logged:
            self.batches[number] = incarnation

    def commit(self, epoch: int, cut: int) -> None:
        self.timeline.insert(0, (epoch, cut))

    def process(self) -> Violations:
        """A new process, which knows what is durable."""
        return Violations(self.store, {"s": ("a", "b")}, self.known, {"s": Cache()})

    def known(self, epoch: int | None) -> Known | None:
        at = [e for e, _ in self.timeline]
        since = self.timeline[at.index(epoch) if epoch is not None else 0 :]
        timeline = tuple((e, {"s": cut}) for e, cut in since)
        newest = max(self.batches.values(), default=0)
        batches: dict[int, tuple[int, ...]] = {n: (found, newest) for n, found in self.batches.items()}
        kept, gone = timeline[: self.retained], timeline[self.retained :]
        parent = gone[0][0] if gone else None
        return Known(self.generation, kept, {"s": batches}, {"s": max(batches, default=self.fork)}, parent)

    def note(self, epoch: int, counted: dict[str, dict[str, RuleRows]]) -> None:
        times = EpochTimes(epoch, 100, 0.0, 0, violations=counted)
        self.store.put(notes_name(epoch), msgspec.json.encode(times))


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def counts(a: tuple[int, int], b: tuple[int, int]) -> dict[str, dict[str, RuleRows]]:
    return {"s": {"a": RuleRows(*a), "b": RuleRows(*b)}}


def test_an_epoch_has_the_rows_of_the_batches_since_the_last_one(stage: Stage) -> None:
    counting = stage.process()
    stage.batch(0, a=3)
    stage.batch(1)
    stage.batch(2, a=1, b=2)
    stage.batch(3, b=50)
    stage.commit(7, cut=1)
    assert counting.at(7) == counts((3, 3), (0, 0))
    stage.commit(9, cut=2)
    assert counting.at(9) == counts((1, 4), (2, 2)), "epoch 8 was aborted, and batch 3 is after the cut"
    assert counting.at(7) == counts((3, 3), (0, 0))
    assert counting.at(None) == counting.at(9)


def test_a_process_that_died_before_it_counted_an_epoch_loses_no_row_of_it(stage: Stage) -> None:
    stage.batch(0, a=3)
    stage.commit(7, cut=0)
    stage.note(7, stage.process().at(7))
    stage.batch(1, incarnation=1, a=1)
    stage.batch(2, incarnation=1, is_logged=False, a=1000)  # Spark had not committed it
    stage.batch(2, incarnation=5, a=10)
    stage.commit(8, cut=1)
    stage.commit(9, cut=2)
    del stage.batches[0]  # it was compacted away
    assert stage.process().at(9) == counts((10, 14), (0, 0))
    assert stage.process().at(8) == counts((1, 4), (0, 0))


def test_the_record_of_a_batch_may_be_in_the_folder_of_a_later_incarnation(stage: Stage) -> None:
    stage.batch(0, incarnation=5, a=3)
    stage.batch(1, incarnation=5, a=4)
    stage.batches[0] = 1  # its folder is gone; the next one has taken over the record
    stage.commit(7, cut=1)
    assert stage.process().at(7) == counts((7, 7), (0, 0))


def test_after_a_restore_the_counts_are_those_of_its_epoch_and_go_on_from_there(stage: Stage) -> None:
    stage.batch(0, a=3)
    stage.commit(7, cut=0)
    stage.batch(1, a=100)
    stage.commit(8, cut=1)
    for epoch in (7, 8):
        stage.note(epoch, stage.process().at(epoch))
    counting = stage.process()
    counting(0.0, ev.CaughtUp(1))
    assert counting.latest == counts((100, 103), (0, 0))
    stage.timeline, stage.batches, stage.generation, stage.fork = [(7, 0)], {}, 2, 0
    counting(0.0, ev.PipelineRestored(7, 2))
    assert counting.latest == counts((3, 3), (0, 0))
    stage.batch(1, a=20)
    stage.commit(10, cut=1)
    counting(0.0, ev.EpochCommitted(10, None))
    assert counting.latest == counts((20, 23), (0, 0))


def test_a_rule_that_is_new_begins_to_count_and_one_that_is_gone_is_forgotten(stage: Stage) -> None:
    stage.note(7, {"s": {"a": RuleRows(1, 5), "old": RuleRows(1, 1)}})
    stage.commit(7, cut=0)
    stage.batch(1, a=2, b=1)
    stage.commit(8, cut=1)
    assert stage.process().at(8) == counts((2, 7), (1, 1))


def test_an_epoch_counts_on_although_the_one_before_has_expired(stage: Stage) -> None:
    stage.retained = 1
    counting = stage.process()
    for epoch in (7, 8, 9):
        stage.batch(epoch, a=1)
        stage.commit(epoch, cut=epoch)
        assert counting.at(epoch) == counts((1, epoch - 6), (0, 0))


def test_an_epoch_is_not_counted_before_the_log_of_the_stage_is_known(stage: Stage) -> None:
    stage.batch(0, a=3)
    stage.commit(7, cut=0)
    counting, batches = stage.process(), dict(stage.batches)
    stage.batches.clear()
    counting(0.0, ev.CaughtUp(1))
    assert counting.latest == {}
    stage.batches |= batches
    stage.batch(1, a=1)
    stage.commit(8, cut=1)
    assert counting.at(8) == counts((1, 4), (0, 0))


def test_notes_without_counts_and_records_that_are_gone_count_as_none(stage: Stage) -> None:
    stage.commit(7, cut=0)
    stage.batches[0] = 4
    assert stage.process().at(7) == counts((0, 0), (0, 0))
    assert Violations(stage.store, {}, stage.known, {}).at(7) == {}
