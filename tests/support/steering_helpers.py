"""Helpers for tests of restores and other requests that a command carries out in a stopped pipeline."""

from __future__ import annotations

from pathlib import Path

from cutwater.protocol.base import paths
from cutwater.protocol.base import records as r
from cutwater.protocol.base.wire import Reply, Request, RequestKind
from cutwater.store.at_rest import carry_out, read_journal
from cutwater.store.local import LocalStore
from cutwater.store.opening import open_store
from tests.support.live_leader import LiveLeader

ONE = r.Topology({"s": r.StageSpec("s", (), "main", (r.SinkSpec("t"),))})
MORE = r.Topology({**ONE.stages, "fresh": r.StageSpec("fresh", ("s",), "main", (r.SinkSpec("u"),))})


def new_store(tmp_path: Path) -> LocalStore:
    found = open_store(str(tmp_path / "store"), create=True)
    assert isinstance(found, LocalStore)
    return found


def ask(store: LocalStore, kind: RequestKind, **what: object) -> Reply:
    request = Request(kind, str(what.pop("request_id", "r1")), **what)  # type: ignore[arg-type]
    return carry_out(store, read_journal(store), request, lambda sink, transaction: 0)


def published(store: LocalStore, leader: LiveLeader, epoch: int, sink: str = "t") -> None:
    index = leader.state.committed[epoch].index
    store.create(paths.mark_name(index, sink), r.encode(r.Published(epoch, sink, index, 1)))
