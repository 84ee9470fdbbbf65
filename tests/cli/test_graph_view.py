"""The drawing of a graph."""

from __future__ import annotations

from cutwater.api.checking import CheckedSink, CheckedStage
from cutwater.cli.graph_view import draw


def stage(name: str, *inputs: str, **says: object) -> CheckedStage:
    return CheckedStage(name, "main", inputs, **says)  # type: ignore[arg-type]


def lines(*stages: CheckedStage) -> list[str]:
    return [line.plain for line in draw(stages)]


def test_a_chain_steps_to_the_right() -> None:
    table = CheckedSink("out", "delta", "out/big", "window.end")
    assert lines(stage("a", sources=("parquet in",)), stage("b", "a"), stage("c", "b", sinks=(table,))) == [
        "● a        reads parquet in",
        "└──● b     reads a",
        "   └──● c  reads b",
        "           → delta out/big, when window.end has passed",
    ]


def test_a_stage_says_whether_it_is_chained_and_why_not() -> None:
    shown = [stage("a", chained_into="b"), stage("b", "a", not_chained="it has a sink"), stage("c", "b")]
    assert lines(*shown) == [
        "● a        runs in the query of b",
        "└──● b     reads a",
        "   │       a query of its own: it has a sink",
        "   └──● c  reads b",
    ]


def test_a_stage_shows_its_rules() -> None:
    shown = stage("a", rules={"positive": "amount > 0", "known": "x"}, on_violation="drop")
    assert lines(shown) == ["● a  rules positive, known; bad rows: drop"]


def test_fan_in_and_fan_out_differ_from_rails_that_pass() -> None:
    graph = [stage("a"), stage("b"), stage("x", "a"), stage("both", "a", "b"), stage("last", "both", "x")]
    assert lines(*graph) == [
        "● a",
        "│  ● b",
        "├──│──● x           reads a",
        "└──┴──│──● both     reads a, b",
        "      └──┴──● last  reads both, x",
    ]


def test_rails_continue_next_to_further_lines_of_a_stage() -> None:
    two = (CheckedSink("p", "parquet", "p", None), CheckedSink("f", "foreach_epoch", None, None))
    assert lines(stage("a", sinks=two), stage("b", "a", is_checked=False, output_mode="update")) == [
        "● a     → parquet p",
        "│       → foreach_epoch f",
        "└──● b  reads a",
        "        not checked",
        "        output mode update",
    ]


def test_a_stage_comes_after_what_it_reads_and_may_read_what_is_not_here() -> None:
    graph = (stage("b", "a", "gone"), CheckedStage("a", "billing", ()))
    assert lines(*graph) == ["● a (billing)", "└──● b (main)  reads a, gone (not here)"]
    assert len(lines(stage("a", "b"), stage("b", "a"))) == 2, "a cycle is drawn somehow"
    assert lines() == []
