"""One row of the list of epochs, from what the store says about the epoch."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cutwater.protocol.base.barrier import Flags
from cutwater.protocol.base.records import (
    Aborted,
    Begun,
    Checkpoint,
    Generation,
    InFlight,
    JournalState,
    Manifest,
    StageReport,
)
from cutwater.protocol.base.watermark import NONE
from cutwater.web.history import Epoch
from cutwater.web.rows import EpochFacts, Row, generation_at, row_of
from tests.support.builders import CHAIN

BEGUN = Begun(1, 2, 7, 30, 0, "hash")
ABORTED = Aborted(1, 2, 7, 30, "timed_out", "in the journal")
CHECKPOINT = Checkpoint(7, 30, 2, 31, 0, "digest", 5_000, {"a": 4, "b": 3}, None)
TIMES = Epoch(7, 30, 100.0, 0, None, 1, None, None, None, "", frozenset())
COMMITTED = msgspec.structs.replace(TIMES, committed_s=0.5)
FAILED = msgspec.structs.replace(TIMES, aborted_s=2.5, reason="cancelled", detail="in the timings")
FACTS = EpochFacts(7, None, None, None, None, None, None, "", {})
STATE = JournalState(
    topology=CHAIN, generations={1: Generation(1), 2: Generation(2, index=20), 3: Generation(3, index=40)}
)


def manifest(**state: dict[str, str]) -> Manifest:
    reports = {
        name: StageReport(name, 1, 4, False, consumed={}, offsets={}, watermark=NONE, state=s)
        for name, s in state.items()
    }
    return Manifest(7, 30, 2, 1, 0, None, "hash", reports, (), {}, {}, None)


def row(savepoints: tuple[str, ...] = (), sizes: Any = None, **facts: Any) -> Row:
    made = EpochFacts(**{name: getattr(FACTS, name) for name in FACTS.__dataclass_fields__} | facts)
    return row_of(made, STATE, savepoints, False, sizes)


@pytest.mark.parametrize(
    ("facts", "result", "committed"),
    [
        ({"begun": BEGUN, "times": TIMES}, "in progress", False),
        ({"checkpoint": CHECKPOINT, "times": COMMITTED}, "committed", True),
        ({"checkpoint": CHECKPOINT}, "committed", True),
        ({"aborted": ABORTED}, "aborted", False),
        ({"times": FAILED}, "aborted", False),
        ({"times": COMMITTED}, "expired", True),
        ({"times": TIMES}, "over", False),
        ({}, "over", False),
    ],
)
def test_the_result_of_an_epoch(facts: dict[str, Any], result: str, committed: bool) -> None:
    found = row(**facts)
    assert (found.result, found.committed) == (result, committed)


@pytest.mark.parametrize(
    ("flags", "savepoints", "asked", "kind", "labels"),
    [
        (0, (), None, "checkpoint", ()),
        (Flags.FULL_SNAPSHOT, (), None, "full checkpoint", ("full",)),
        (Flags.DRAIN | Flags.FULL_SNAPSHOT, (), None, "drain", ("full", "drain")),
        (Flags.FULL_SNAPSHOT, ("good",), None, "savepoint", ("full",)),
        (0, (), "wanted", "savepoint", ()),
    ],
)
def test_the_kind_of_an_epoch(
    flags: int, savepoints: tuple[str, ...], asked: str | None, kind: str, labels: tuple[str, ...]
) -> None:
    times = msgspec.structs.replace(TIMES, flags=flags, savepoint=asked)
    found = row(savepoints, times=times)
    assert (found.kind, found.flags) == (kind, labels)
    assert row(begun=msgspec.structs.replace(BEGUN, flags=flags)).flags == labels


def test_the_journal_says_why_an_epoch_failed_as_long_as_it_remembers() -> None:
    both, timings = row(aborted=ABORTED, times=FAILED), row(times=FAILED)
    assert (both.reason, both.detail) == ("timed_out", "in the journal")
    assert (timings.reason, timings.detail) == ("cancelled", "in the timings")
    assert (both.took_s, row(times=COMMITTED).took_s, row().took_s) == (2.5, 0.5, None)
    assert (row().reason, row().detail) == (None, "")


def test_stages_and_generation_come_from_the_checkpoint_or_else_from_the_journal() -> None:
    kept, going_on = row(checkpoint=CHECKPOINT, times=COMMITTED), row(times=TIMES)
    assert (kept.stages, kept.stages_cut, kept.generation, kept.watermark) == (2, 2, 2, 5_000)
    assert (going_on.stages, going_on.stages_cut, going_on.generation) == (len(CHAIN.stages), 1, 2)
    assert (row().generation, row().stages_cut, row().checkpoint_id) == (None, None, None)
    assert [generation_at(STATE, index) for index in (0, 1, 20, 21, 41)] == [None, 1, 1, 2, 3]


def test_sizes_are_those_of_all_state_files_and_of_the_new_ones() -> None:
    before, now = manifest(a={"x": "1"}), manifest(a={"x": "1", "y": "2"}, b={"z": "3"})
    lengths: dict[str, int | None] = {"x": 10, "y": 200, "z": 3_000}

    def sizes(names: Any) -> list[int | None]:
        return [lengths[name] for name in names]

    found = row(checkpoint=CHECKPOINT, times=COMMITTED, manifest=now, before=before, sizes=sizes)
    assert (found.state_files, found.state_bytes, found.written_bytes) == (3, 3_210, 3_200)
    assert found.is_final
    lengths["y"] = None
    lost = row(checkpoint=CHECKPOINT, times=COMMITTED, manifest=now, before=before, sizes=sizes)
    assert (lost.state_files, lost.state_bytes, lost.written_bytes) == (3, None, None)
    unknown = row(checkpoint=CHECKPOINT, times=COMMITTED, manifest=now)
    assert (unknown.state_files, unknown.state_bytes, unknown.is_final) == (3, None, False)
    assert row(checkpoint=CHECKPOINT, problem="it is gone").flags == ("damaged",)


def test_a_row_is_final_when_every_table_shows_the_epoch() -> None:
    known: dict[str, Any] = {"checkpoint": CHECKPOINT, "times": COMMITTED, "manifest": manifest(a={})}
    assert row(sizes=lambda names: [], published={"out": 3}, **known).is_final
    assert not row(sizes=lambda names: [], published={"out": 3, "other": None}, **known).is_final
    assert not row(sizes=lambda names: [], **{**known, "times": TIMES}).is_final


def test_rows_in_flight_are_counted_by_batch_and_file() -> None:
    flight = InFlight("a", "b", 1, 4, {2: ("f1", "f2"), 3: (), 4: ("f3",)})
    now = msgspec.structs.replace(manifest(a={}), in_flight=(flight,))
    found = row(checkpoint=CHECKPOINT, manifest=now)
    assert (found.in_flight_batches, found.in_flight_files) == (2, 3)
    assert found.document()["in_flight"] == {"batches": 2, "files": 3}
    assert row(checkpoint=CHECKPOINT).document()["in_flight"] is None
