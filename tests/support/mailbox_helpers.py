"""Helpers for tests of requests through the store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

from cutwater.protocol.base.paths import REPLY_PREFIX, REQUEST_PREFIX
from cutwater.protocol.base.wire import Reply, Request, RequestKind, encode_message
from cutwater.protocol.leader.leader import LeaderPhase
from cutwater.runtime.runtime import Runtime
from cutwater.runtime.store_requests import Unanswered, ask_through, understood
from cutwater.store.contract import Names
from cutwater.store.local import LocalStore
from tests.support.live_member import Members
from tests.support.spark_helpers import await_that

GARBAGE = [b"", b"{}", b'{"type":"request\xff"}', b'{"type":"request","x":' + b"[" * 100_000]


class FlakyStore(LocalStore):
    """A store that fails a number of times to write or remove names that begin with `fails`."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.fails: dict[str, int] = {}
        self.refused: set[str] = set()
        """Names that can be neither read nor written nor removed."""
        self.failed = 0
        self.early: list[str] = []
        """Requests that were removed before their answer was written."""
        self.created: list[str] = []
        self.before_put: Callable[[str], None] = lambda name: None

    def create(self, name: str, data: bytes) -> bool:
        self._maybe_fail("create", name)
        self.created.append(name)
        return super().create(name, data)

    def put(self, name: str, data: bytes) -> None:
        assert not name.startswith(REPLY_PREFIX), f"{name} would not be durable"
        if name.startswith(REQUEST_PREFIX):
            self._maybe_fail("renew", name)
            self.before_put(name)
        super().put(name, data)

    def delete(self, names: Iterable[str]) -> None:
        for name in list(names):
            self._maybe_fail("delete", name)
            if name.startswith(REQUEST_PREFIX) and self.exists(name) and not self.exists(reply_to(name)):
                self.early.append(name)
            super().delete([name])

    def read(self, name: str) -> bytes | None:
        self._maybe_fail("read", name)
        return super().read(name)

    def list(self, prefix: str, after: str = "") -> Names:
        self._maybe_fail("list", prefix)
        return super().list(prefix, after)

    def _maybe_fail(self, what: str, name: str) -> None:
        if name in self.refused:
            raise PermissionError(13, "denied", name)
        kind = f"{what} {name.split('/')[0]}"
        if self.fails.get(kind):
            self.fails[kind] -= 1
            self.failed += 1
            raise OSError("the store does not answer")


def reply_to(name: str) -> str:
    return name.replace(REQUEST_PREFIX, REPLY_PREFIX)


def flaky_store(tmp_path: Path) -> FlakyStore:
    (tmp_path / "state").mkdir()
    return FlakyStore(tmp_path / "state")


def put_request(store: LocalStore, kind: RequestKind, request_id: str, **what: Any) -> Request:
    request = Request(kind, request_id, **what)
    store.create(f"{REQUEST_PREFIX}{request_id}.json", encode_message(request))
    return request


@contextmanager
def asked_before(
    store: LocalStore, kind: RequestKind, request_id: str, **what: Any
) -> Iterator[list[Reply | Unanswered]]:
    """A command that has asked before a member starts, and waits; its answer."""
    got: list[Reply | Unanswered] = []
    over = Event()
    request = Request(kind, request_id, **what)
    thread = Thread(target=lambda: got.append(ask_through(store, request, 60, lambda: not over.is_set())))
    thread.start()
    await_that("it has asked", lambda: store.exists(f"{REQUEST_PREFIX}{request_id}.json"), 30)
    try:
        yield got
    finally:
        over.set()
        thread.join()


def reply_of(store: LocalStore, request_id: str) -> Reply:
    """Waits for the answer and the removal of the request, and returns the answer."""

    def found() -> Reply | None:
        if store.exists(f"{REQUEST_PREFIX}{request_id}.json"):
            return None
        return understood(store.read(f"{REPLY_PREFIX}{request_id}.json"), Reply)

    reply = await_that(f"{request_id} is answered", found, 30)
    assert isinstance(reply, Reply)
    return reply


def leading(up: Members, name: str = "main") -> Runtime:
    made = up.start(name)
    await_that("it leads", lambda: made.leader.phase is LeaderPhase.LEADING and made.leader.coordinator, 30)
    await_that("it has looked", lambda: made.mailbox._arrivals.is_ready, 30)
    return made


def heard_by(made: Runtime) -> list[str]:
    """Collects the requests that are passed to this member's leader from now on."""
    heard: list[str] = []
    original = made.leader.on_message

    def listen(message: Any) -> None:
        if isinstance(message, Request):
            heard.append(message.request_id)
        original(message)

    made.leader.on_message = listen  # type: ignore[method-assign]
    return heard


def renewed(store: LocalStore, name: str) -> int | None:
    data = store.read(name)
    assert data is None or b'"sum":' in data
    request = understood(data, Request)
    return request.renewed if request is not None else None
