"""The parts of `cutwater check` that need no Spark: what it compares, and what it says of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import cutwater as cw
from cutwater.api import checking
from cutwater.api.checking import CheckedSink, CheckedStage, Report
from cutwater.plan.chaining import ChainFacts, Chaining, Wish
from cutwater.protocol.base.chain import digest
from cutwater.protocol.base.errors import Mistakes, UserError
from cutwater.protocol.base.paths import sink_description_name
from cutwater.protocol.base.records import SinkSpec, Topology, encode
from cutwater.spark.checkpoint.leaves import Leaf
from cutwater.store.overlay import Overlay
from cutwater.store.presence import Presence
from tests.support.builders import pipeline as topology
from tests.support.builders import stage

GRAPH = topology(stage("a", member="main"), stage("b", "a", member="main", sinks=[SinkSpec("out")]))


def report() -> Report:
    return Report("shop")


def test_every_kind_of_refusal_is_collected_once() -> None:
    found = report()
    for error in (UserError("one"), Mistakes(["two", "one"]), OSError("the disk is gone"), UserError("one")):
        with found.collecting():
            raise error
    assert found.mistakes == ["one", "two", "the disk is gone"]
    with pytest.raises(KeyError), found.collecting():
        raise KeyError("a defect is not a mistake of the pipeline")


def stages(*members: str | None) -> dict[str, Any]:
    pipeline = cw.Pipeline("shop")
    for number, member in enumerate(members):

        def read(spark: Any) -> Any: ...

        pipeline.stage(name=f"s{number}", member=member, sinks=[cw.delta(f"out/{number}")])(read)
    return pipeline.stages


def test_all_members_of_a_file_are_checked_unless_one_is_chosen() -> None:
    both = stages("x", "y")
    assert checking._own(both, None) == ("main", both)
    name, own = checking._own(both, "y")
    assert (name, list(own)) == ("y", ["s1"])
    alone = stages(None)
    name, own = checking._own(alone, None)
    assert (name, list(own), own["s0"].member) == ("main", ["s0"], "main")
    with pytest.raises(UserError):
        checking._own(stages("x", None), None)


class Compared:
    """A store with a state, and what a check says of it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.state = SimpleNamespace(
            topology=None, topology_hash="", head=None, committed={}, generation=1, generations={}
        )
        self.seen: list[Any] = []
        self.sources: list[Any] = []
        self.restores: list[Any] = []
        self.report = report()
        self.graphs: list[Topology] = []
        self.store = Overlay(None, "file:///state")
        patch.setattr(checking, "Watch", lambda store: SimpleNamespace(settle=lambda tick: self.seen))
        patch.setattr(checking, "read_journal", self._journal)
        patch.setattr(checking, "check_graph", self.graphs.append)
        patch.setattr(checking, "check_sources", lambda *args: self.sources.append(args))
        patch.setattr(checking, "restore_before_start", self._restore)

    def _journal(self, store: Any, must_exist: bool) -> Any:
        assert not must_exist
        return SimpleNamespace(state=self.state)

    def _restore(self, *args: Any, **more: Any) -> int:
        self.restores.append((args, more))
        return 1

    def has(self, graph: Topology, head: int | None = None) -> None:
        self.state.topology, self.state.topology_hash = graph, digest(encode(graph))
        self.state.head, self.state.committed = head, {5: "the fifth"}

    def compare(self, graph: Topology = GRAPH) -> Report:
        plans = {name: SimpleNamespace(plan=SimpleNamespace(leaves=(name,))) for name in ("a", "b")}
        planned: Any = SimpleNamespace(stages=plans)
        checking._compare(self.report, self.store, planned, graph)
        return self.report


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> Compared:
    return Compared(monkeypatch)


LEAVES = {"a": ("a",), "b": ("b",)}


def test_an_empty_store(compared: Compared) -> None:
    assert compared.compare().notes == ["file:///state has no pipeline yet; a start begins with an empty one"]
    assert compared.graphs == [GRAPH]
    assert (compared.sources, compared.restores) == ([], [])


def test_a_store_with_the_same_graph(compared: Compared) -> None:
    compared.has(GRAPH)
    assert compared.compare().notes == []
    compared.has(GRAPH, head=5)
    found = compared.compare()
    assert (found.notes, found.start) == (["a start continues after epoch 5"], [])
    assert compared.sources == [(compared.store, "the fifth", "latest", LEAVES, (), {})]
    assert compared.restores == []


def test_a_store_with_another_graph(compared: Compared) -> None:
    """Gone: stage `c` with its sink, and sink `more` of a stage that stays. Stage `b` reads something else."""
    before = topology(
        stage("a", member="main", sinks=[SinkSpec("more")]),
        stage("b", "a c", member="main", sinks=[SinkSpec("out")]),
        stage("c", member="main", sinks=[SinkSpec("less")]),
    )
    compared.has(before, head=5)
    found = compared.compare()
    assert found.start == ["--restore", "latest", "--drop", "c", "--drop", "more", "--reset", "b"]
    assert "stage 'c' is gone" in found.notes[0]
    ((args, more),) = compared.restores
    assert args[:5] == (compared.store, GRAPH, "latest", ("c", "more"), ("b",))
    assert args[5]("a line of the restore") is None
    assert more == {"base": digest(encode(before)), "leaves": LEAVES}
    assert compared.sources == []


def test_a_restore_that_would_be_refused_is_not_advised(
    compared: Compared, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **more: Any) -> int:
        raise UserError("the table has changed")

    monkeypatch.setattr(checking, "restore_before_start", refuse)
    compared.has(topology(stage("a", member="main")))
    with compared.report.collecting():
        compared.compare()
    assert compared.report.mistakes == ["the table has changed"]
    assert compared.report.start == []


def seen(pipeline: str, presence: Presence) -> Any:
    return SimpleNamespace(presence=presence, status=SimpleNamespace(pipeline=pipeline, pid=17, host="here"))


def test_members_of_the_pipeline_that_are_running(compared: Compared) -> None:
    others = [presence for presence in Presence if presence is not Presence.RUNNING]
    compared.seen = [seen("shop", presence) for presence in (*others, Presence.RUNNING)]
    assert compared.compare().notes[0] == "it is running on this store now: process 17 on here"
    assert len(compared.report.notes) == 2


def test_a_store_of_another_pipeline(compared: Compared) -> None:
    compared.seen = [seen("other", Presence.RUNNING)]
    with pytest.raises(UserError, match="belongs to pipeline 'other', and this one is 'shop'"):
        compared.compare()
    assert compared.report.notes == []


def test_without_a_store_a_table_that_exists_is_taken_for_its_own(tmp_path: Path) -> None:
    store = Overlay(None, checking.NO_STORE)
    table = tmp_path / "out"
    sink: Any = SimpleNamespace(name="out", kind="delta", path=str(table))
    checking._take_for_known(store, sink)
    written = store.read(sink_description_name("out"))
    assert written is not None
    assert table.as_uri().encode() in written
    assert b'"delta"' in written
    checking._take_for_known(store, SimpleNamespace(name="other", kind="x", path=None))  # type: ignore[arg-type]
    assert store.read(sink_description_name("other")) is None
    assert not table.exists()


def test_stages_as_the_graph_shows_them() -> None:
    (defined,) = stages(None).values()
    leaves = (Leaf(format="parquet", place="path=/in"), Leaf(channel="a"), Leaf(format="rate"))
    builder: Any = SimpleNamespace(plan_of=lambda name: SimpleNamespace(leaves=leaves))
    table = CheckedSink("s0.0", "delta", "out/0", None)
    shown = checking._shown(defined, builder)
    assert shown.sources == ("parquet /in", "rate")
    assert shown.is_checked
    assert shown.member == "main"
    assert [(s.kind, s.path, s.final_by) for s in shown.sinks] == [(table.kind, table.path, table.final_by)]
    for nothing in (None, SimpleNamespace(plan_of=lambda name: None)):
        unknown = checking._shown(defined, nothing)  # type: ignore[arg-type]
        assert (unknown.sources, unknown.is_checked) == ((), False)
    (member,) = stages("x").values()
    assert checking._shown(member, None).member == "x"


def test_a_stage_of_another_member_as_the_graph_shows_it() -> None:
    spec = stage("b", "a", "theirs", [SinkSpec("out")])
    assert checking._other(spec) == CheckedStage(
        "b", "theirs", ("a",), (), (CheckedSink("out", "", None, None),)
    )


def test_why_a_stage_is_not_chained_is_shown_only_if_chaining_is_allowed_or_recorded() -> None:
    names = ("never", "may", "must", "was", "elsewhere", "chained")
    facts = {
        "never": ChainFacts(Wish.NEVER),
        "may": ChainFacts(Wish.MAY),
        "must": ChainFacts(Wish.MUST),
        "was": ChainFacts(Wish.NEVER),
        "chained": ChainFacts(Wish.MAY),
    }
    why = {name: f"because of {name}" for name in names if name != "chained"}
    found = checking._with_chaining(
        [CheckedStage(name, "main", ()) for name in names], Chaining({"chained": "may"}, why), facts, ["was"]
    )
    assert {stage.name: stage.not_chained for stage in found} == {
        "never": None, "may": "because of may", "must": "because of must", "was": "because of was", "elsewhere": None,
        "chained": None,
    }  # fmt: skip
    assert {stage.name: stage.chained_into for stage in found if stage.chained_into} == {"chained": "may"}
