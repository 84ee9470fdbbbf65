"""Sends requests to a running pipeline through the store: the requester's side.

A requester that waits renews its request: it writes the object again, with a higher count. A request that is not renewed
was left by a command that was killed.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import TypeVar

import msgspec

from cutwater.protocol.base.chain import with_checksum
from cutwater.protocol.base.errors import PeerError, UserError
from cutwater.protocol.base.failures import FailureReason
from cutwater.protocol.base.paths import REQUEST_PREFIX, reply_name, request_name
from cutwater.protocol.base.wire import Reply, Request, RequestKind, decode_message, encode_message
from cutwater.store.contract import Store
from cutwater.store.local import LocalStore

T = TypeVar("T", Request, Reply)
RENEW_S = 2.0
"""How often a requester that waits renews its request."""
RENEW_REMOTE_S = 10.0
"""The same in a bucket, where a write costs more."""
MISSED_RENEWALS = 3
"""After so many intervals without a renewal, nobody is waiting for a request."""
_SAVEPOINT = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,99}")


class Unanswered(Enum):
    """Why there is no answer."""

    TIMED_OUT = "timed out"
    NOBODY_THERE = "nobody there"
    VANISHED = "vanished"
    """The request is gone, and there is no answer."""
    UNREADABLE = "unreadable"
    """There is an answer, but it is damaged."""


def new_id() -> str:
    return uuid.uuid4().hex[:12]


def renew_every(store: Store) -> float:
    """The time in seconds until a waiting requester next renews its request."""
    return RENEW_S if isinstance(store, LocalStore) else RENEW_REMOTE_S


def renew(store: Store, request: Request, count: int) -> None:
    """Writes a request again: the requester is still waiting. If the request was answered and removed in the meantime,
    this brings it back. The requester then removes it together with the answer. If the requester dies first, the leader
    removes it, because the request has an answer or is not renewed."""
    renewed = msgspec.structs.replace(request, renewed=count)
    store.put(request_name(request.request_id), with_checksum(encode_message(renewed)))


def forsaken(store: Store, pause: Callable[[float], None] = time.sleep) -> list[str]:
    """The requests in a store that are not renewed. If there are any requests, this takes the time of a few renewals."""
    before = _contents(store)
    if not before:
        return []
    pause(MISSED_RENEWALS * renew_every(store))
    after = _contents(store)
    return [name for name, data in before.items() if after.get(name) == data]


def _contents(store: Store) -> dict[str, bytes]:
    names = store.list(REQUEST_PREFIX)
    found = zip(names, store.read_many(names), strict=True)
    return {name: data for name, data in found if data is not None}


def ask_through(
    store: Store,
    request: Request,
    timeout_s: float,
    is_there: Callable[[], bool] = lambda: True,
    hint: Callable[[], None] = lambda: None,
) -> Reply | Unanswered:
    """Sends a request to a pipeline that runs in another process, and waits while `is_there` says that a member is
    running; meanwhile the request is renewed. A request without an answer is withdrawn, so that no later run acts on
    it."""
    question, answer = request_name(request.request_id), reply_name(request.request_id)
    found: Reply | Unanswered = Unanswered.TIMED_OUT
    try:
        store.create(question, with_checksum(encode_message(request)))
        hint()
        deadline = time.monotonic() + timeout_s
        every = 0.1 if isinstance(store, LocalStore) else 1.0
        count, due = 0, time.monotonic() + renew_every(store)
        while time.monotonic() < deadline:
            there = is_there()
            is_asked = store.exists(
                question
            )  # checked before the answer, which is written before the request goes
            if store.exists(answer):
                break
            if not there or not is_asked:
                found = Unanswered.VANISHED if there else Unanswered.NOBODY_THERE
                break
            if time.monotonic() >= due:
                count, due = count + 1, time.monotonic() + renew_every(store)
                with suppress(OSError):  # it is renewed the next time
                    renew(store, request, count)
            time.sleep(every)
    finally:
        with suppress(OSError):
            store.delete([question])
    data = store.read(answer)  # it may have arrived at the last moment
    if data is None:
        return found
    store.delete([answer])
    return understood(data, Reply) or Unanswered.UNREADABLE


def understood(data: bytes | None, kind: type[T]) -> T | None:
    """Decodes a message of this kind; `None` if the bytes are not one."""
    try:
        message = decode_message(data or b"")
    except PeerError:
        return None
    return message if isinstance(message, kind) else None


def answered(reply: Reply, kind: RequestKind) -> int | None:
    """The epoch of an answer. Raises `UserError`, with the reason and advice, if the request failed."""
    if reply.ok:
        return reply.epoch
    known = {reason.value: reason.advice for reason in FailureReason}
    why = (reply.detail or reply.reason or "no reason was given").rstrip(".")
    advice = known.get(reply.reason or "", "")
    raise UserError(f"{kind.value} failed: {why}. {advice}".strip())


def check_savepoint_name(name: str) -> None:
    """Raises `UserError` for a name that is not allowed."""
    if name == "latest" or not _SAVEPOINT.fullmatch(name):
        raise UserError(
            f"'{name}' is not a valid savepoint name: use a letter from a to z, then letters, digits, '_', '-' and '.', "
            "at most 100 characters in all, and not 'latest'"
        )
