"""The shell: drives the protocol's procedures in a running process.

All procedures are resumed in one thread, so that none is interrupted between two effects. The effects
themselves, which touch storage, tables and Spark, are performed by a pool of threads; the answers come back
through a queue. The duties of a shell are in `protocol/effects.py`.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import Any

from cutwater.protocol import effects as fx
from cutwater.protocol.errors import PeerError, StoreError, UserError
from cutwater.protocol.member import Member
from cutwater.workers import Task, Workers

THREADS = 24


class Actor:
    """One procedure, and where it stands."""

    __slots__ = ("name", "poked", "procedure", "token", "waiting")

    def __init__(self, name: str, procedure: fx.Procedure[None]) -> None:
        self.name = name
        self.procedure = procedure
        self.token = 0
        self.waiting = False
        self.poked = False


class Raised:
    """An answer that is an error which the procedure itself has to hear of."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class Shell:
    """Runs a member's actors.

    `perform` does one effect and answers it, in a thread of the pool. `send` hands on a message, and
    `on_ended` hears of actors that were ended; both are called in the loop's own thread, as is `after_step`
    after everything that has happened there. `on_failure` is told the error that ended the loop.
    """

    def __init__(
        self,
        member: Member,
        perform: Callable[[fx.Effect], Any],
        send: Callable[[fx.Send], None],
        on_ended: Callable[[str], None],
        after_step: Task,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self.member = member
        self.actors: dict[str, Actor] = {}
        self._perform = perform
        self._send = send
        self._on_ended = on_ended
        self._after_step = after_step
        self._on_failure = on_failure
        self._tasks: SimpleQueue[Task] = SimpleQueue()
        self._timers: list[tuple[float, int, Task]] = []
        self._order = itertools.count()
        self._pool = Workers(THREADS, "cutwater-io")
        self._stopped = Event()
        self._thread = Thread(target=self._loop, name="cutwater", daemon=True)

    # --- from any thread ------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the loop; what is under way in the pool is left to itself."""
        self._stopped.set()
        self._tasks.put(lambda: None)
        if self._thread.is_alive():
            self._thread.join(timeout=30)
        self._pool.close()

    def call(self, task: Task) -> None:
        """Has something done in the loop's thread."""
        self._tasks.put(task)

    def work(self, task: Task) -> None:
        """Has something done in a thread of the pool."""
        if not self._stopped.is_set():
            self._pool.submit(lambda: self._guarded(task))

    def poke(self, name: str) -> None:
        """Resumes an actor that waits; one that is busy will not wait the next time."""
        self.call(lambda: self._poke(name))

    # --- in the loop's thread -------------------------------------------------------------------------

    def later(self, seconds: float, task: Task) -> None:
        """Has something done in the loop's thread after a while."""
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._order), task))

    def spawn(self, name: str, procedure: fx.Procedure[None]) -> None:
        self.end(name)
        actor = Actor(name, procedure)
        self.actors[name] = actor
        self.call(lambda: self._resume(actor, 0, None))

    def end(self, name: str) -> None:
        actor = self.actors.pop(name, None)
        if actor is not None:
            actor.token = -1

    def settle(self) -> None:
        """Does what the member has asked for since: ends, spawns and wakes actors."""
        member = self.member
        while member.ended or member.spawned or member.woken:
            ended, member.ended = member.ended, []
            for name in ended:
                self.end(name)
                self._on_ended(name)
            spawned, member.spawned = member.spawned, {}
            for name, procedure in spawned.items():
                self.spawn(name, procedure)
            woken, member.woken = member.woken, []
            for name in woken:
                self._poke(name)

    def _loop(self) -> None:
        try:
            while not self._stopped.is_set():
                task = self._next_task()
                if task is not None:
                    self.member.now_ms = int(time.monotonic() * 1000)
                    task()
                    self.settle()
                    self._after_step()
        except BaseException as error:
            self._stopped.set()
            self._on_failure(error)

    def _next_task(self) -> Task | None:
        now = time.monotonic()
        if self._timers and self._timers[0][0] <= now:
            return heapq.heappop(self._timers)[2]
        wait = self._timers[0][0] - now if self._timers else None
        try:
            return self._tasks.get(timeout=wait)
        except Empty:
            return None

    def _poke(self, name: str) -> None:
        actor = self.actors.get(name)
        if actor is None:
            return
        if actor.waiting:
            self._resume(actor, actor.token, None)
        else:
            actor.poked = True

    def _resume(self, actor: Actor, token: int, answer: Any) -> None:
        if actor.token != token or token < 0:
            return
        actor.waiting = False
        actor.token += 1
        procedure = actor.procedure
        try:
            if isinstance(answer, Raised):
                effect = procedure.throw(answer.error)
            else:
                effect = procedure.send(answer)
            while type(effect) is fx.Send:
                self._send(effect)
                effect = procedure.send(None)
        except StopIteration:
            if self.actors.get(actor.name) is actor:
                del self.actors[actor.name]
            return
        self._start(actor, effect)

    def _start(self, actor: Actor, effect: fx.Effect) -> None:
        token = actor.token
        if isinstance(effect, fx.Wait | fx.Sleep):
            if isinstance(effect, fx.Wait) and actor.poked:
                actor.poked = False
                self.call(lambda: self._resume(actor, token, None))
                return
            actor.waiting = isinstance(effect, fx.Wait)
            self.later(effect.ms / 1000, lambda: self._resume(actor, token, None))
            return

        def work() -> None:
            answer = self._answer(effect)
            self.call(lambda: self._resume(actor, token, answer))

        self._pool.submit(lambda: self._guarded(work))

    def _answer(self, effect: fx.Effect) -> Any:
        """An error of storage says nothing, so it is `FAILED`; what a retry cannot help is raised."""
        try:
            return self._perform(effect)
        except OSError as error:
            self.last_trouble = f"{type(effect).__name__}: {error}"
            return fx.FAILED
        except (UserError, StoreError, PeerError) as error:
            return Raised(error)

    def _guarded(self, task: Task) -> None:
        try:
            task()
        except BaseException as error:
            if not self._stopped.is_set():
                failure = error
                self.call(lambda: _raise(failure))

    last_trouble = ""
    """What storage or a table said when something last failed there; it is tried again."""


def _raise(error: BaseException) -> None:
    raise error
