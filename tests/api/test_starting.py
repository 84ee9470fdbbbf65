"""From options to a runtime: the order of the steps, and what each is given."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from cutwater.api import starting as module
from cutwater.api.config import RunConfig
from cutwater.api.starting import Starting, new_session
from cutwater.cluster.config import ClusterConfig
from cutwater.protocol.base.errors import UserError
from cutwater.protocol.base.records import Topology
from cutwater.runtime.restore import GraphMoved
from cutwater.store.overlay import Overlay
from tests.support.builders import pipeline, stage

ONE = pipeline(stage("a", member="main"))
TWO = pipeline(stage("a", member="main"), stage("b", "a", member="other"))


def log(line: str) -> None: ...


class Steps:
    """A start in which every step is only noted."""

    def __init__(self, patch: pytest.MonkeyPatch, graph: Topology = ONE) -> None:
        self.did: list[str] = []
        self.calls: dict[str, list[Any]] = {}
        self.graph = graph
        self.moves = 0
        self.store = Overlay(None, "s3://bucket/state")
        table = SimpleNamespace(spark_root="s3a://bucket/out")
        other = SimpleNamespace(spark_root="s3a://tables/out")
        self.built = SimpleNamespace(
            topology=graph,
            spark="session",
            stages={"a": SimpleNamespace(sinks=[table], plan=SimpleNamespace(leaves=("leaf",)))},
            sinks={"out": table, "more": other},
        )
        for name in (
            *(
                "assemble",
                "check_reach",
                "bind_sinks",
                "try_file_system",
                "restore_before_start",
                "check_topology",
            ),
            *(
                "refuse_other_columns",
                "register_sinks",
                "register_sources",
                "open_links",
                "Runtime",
                "Builder",
            ),
        ):
            patch.setattr(module, name, self._noted(name))
        patch.setattr(module, "read_journal", self._journal)
        patch.setattr(module, "member_config", lambda *args: args)

    def _noted(self, name: str) -> Any:
        def call(*args: Any, **more: Any) -> Any:
            self.did.append(name)
            self.calls.setdefault(name, []).append((*args, *more.values()))
            if name == "Builder":
                return SimpleNamespace(finish=self._finish)
            if name == "assemble":
                return SimpleNamespace(topology=self.graph, endpoints=("tcp/other:1",), base="base")
            if name == "restore_before_start" and self.moves:
                self.moves -= 1
                raise GraphMoved("another was faster")
            return name

        return call

    def _journal(self, store: Any, must_exist: bool) -> Any:
        assert not must_exist, "a first start finds no journal"
        return SimpleNamespace(state="the state")

    def _finish(self, graph: Topology) -> Any:
        assert graph is self.graph
        return self.built

    def start(self, members: Sequence[str | None] = (None,), **options: Any) -> Any:
        begun = Starting("shop", self.store, RunConfig(**options), "main", log, lambda: False)
        stages: Any = {f"s{n}": SimpleNamespace(member=m) for n, m in enumerate(members)}
        own: Any = [SimpleNamespace(name="a", inputs=("x",))]
        return begun.new_runtime("session", stages, own)  # type: ignore[arg-type]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    return Steps(monkeypatch)


def test_nothing_is_recorded_before_all_is_checked(steps: Steps) -> None:
    assert steps.start() == "Runtime"
    assert [name for name in steps.did if name != "try_file_system"] == [
        *("Builder", "assemble", "check_reach", "bind_sinks", "check_topology", "refuse_other_columns"),
        *("register_sinks", "register_sources", "open_links", "Runtime"),
    ]
    assert steps.did.index("try_file_system") < steps.did.index("check_topology")
    assert steps.calls["check_topology"] == [(steps.store, ONE)]
    assert steps.calls["check_reach"] == [("session", "s3://bucket/state/any")]
    assert steps.calls["register_sources"] == [({"a": ("leaf",)}, steps.store)]
    ((store, sinks, state),) = steps.calls["refuse_other_columns"]
    assert (store, [name for name, _ in sinks], state) == (steps.store, ["a"], "the state")


def test_every_bucket_is_tried_once(steps: Steps) -> None:
    steps.start()
    roots = {root for _, root in steps.calls["try_file_system"]}
    assert roots == {"s3://bucket/state", "s3a://bucket/out", "s3a://tables/out"}
    steps.built.sinks["third"] = SimpleNamespace(spark_root="s3a://tables/third")
    steps.calls.clear()
    steps.start()
    assert len(steps.calls["try_file_system"]) == 3


def test_it_waits_for_the_members_that_are_named(steps: Steps) -> None:
    steps.start(("x", None, "y"), wait_for=["z"])
    ((store, member, _, reads, expected, listen, _, is_leaving),) = steps.calls["assemble"]
    assert (store, member, reads, listen) == (steps.store, "main", {"a": ("x",)}, ())
    assert expected == {"x", "y", "z"}
    assert not is_leaving()


def test_the_options_of_a_runtime(steps: Steps) -> None:
    steps.start(once=True, idle_after="3s", restarts=8, tolerated_failures=None)
    ((built, store, member, boot, settings, _, links),) = steps.calls["Runtime"]
    assert (built, store, member, links) == (steps.built, steps.store, "main", "open_links")
    assert (settings.once, settings.idle_after_s, settings.unaligned) == (True, 3.0, False)
    assert settings.member == (steps.store, True, 8, None)
    assert settings.leader == RunConfig(once=True).leader(is_alone=True)
    ((cluster, name, owner, of_links, _),) = steps.calls["open_links"]
    assert (cluster, name, owner, of_links) == (None, "shop", "main", boot)
    assert len(boot) == 8


def test_several_members_need_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(monkeypatch, TWO)
    with pytest.raises(UserError, match="main, other must be able to reach each other"):
        steps.start()
    assert "Runtime" not in steps.did


@pytest.mark.parametrize(
    ("gossip", "peers"), [(True, ("tcp/mine:1", "tcp/other:1")), (False, ("tcp/mine:1",))]
)
def test_members_know_the_addresses_of_those_who_joined(
    monkeypatch: pytest.MonkeyPatch, gossip: bool, peers: tuple[str, ...]
) -> None:
    steps = Steps(monkeypatch, TWO)
    cluster = ClusterConfig(peers=("tcp/mine:1",), listen=("tcp/127.0.0.1:7",), gossip=gossip)
    steps.start(cluster=cluster, leader_timeout="9s")
    ((used, *_),) = steps.calls["open_links"]
    assert used.peers == peers
    assert steps.calls["assemble"][0][5] == cluster.reachable
    settings = steps.calls["Runtime"][0][4]
    assert settings.member[1] is False, "it is not alone"
    assert settings.leader == RunConfig(leader_timeout="9s").leader(is_alone=False)


def test_one_member_with_addresses_has_no_peers(steps: Steps) -> None:
    cluster = ClusterConfig(peers=("tcp/mine:1",))
    steps.start(cluster=cluster)
    assert steps.calls["open_links"][0][0] is cluster


def test_a_restore_is_carried_out_before_anything_is_recorded(steps: Steps) -> None:
    steps.start(restore=5, drop=["b"], reset=["a"], force=True)
    ((store, graph, ref, drop, reset, _, force, base, leaves, check),) = steps.calls["restore_before_start"]
    assert (store, graph, ref, drop, reset) == (steps.store, ONE, "5", ("b",), ("a",))
    assert (force, base, leaves) == (True, "base", {"a": ("leaf",)})
    assert check.args[0] is steps.store
    assert [name for name, _ in check.args[1]] == ["a"]
    assert steps.did.index("restore_before_start") < steps.did.index("check_topology")
    assert steps.did.count("assemble") == 1


def test_a_restore_is_tried_again_in_a_graph_that_has_moved(steps: Steps) -> None:
    steps.moves = 2
    steps.start(restore="latest")
    assert steps.did.count("assemble") == steps.did.count("restore_before_start") == 3


# --- sessions ---------------------------------------------------------------------------------------------


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    made: list[Any] = []

    def make(*args: Any) -> str:
        made.append(args)
        return "new"

    monkeypatch.setattr(module, "refuse_active_session", lambda: made.append("refuse"))
    monkeypatch.setattr(module, "make_session", make)
    monkeypatch.setattr(module, "copy_session", lambda spark: f"copy of {spark}")
    return made


def test_a_session_is_made_unless_there_is_one_already(sessions: list[Any]) -> None:
    config = RunConfig(master="local[3]", conf={"a": "b"})
    found: Any = new_session("shop", config, None, log)
    assert found == "new"
    assert sessions == ["refuse", ("shop", "local[3]", {"a": "b"}, log)]


def test_a_session_of_the_user_is_copied(sessions: list[Any]) -> None:
    mine: Any = "mine"
    found: Any = new_session("shop", RunConfig(), mine, log)
    assert found == "copy of mine"
    assert sessions == []


@pytest.mark.parametrize("options", [{"master": "local"}, {"conf": {"a": "b"}}])
def test_a_session_of_the_user_has_its_own_settings(sessions: list[Any], options: Any) -> None:
    mine: Any = "mine"
    with pytest.raises(UserError, match="give either your own session"):
        new_session("shop", RunConfig(**options), mine, log)
