"""What commands learn from the members themselves, and not from the store: with members that are only played."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner, Result

from cutwater.cli.client import Client, PipelineEnded
from cutwater.cli.main import app
from cutwater.cluster.config import ClusterConfig
from cutwater.protocol.base.errors import UserError
from cutwater.protocol.base.paths import REPLY_PREFIX, REQUEST_PREFIX
from cutwater.protocol.base.wire import Reply, Request, RequestKind, encode_message
from cutwater.store.at_rest import read_journal
from cutwater.store.contract import Store
from cutwater.store.status import Status
from tests.support.written import Written, put_status

CLUSTER = ClusterConfig(peers=("tcp/127.0.0.1:1",))


class Members:
    """Members that can be reached, and what they say."""

    def __init__(self) -> None:
        self.there: list[str] = []
        self.says: list[Status] = []
        self.hints: list[str] = []
        self.is_reachable = True
        self.asked_for: list[str] = []
        self.on_hint: Any = lambda: None

    def __call__(self, cluster: ClusterConfig, pipeline: str, say: Any) -> Members:
        self.asked_for.append(pipeline)
        if not self.is_reachable:
            raise UserError("nobody answers at tcp/127.0.0.1:1")
        return self

    def __enter__(self) -> Members:
        return self

    def __exit__(self, *_: object) -> None: ...

    def members(self) -> list[str]:
        return self.there

    def statuses(self) -> list[Status]:
        return self.says

    def hint(self, topic: str) -> None:
        self.hints.append(topic)
        self.on_hint()

    def read_journal(self, store: Store) -> Any:
        return read_journal(store)


@pytest.fixture
def members(monkeypatch: pytest.MonkeyPatch) -> Members:
    made = Members()
    monkeypatch.setattr("cutwater.cluster.observer.Observer", made)
    return made


@pytest.fixture
def store(tmp_path: Path) -> Store:
    play = Written()
    play.checkpoint()
    return play.write(tmp_path / "state")


def status(store: Store, *options: str) -> Result:
    return CliRunner().invoke(app, ["status", "--store", store.url, "--peer", "tcp/127.0.0.1:1", *options])


def test_who_leads_is_preferred_and_what_members_say_counts_more_than_the_store(
    store: Store, members: Members
) -> None:
    old = put_status(store, member="a", pid=1)
    put_status(store, member="b", pid=2, leads=True)
    put_status(store, member="gone", pid=3, leads=True)
    members.there = ["a", "b", "unheard of"]
    found = Client(store, "20s", True, CLUSTER).running_member()
    assert found is not None
    assert (found.member, members.asked_for) == ("b", ["chain"])
    members.says = [msgspec.structs.replace(old, pid=9, leads=True)]
    found = Client(store, "20s", True, CLUSTER).running_member()
    assert found is not None
    assert (found.member, found.pid) == ("a", 9)
    members.there, members.says = ["a"], []
    found = Client(store, "20s", True, CLUSTER).running_member()
    assert found is not None
    assert found.member == "a", "it does not lead, but it runs"


@pytest.mark.parametrize("is_reachable", [False, True])
def test_if_no_member_answers_the_store_decides(store: Store, members: Members, is_reachable: bool) -> None:
    assert Client(store, "20s", True, CLUSTER).running_member() is None
    assert members.asked_for == [], "nobody has ever run on it"
    members.is_reachable = is_reachable
    put_status(store, state="stopped")
    assert Client(store, "20s", True, CLUSTER).running_member() is None
    assert members.asked_for == ["chain"]


def test_a_member_that_answers_is_notified_and_waited_for(store: Store, members: Members) -> None:
    there = put_status(store, state="stopped")
    members.there = ["main"]

    def answer() -> None:
        (name,) = store.list(REQUEST_PREFIX)
        request_id = name.removeprefix(REQUEST_PREFIX).removesuffix(".json")
        store.put(f"{REPLY_PREFIX}{request_id}.json", encode_message(Reply(request_id, True, 7)))

    members.on_hint = answer
    request = Request(RequestKind.CHECKPOINT, "r1")
    assert Client(store, "20s", True, CLUSTER).ask(request, "take a checkpoint", there) == 7
    assert set(members.hints) == {"requests"}
    members.there, members.on_hint = [], lambda: None
    with pytest.raises(
        PipelineEnded, match="the pipeline ended before it answered, and the request was withdrawn"
    ):
        Client(store, "20s", True, CLUSTER).ask(
            Request(RequestKind.CHECKPOINT, "r2"), "take a checkpoint", there
        )


def test_status_says_of_each_member_whether_it_answers(store: Store, members: Members) -> None:
    for name, state in (("a", "running"), ("b", "running"), ("c", "stopped"), ("d", "drained")):
        put_status(store, member=name, state=state)
    members.there = ["a", "d"]
    members.says = [put_status(store, member="a", state="running", epoch=9)]
    found = json.loads(status(store, "--json").stdout)
    assert {m["member"]: (m["presence"], m["alive"]) for m in found["members"]} == {
        "a": ("running", True), "b": ("silent", False), "c": ("ended", False), "d": ("ended", False),
    }  # fmt: skip
    assert found["running"] is True
    assert found["journal"]["kept"] == [1]
    assert next(m["epoch"] for m in found["members"] if m["member"] == "a") == 9
    members.there = []
    assert json.loads(status(store, "--json").stdout)["running"] is False


def test_status_shows_members_that_run_and_those_that_do_not(store: Store, members: Members) -> None:
    put_status(store, member="a")
    put_status(store, member="c", state="failed", trouble="no disk")
    members.there = ["a"]
    text = status(store).stdout
    assert "chain · a  running" in text
    assert "process 4711 on elsewhere, since" in text
    assert "chain, member 'c' is not running: failed at" in text
    assert "(process 4711 on elsewhere): no disk" in text
    assert "published    epoch 1 everywhere" in text
