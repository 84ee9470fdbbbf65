"""Which of a sink's staged output is obsolete, and which may still be needed."""

from __future__ import annotations

from cutwater.protocol.base import records as r
from cutwater.protocol.base.paths import Attempt, staged_attempt_name
from cutwater.protocol.member.staged import Needed
from tests.support.builders import journal_of, manifest

STATE = journal_of(
    r.Leader(1, "m0"),
    r.Begun(1, 1, 1, 2, 0, "h"),
    r.Committed(1, 1, 1, 2, "", None, {"a": 4}),
    r.Restored(1, 2, 1, {"a": 4}),
    r.Begun(1, 2, 2, 5, 0, "h"),
    r.Committed(1, 2, 2, 5, "", None, {"a": 7}),
)
"""Stage `a` is in generation 2, and its newest cut is after batch 7."""


def attempt(generation: int, batch: int) -> str:
    return staged_attempt_name(generation, Attempt(3, batch, "0a1b2c3d"))


def file_of(attempt: str) -> str:
    return f"_cutwater/0123456789ab/{attempt}/__cutwater_end=60000/part-0.parquet"


def needed(*manifests: r.Manifest) -> Needed:
    return Needed(STATE, "a", "out", manifests)


def test_attempts_at_batches_up_to_the_newest_cut_are_obsolete() -> None:
    keep = needed()
    assert [batch for batch in range(10) if attempt(2, batch) in keep] == [8, 9]


def test_attempts_of_earlier_generations_are_obsolete_and_those_of_later_ones_are_not() -> None:
    keep = needed()
    assert attempt(1, 99) not in keep
    assert attempt(3, 0) in keep


def test_what_a_retained_checkpoint_publishes_or_holds_back_is_needed() -> None:
    """Held-back files are in no version of the table yet: nothing else keeps them."""
    released = manifest(1, 2, release={"out": (file_of(attempt(1, 2)),)})
    held = manifest(2, 5, held={"out": (r.StagedFile(file_of(attempt(2, 3)), 60_000),)})
    keep = needed(released, held)
    assert attempt(1, 2) in keep
    assert attempt(2, 3) in keep
    assert attempt(2, 4) not in keep


def test_files_that_another_sink_holds_back_do_not_count() -> None:
    held = manifest(2, 5, held={"other": (r.StagedFile(file_of(attempt(2, 3)), 60_000),)})
    assert attempt(2, 3) not in needed(held)


def test_folders_that_are_not_attempts_are_never_removed() -> None:
    keep = needed()
    assert all(name in keep for name in ("done", "2-3-4", "2-x-4-0a1b2c3d", "_temporary"))
