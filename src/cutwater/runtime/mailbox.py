"""Requests to a running pipeline, from its own process or through the store from anywhere else.

A request is an object `requests/<id>.json`; its answer is `replies/<id>.json`. The leader handles every request in the
store, including those that a former leader left, and removes a request only when its answer is durable. So no request is
lost with a leader, and the journal knows by its id whether a request was carried out. The requester removes the answer;
the leader removes answers that nobody fetches. A member that does not lead writes the requests of its own process to
the store as well, where the leader finds them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from threading import Event, Thread
from typing import assert_never

from cutwater.cluster.links import Links
from cutwater.protocol.base.chain import with_checksum
from cutwater.protocol.base.errors import UserError
from cutwater.protocol.base.events import ObjectRejected, Observe, RequestForsaken
from cutwater.protocol.base.paths import REPLY_PREFIX, REQUEST_PREFIX, reply_name, request_name, request_of
from cutwater.protocol.base.wire import Reply, Request, encode_message
from cutwater.protocol.leader.inbox import FORSAKEN_S, Arrivals, Inbox, Verdict
from cutwater.runtime.shell import Shell
from cutwater.runtime.store_requests import renew, renew_every, understood
from cutwater.runtime.troubles import Troubles
from cutwater.store.contract import Store
from cutwater.store.local import LocalStore

AGAIN_S = 0.25
"""How long to wait before trying again to deliver requests."""
LAST_JOBS_S = 10.0
"""How long a member that ends keeps trying to write its last answers."""
SWEEP_EVERY_S = 30.0
WORK = "requests and answers"
KEEP_REPLIES_S = 900.0
KEEP_REPLIES = 1_000
"""How long, and how many, answers are kept that nobody fetches; by the clock of the leader, since it first saw them."""


class Mailbox:
    """Receives requests and delivers answers. One thread does all work on the store; a task that fails is retried, and
    blocks no other."""

    def __init__(
        self,
        store: Store,
        inbox: Inbox,
        links: Links,
        shell: Shell,
        emit: Observe,
        failure: Callable[[], BaseException | None],
        clock: Callable[[], float] = time.monotonic,
        troubles: Troubles | None = None,
    ) -> None:
        self._store = store
        self._inbox = inbox
        self._links = links
        self._shell = shell
        self._emit = emit
        self._failure = failure
        self._clock = clock
        self._troubles = troubles or Troubles(emit)
        self._has_failed = False
        """Whether some work on the store has failed since it was last begun."""
        self._waiting: dict[str, tuple[Event, list[Reply]]] = {}
        self._is_due = False
        self._renewals: dict[str, tuple[int, float]] = {}
        """Per request that this process has forwarded: how often it was renewed, and when to renew it again."""
        self._arrivals = Arrivals()
        self._jobs: dict[tuple[str, str], Callable[[], None]] = {}
        """Pending work on the store, by kind and request."""
        self._replies: dict[str, float] = {}
        """The answers in the store, and when each was first seen there."""
        self._next_sweep = 0.0
        self._stopped = Event()
        self._look = Event()
        self._thread = Thread(target=self._watch, name="cutwater-mailbox", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns when the last answers are written, or after a timeout."""
        self._stopped.set()
        self._look.set()
        for event, _ in self._waiting.values():
            event.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2 * LAST_JOBS_S)

    def look(self) -> None:
        """Checks the store soon: another member says that there is something new."""
        self._look.set()

    def post(self, request: Request) -> None:
        """Queues a request of this process."""

        def queue() -> None:
            self._inbox.post(request)
            self._deliver()

        self._shell.call(queue)

    def ask(self, request: Request, timeout_s: float) -> Reply:
        """Sends a request from a thread of this process, and waits for the answer. Raises `UserError` if there is none
        in time."""
        event, answers = Event(), list[Reply]()
        self._waiting[request.request_id] = event, answers
        self.post(request)
        event.wait(timeout_s)
        self._waiting.pop(request.request_id, None)
        if answers:
            return answers[0]
        self._shell.call(lambda: self._withdraw(request.request_id))
        if (failure := self._failure()) is not None:
            raise UserError(f"the pipeline has failed: {failure}") from failure
        raise UserError(
            f"no answer to '{request.kind.value}' within {timeout_s:g} s, so it is withdrawn; it may have been started "
            "or even completed: see `cutwater checkpoints`, and `cutwater status` for what the stages are doing"
        )

    # --- callers must hold the turn ---------------------------------------------------------------------

    def on_reply(self, reply: Reply) -> None:
        """Delivers an answer of the leader to the requester."""
        request_id = reply.request_id
        self._withdraw(request_id)
        waiting = self._waiting.get(request_id)
        if waiting is not None:
            waiting[1].append(reply)
            waiting[0].set()
        if self._inbox.is_from_store(request_id):
            self._run("answer", request_id, partial(self._answer, reply))

    def _withdraw(self, request_id: str) -> None:
        self._jobs.pop(("forward", request_id), None)
        if self._inbox.withdraw(request_id):
            self._run("remove", request_id, lambda: self._store.delete([request_name(request_id)]))

    def _take(self, request: Request) -> None:
        self._inbox.take(request)
        self._deliver()

    def _deliver(self) -> None:
        """Gives the leader the requests that it has not received in this term; if another member leads, forwards them
        through the store."""
        for request in self._inbox.deliver():
            self._run("forward", request.request_id, partial(self._forward, request))
        if not self._inbox.is_empty and not self._is_due:
            self._is_due = True
            self._shell.later(AGAIN_S, self._deliver_again)

    def _deliver_again(self) -> None:
        self._is_due = False
        self._deliver()

    def _run(self, kind: str, request_id: str, job: Callable[[], None]) -> None:
        self._jobs[kind, request_id] = job
        self._look.set()

    # --- work on the store, in the mailbox's own thread ---------------------------------------------------

    def _forward(self, request: Request) -> None:
        """Writes a request to the store, for the member that leads."""
        self._store.create(request_name(request.request_id), with_checksum(encode_message(request)))
        self._links.hint("requests")

    def _answer(self, reply: Reply) -> None:
        """Writes the answer, and only then removes the request."""
        name, data = reply_name(reply.request_id), with_checksum(encode_message(reply))
        if not self._store.create(name, data) and understood(self._store.read(name), Reply) is None:
            self._store.delete([name])
            self._store.create(name, data)
        self._store.delete([request_name(reply.request_id)])
        self._shell.call(partial(self._inbox.answer_written, reply.request_id))

    # --- the thread -------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Polls the store: for requests if this member leads, and for answers to the requests that it has forwarded."""
        every = AGAIN_S if isinstance(self._store, LocalStore) else 2.0
        while not self._stopped.is_set():
            self.attend()
            self._look.wait(every)
            self._look.clear()
        deadline = time.monotonic() + LAST_JOBS_S
        while self._jobs and time.monotonic() < deadline:
            self._guarded(self._run_jobs)
            if self._jobs:
                time.sleep(0.1)

    def attend(self) -> None:
        """Does all pending work on the store once. Work that fails is retried the next time, and blocks no other."""
        self._has_failed = False
        if not self._arrivals.is_ready:
            self._guarded(lambda: self._arrivals.look_first(self._requests()))
        self._guarded(self._run_jobs)
        self._guarded(self._attend_forwarded)
        leads = False
        with self._guard():
            leads = self._shell.look(lambda: self._inbox.leads)
        if leads:
            if self._arrivals.is_ready:
                self._guarded(self._take_all)
            self._guarded(self._sweep)
        else:
            self._replies.clear()
        if not self._has_failed:
            self._troubles.worked(WORK)

    def _requests(self) -> list[str]:
        """The ids of the requests in the store."""
        return [i for name in self._store.list(REQUEST_PREFIX) if (i := request_of(name)) is not None]

    def _guarded(self, task: Callable[[], None]) -> None:
        with self._guard():
            task()

    @contextmanager
    def _guard(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._trouble(str(error))
        except Exception as error:
            self._trouble(f"{type(error).__name__}: {error}")

    def _trouble(self, error: str) -> None:
        self._has_failed = True
        self._troubles.failed(WORK, error)

    def _run_jobs(self) -> None:
        for what, job in list(self._jobs.items()):
            self._guarded(partial(self._run_job, what, job))

    def _run_job(self, what: tuple[str, str], job: Callable[[], None]) -> None:
        job()
        if self._jobs.get(what) is job:
            del self._jobs[what]

    def _attend_forwarded(self) -> None:
        """Fetches the answers to what this process has asked through the store, and renews what has none."""
        forwarded = self._shell.look(lambda: self._inbox.forwarded)
        for request_id in forwarded:
            self._guarded(partial(self._fetch_answer, request_id))
        self._renew(forwarded)

    def _fetch_answer(self, request_id: str) -> None:
        name = reply_name(request_id)
        data = self._store.read(name)
        if data is None:
            return
        reply = understood(data, Reply)
        if reply is None:
            self._emit(ObjectRejected(name, "cannot be read, so this answer is removed", data[:60]))
            why = "its answer cannot be read; it may have been carried out: see `cutwater checkpoints`"
            reply = Reply(request_id, False, None, None, why)
        self._jobs["remove", request_id] = partial(self._store.delete, [request_name(request_id), name])
        self._shell.call(partial(self._on_fetched, reply))

    def _on_fetched(self, reply: Reply) -> None:
        """Delivers an answer from the store, which is being removed with its request."""
        self._inbox.withdraw(reply.request_id)
        self.on_reply(reply)

    def _renew(self, forwarded: Mapping[str, Request]) -> None:
        now = self._clock()
        first = 0, now + renew_every(self._store)
        self._renewals = {i: self._renewals.get(i, first) for i in forwarded}
        for request_id, (count, due) in list(self._renewals.items()):
            if now >= due and ("forward", request_id) not in self._jobs:
                self._renewals[request_id] = count + 1, now + renew_every(self._store)
                self._guarded(partial(renew, self._store, forwarded[request_id], count + 1))

    def _take_all(self) -> None:
        """Handles the requests in the store that are new."""
        known = self._shell.look(lambda: self._inbox.known) | {i for _, i in list(self._jobs)}
        names = self._store.list(REQUEST_PREFIX)
        self._arrivals.look([i for name in names if (i := request_of(name)) is not None], self._clock())
        fresh = [n for n in names if request_of(n) not in known]
        if not fresh:
            return
        answered = set(self._store.list(REPLY_PREFIX))
        for name, data in zip(fresh, self._read_each(fresh), strict=True):
            if data is not None:
                self._guarded(partial(self._take_one, name, data, answered))

    def _read_each(self, names: list[str]) -> list[bytes | None]:
        """Reads these objects; one that cannot be read is `None`, and does not affect the others."""
        found: list[bytes | None] = []
        with suppress(OSError):
            return list(self._store.read_many(names))
        for name in names:
            found.append(None)
            with self._guard():
                found[-1] = self._store.read(name)
        return found

    def _take_one(self, name: str, data: bytes, answered: set[str]) -> None:
        request_id = request_of(name)
        if request_id is None:
            self._emit(ObjectRejected(name, "is not a request, so it is removed", data[:60]))
            self._store.delete([name])
            return
        request = understood(data, Request)
        is_answered = reply_name(request_id) in answered and self._is_answered(request_id)
        match self._arrivals.judge(request_id, request, is_answered, self._clock()):
            case Verdict.CARRY_OUT:
                assert request is not None
                self._shell.call(partial(self._take, request))
            case Verdict.ANSWERED:
                self._store.delete([name])
            case Verdict.UNREADABLE:
                self._emit(ObjectRejected(name, "cannot be read, so this request is refused", data[:60]))
                why = "the request cannot be read: it is damaged, or of another version of Cutwater; send it again"
                self._run(
                    "answer", request_id, partial(self._answer, Reply(request_id, False, None, None, why))
                )
            case Verdict.FORSAKEN:
                assert request is not None
                self._store.delete([name])
                self._emit(RequestForsaken(request_id, request.kind.value, FORSAKEN_S))
            case Verdict.DOUBTFUL:
                pass
            case other:
                assert_never(other)

    def _is_answered(self, request_id: str) -> bool:
        return understood(self._store.read(reply_name(request_id)), Reply) is not None

    def _sweep(self) -> None:
        """Removes answers that nobody has fetched for a long time, and the oldest ones if there are too many."""
        now = self._clock()
        if now < self._next_sweep:
            return
        self._next_sweep = now + SWEEP_EVERY_S
        self._replies = {name: self._replies.get(name, now) for name in self._store.list(REPLY_PREFIX)}
        by_age = sorted(self._replies, key=lambda name: self._replies[name])
        surplus = max(0, len(by_age) - KEEP_REPLIES)
        old = [n for at, n in enumerate(by_age) if at < surplus or now - self._replies[n] >= KEEP_REPLIES_S]
        try:
            self._store.delete(old)
        except OSError:
            for name in old:
                self._guarded(partial(self._store.delete, [name]))
