"""Requests to a running pipeline, from its own process or through the store from anywhere else.

A request is an object `requests/<id>.json`; its answer is `replies/<id>.json`. Whoever asks removes the
answer, and the leader whatever nobody has fetched for a day. It is only asked for while a leader is there
to answer, so a request that nobody hears simply waits. A member that does not lead puts what its own process
asks for into the store as well, where the leader finds it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Event, Thread
from typing import TYPE_CHECKING

from cutwater.protocol.chain import with_checksum
from cutwater.protocol.errors import PeerError, UserError
from cutwater.protocol.failures import FailureReason
from cutwater.protocol.leader import LeaderPhase
from cutwater.protocol.wire import Reply, Request, RequestKind, decode, encode
from cutwater.stores import LocalStore, Store

if TYPE_CHECKING:
    from cutwater.runtime import Runtime

REQUESTS = "requests/"
REPLIES = "replies/"


class Mailbox:
    """Takes requests in and hands answers out."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._store = runtime.store
        self._waiting: dict[str, tuple[Event, list[Reply]]] = {}
        self._pending: dict[str, Request] = {}
        self._from_store: set[str] = set()
        self._delivered: dict[str, int] = {}
        self._forwarded: set[str] = set()
        self._stopped = Event()
        self._look = Event()
        self._thread = Thread(target=self._watch, name="cutwater-mailbox", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._look.set()
        for event, _ in self._waiting.values():
            event.set()

    def look(self) -> None:
        """Somebody says that there is something new in the store."""
        self._look.set()

    def drain(self) -> None:
        """Asks for a drain without waiting for the answer."""
        self.post(Request(RequestKind.DRAIN, new_id()))

    def post(self, request: Request) -> None:
        """Puts a request of this process in line."""

        def put_in_line() -> None:
            self._pending[request.request_id] = request
            self._deliver()

        self._runtime.shell.call(put_in_line)

    def ask(self, request: Request, timeout_s: float) -> Reply:
        """Asks from a thread of this process, and waits. Raises `UserError` if no answer comes."""
        event, answers = Event(), list[Reply]()
        self._waiting[request.request_id] = event, answers
        self.post(request)
        event.wait(timeout_s)
        self._waiting.pop(request.request_id, None)
        if answers:
            return answers[0]
        self._runtime.shell.call(lambda: self._withdraw(request.request_id))
        if self._runtime.failure is not None:
            raise UserError(f"the pipeline has failed: {self._runtime.failure}") from self._runtime.failure
        raise UserError(
            f"no answer to '{request.kind.value}' within {timeout_s:g} s; it may still come about: see "
            "`cutwater checkpoints`, and `cutwater status` for what the stages are doing"
        )

    def _withdraw(self, request_id: str) -> None:
        self._pending.pop(request_id, None)
        if request_id in self._forwarded:
            self._forwarded.discard(request_id)
            self._runtime.shell.work(lambda: self._remove(f"{REQUESTS}{request_id}.json"))

    def on_reply(self, reply: Reply) -> None:
        """The leader has answered, in a turn of the shell."""
        request_id = reply.request_id
        self._pending.pop(request_id, None)
        self._delivered.pop(request_id, None)
        self._withdraw(request_id)
        waiting = self._waiting.get(request_id)
        if waiting is not None:
            waiting[1].append(reply)
            waiting[0].set()
        if request_id in self._from_store:
            self._runtime.shell.work(lambda: self._answer(reply))

    def _answer(self, reply: Reply) -> None:
        try:
            self._store.put(f"{REPLIES}{reply.request_id}.json", with_checksum(encode(reply)))
            self._store.delete([f"{REQUESTS}{reply.request_id}.json"])
        except OSError:
            return
        self._from_store.discard(reply.request_id)

    def _deliver(self) -> None:
        """Hands to the leader what it has not been given in this term, in a turn of the shell."""
        leader = self._runtime.leader
        state = self._runtime.member.journal.state
        if leader.phase is LeaderPhase.LEADING and leader.coordinator is not None:
            for request_id, request in list(self._pending.items()):
                if self._delivered.get(request_id) != state.term:
                    self._delivered[request_id] = state.term
                    leader.on_message(request)
            return
        if leader.phase is LeaderPhase.FOLLOWING and self._others_lead():
            for request_id, request in list(self._pending.items()):
                if request_id in self._from_store:  # it lies there for whoever leads now
                    del self._pending[request_id]
                    self._from_store.discard(request_id)
                else:
                    self._forward(request)
        self._runtime.shell.later(0.1, self._deliver_again)

    def _others_lead(self) -> bool:
        member = self._runtime.member
        return member.journal.state.leader in set(member.topology.members()) - {member.name}

    def _deliver_again(self) -> None:
        if self._pending:
            self._deliver()

    def _forward(self, request: Request) -> None:
        """Another member leads: it finds the request in the store."""
        if request.request_id in self._forwarded:
            return
        self._forwarded.add(request.request_id)

        def put() -> None:
            try:
                self._store.put(f"{REQUESTS}{request.request_id}.json", with_checksum(encode(request)))
                self._runtime.links.hint("requests")
            except OSError:
                self._forwarded.discard(request.request_id)

        self._runtime.shell.work(put)

    def _watch(self) -> None:
        """Looks into the store: for requests if this member leads, else for answers to what it has asked."""
        every = 0.25 if isinstance(self._store, LocalStore) else 2.0
        while not self._stopped.is_set():
            self._look.wait(every)
            self._look.clear()
            try:
                if self._runtime.leader.phase is LeaderPhase.LEADING:
                    self._take_all()
                else:
                    self._fetch_answers()
            except OSError:
                continue

    def _take_all(self) -> None:
        names = self._store.list(REQUESTS)
        known = self._from_store | self._forwarded
        fresh = [n for n in names if _id_of(n) not in known]
        for name, data in zip(fresh, self._store.read_many(fresh) if fresh else [], strict=True):
            if data is not None:
                self._take(_id_of(name), data)

    def _fetch_answers(self) -> None:
        for request_id in list(self._forwarded):
            name = f"{REPLIES}{request_id}.json"
            data = self._store.read(name)
            if data is not None:
                reply = decode(data)
                self._store.delete([name])
                if isinstance(reply, Reply):
                    self._runtime.shell.call(partial(self.on_reply, reply))

    def _remove(self, name: str) -> None:
        with suppress(OSError):
            self._store.delete([name])

    def _take(self, request_id: str, data: bytes) -> None:
        self._from_store.add(request_id)
        try:
            request = decode(data)
        except PeerError as error:
            self._answer(Reply(request_id, False, None, None, str(error)))
            return
        if not isinstance(request, Request) or request.request_id != request_id:
            self._answer(Reply(request_id, False, None, None, "this is no request"))
            return
        self.post(request)


def new_id() -> str:
    return uuid.uuid4().hex[:12]


def ask_through(
    store: Store,
    request: Request,
    timeout_s: float,
    is_there: Callable[[], bool] = lambda: True,
    hint: Callable[[], None] = lambda: None,
) -> Reply | None:
    """Asks a pipeline that runs elsewhere; `None` if no answer comes in time, or nobody is there any more to
    give one. The request is withdrawn then, so that no later run acts on it."""
    question, answer = f"{REQUESTS}{request.request_id}.json", f"{REPLIES}{request.request_id}.json"
    store.put(question, with_checksum(encode(request)))
    hint()
    deadline = time.monotonic() + timeout_s
    every = 0.1 if isinstance(store, LocalStore) else 1.0
    try:
        while time.monotonic() < deadline:
            there = is_there()
            data = store.read(answer)
            if data is not None:
                store.delete([answer])
                reply = decode(data)
                assert isinstance(reply, Reply)
                return reply
            if not there:
                break
            time.sleep(every)
    finally:
        store.delete([question])
    return None


def answered(reply: Reply, kind: RequestKind) -> int | None:
    """The epoch of an answer. Raises `UserError` that says why nothing came of it, and what to do."""
    if reply.ok:
        return reply.epoch
    known = {reason.value: reason.advice for reason in FailureReason}
    why = (reply.detail or reply.reason or "no reason was given").rstrip(".")
    advice = known.get(reply.reason or "", "")
    raise UserError(f"{kind.value} came to nothing: {why}. {advice}".strip())


def check_savepoint_name(name: str) -> None:
    """Raises `UserError` for a name that could be taken for something else."""
    if name == "latest" or name.isdigit() or not name.replace("-", "_").replace(".", "_").isidentifier():
        raise UserError(
            f"'{name}' cannot name a savepoint: use letters, digits, '_', '-' and '.', begin with a letter, "
            "and not 'latest'"
        )


def _id_of(name: str) -> str:
    return name.rsplit("/", 1)[-1].removesuffix(".json")
