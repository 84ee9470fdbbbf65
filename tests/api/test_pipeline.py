"""The pipeline as users control it, with a runtime that only notes what it is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

import cutwater as cw
from cutwater.api import pipeline as module
from cutwater.api.config import RunConfig
from cutwater.api.signals import Signals
from cutwater.api.starting import Starting
from cutwater.plan.assemble import WaitEnded
from cutwater.protocol.base.errors import UserError
from cutwater.protocol.base.wire import Reply, Request, RequestKind
from tests.support.builders import pipeline as topology
from tests.support.builders import stage


class Run:
    """A runtime that is over after `looks` looks, or when it is asked to come to rest."""

    def __init__(self, members: tuple[str, ...] = ("main",), looks: int | None = None) -> None:
        stages = [stage(f"s-{member}", member=member) for member in members]
        self.planned = SimpleNamespace(topology=topology(*stages))
        self.member = SimpleNamespace(name=members[0])
        self.facts = SimpleNamespace(trouble="the table is locked")
        self.reporter = SimpleNamespace(status=lambda: "the status")
        self.store: Any = "the store"
        self.hosts = {"a": SimpleNamespace(query="a's query"), "b": SimpleNamespace(query=None)}
        self.failure: BaseException | None = None
        self.drained = False
        self.done = Event()
        self.did: list[str] = []
        self.requests: list[tuple[Request, float]] = []
        self.reply = Reply("", True, 7)
        self.looks = looks
        self.timeouts: list[float | None] = []

    def start(self) -> None:
        self.did.append("start")

    def wait(self, timeout_s: float | None = None) -> bool:
        self.timeouts.append(timeout_s)
        if self.looks is not None:
            self.looks -= 1
            if self.looks <= 0:
                self.done.set()
        return self.done.is_set()

    def come_to_rest(self) -> None:
        self.did.append("come to rest")
        self.drained = True
        self.done.set()

    def request(self, request: Request, timeout_s: float) -> Reply:
        self.requests.append((request, timeout_s))
        return self.reply

    def stop(self) -> None:
        self.did.append("stop")
        self.done.set()


class World:
    """Sessions and runtimes that are only noted."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.did: list[str] = []
        self.run = Run()
        self.signals = Signals()
        self.session = SimpleNamespace()
        self.starting: list[Any] = []
        self.checked: list[Any] = []
        patch.setattr(module, "new_session", self._session)
        patch.setattr(module, "end_session", lambda session: self.did.append("session ended"))
        patch.setattr(module, "hush", lambda session: self.did.append("hushed"))
        patch.setattr(module, "ensure_not_running", lambda *args: self.checked.append(args))
        patch.setattr(module, "open_store", lambda url, create: (url, create))
        patch.setattr(module, "caught_signals", self._caught)

    def _session(self, name: str, config: RunConfig, spark: Any, log: Any) -> Any:
        self.did.append("session")
        return spark or self.session

    @contextmanager
    def _caught(self, session: Any) -> Iterator[Signals]:
        self.did.append("signals caught")
        yield self.signals


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(monkeypatch)

    def new_runtime(starting: Any, session: Any, stages: Any, own: Any) -> Any:
        made.starting.append((starting, session, [s.name for s in own]))
        return made.run

    monkeypatch.setattr(Starting, "new_runtime", new_runtime)
    return made


def orders() -> Any:
    pipeline = cw.Pipeline("orders")

    @pipeline.stage(sinks=[cw.delta("out")])
    def last(first: Any) -> Any: ...

    @pipeline.stage
    def first(spark: Any) -> Any: ...

    return pipeline


@pytest.mark.parametrize("name", ["orders", "my-orders", "orders.v2", "_x"])
def test_names_of_pipelines(name: str) -> None:
    assert cw.Pipeline(name).name == name


@pytest.mark.parametrize("name", ["", "2nd", "a b", "a/b"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(UserError, match="cannot name a pipeline"):
        cw.Pipeline(name)


def test_a_decorated_function_stays_what_it_was() -> None:
    def plain(spark: Any) -> Any: ...

    def given(spark: Any) -> Any: ...

    pipeline = cw.Pipeline("p")
    assert pipeline.stage(plain) is plain
    assert pipeline.stage(name="other")(given) is given
    assert list(pipeline.stages) == ["plain", "other"]
    assert pipeline.stages["plain"].max_rows is None
    defined = pipeline.stages["plain"]
    assert not defined.allow_watermark_above_fan_in
    assert not defined.allow_shared_source


def test_a_start_claims_the_store_before_it_has_a_session(world: World) -> None:
    pipeline = orders()
    world.did = world.checked = []  # one list, in the order of events
    assert not pipeline.is_running
    assert pipeline.start("state", every="5s", takeover=True) is pipeline
    claimed: Any
    claimed, session = world.did[:2]
    assert claimed[:4] == (("state", True), "orders", "main", True)
    assert session == "session"
    ((starting, used, own),) = world.starting
    assert (starting.store, starting.member, starting.config.every) == (("state", True), "main", "5s")
    assert used is world.session
    assert own == ["first", "last"]
    assert not starting.is_leaving()
    assert world.run.did == ["start"]
    assert pipeline.is_running
    world.run.done.set()
    assert not pipeline.is_running


def test_keyword_arguments_win_over_a_config(world: World) -> None:
    orders().start("state", RunConfig(every="5s", retained=9), every="1s")
    config = world.starting[0][0].config
    assert (config.every, config.retained) == ("1s", 9)


def test_an_unknown_option_is_refused(world: World) -> None:
    with pytest.raises(UserError, match=r"start\(\)"):
        orders().start("state", evry="5s")
    assert world.did == []


def test_a_store_that_is_already_open_is_used(world: World) -> None:
    store: Any = SimpleNamespace(url="file:///x")
    orders().start(store)
    assert world.starting[0][0].store is store


def test_spark_settings_say_how_to_reach_s3(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    world.did = order
    monkeypatch.setattr(module, "open_store", lambda url, create: order.append("store"))
    orders().start("s3://bucket/state")
    assert order[:2] == ["session", "store"]
    assert order.count("session") == 1


def test_a_running_pipeline_is_not_started_again(world: World) -> None:
    pipeline = orders().start("state")
    with pytest.raises(UserError, match="already running"):
        pipeline.start("state")
    assert world.run.did == ["start"], "it goes on"


@pytest.mark.parametrize("failed", [True, False])
def test_a_pipeline_whose_run_has_ended_can_be_started_again(world: World, failed: bool) -> None:
    pipeline, first = orders().start("state"), world.run
    first.drained = not failed
    first.failure = UserError("no") if failed else None
    first.done.set()
    if not failed:
        assert pipeline.awaitTermination()
    world.run = Run()
    pipeline.start("state")
    assert (first.did, world.run.did) == (["start", "stop"], ["start"])
    assert world.did == ["session", *(["hushed"] if failed else []), "session ended", "session"]
    assert pipeline.is_running


@pytest.mark.parametrize("own", [True, False])
def test_a_start_that_fails_leaves_nothing(world: World, monkeypatch: pytest.MonkeyPatch, own: bool) -> None:
    def fail() -> None:
        raise UserError("no")

    monkeypatch.setattr(world.run, "start", fail)
    pipeline = orders()
    with pytest.raises(UserError, match="no"):
        pipeline.start("state", spark=None if own else SimpleNamespace())
    assert not pipeline.is_running
    assert world.run.did == ["stop"]
    assert world.did == ["session", *(["hushed", "session ended"] if own else [])]


def test_only_a_session_of_its_own_is_ended(world: World) -> None:
    pipeline = orders().start("state")
    pipeline.stop()
    assert world.did == ["session", "hushed", "session ended"]
    pipeline.stop()
    assert world.did == ["session", "hushed", "session ended"]
    assert world.run.did == ["start", "stop"]
    world.did.clear()
    pipeline.start("state", spark=SimpleNamespace())
    pipeline.stop()
    assert world.did == ["session"]


def test_a_drained_run_has_nothing_to_hush(world: World) -> None:
    pipeline = orders().start("state")
    world.run.drained = True
    pipeline.stop()
    assert world.did == ["session", "session ended"]


def test_a_run_waits_until_the_end(world: World) -> None:
    world.run = Run(looks=3)
    orders().run("state")
    assert world.run.did == ["start", "stop"]
    assert len(world.run.timeouts) == 3
    assert all(t is not None and t < 1 for t in world.run.timeouts), "signals are noticed soon"


def test_the_error_that_ended_a_run_is_raised(world: World) -> None:
    world.run = Run(looks=1)
    world.run.failure = cw.CutwaterError("stage 's' failed")
    pipeline = orders()
    with pytest.raises(cw.CutwaterError, match="stage 's' failed"):
        pipeline.run("state")
    assert not pipeline.is_running


def test_staying_ticks_and_says_whether_it_was_drained(world: World) -> None:
    ticks: list[None] = []
    for drained in (True, False):
        world.run = Run(looks=3)
        world.run.drained = drained
        assert orders().start("state").stay(lambda: ticks.append(None)) is drained
    assert len(ticks) == 4


def test_the_first_signal_drains_a_pipeline(world: World) -> None:
    world.signals.reach_python()
    pipeline = orders().start("state")
    assert pipeline.stay()
    assert world.run.did == ["start", "come to rest", "stop"]


def test_one_signal_is_acted_on_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.run = Run(looks=5)
    monkeypatch.setattr(world.run, "come_to_rest", lambda: world.run.did.append("come to rest"))
    world.signals.reach_python()
    orders().start("state").stay()
    assert world.run.did == ["start", "come to rest", "stop"]


def test_the_second_signal_stops_it_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def again() -> None:
        world.run.did.append("come to rest")
        world.signals.reach_python()

    monkeypatch.setattr(world.run, "come_to_rest", again)
    world.signals.reach_python()
    assert not orders().start("state").stay()
    assert world.run.did == ["start", "come to rest", "stop"]


def test_one_of_several_members_is_stopped_by_the_first_signal(world: World) -> None:
    world.run = Run(("main", "other"))
    world.signals.reach_python()
    assert not orders().start("state").stay()
    assert world.run.did == ["start", "stop"]


def test_a_member_that_waits_for_others_leaves_when_it_is_asked(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for the new graph, in which the others have not arrived yet."""
    pipeline = orders().start("state")
    world.run.failure = cw.GraphChanged("changed")
    world.run.done.set()
    leaving: list[bool] = []

    def begin(*_: Any) -> None:
        leaving.append(pipeline._is_leaving())
        world.signals.reach_python()
        leaving.append(pipeline._is_leaving())
        raise WaitEnded("it leaves")

    monkeypatch.setattr(pipeline, "_begin", begin)
    assert pipeline.stay() is False
    assert leaving == [False, True]
    assert not pipeline._is_leaving()
    assert not pipeline.is_running


def test_waiting_for_the_end_takes_no_longer_than_the_timeout(world: World) -> None:
    pipeline = orders().start("state")
    assert pipeline.awaitTermination(0.01) is False
    assert all(t is not None and 0 <= t <= 0.01 for t in world.run.timeouts)
    assert pipeline.is_running
    world.run.timeouts.clear()
    world.run.done.set()
    assert pipeline.awaitTermination() is True
    assert world.run.timeouts == [None]
    world.run.failure = cw.CutwaterError("it failed")
    with pytest.raises(cw.CutwaterError, match="it failed"):
        pipeline.awaitTermination()
    assert world.run.did == ["start", "stop"]


def test_a_block_that_ends_drains_the_pipeline(world: World) -> None:
    with orders().start("state") as pipeline:
        assert pipeline.is_running
    assert world.run.did == ["start", "come to rest", "stop"]
    assert world.run.timeouts == [None], "it waits until it is drained"


def test_a_block_that_raises_stops_the_pipeline(world: World) -> None:
    world.run.failure = cw.CutwaterError("it failed")
    with pytest.raises(KeyError), orders().start("state"):
        raise KeyError("x")
    assert world.run.did == ["start", "stop"]


def test_a_block_of_one_of_several_members_stops_it(world: World) -> None:
    world.run = Run(("main", "other"))
    with orders().start("state"):
        pass
    assert world.run.did == ["start", "stop"]


def test_a_block_raises_the_error_that_ended_the_pipeline(world: World) -> None:
    world.run.failure = cw.CutwaterError("it failed")
    with pytest.raises(cw.CutwaterError, match="it failed"), orders().start("state"):
        pass


def test_a_block_in_which_it_was_stopped_does_nothing_more(world: World) -> None:
    with orders().start("state") as pipeline:
        pipeline.stop()
    assert world.run.did == ["start", "stop"]


def test_a_drain_waits_for_the_last_tables(world: World) -> None:
    pipeline = orders().start("state")
    world.run.looks = 1
    assert pipeline.drain("9s") == 7
    ((request, timeout_s),) = world.run.requests
    assert (request.kind, timeout_s) == (RequestKind.DRAIN, 9.0)
    assert world.run.timeouts[0] is not None
    assert 5 < world.run.timeouts[0] <= 9
    assert world.run.did == ["start", "stop"]


def test_a_drain_that_is_not_published_says_why(world: World) -> None:
    pipeline = orders().start("state")
    with pytest.raises(
        UserError, match="epoch 7 is committed, but not published everywhere: the table is locked"
    ):
        pipeline.drain("1s")
    assert pipeline.is_running


def test_a_drain_raises_what_ended_the_run(world: World) -> None:
    pipeline = orders().start("state")
    world.run.looks = 1
    world.run.failure = cw.CutwaterError("it failed")
    with pytest.raises(cw.CutwaterError, match="it failed"):
        pipeline.drain()
    assert world.run.did == ["start", "stop"]


REQUESTS: dict[str, tuple[Callable[[Any], Any], Any, dict[str, Any]]] = {
    "checkpoint": (lambda p: p.checkpoint(), 7, {"kind": RequestKind.CHECKPOINT, "full": False, "unaligned": False}),
    "full": (lambda p: p.checkpoint(full=True), 7, {"kind": RequestKind.CHECKPOINT, "full": True, "unaligned": False}),
    "unaligned": (lambda p: p.checkpoint(unaligned=True), 7, {"full": False, "unaligned": True}),
    "savepoint": (lambda p: p.savepoint("may"), 7, {"kind": RequestKind.SAVEPOINT, "name": "may"}),
    "cancel": (lambda p: p.cancel_checkpoint(), None, {"kind": RequestKind.CANCEL}),
}  # fmt: skip


@pytest.mark.parametrize(("ask", "result", "wanted"), REQUESTS.values(), ids=REQUESTS)
def test_requests(world: World, ask: Callable[[Any], Any], result: Any, wanted: dict[str, Any]) -> None:
    pipeline = orders().start("state")
    assert ask(pipeline) == result
    assert ask(pipeline) == result
    first, second = (request for request, _ in world.run.requests)
    assert first.request_id != second.request_id
    assert {name: getattr(first, name) for name in wanted} == wanted
    assert world.run.requests[0][1] == 600


def test_a_savepoint_with_an_impossible_name_is_not_asked_for(world: World) -> None:
    pipeline = orders().start("state")
    with pytest.raises(UserError):
        pipeline.savepoint("latest")
    assert world.run.requests == []


@pytest.mark.parametrize("ref", ["may", 5])
def test_a_restore_asks_for_a_whole_checkpoint(
    world: World, monkeypatch: pytest.MonkeyPatch, ref: str | int
) -> None:
    state = SimpleNamespace(savepoints={"may": 5})
    monkeypatch.setattr(module, "read_journal", lambda store: SimpleNamespace(state=state))
    asked: list[Any] = []

    def whole(store: Any, found: Any, name: str, log: Any) -> Any:
        asked.append((store, found, name))
        return SimpleNamespace(epoch=5)

    monkeypatch.setattr(module, "whole_checkpoint", whole)
    assert orders().start("state").restore(ref, force=ref == 5) == 7
    assert asked == [("the store", state, str(ref))]
    ((request, _),) = world.run.requests
    assert (request.kind, request.epoch, request.force) == (RequestKind.RESTORE, 5, ref == 5)
    assert request.name == ("may" if ref == "may" else None)


def test_what_a_running_pipeline_shows(world: World) -> None:
    pipeline = orders().start("state")
    assert pipeline.status() == "the status"
    assert pipeline.queries == {"a": "a's query"}


@pytest.mark.parametrize(
    "ask", [lambda p: p.status(), lambda p: p.queries, lambda p: p.checkpoint(), lambda p: p.stay()]
)
def test_a_pipeline_that_is_not_running_says_so(ask: Callable[[Any], Any]) -> None:
    with pytest.raises(UserError, match="not running in this process"):
        ask(orders())


def test_a_store_that_cannot_be_opened_is_an_error_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(module, "new_session", lambda *_: pytest.fail("it was started"))
    with pytest.raises(cw.CutwaterError, match="is a file"):
        orders().start(str(tmp_path / "file"))
