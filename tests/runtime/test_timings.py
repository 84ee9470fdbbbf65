"""The timings for `explain`: what they say of an epoch, how many are kept, and whose."""

from __future__ import annotations

import time
from pathlib import Path
from threading import Event

import pytest

from cutwater.protocol.base import events as ev
from cutwater.protocol.base.paths import notes_name
from cutwater.runtime.dispatcher import Dispatcher, Observer
from cutwater.runtime.timings import KEPT, SURPLUS, EpochTimes, RuleRows, StageTime, Timings, read_times
from cutwater.store.local import LocalStore
from tests.support.spark_helpers import await_that


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


def begun(epoch: int, leader: str = "a", savepoint: str | None = None) -> ev.EpochBegun:
    return ev.EpochBegun(epoch, epoch + 100, 4, savepoint, leader)


def observe(timings: Timings, *events: tuple[float, ev.Event]) -> float:
    """Events, so many seconds after a moment of now; that moment in wall-clock time."""
    now_s, now = time.monotonic(), time.time()
    for after_s, event in events:
        timings(now_s + after_s, event)
    return now


def commit(timings: Timings, epoch: int) -> None:
    observe(timings, (0.0, begun(epoch)), (1.0, ev.EpochCommitted(epoch, None)))


def kept(store: LocalStore) -> set[int]:
    return {int(name.removeprefix("explain/")[:12]) for name in store.list("explain/")}


def test_a_committed_epoch_has_the_time_of_every_step(store: LocalStore) -> None:
    now = observe(
        Timings(store, "a"),
        (0.0, begun(7, savepoint="good")),
        (0.1, ev.StageCut("s", 7, 12, False)),
        (0.25, ev.StageCut("t", 7, 3, True)),
        (0.3, ev.EpochCaptured(7)),
        (0.4, ev.ManifestWritten(7)),
        (0.5, ev.EpochCommitted(7, None)),
        (0.75, ev.TablePublished("out", 7, 4)),
        (0.8, ev.TablePublished("out", 6, 3)),
        (0.9, ev.TableRewound("out", 7, 5)),
    )
    found = read_times(store, 7)
    assert found is not None
    assert found.begun_at == pytest.approx(now, abs=0.5)
    assert found == EpochTimes(
        7, 107, found.begun_at, 4, "good", {"s": StageTime(0.1, 12, False), "t": StageTime(0.25, 3, True)},
        captured_s=0.3, manifest_s=0.4, committed_s=0.5, published_s={"out": 0.75},
    )  # fmt: skip
    assert read_times(store, 6) is None, "nobody knows when it was begun"


def test_a_committed_epoch_has_the_rows_that_violate_rules(store: LocalStore) -> None:
    counted = {"s": {"positive": RuleRows(2, 5)}}
    commit(Timings(store, "a", violations=lambda epoch: counted if epoch == 7 else {}), 7)
    found = read_times(store, 7)
    assert found is not None
    assert found.violations == counted


def test_an_aborted_epoch_says_why(store: LocalStore) -> None:
    observe(Timings(store, "a"), (0.0, begun(7)), (2.0, ev.EpochAborted(7, "deadline", "s is slow", False)))
    found = read_times(store, 7)
    assert found is not None
    assert (found.aborted_s, found.reason, found.detail) == (2.0, "deadline", "s is slow")


def test_an_epoch_that_became_void_leaves_nothing(store: LocalStore) -> None:
    observe(Timings(store, "a"), (0.0, begun(7)), (2.0, ev.EpochAborted(7, "restored", "", True)))
    assert store.list("explain/") == []


def test_every_member_stores_its_own_part_and_the_reader_joins_them(store: LocalStore) -> None:
    for member, stage in (("a", "s"), ("b", "t")):
        observe(
            Timings(store, member),
            (0.0, begun(7)),
            (0.5, ev.StageCut(stage, 7, 1, False)),
            (1.0, ev.EpochCommitted(7, None)),
            (2.0, ev.TablePublished(f"out_{stage}", 7, 1)),
        )
    assert store.list("explain/") == sorted([notes_name(7, None), notes_name(7, "b")])
    found = read_times(store, 7)
    assert found is not None
    assert found.stages.keys() == {"s", "t"}
    assert found.published_s.keys() == {"out_s", "out_t"}


def test_timings_of_the_latest_epochs_are_kept(store: LocalStore) -> None:
    timings = Timings(store, "a")
    for epoch in range(1, 131):
        commit(timings, epoch)
        assert len(store.list("explain/")) <= KEPT + SURPLUS + 1
    assert kept(store) >= set(range(130 - KEPT, 131))
    assert read_times(store, 130) is not None


def test_timings_of_kept_checkpoints_stay(store: LocalStore) -> None:
    timings = Timings(store, "a", lambda: {2, 3})
    for epoch in range(1, 131):
        commit(timings, epoch)
    assert {2, 3} <= kept(store)
    assert not {1, 4} & kept(store)


def test_a_restarted_member_deletes_nothing_that_others_still_keep(store: LocalStore) -> None:
    for epoch in range(400, 451):
        for member in (None, "b", "c"):
            store.put(notes_name(epoch, member), b"{}")
    commit(Timings(store, "a"), 450)
    assert len(store.list("explain/")) == 3 * 51
    commit(Timings(store, "a"), 460)
    assert len(store.list("explain/")) == 3 * 41 + 1, (
        "timings that are too old are deleted, no matter who wrote them"
    )


class SlowStore(LocalStore):
    """A store whose writes block until they are released."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.asked, self.go_on = Event(), Event()

    def put(self, name: str, data: bytes) -> None:
        self.asked.set()
        assert self.go_on.wait(10)
        super().put(name, data)


def test_nobody_waits_for_a_slow_store_and_nothing_is_lost(tmp_path: Path) -> None:
    """Events come from whoever has the shell's turn; if that waited for the store, the leader would seem dead."""
    store, seen = SlowStore(tmp_path), list[ev.Event]()
    observers: dict[str, Observer] = {
        "timings": Timings(store, "a"),
        "other": lambda at_s, event: seen.append(event),
    }
    dispatcher = Dispatcher(observers, lambda line: None)
    dispatcher.start()
    dispatcher.emit(begun(1))
    dispatcher.emit(ev.EpochCommitted(1, None))
    assert store.asked.wait(10)
    dispatcher.emit(ev.TablePublished("out", 1, 7))
    await_that("the others know", lambda: len(seen) == 3, 10)
    store.go_on.set()
    dispatcher.close()
    found = read_times(store, 1)
    assert found is not None
    assert found.published_s.keys() == {"out"}, "also what came meanwhile"


def test_a_store_that_fails_costs_only_the_timings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path)
    timings = Timings(store, "a")

    def fail(name: str, data: bytes) -> None:
        raise OSError("no room")

    with monkeypatch.context() as broken:
        broken.setattr(store, "put", fail)
        commit(timings, 1)
    commit(timings, 2)
    assert kept(store) == {2}
