"""Following with the real store, real members and real processes; Spark's queries are modelled."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

import cutwater as cw
from cutwater.cluster.config import ClusterConfig
from cutwater.protocol.base.errors import UserError
from cutwater.protocol.base.paths import mark_name
from cutwater.protocol.base.records import decode_mark
from cutwater.protocol.base.wire import Request, RequestKind
from cutwater.protocol.member.journal import timeline
from cutwater.runtime.store_requests import ask_through, new_id
from cutwater.store.at_rest import read_journal
from cutwater.store.opening import open_store
from tests.support.hosted_pipeline import HostedPipeline
from tests.support.live_member import TWO, members
from tests.support.s3_server import free_port
from tests.support.spark_helpers import await_that

pytestmark = pytest.mark.slow


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[HostedPipeline]:
    made = HostedPipeline(tmp_path)
    yield made
    made.stop()


def take(following: cw.Following, count: int) -> list[cw.Followed]:
    return [next(following) for _ in range(count)]


def test_a_running_pipeline_is_followed_through_a_restore(shop: HostedPipeline) -> None:
    shop.start(every_ms=50, retained=1_000)
    shop.await_shown(3)
    with cw.follow(shop.store, name="cache") as following:
        first = take(following, 3)
        assert [one.epoch for one in first] == [1, 2, 3]
        assert [one.rewound for one in first] == [False] * 3
        shop.ask(RequestKind.RESTORE, epoch=2)
        rest = iter(following)
        back = next(one for one in rest if one.rewound)
        assert (back.epoch, back.generation) == (2, 2)
        after = next(rest)
        assert after.generation == 2
        assert after.tables == cw.tables(shop.store, after.epoch)
    with cw.follow(shop.store, name="cache") as again:
        assert next(again) == after  # it was not acknowledged


def test_invalid_names_and_peers_are_refused(shop: HostedPipeline) -> None:
    with pytest.raises(UserError, match="'a/b' cannot name a follower"):
        cw.follow(shop.store, name="a/b")
    with pytest.raises(UserError, match="peers is a list"):
        cw.follow(shop.store, peers="tcp/127.0.0.1:1")
    with pytest.raises(UserError, match="no member has run"):
        cw.follow(shop.store, peers=["tcp/127.0.0.1:1"])


def test_members_announce_new_epochs_at_once(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "state"), create=True)
    address = f"tcp/127.0.0.1:{free_port()}"
    with members(store, TWO) as running:
        one = running.start("one", 2_000, ClusterConfig(listen=(address,)))
        two = running.start("two", 2_000, ClusterConfig(peers=(address,)))

        def checkpoint() -> None:
            asked = one if one.leader.phase.value == "leading" else two
            assert asked.request(Request(RequestKind.CHECKPOINT, new_id()), 30).ok

        await_that("a leader", lambda: {one.leader.phase.value, two.leader.phase.value} >= {"leading"}, 30)
        checkpoint()
        with cw.follow(store, peers=[address]) as following:
            assert next(following).epoch == 1
            began = time.monotonic()
            checkpoint()
            assert next(following).epoch == 2
            assert time.monotonic() - began < 5  # it would read the store only every ten seconds


def test_a_follower_whose_members_are_gone_reads_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cutwater.cluster.observer.JOIN_S", 0.2)
    store = open_store(str(tmp_path / "state"), create=True)
    with members(store) as running:
        main = running.start("main")
        await_that("it leads", lambda: main.leader.phase.value == "leading", 30)
        assert main.request(Request(RequestKind.CHECKPOINT, new_id()), 30).ok
    with cw.follow(store, peers=[f"tcp/127.0.0.1:{free_port()}"]) as following:
        assert next(following).epoch == 1


def test_an_outage_of_the_store_is_logged_once_and_waited_for(
    shop: HostedPipeline, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shop.start(every_ms=50, retained=1_000)
    shop.await_shown(3)
    failures = iter([OSError("no route")] * 4)
    real = shop.store.list

    def flaky(prefix: str, after: str = "") -> list[str]:
        if (error := next(failures, None)) is not None:
            raise error
        return real(prefix, after)

    store = open_store(str(shop.table.parent / "state"))
    monkeypatch.setattr(store, "list", flaky)
    with cw.follow(store) as following:
        assert next(following).epoch == 1
    assert [record.message for record in caplog.records if "does not answer" in record.message] == [
        "the store does not answer, and is asked again and again: no route"
    ]


# --- processes that are killed ---------------------------------------------------------------------------------


class Killed:
    """A member and a follower in processes of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "epochs"
        self.began = time.time()
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start_member(self) -> None:
        self._start("member", ["-m", "tests.support.hosted_child", str(self.folder), str(self.began)])

    def start_follower(self) -> None:
        command = ["-m", "cutwater", "follow", "--store", str(self.folder / "state"), "--name", "cache"]
        self._start("follower", [*command, "--exec", f"cat >> {self.out}"])

    def _start(self, what: str, arguments: list[str]) -> None:
        root = Path(__file__).parents[2]
        path = os.pathsep.join((str(root), str(root / "src")))
        with (self.folder / f"{what}.log").open("ab") as log:
            self.running[what] = subprocess.Popen(
                [sys.executable, *arguments], stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,
            )  # fmt: skip

    def kill(self, what: str) -> None:
        process = self.running.pop(what)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            raise AssertionError(
                f"the {what} has ended: {(self.folder / f'{what}.log').read_text('utf-8')[-2_000:]}"
            )
        process.wait()

    def given(self) -> list[dict[str, Any]]:
        lines = self.out.read_text("utf-8").splitlines() if self.out.exists() else []
        return [json.loads(line) for line in lines]

    def grow(self, by: int = 3) -> None:
        """Waits until the follower was given some more."""
        before = len(self.given())
        await_that(f"{by} more epochs", lambda: len(self.given()) >= before + by, 60)


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[Killed]:
    made = Killed(tmp_path)
    yield made
    for what in list(made.running):
        made.kill(what)


def test_kills_and_restores_neither_lose_nor_repeat_an_epoch(killed: Killed) -> None:
    rng = Random(7)
    killed.start_member()
    await_that("there is a store", (killed.folder / "state" / "journal").exists, 60)
    store = open_store(str(killed.folder / "state"))
    killed.start_follower()
    killed.grow()
    for number in range(12):
        if number % 3 == 2:
            killed.kill("member")
            killed.start_member()
        if number % 4 == 1:
            head = read_journal(store).state.head or 0
            request = Request(RequestKind.RESTORE, new_id(), None, max(1, head - 2))
            ask_through(store, request, 30)  # it may be killed before it has answered
        killed.kill("follower")
        killed.start_follower()
        killed.grow(rng.randint(1, 4))
    killed.kill("follower")
    killed.kill("member")
    _check(killed)


def _check(killed: Killed) -> None:
    store = open_store(str(killed.folder / "state"))
    state, found = read_journal(store).state, killed.given()
    positions = [one["position"] for one in found]
    assert positions == sorted(positions)
    distinct = {one["position"]: one for one in found}
    assert len(found) - len(distinct) <= 13  # at most one per kill, and the same again
    assert all(one == distinct[one["position"]] for one in found)
    assert not any(one["after_gap"] for one in found)
    missing = [c.epoch for c in timeline(state) if c.index <= positions[-1] and c.index not in distinct]
    assert missing == []
    rewinds = [g.index for g in state.generations.values() if 1 < g.index <= positions[-1]]
    assert rewinds
    assert [p for p, one in distinct.items() if one["rewound"]] == rewinds
    for position, one in distinct.items():
        name = mark_name(position, "out")
        data = store.read(name)
        if data is not None:
            assert decode_mark(name, data).version == one["tables"]["out"]
