"""Assembling the graph of several members, with a thread per member."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec
import pytest

import cutwater as cw
from cutwater.plan.assemble import Assembled, GraphPart, WaitEnded, assemble, own_stages
from cutwater.plan.chaining import ChainFacts, Wish
from cutwater.plan.compare import check_topology, differences
from cutwater.protocol.base.chain import digest
from cutwater.protocol.base.errors import UserError
from cutwater.protocol.base.records import SinkSpec, StageSpec, Topology, TopologySet, encode, seal
from cutwater.store.local import LocalStore
from cutwater.store.opening import open_store
from tests.support.live_leader import LiveLeader

Reads = dict[str, tuple[str, ...]]


class FakeBuilder:
    """Knows the columns of a stage when it knows those of its inputs. Needs no Spark."""

    def __init__(self, member: str, reads: Reads, sinks: dict[str, str], columns: str = "x long") -> None:
        self.member, self.reads, self.sinks, self.columns = member, reads, sinks, columns
        self.wish = Wish.NEVER
        self.specs: dict[str, StageSpec] = {}
        self.facts: dict[str, ChainFacts] = {}

    def advance(self, others: dict[str, StageSpec]) -> None:
        for name, inputs in self.reads.items():
            if all(i in {**others, **self.specs} for i in inputs):
                sinks = (SinkSpec(self.sinks[name], False),) if name in self.sinks else ()
                self.facts[name] = ChainFacts(self.wish)
                self.specs[name] = StageSpec(name, inputs, self.member, sinks, self.columns)

    def refuse_chains(self, topology: Topology) -> bool:
        return False

    @property
    def waits_for(self) -> dict[str, str]:
        left = [n for n in self.reads if n not in self.specs]
        return {i: n for n in left for i in self.reads[n] if i not in self.reads}

    @property
    def is_done(self) -> bool:
        return len(self.specs) == len(self.reads)


class Players:
    """Members that assemble at the same time."""

    def __init__(self, store: LocalStore) -> None:
        self.store = store
        self.lines: dict[str, list[str]] = {}
        self.ends = False

    def start(
        self,
        member: str,
        reads: Reads,
        sinks: dict[str, str] | None = None,
        expected: tuple[str, ...] = (),
        wish: Wish = Wish.NEVER,
        rechain: bool = False,
    ) -> Future[Assembled]:
        builder: Any = FakeBuilder(member, reads, sinks or {})
        builder.wish = wish
        lines = self.lines[member] = []
        where = (f"tcp/{member}:1",)
        result: Future[Assembled] = Future()

        def run() -> None:
            try:
                found = assemble(
                    self.store,
                    member,
                    builder,
                    reads,
                    expected,
                    where,
                    lines.append,
                    lambda: self.ends,
                    rechain,
                )
                result.set_result(found)
            except BaseException as error:
                result.set_exception(error)

        Thread(target=run, daemon=True).start()  # some of them wait forever
        return result

    def wait_for_line(self, member: str, text: str) -> None:
        deadline = time.monotonic() + 20
        while not any(text in line for line in self.lines[member]):
            assert time.monotonic() < deadline, self.lines[member]
            time.sleep(0.01)


@pytest.fixture
def players(tmp_path: Path) -> Players:
    store = open_store(str(tmp_path / "store"), create=True)
    assert isinstance(store, LocalStore)
    return Players(store)


def record(store: LocalStore, topology: Topology) -> None:
    leader = LiveLeader(store, topology)
    leader.write(TopologySet(leader.term, 1, digest(encode(topology)), topology))


def test_parts_that_need_each_other_are_assembled(players: Players) -> None:
    first = players.start("a", {"orders": (), "report": ("paid",)}, {"report": "report"})
    players.wait_for_line("a", "stage 'paid', which no running member has")
    second = players.start("b", {"paid": ("orders",)})
    graph, other = first.result(20).topology, second.result(20)
    assert (other.topology, other.endpoints) == (graph, ("tcp/a:1",))
    assert first.result(20).endpoints == ("tcp/b:1",)
    assert {n: s.member for n, s in graph.stages.items()} == {"orders": "a", "paid": "b", "report": "a"}
    assert graph.stages["report"].schema is None, "no stage reads it, so its columns may change"


def test_all_members_decide_alike_what_is_chained(players: Players) -> None:
    mine: Reads = {"raw": (), "clean": ("raw",), "both": ("clean", "paid"), "report": ("both",)}
    first = players.start("a", mine, {"report": "report"}, ("a", "b"), Wish.MAY)
    second = players.start("b", {"orders": (), "paid": ("orders",)}, {}, ("a", "b"), Wish.MAY)
    graph = first.result(20).topology
    assert second.result(20).topology == graph
    assert {n: s.reader for n, s in graph.chained.items()} == {
        "raw": "clean",
        "orders": "paid",
        "both": "report",
    }
    assert graph.stages["report"].inputs == ("clean", "paid")
    assert first.result(20).why_not == {
        "paid": "its reader 'both' runs on member 'a'",
        "clean": "its reader 'both' also reads 'paid', which is not chained",
    }


def test_a_member_that_reads_a_chained_stage_of_another_one_splits_its_chain(players: Players) -> None:
    alone = players.start("a", {"raw": (), "out": ("raw",)}, {"out": "out"}, wish=Wish.MAY)
    recorded = alone.result(20).topology
    assert list(recorded.chained) == ["raw"]
    record(players.store, recorded)
    again = players.start("a", {"raw": (), "out": ("raw",)}, {"out": "out"}, wish=Wish.MAY)
    assert again.result(20).topology == recorded
    joining = players.start("b", {"more": ("raw",)}, {"more": "more"}).result(20)
    assert joining.topology.chained == {}
    assert "stage 'raw' is no longer chained into 'out'" in differences(recorded, joining.topology)


def test_stages_with_queries_of_their_own_are_chained_when_that_is_asked_for(players: Players) -> None:
    reads: Reads = {"raw": (), "out": ("raw",)}
    record(players.store, players.start("a", reads, {"out": "out"}).result(20).topology)
    kept = players.start("a", reads, {"out": "out"}, wish=Wish.MAY).result(20)
    assert (kept.topology.chained, "--rechain" in kept.why_not["raw"]) == ({}, True)
    merged = players.start("a", reads, {"out": "out"}, wish=Wish.MAY, rechain=True).result(20)
    assert list(merged.topology.chained) == ["raw"]
    with pytest.raises(UserError, match=r"stage 'raw' has chain=True and cannot be chained: .*--rechain"):
        players.start("a", reads, {"out": "out"}, wish=Wish.MUST).result(20)


def test_a_member_waits_for_the_members_it_expects(players: Players) -> None:
    first = players.start("a", {"orders": ()}, {"orders": "orders"}, expected=("a", "b"))
    players.wait_for_line("a", "waiting for member 'b', which is not running yet")
    players.start("b", {"paid": ("orders",)}, {"paid": "paid"})
    assert set(first.result(20).topology.stages) == {"orders", "paid"}


def test_a_part_from_an_earlier_run_is_ignored(players: Players) -> None:
    spec = StageSpec("orders", (), "b", (), "x long")
    stale = GraphPart("b", "old", 7, {"orders": ()}, {"orders": spec})
    players.store.put("graph/b.json", msgspec.json.encode(stale))
    first = players.start("a", {"paid": ("orders",)}, {"paid": "paid"})
    players.wait_for_line("a", "stage 'orders', which no running member has")
    players.start("b", {"orders": ()})
    assert set(first.result(20).topology.stages) == {"orders", "paid"}


@pytest.mark.parametrize(
    ("other", "sinks", "says"),
    [
        ({"orders": ()}, {"orders": "x"}, "members '.' and '.' both have a stage 'orders'"),
        ({"paid": ("orders",)}, {"paid": "orders"}, "two sinks are named 'orders'"),
        ({"loop": ("back",), "back": ("loop",)}, {"loop": "x"}, "form a cycle"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused_with_the_reason(
    players: Players, other: Reads, sinks: dict[str, str], says: str
) -> None:
    first = players.start("a", {"orders": ()}, {"orders": "orders"}, expected=("b",))
    players.wait_for_line("a", "waiting for member 'b'")
    second = players.start("b", other, sinks)
    ended, _ = wait([first, second], 20, FIRST_EXCEPTION)
    refused = next(f for f in ended if f.exception() is not None)
    with pytest.raises(UserError, match=says):
        refused.result(0)


def test_a_stage_without_a_reader_or_sink_is_refused_when_all_members_are_present(players: Players) -> None:
    first = players.start("a", {"orders": ()}, expected=("b",))
    players.wait_for_line("a", "waiting for member 'b', which is not running yet")
    players.start("b", {"other": ()}, {"other": "x"})
    with pytest.raises(UserError, match="stage 'orders' has no sink, and no other stage reads it"):
        first.result(20)


def test_a_member_that_comes_back_needs_nobody_else(players: Players) -> None:
    first = players.start("a", {"orders": ()})
    players.wait_for_line("a", "waiting for a member that reads stage 'orders', which has no sink")
    second = players.start("b", {"paid": ("orders",)}, {"paid": "paid"})
    graph = first.result(20).topology
    second.result(20)
    record(players.store, graph)
    assert players.start("b", {"paid": ("orders",)}, {"paid": "paid"}).result(20).topology == graph
    assert players.lines["b"] == []


def test_waiting_for_a_stage_that_the_journal_does_not_have_is_logged(players: Players) -> None:
    record(players.store, Topology({"orders": StageSpec("orders", (), "a", (SinkSpec("o", False),), None)}))
    players.start("b", {"paid": ("payments",)}, {"paid": "paid"})
    players.wait_for_line("b", "stage 'payments', which 'paid' reads and the pipeline does not have yet")


def test_a_member_that_no_longer_has_what_another_reads_is_refused(players: Players) -> None:
    specs = [
        StageSpec("orders", (), "a", (), "x long"),
        StageSpec("other", (), "a", (SinkSpec("o", False),)),
        StageSpec("paid", ("orders",), "b", (SinkSpec("p", False),)),
    ]
    record(players.store, Topology({spec.name: spec for spec in specs}))
    refused = players.start("a", {"other": ()}, {"other": "o"})
    with pytest.raises(
        UserError, match=r"'paid' of member 'b' reads orders, which no member has.*--drop READER"
    ):
        refused.result(20)


def test_what_another_member_reads_and_nobody_here_has_seen_is_waited_for(players: Players) -> None:
    """A third member is known to the second, and not yet to the first."""
    spec = StageSpec("paid", ("payments",), "b", (SinkSpec("p", False),))
    part = GraphPart("b", "boot", 1, {"paid": ("payments",)}, {"paid": spec})
    players.store.put("graph/b.json", seal(part))
    first = players.start("a", {"orders": ()}, {"orders": "o"}, expected=("b",))
    players.wait_for_line("a", "waiting for member 'b'")
    players.store.put("graph/b.json", seal(msgspec.structs.replace(part, beat=2)))
    players.wait_for_line("a", "waiting for stage 'payments', which member 'b' reads")
    players.start("c", {"payments": ()})
    assert set(first.result(20).topology.stages) == {"orders", "paid", "payments"}


def test_waiting_for_others_can_be_ended(players: Players) -> None:
    waiting = players.start("a", {"orders": ()}, {"orders": "orders"}, expected=("b",))
    players.wait_for_line("a", "waiting for member 'b'")
    players.ends = True
    with pytest.raises(WaitEnded):
        waiting.result(20)


def stage(pipeline: cw.Pipeline, name: str, **options: Any) -> None:
    function: Callable[[Any], Any] = lambda spark: None  # noqa: E731
    pipeline.stage(name=name, **options)(function)


def test_a_member_runs_the_stages_that_name_it() -> None:
    shared = cw.Pipeline("p")
    stage(shared, "one", member="a")
    stage(shared, "two", member="b")
    here, own = own_stages(shared.stages, "b")
    assert (here, list(own)) == ("b", ["two"])
    with pytest.raises(UserError, match="choose the one to run here with --member NAME"):
        own_stages(shared.stages, None)
    with pytest.raises(UserError, match="no stage has member='c'; the members are a, b"):
        own_stages(shared.stages, "c")
    stage(shared, "three")
    with pytest.raises(UserError, match="three do not: give all of them member=, or none"):
        own_stages(shared.stages, "a")
    alone = cw.Pipeline("p")
    stage(alone, "one")
    assert own_stages(alone.stages, None)[0] == "main"
    assert own_stages(alone.stages, "team")[1]["one"].member == "team"
    with pytest.raises(UserError, match="cannot name a member"):
        own_stages(alone.stages, "a/b")


def test_the_error_for_a_member_that_starts_after_the_first_run_says_how_to_join(players: Players) -> None:
    alone = players.start("a", {"orders": ()}, {"orders": "orders"}).result(20).topology
    record(players.store, alone)
    later = players.start("b", {"paid": ("orders",)}, {"paid": "paid"}).result(20).topology
    with pytest.raises(UserError, match=r"started without member 'b', with a.*--restore latest.*--wait-for"):
        check_topology(players.store, later)


def test_a_first_or_last_reader_does_not_change_the_columns_of_a_stage() -> None:
    def graph(columns: str | None, *readers: str) -> Topology:
        stages = [StageSpec("s", (), "main", (), columns)]
        return Topology({s.name: s for s in [*stages, *(StageSpec(n, ("s",), "main") for n in readers)]})

    assert differences(graph(None), graph("x long", "t")) == ["stage 't' is new"]
    assert differences(graph("x long", "t"), graph(None)) == ["stage 't' is gone"]
    (said,) = differences(graph("x long", "t"), graph("y long", "t"))
    assert said == "stage 's' gives its readers other columns"
