"""Carries out what the buttons ask for, as the commands do: through the store, whether or not a member is running."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from threading import Event, Lock
from typing import Any

import msgspec

from cutwater.documents.timestamps import iso
from cutwater.protocol.base.errors import CutwaterError, StoreError, UserError
from cutwater.protocol.base.wire import Request, RequestKind
from cutwater.runtime.restore import finder, restore_before_start, whole_checkpoint
from cutwater.runtime.store_requests import Unanswered, answered, ask_through, check_savepoint_name, new_id
from cutwater.store.at_rest import carry_out, read_journal, resolve
from cutwater.store.contract import Store
from cutwater.store.presence import Presence, Watch
from cutwater.web.answers import unreadable
from cutwater.web.threads import Busy, Threads

ANSWER_S = 600.0
MAX_WAITING = 8
MAX_URGENT = 4
URGENT = frozenset({"cancel", "restore"})
"""The ways out of a pipeline that is stuck: they do not wait until other requests are answered."""
MAX_KNOWN = 100
KINDS = ("checkpoint", "savepoint", "restore", "cancel", "drain")


class RequestBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request. `name`: of the savepoint to take; `ref`: the checkpoint to restore, an epoch or a
    savepoint's name; `full` and `unaligned`: of a checkpoint; `force`: of a restore."""

    kind: str
    name: str | None = None
    ref: str | None = None
    full: bool = False
    unaligned: bool = False
    force: bool = False


class TooMany(Exception):
    """Too many requests wait for their answers."""


IsClosed = Callable[[], bool]


class RequestState(msgspec.Struct):
    """A request and its outcome. `state` is waiting, done or failed."""

    id: str
    kind: str
    asked_at: str | None
    state: str = "waiting"
    text: str = ""
    epoch: int | None = None


class Requests:
    """`changed` is called, from any thread, with each request that is new or answered."""

    def __init__(self, store: Store, changed: Callable[[dict[str, Any]], None]) -> None:
        self._store = store
        self._changed = changed
        self._known: OrderedDict[str, RequestState] = OrderedDict()
        self._lock = Lock()
        self._closed = Event()
        self._threads = Threads(MAX_WAITING, "cutwater-web-ask")
        self._urgent = Threads(MAX_URGENT, "cutwater-web-ask-urgent")

    def ask(self, body: RequestBody) -> dict[str, Any]:
        """Begin to carry it out. Raises `UserError` if it is invalid, and `TooMany`."""
        _check(body)
        one = RequestState(new_id(), body.kind, iso(time.time()))
        document: dict[str, Any] = msgspec.to_builtins(one)
        with self._lock:  # it is known and announced before it is answered
            try:
                threads = self._urgent if body.kind in URGENT else self._threads
                threads.begin(lambda: self._carry_out(one, body))
            except Busy:
                raise TooMany from None
            self._known[one.id] = one
            while len(self._known) > MAX_KNOWN:
                del self._known[next(i for i, known in self._known.items() if known.state != "waiting")]
            self._changed(document)
        return document

    def find(self, request_id: str) -> dict[str, Any] | None:
        with self._lock:
            found = self._known.get(request_id)
            return msgspec.to_builtins(found) if found is not None else None

    def all(self) -> list[dict[str, Any]]:
        """All that are remembered, newest first."""
        with self._lock:
            return [msgspec.to_builtins(one) for one in reversed(self._known.values())]

    def close(self) -> None:
        """Stop waiting for answers: requests without one are withdrawn."""
        self._closed.set()

    def _carry_out(self, one: RequestState, body: RequestBody) -> None:
        epoch: int | None = None
        try:
            epoch, text = _perform(self._store, body, self._closed.is_set)
            state = "done"
        except (StoreError, OSError) as error:
            text, state = unreadable(error), "failed"
        except CutwaterError as error:
            text, state = str(error), "failed"
        except Exception:
            logging.getLogger("cutwater").exception("the request %s of the page failed", body.kind)
            text, state = "this failed unexpectedly; the log of the server says why", "failed"
        with self._lock:
            one.state, one.text, one.epoch = state, text, epoch
            document = msgspec.to_builtins(one)
        self._changed(document)


def _check(body: RequestBody) -> None:
    if body.kind not in KINDS:
        raise UserError(f"'{body.kind[:50]}' is not a request; ask for one of {', '.join(KINDS)}")
    if body.kind == "savepoint":
        check_savepoint_name(body.name or "")
    if body.kind == "restore" and not body.ref:
        raise UserError("say what to restore: ref is an epoch, a savepoint's name or latest")


def _perform(store: Store, body: RequestBody, is_closed: IsClosed = lambda: False) -> tuple[int | None, str]:
    watch = Watch(store)
    member = watch.running()
    match body.kind:
        case "restore":
            return _restore(store, watch, body, member is not None, is_closed)
        case "savepoint" if member is None:
            return _name_newest(store, str(body.name))
    if member is None:
        raise UserError(f"{watch.absence()}, so nobody can do this")
    if body.kind == "savepoint":
        epoch = _ask(store, watch, is_closed, Request(RequestKind.SAVEPOINT, new_id(), name=body.name))
        return epoch, f"savepoint '{body.name}' is epoch {epoch}"
    if body.kind == "drain":
        epoch = _ask(store, watch, is_closed, Request(RequestKind.DRAIN, new_id()))
        return epoch, f"epoch {epoch} is committed as the last one; the pipeline ends when it is published"
    if body.kind == "cancel":
        _ask(store, watch, is_closed, Request(RequestKind.CANCEL, new_id()))
        return None, "cancelled; its batches belong to the next checkpoint"
    request = Request(RequestKind.CHECKPOINT, new_id(), full=body.full, unaligned=body.unaligned)
    epoch = _ask(store, watch, is_closed, request)
    return epoch, f"epoch {epoch} is committed"


def _restore(
    store: Store, watch: Watch, body: RequestBody, is_running: bool, is_closed: IsClosed
) -> tuple[int | None, str]:
    ref, lines = str(body.ref), list[str]()
    if not is_running:
        found = restore_before_start(store, None, ref, (), (), lines.append, body.force)
        return found, f"epoch {found} is restored: the next run starts there and rolls the tables back"
    state = read_journal(store).state
    target = whole_checkpoint(store, state, ref, lines.append)
    name = ref if ref in state.savepoints else None
    request = Request(RequestKind.RESTORE, new_id(), name, target.epoch, force=body.force)
    epoch = _ask(store, watch, is_closed, request)
    return epoch, f"epoch {epoch} is restored; the pipeline continues from there"


def _name_newest(store: Store, name: str) -> tuple[int | None, str]:
    """Without a running pipeline, the newest checkpoint gets the name."""
    journal = read_journal(store)
    epoch = resolve(journal.state, "latest").epoch
    request = Request(RequestKind.SAVEPOINT, new_id(), name=name, epoch=epoch)
    found = answered(carry_out(store, journal, request, finder(store)), RequestKind.SAVEPOINT)
    return found, f"nothing is running, so the newest checkpoint, epoch {found}, is now savepoint '{name}'"


def _ask(store: Store, watch: Watch, is_closed: IsClosed, request: Request) -> int | None:
    def is_running() -> bool:
        return not is_closed() and any(
            seen.presence in (Presence.RUNNING, Presence.UNKNOWN) for seen in watch.look()
        )

    reply = ask_through(store, request, ANSWER_S, is_running)
    if isinstance(reply, Unanswered):
        raise UserError(
            f"{request.kind.value} was not answered ({reply.value}), and the request was withdrawn; it may have been "
            "carried out anyway: look at the checkpoints before you ask again"
        )
    return answered(reply, request.kind)
