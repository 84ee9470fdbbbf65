"""What a restore asks of the leader about sources that were read before, and what it says."""

from __future__ import annotations

from typing import Any

import pytest

from cutwater.plan.known_sources import register_sources
from cutwater.protocol.base.errors import UserError
from cutwater.protocol.base.failures import FailureReason
from cutwater.protocol.base.wire import Reply, Request
from cutwater.runtime import restore
from cutwater.spark.checkpoint.leaves import Leaf, native_leaf
from cutwater.spark.checkpoint.new_folder import claim_sources, make_folder
from cutwater.store.contract import Store
from cutwater.store.opening import open_store
from tests.support.builders import pipeline, stage
from tests.support.live_leader import LiveLeader

ORDERS = native_leaf("pubsub", [("subscription", "orders")], [], 0)
RETURNS = native_leaf("pubsub", [("subscription", "returns")], [], 0)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """The requests to the leader, which refuses to read a known source again."""
    found: list[Request] = []

    def refuse(store: Store, journal: Any, request: Request, *rest: Any) -> Reply:
        found.append(request)
        detail = "epoch 1 does not have stage 'orders', so its positions in its sources are unknown"
        return Reply(request.request_id, False, reason=FailureReason.NO_POSITIONS.value, detail=detail)

    monkeypatch.setattr(restore, "carry_out", refuse)
    return found


def renamed(store: Store, leaf: Leaf) -> None:
    restore.restore_before_start(
        store, None, "latest", ("root",), ("copy",), lambda line: None, leaves={"orders": [leaf]}
    )


@pytest.mark.parametrize("is_registered", [True, False], ids=["registered", "only in the checkpoint"])
def test_a_renamed_stage_with_a_source_of_an_unknown_format_reads_it_again(
    asked: list[Request], is_registered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store("memory://")
    if is_registered:
        register_sources({"root": [ORDERS]}, store)
    else:
        monkeypatch.setattr(restore, "recorded_sources", lambda store, report: [ORDERS])
    LiveLeader(store, pipeline(stage("root"))).commit(0)
    with pytest.raises(
        UserError,
        match=r"\(it reads the source pubsub, and nothing .* stage 'root' .* Keep the stage's old name",
    ):
        renamed(store, ORDERS)
    with pytest.raises(UserError, match=r"sources are unknown\. Nothing was changed"):
        renamed(store, RETURNS)
    assert [request.rereads for request in asked] == [("orders",), ()]


def without_a_batch(store: Store, reads: Leaf) -> None:
    """A checkpoint with `orders`, which was started to read that and has read nothing; another stage has read ORDERS."""
    register_sources({"root": [ORDERS], "orders": [reads]}, store)
    make_folder(store, "orders", 1, 1, None, None)
    claim_sources(store, "orders", 1, 1, [reads])
    LiveLeader(store, pipeline(stage("root"), stage("orders"))).commit(-1)


def test_a_stage_that_has_read_nothing_and_takes_over_a_source_reads_it_again(asked: list[Request]) -> None:
    store = open_store("memory://")
    without_a_batch(store, RETURNS)
    for leaf in (ORDERS, RETURNS):
        with pytest.raises(UserError):
            renamed(store, leaf)
    assert [request.rereads for request in asked] == [("orders",), ()]


def test_a_start_without_a_restore_refuses_that_too() -> None:
    store = open_store("memory://")
    without_a_batch(store, RETURNS)
    restore.check_new_sources(store, {"orders": [RETURNS]})
    with pytest.raises(
        UserError, match=r"stage 'orders' has read nothing so far, and now it reads .*restore latest"
    ):
        restore.check_new_sources(store, {"orders": [ORDERS]})


def test_a_stage_that_shares_a_source_and_has_read_nothing_may_go_on(asked: list[Request]) -> None:
    store = open_store("memory://")
    without_a_batch(store, ORDERS)
    restore.check_new_sources(store, {"orders": [ORDERS]})
    with pytest.raises(UserError):
        renamed(store, ORDERS)
    assert [request.rereads for request in asked] == [()]
