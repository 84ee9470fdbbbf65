"""What an epoch of a sink contains, what a sink has to do, and what its table must keep."""

from __future__ import annotations

import pytest

from cutwater.protocol.base import records as r
from cutwater.protocol.member.publish import (
    CommitPermit,
    RewindOrder,
    contents,
    duties,
    oldest_needed,
    stranded,
)
from tests.support.builders import batch, begun, journal_of, manifest
from tests.support.publish_helpers import LEADER, epochs, staged

FINAL = r.SinkSpec("out", final=True)

# The contents of an epoch.


def test_an_epoch_is_the_files_of_its_batches_in_order() -> None:
    batches = [batch(n, sinks={"out": staged((f"f{n}", None)), "other": staged(("x", None))}) for n in (3, 4)]
    assert contents(batches, r.SinkSpec("out"), (), None) == (("f3", "f4"), ())
    assert contents(batches, r.SinkSpec("third"), (), None) == ((), ())


def test_a_final_sink_publishes_a_window_when_the_watermark_reaches_its_end() -> None:
    batches = [batch(0, sinks={"out": staged(("w10", 10), ("w20", 20), ("w30", 30))})]
    assert contents(batches, FINAL, (), None) == ((), staged(("w10", 10), ("w20", 20), ("w30", 30)))
    assert contents(batches, FINAL, (), 19) == (("w10",), staged(("w20", 20), ("w30", 30)))
    assert contents(batches, FINAL, (), 20) == (("w10", "w20"), staged(("w30", 30)))


def test_held_rows_come_before_new_ones() -> None:
    batches = [batch(7, sinks={"out": staged(("new", 10), ("newer", 40))})]
    held = staged(("old", 10), ("older", 40))
    assert contents(batches, FINAL, held, 20) == (("old", "new"), staged(("older", 40), ("newer", 40)))


def test_a_sink_that_is_no_longer_final_shows_what_it_held() -> None:
    batches = [batch(7, sinks={"out": staged(("new", None))})]
    for watermark in (None, 20):
        shown = contents(batches, r.SinkSpec("out"), staged(("old", 10), ("older", 40)), watermark)
        assert shown == (("old", "older", "new"), ())


# The duties of a sink. In these journals epoch N begins at 2N and is committed at 2N + 1.


def steps(state: r.JournalState, transaction: int = 0) -> list[tuple[str, int, int]]:
    """The duties as (what, epoch, index)."""
    return [
        ("publish" if isinstance(d, CommitPermit) else "rewind", d.epoch, d.index)
        for d in duties(state, transaction)
    ]


def test_every_commit_after_the_tables_transaction_is_published_in_order() -> None:
    state = journal_of(LEADER, *epochs(1, 2, 3))
    assert steps(state) == [("publish", 1, 3), ("publish", 2, 5), ("publish", 3, 7)]
    assert steps(state, 3) == [("publish", 2, 5), ("publish", 3, 7)]
    assert steps(state, 7) == []


def test_only_committed_epochs_are_published() -> None:
    state = journal_of(LEADER, *epochs(1), begun(2, 4), r.Aborted(1, 1, 2, 4, "deadline"), begun(3, 6))
    assert steps(state) == [("publish", 1, 3)]


def test_a_restore_is_a_rewind_and_abandoned_commits_are_skipped() -> None:
    state = journal_of(LEADER, *epochs(1, 2, 3), r.Restored(1, 2, 1, {"a": 0}))
    assert steps(state, 7) == [("rewind", 1, 8)]
    assert steps(state, 5) == [("rewind", 1, 8)], "epoch 3 is never published"
    assert steps(state, 0) == [("publish", 1, 3), ("rewind", 1, 8)]


def test_a_rewind_names_the_commit_that_it_goes_back_to() -> None:
    state = journal_of(LEADER, *epochs(1, 2, 3), r.Restored(1, 2, 2, {"a": 0}))
    assert duties(state, 7) == [RewindOrder(2, 8, 5)]


def test_new_commits_follow_a_restore() -> None:
    new: list[r.JournalBody] = [r.Begun(1, 2, 4, 9, 0, "h"), r.Committed(1, 2, 4, 9, "", None, {"a": 1})]
    state = journal_of(LEADER, *epochs(1, 2, 3), r.Restored(1, 2, 1, {"a": 0}), *new)
    assert steps(state, 5) == [("rewind", 1, 8), ("publish", 4, 10)]
    assert steps(state, 8) == [("publish", 4, 10)]


def test_an_unpublished_target_is_published_before_the_rewind() -> None:
    state = journal_of(LEADER, *epochs(1, 2), r.Restored(1, 2, 2, {"a": 0}))
    assert steps(state, 3) == [("publish", 2, 5), ("rewind", 2, 6)]


def test_a_restore_from_a_restored_timeline_rewinds_twice() -> None:
    new: list[r.JournalBody] = [r.Begun(1, 2, 4, 7, 0, "h"), r.Committed(1, 2, 4, 7, "", None, {"a": 1})]
    state = journal_of(
        LEADER, *epochs(1, 2), r.Restored(1, 2, 1, {"a": 0}), *new, r.Restored(1, 3, 4, {"a": 1})
    )
    assert steps(state, 5) == [("rewind", 1, 6), ("publish", 4, 8), ("rewind", 4, 9)]
    assert duties(state, 8) == [RewindOrder(4, 9, 8)]


def test_a_second_restore_to_the_same_epoch_makes_the_first_unnecessary() -> None:
    state = journal_of(LEADER, *epochs(1, 2), r.Restored(1, 2, 1, {"a": 0}), r.Restored(1, 3, 1, {"a": 0}))
    assert steps(state, 5) == [("rewind", 1, 7)]
    assert steps(state, 6) == [("rewind", 1, 7)]
    assert steps(state, 7) == []


def test_a_restore_to_an_older_generation_skips_the_one_in_between() -> None:
    new: list[r.JournalBody] = [r.Begun(1, 2, 3, 7, 0, "h"), r.Committed(1, 2, 3, 7, "", None, {"a": 1})]
    state = journal_of(
        LEADER, *epochs(1, 2), r.Restored(1, 2, 1, {"a": 0}), *new, r.Restored(1, 3, 2, {"a": 0})
    )
    assert steps(state, 5) == [("rewind", 2, 9)]
    assert steps(state, 0) == [("publish", 1, 3), ("publish", 2, 5), ("rewind", 2, 9)]
    assert duties(state, 8) == [RewindOrder(2, 9, 5)]


# Sinks that a changed graph no longer has.


def graph(**sinks: str) -> r.Topology:
    """A graph of stages with one sink each."""
    stages = [r.StageSpec(stage, (), "m0", (r.SinkSpec(sink, final=True),)) for stage, sink in sinks.items()]
    return r.Topology({spec.name: spec for spec in stages})


TARGET = journal_of(LEADER, *epochs(1)).committed[1]


def left_behind(after: r.Topology, settled: int = 3, held: bool = True, dropped: tuple[str, ...] = ()) -> str:
    files = {"old": staged(("w10", 10))} if held else {}
    cut = manifest(1, 2, release={"old": (), "other": ()}, held=files)
    before = graph(a="old", b="other")
    return "; ".join(stranded(cut, TARGET, before, after, {"old": settled, "other": 3}, dropped))


def test_a_sink_is_not_renamed_while_it_holds_back_rows() -> None:
    """The rows that it holds back are in the manifest under its old name, and would never be published."""
    cut = manifest(1, 2, held={"old": staged(("w10", 10))})
    assert contents([], r.SinkSpec("new"), cut.held.get("new", ()), 100) == ((), ())
    assert "'old', which the code no longer has, holds 1 files" in left_behind(graph(a="new", b="other"))
    assert "name='old'" in left_behind(graph(a="new", b="other"))
    assert left_behind(graph(a="old", b="other")) == ""
    assert left_behind(graph(c="old", b="other")) == "", "another stage may feed it"


def test_a_sink_is_not_renamed_while_it_has_something_to_publish() -> None:
    after = graph(a="new", b="other")
    assert "'old', which the code no longer has, has not published everything up to epoch 1" in left_behind(
        after, 2, False
    )
    assert left_behind(after, settled=3, held=False) == ""


@pytest.mark.parametrize("dropped", ["old", "a"], ids=["the sink", "its stage"])
def test_rows_that_a_sink_holds_back_are_dropped_with_it_on_request(dropped: str) -> None:
    assert left_behind(graph(b="other"), 0, dropped=(dropped,)) == ""
    assert left_behind(graph(b="other"), 0, dropped=("b",)) != ""


# What tables must keep.


def test_a_table_keeps_what_the_oldest_retained_checkpoint_needs() -> None:
    state = journal_of(LEADER, *epochs(1, 2, 3))
    assert oldest_needed(state, 7) == 3
    gone = journal_of(LEADER, *epochs(1, 2, 3), r.Expired(1, 1, (1, 2), (), {}, ()))
    assert oldest_needed(gone, 7) == 7
    assert oldest_needed(journal_of(LEADER), 0) is None


def test_a_table_keeps_what_a_pending_rewind_needs() -> None:
    """Its target has expired meanwhile. That does not happen before every sink has followed, but a member with an
    outdated journal must not be misled either."""
    state = journal_of(
        LEADER, *epochs(1, 2), r.Restored(1, 2, 1, {"a": 0}), *[r.Expired(1, 2, (1,), (), {}, ())]
    )
    assert oldest_needed(state, 5) == 3
    assert oldest_needed(state, 6) == 5
