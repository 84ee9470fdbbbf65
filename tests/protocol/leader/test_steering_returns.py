"""Stages, sinks and sources that come back with a restore: rows that their tables already have are not read again."""

from __future__ import annotations

from pathlib import Path

import pytest

from cutwater.protocol.base import effects as fx
from cutwater.protocol.base import paths
from cutwater.protocol.base import records as r
from cutwater.protocol.base.failures import FailureReason
from cutwater.protocol.base.wire import Reply, Request, RequestKind
from cutwater.store.at_rest import carry_out, read_journal
from cutwater.store.local import LocalStore
from tests.support.builders import pipeline, stage
from tests.support.live_leader import LiveLeader
from tests.support.steering_helpers import MORE, ONE, ask, new_store, published

ROOT = r.StageSpec("root", (), "main", (r.SinkSpec("u"),))
MIXED = r.StageSpec("root", ("s",), "main", (r.SinkSpec("u"),))


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return new_store(tmp_path)


def back(
    store: LocalStore, spec: r.StageSpec, versions: dict[int, int] | None = None, **more: object
) -> Reply:
    """Adds a stage that the only checkpoint does not have. `versions`: those of its table, by transaction."""

    def find(sink: str, transaction: int) -> int:
        known = versions or {} if sink == "u" else {}
        return max((version for index, version in known.items() if index <= transaction), default=-1)

    graph = r.Topology({**ONE.stages, "root": spec})
    request = Request(RequestKind.RESTORE, "r1", None, 1, topology=graph, **more)  # type: ignore[arg-type]
    return carry_out(store, read_journal(store), request, find)


@pytest.mark.parametrize(("spec", "native"), [(ROOT, ()), (MIXED, ("root",))])
def test_a_stage_cannot_return_if_its_table_already_has_rows_of_its_source(
    store: LocalStore, spec: r.StageSpec, native: tuple[str, ...]
) -> None:
    leader = LiveLeader(store, ONE)
    leader.commit(0)
    store.create(paths.mark_name(1, "u"), r.seal(r.Published(1, "u", 1, 0)))
    reply = back(store, spec, native=native)
    assert (reply.ok, reply.reason) == (False, FailureReason.NO_POSITIONS.value)
    assert "sink 'u' already has rows of it" in reply.detail
    assert read_journal(store).state.generation == 1


def test_rows_in_the_table_are_enough_to_refuse_a_stage(store: LocalStore) -> None:
    """The process that published them crashed before it wrote the mark."""
    LiveLeader(store, ONE).commit(0)
    assert back(store, ROOT, {1: 0}).reason == FailureReason.NO_POSITIONS.value


def test_a_sink_that_was_dropped_does_not_come_back(store: LocalStore) -> None:
    """Its table would lack the rows in between, and nobody could see where."""
    LiveLeader(store, ONE).commit(0)
    store.create(paths.mark_name(1, "u"), r.seal(r.Published(1, "u", 1, 0, 1, 2)))
    reply = back(store, MIXED)
    assert (reply.ok, reply.reason) == (False, FailureReason.SINK_RETURNS.value)
    assert "sink 'u' was dropped before epoch 1" in reply.detail
    assert read_journal(store).state.generation == 1
    assert back(store, MIXED, {1: 0}).reason == FailureReason.SINK_RETURNS.value, "without the mark"


def test_a_sink_that_was_dropped_before_it_published_does_not_come_back_to_publish(store: LocalStore) -> None:
    both = r.Topology({**ONE.stages, "root": MIXED})
    leader = LiveLeader(store, both)
    leader.commit(0, release={"u": ("staged",)})
    leader.topology = ONE
    leader.commit(1)
    request = Request(RequestKind.RESTORE, "r1", None, 2, topology=both)
    reply = carry_out(store, read_journal(store), request, lambda sink, transaction: -1)
    assert (reply.ok, reply.reason) == (False, FailureReason.SINK_RETURNS.value)
    assert "it would publish the rows of epoch 1, which were given up" in reply.detail


def test_a_sink_without_rows_may_have_marks_of_epochs_before_it(store: LocalStore) -> None:
    LiveLeader(store, ONE).commit(0)
    store.create(paths.mark_name(1, "u"), r.seal(r.Published(1, "u", 1, -1, 0)))
    assert back(store, MIXED).ok


def test_a_sink_that_was_added_after_the_checkpoint_goes_back_to_before_its_first_row(
    store: LocalStore,
) -> None:
    leader = LiveLeader(store, ONE)
    leader.commit(0)
    later = leader.state.committed[1].index + 1
    store.create(paths.mark_name(later, "u"), r.seal(r.Published(2, "u", later, 0)))
    assert back(store, MIXED, {later: 0}).ok


def test_nothing_is_written_to_an_older_copy_of_the_store(store: LocalStore) -> None:
    """The journal would grow past the entry that the table has, with other contents, and its rows would come again."""
    LiveLeader(store, ONE).commit(0)
    journal = read_journal(store)
    ahead = fx.TableHistory(journal.index + 6, 1)
    request = Request(RequestKind.RESTORE, "r", epoch=1)
    for _ in range(3):
        reply = carry_out(store, read_journal(store), request, lambda *_: 0, lambda *_: ahead)
        assert (reply.ok, reply.reason) == (False, FailureReason.JOURNAL_BEHIND.value)
        assert f"ends at entry {journal.index}" in reply.detail
        assert read_journal(store).index == journal.index


def test_a_stage_newer_than_the_checkpoint_reads_its_source_again_when_its_table_is_rewound(
    store: LocalStore,
) -> None:
    leader = LiveLeader(store, ONE)
    leader.commit(0)
    later = leader.state.committed[1].index + 3
    store.create(paths.mark_name(later, "u"), r.seal(r.Published(2, "u", later, 0)))
    assert back(store, ROOT, {later: 0}).ok


@pytest.mark.parametrize("has_code", [True, False])
def test_a_stage_that_another_members_stage_reads_cannot_be_dropped(
    store: LocalStore, has_code: bool
) -> None:
    reader = r.StageSpec("y", ("s",), "b", (r.SinkSpec("u"),))
    other = r.StageSpec("z", (), "main", (r.SinkSpec("v"),))
    leader = LiveLeader(store, r.Topology({**ONE.stages, "y": reader, "z": other}))
    leader.commit(0)
    published(store, leader, 1)
    published(store, leader, 1, "u")
    graph = r.Topology({"y": reader, "z": other}) if has_code else None
    reply = ask(store, RequestKind.RESTORE, epoch=1, drop=("s",), topology=graph)
    assert (reply.ok, reply.reason) == (False, FailureReason.STILL_READ.value)
    assert "stage 'y' of member 'b' reads s" in reply.detail
    assert read_journal(store).state.generation == 1
    # The advice works: drop both, and bring the reader back with changed code.
    assert ask(store, RequestKind.RESTORE, epoch=1, drop=("s", "y"), request_id="r2").ok
    back = r.Topology({"y": r.StageSpec("y", ("z",), "b", (r.SinkSpec("u"),)), "z": other})
    refused = ask(store, RequestKind.RESTORE, epoch=1, drop=("s",), topology=back, request_id="r3")
    assert refused.reason == FailureReason.INPUTS_CHANGED.value
    assert refused.detail.startswith("stage 'y' reads z, and read s at epoch 1. To start it there")
    again = ask(
        store, RequestKind.RESTORE, epoch=1, drop=("s",), reset=("y",), topology=back, request_id="r4"
    )
    assert again.ok


@pytest.mark.parametrize("is_known", [True, False])
def test_a_source_that_was_read_before_is_not_read_again_into_tables_that_have_its_rows(
    store: LocalStore, is_known: bool
) -> None:
    """A stage without a sink of its own was renamed: the table of its reader has the rows."""
    before = pipeline(stage("a"), stage("b", "a", sinks=[r.SinkSpec("t")]))
    leader = LiveLeader(store, before)
    leader.commit(0)
    published(store, leader, 1)
    renamed = pipeline(stage("a2"), stage("b", "a2", sinks=[r.SinkSpec("t")]))
    rereads = ("a2",) if is_known else ()
    reply = ask(
        store, RequestKind.RESTORE, epoch=1, drop=("a",), reset=("b",), topology=renamed, native=("a2",), rereads=rereads
    )  # fmt: skip
    assert reply.ok is not is_known
    if is_known:
        assert reply.reason == FailureReason.NO_POSITIONS.value
        assert "sink 't' already has rows of it" in reply.detail


@pytest.mark.parametrize("begins", [True, False])
def test_a_reset_stage_does_not_begin_to_read_what_its_table_got_through_a_channel(
    store: LocalStore, begins: bool
) -> None:
    """Two stages become one: the second reads the source of the first itself."""
    leader = LiveLeader(store, pipeline(stage("a"), stage("b", "a", sinks=[r.SinkSpec("t")])))
    leader.commit(0)
    published(store, leader, 1)
    merged = pipeline(stage("b", sinks=[r.SinkSpec("t")]))
    rereads = ("b",) if begins else ()
    reply = ask(
        store, RequestKind.RESTORE, epoch=1, drop=("a",), reset=("b",), topology=merged, native=("b",), rereads=rereads
    )  # fmt: skip
    assert reply.ok is not begins
    if begins:
        assert reply.reason == FailureReason.NO_POSITIONS.value
        assert "epoch 1 has no positions of stage 'b' in sources of its own" in reply.detail


@pytest.mark.parametrize("begins", [True, False])
def test_a_stage_without_a_batch_does_not_begin_to_read_what_its_table_has(
    store: LocalStore, begins: bool
) -> None:
    """It is in the checkpoint, and has no position there."""
    before = pipeline(stage("x"), stage("a"), stage("b", "x", "a", sinks=[r.SinkSpec("t")]))
    leader = LiveLeader(store, before)
    leader.commit(0)
    published(store, leader, 1)
    without = pipeline(stage("a"), stage("b", "a", sinks=[r.SinkSpec("t")]))
    rereads = ("a",) if begins else ()
    reply = ask(
        store, RequestKind.RESTORE, epoch=1, drop=("x",), reset=("b",), topology=without, native=("a",), rereads=rereads
    )  # fmt: skip
    assert reply.ok is not begins
    if begins:
        assert reply.reason == FailureReason.NO_POSITIONS.value
        assert "epoch 1 has no positions of stage 'a' in sources of its own" in reply.detail


def test_a_dropped_stage_need_not_be_named_again_for_the_same_checkpoint(store: LocalStore) -> None:
    leader = LiveLeader(store, MORE)
    leader.commit(0)
    leader.commit(1)
    for epoch in (1, 2):  # and nothing to u, whose rows are dropped with its stage
        published(store, leader, epoch)
    assert ask(store, RequestKind.RESTORE, epoch=2, request_id="a").ok
    assert ask(store, RequestKind.RESTORE, epoch=2, topology=ONE, request_id="b").reason == "stage_gone"
    assert ask(store, RequestKind.RESTORE, epoch=2, drop=("fresh",), request_id="c").ok
    assert ask(store, RequestKind.RESTORE, epoch=2, request_id="d").ok
    assert ask(store, RequestKind.RESTORE, epoch=2, topology=ONE, request_id="e").ok
    assert ask(store, RequestKind.RESTORE, epoch=1, request_id="f").reason == "stage_gone"
