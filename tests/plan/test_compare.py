"""The graph of the code, compared with the one in the store."""

from __future__ import annotations

from pathlib import Path

import pytest

from cutwater.plan.chaining import make_topology
from cutwater.plan.compare import check_topology, differences
from cutwater.protocol.base import records as r
from cutwater.protocol.base.errors import UserError
from cutwater.store.opening import open_store
from tests.support.builders import pipeline, stage
from tests.support.live_leader import LiveLeader

ONE = r.Topology({"s": r.StageSpec("s", (), "main", (r.SinkSpec("t"),))})


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (pipeline(stage("s"), stage("t", "s"), stage("u", "s")), ["stage 'u' is new"]),
        (pipeline(stage("s")), ["stage 't' is gone"]),
        (pipeline(stage("s"), stage("t")), ["stage 't' reads [], and used to read ['s']"]),
        (
            pipeline(stage("s"), stage("t", "s", sinks=[r.SinkSpec("x")])),
            ["the sinks of stage 't' are ['x'], not []"],
        ),
        (pipeline(stage("s"), stage("t", "s", "m9")), ["stage 't' moved from member 'm0' to 'm9'"]),
        (
            pipeline(r.StageSpec("s", (), "m0", (), "{}"), stage("t", "s")),
            [],  # it gained its first reader, or lost its last
        ),
        (pipeline(stage("s"), stage("t", "s")), []),
    ],
)
def test_differences_between_two_graphs_are_listed(now: r.Topology, said: list[str]) -> None:
    assert differences(pipeline(stage("s"), stage("t", "s")), now) == said


def test_a_changed_final_by_is_named() -> None:
    plain, final = (pipeline(stage("s", sinks=[r.SinkSpec("win", is_final)])) for is_final in (False, True))
    assert differences(plain, final) == ["sink 'win' now has final_by, and had none"]
    assert differences(final, plain) == ["sink 'win' no longer has final_by"]


def test_a_store_with_another_graph_is_refused_with_the_differences(tmp_path: Path) -> None:
    store = open_store(str(tmp_path), create=True)
    LiveLeader(store, ONE).commit(0)
    check_topology(store, ONE)
    with pytest.raises(UserError, match="is not the one in this code: stage 'new' is new; stage 's' is gone"):
        check_topology(store, pipeline(stage("new", member="main")))


def test_what_is_chained_differently_is_named() -> None:
    apart = pipeline(stage("a"), stage("b", "a"), stage("c", "b"))
    written = apart.stages
    some = make_topology(written, {"a": "b"})
    all_of_it = make_topology(written, {"a": "b", "b": "c"})
    assert differences(apart, some) == ["stage 'a' is now chained into 'b'"]
    assert differences(all_of_it, some) == ["stage 'b' is no longer chained into 'c'"]
    assert differences(all_of_it, all_of_it) == []
    assert differences(some, pipeline(stage("b"), stage("c", "b"))) == [
        "stage 'a' is gone", "stage 'b' reads [], and used to read ['a']"
    ]  # fmt: skip
