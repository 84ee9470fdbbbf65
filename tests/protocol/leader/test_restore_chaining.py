"""Restores into a graph in which other stages are chained than at the checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from cutwater.protocol.base import paths
from cutwater.protocol.base import records as r
from cutwater.protocol.base.failures import FailureReason
from cutwater.protocol.base.watermark import NONE
from cutwater.protocol.base.wire import Reply, Request, RequestKind
from cutwater.protocol.member.publish import in_force
from cutwater.store.at_rest import carry_out, load_manifest, read_journal
from cutwater.store.local import LocalStore
from cutwater.store.opening import open_store
from tests.support.builders import stage
from tests.support.live_leader import LiveLeader

OUT = r.SinkSpec("t")
APART = r.Topology({"a": stage("a"), "b": stage("b", "a", sinks=[OUT])})
CHAINED = r.Topology({"b": stage("b", sinks=[OUT])}, {"a": r.ChainedStage("a", (), "b", "columns")})


def part(name: str, batch: int, **consumed: int) -> r.StageReport:
    return r.StageReport(name, 0, batch, False, {}, consumed=consumed, offsets={}, watermark=NONE)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    found = open_store(str(tmp_path / "store"), create=True)
    assert isinstance(found, LocalStore)
    return found


def begin(store: LocalStore, graph: r.Topology, in_flight: tuple[r.InFlight, ...] = ()) -> LiveLeader:
    """A pipeline with one checkpoint, after batch 4 of each query, that is published."""
    leader = LiveLeader(store, graph)
    leader.commit(4, in_flight=in_flight)
    index = leader.state.committed[1].index
    store.create(paths.mark_name(index, "t"), r.encode(r.Published(1, "t", index, 1)))
    return leader


def ask(store: LocalStore, request_id: str = "r", **what: Any) -> Reply:
    request = Request(RequestKind.RESTORE, request_id, epoch=1, **what)
    return carry_out(store, read_journal(store), request, lambda sink, transaction: 0)


def cuts(store: LocalStore) -> dict[str, int]:
    """Where the stages begin, as a member sees it."""
    state = read_journal(store).state
    assert state.head is not None
    manifest = in_force(load_manifest(store, state.committed[state.head]), state)
    return {name: report.batch for name, report in manifest.stages.items()}


def test_a_checkpoint_says_what_was_chained(store: LocalStore) -> None:
    begin(store, CHAINED)
    manifest = load_manifest(store, read_journal(store).state.committed[1])
    assert (manifest.query_of("a"), manifest.query_of("b"), manifest.query_of("c")) == ("b", "b", None)
    assert manifest.chain("b") == {"a"}
    assert manifest.moved_queries(CHAINED) == ()
    assert manifest.moved_queries(APART) == ("a", "b")


def test_stages_that_are_new_or_gone_are_not_moved(store: LocalStore) -> None:
    begin(store, APART)
    manifest = load_manifest(store, read_journal(store).state.committed[1])
    more = r.Topology(
        {"b": APART.stages["b"], "d": stage("d", sinks=[OUT])}, {"c": r.ChainedStage("c", (), "d")}
    )
    assert manifest.moved_queries(more) == ()


def test_a_split_is_one_entry_with_where_each_query_begins(store: LocalStore) -> None:
    begin(store, CHAINED)
    moved = {"a": part("a", 4), "b": part("b", 4, a=4)}
    assert ask(store, topology=APART, moved=moved, reset=("a",)).ok
    journal = read_journal(store)
    body = journal.view.entries[-1].entry.body
    assert isinstance(body, r.Restored)
    assert (body.forks, body.moved, body.reset, body.topology) == ({"a": 4, "b": 4}, moved, ("a",), APART)
    assert cuts(store) == {"a": 4, "b": 4}
    assert journal.state.head_cuts == {"a": 4, "b": 4}


def test_a_merge_leaves_one_query(store: LocalStore) -> None:
    begin(store, APART)
    assert ask(store, topology=CHAINED, moved={"b": part("b", 4)}).ok
    assert cuts(store) == {"b": 4}
    state = read_journal(store).state
    assert (state.topology, state.head_cuts) == (CHAINED, {"b": 4})


def test_what_was_moved_counts_until_the_next_checkpoint(store: LocalStore) -> None:
    begin(store, CHAINED)
    moved = {"a": part("a", 4), "b": part("b", 4, a=4)}
    assert ask(store, topology=APART, moved=moved, reset=("a",)).ok
    LiveLeader(store, APART).commit(9)
    assert cuts(store) == {"a": 9, "b": 9}


def test_a_restore_that_does_not_say_where_a_query_begins_is_refused(store: LocalStore) -> None:
    begin(store, CHAINED)
    for wrong in ({}, {"b": part("b", 4, a=4)}, {n: part(n, 4) for n in "abc"}):
        reply = ask(store, topology=APART, moved=wrong)
        assert reply.reason == FailureReason.CHAINING_CHANGED.value
        assert "other stages were chained into the query of a, b" in reply.detail
    assert read_journal(store).state.generation == 1


def test_a_live_restore_to_before_a_split_is_refused(store: LocalStore) -> None:
    begin(store, CHAINED)
    moved = {"a": part("a", 4), "b": part("b", 4, a=4)}
    assert ask(store, topology=APART, moved=moved, reset=("a",)).ok
    assert ask(store, "r2").reason == FailureReason.CHAINING_CHANGED.value


def test_queries_with_rows_in_flight_between_them_are_not_moved(store: LocalStore) -> None:
    begin(store, APART, (r.InFlight("a", "b", 3, 4, {4: ("file",)}),))
    reply = ask(store, topology=CHAINED, moved={"b": part("b", 4)})
    assert reply.reason == FailureReason.ROWS_IN_FLIGHT.value
    assert "Restore an aligned checkpoint" in reply.detail


def test_batches_without_rows_in_flight_do_not_matter(store: LocalStore) -> None:
    begin(store, APART, (r.InFlight("a", "b", 3, 4, {4: ()}),))
    assert ask(store, topology=CHAINED, moved={"b": part("b", 4)}).ok


def test_a_chained_stage_can_be_named_in_a_reset_and_must_be_named_to_be_dropped(store: LocalStore) -> None:
    begin(store, CHAINED)
    assert ask(store, reset=("a",)).ok, "it has no state, so nothing changes"
    alone = r.Topology({"b": stage("b", sinks=[OUT])})
    moved = {"b": part("b", 4)}
    reply = ask(store, "r2", topology=alone, moved=moved)
    assert (reply.reason, "--drop a" in reply.detail) == (FailureReason.STAGE_GONE.value, True)
    assert ask(store, "r3", topology=alone, moved=moved, drop=("a",)).ok


def test_records_of_stores_without_chains_are_as_they_were() -> None:
    old = b'{"stages":{"a":{"name":"a","inputs":[],"member":"m0","sinks":[],"schema":null}}}'
    assert r.encode(msgspec.json.decode(old, type=r.Topology)) == old
