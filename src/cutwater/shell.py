"""The shell: drives the protocol's procedures in a running process.

Only one thread at a time has the turn, and only who has it resumes procedures, so that none is interrupted
between two effects. The effects themselves, which touch storage, tables and Spark, are performed by a pool of
threads without the turn. A thread that has performed one takes the turn, resumes the procedure with the answer,
and performs what that wants next: no effect costs a change of threads. What comes from outside, and timers, are
done by the loop's own thread. The duties of a shell are in `protocol/effects.py`.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from threading import Event, RLock, Thread, current_thread
from typing import Any, TypeVar

from cutwater.protocol import effects as fx
from cutwater.protocol.errors import PeerError, StoreError, UserError
from cutwater.protocol.member import Member
from cutwater.workers import Task, Workers

THREADS = 24

T = TypeVar("T")


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
    `on_ended` hears of actors that were ended; both are called by who has the turn, as is `after_step` after
    everything that was done in it. `on_failure` is told the error that ended the loop.
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
        self._turn = RLock()
        self._thread = Thread(target=self._loop, name="cutwater", daemon=True)

    # --- from any thread ------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the loop; no procedure is resumed any more. What is under way in the pool is left to itself."""
        self._stopped.set()
        self._tasks.put(lambda: None)
        if self._thread.is_alive():
            self._thread.join(timeout=30)
        self._pool.close()
        if self._turn.acquire(timeout=30):  # whoever had it is done now, and nobody takes it again
            self._turn.release()

    def call(self, task: Task) -> None:
        """Has something done in a turn, by the loop's thread."""
        self._tasks.put(task)

    def work(self, task: Task) -> None:
        """Has something done in a thread of the pool."""
        if not self._stopped.is_set():
            self._pool.submit(lambda: self._guarded(task))

    def poke(self, name: str) -> None:
        """Resumes an actor that waits; one that is busy will not wait the next time."""
        self.call(lambda: self._poke(name))

    # --- by who has the turn --------------------------------------------------------------------------

    def later(self, seconds: float, task: Task) -> None:
        """Has something done in a turn after a while."""
        timer = (time.monotonic() + seconds, next(self._order), task)
        heapq.heappush(self._timers, timer)
        if self._timers[0] is timer and current_thread() is not self._thread:
            self._tasks.put(lambda: None)  # the loop waits for a later one

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
        while not self._stopped.is_set():
            task = self._next_task()
            if task is not None:
                self._take_turn(task)

    def _take_turn(self, task: Callable[[], T]) -> T | None:
        """Does something and what follows from it; nothing any more once the shell was stopped. An error ends the
        shell before anybody else has the turn."""
        with self._turn:
            if self._stopped.is_set():
                return None
            try:
                self.member.now_ms = int(time.monotonic() * 1000)
                result = task()
                self.settle()
                self._after_step()
                return result
            except BaseException as error:
                self._stopped.set()
                self._tasks.put(lambda: None)  # for the loop, to see that
                self._on_failure(error)
                return None

    def _next_task(self) -> Task | None:
        with self._turn:
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
        """Resumes a procedure, and has the pool do what it wants next."""
        effect = self._advance(actor, token, answer)
        if effect is not None:
            token = actor.token
            self._pool.submit(lambda: self._guarded(lambda: self._carry_out(actor, token, effect)))

    def _carry_out(self, actor: Actor, token: int, effect: fx.Effect) -> None:
        """In a thread of the pool: performs an effect, and those that the procedure wants right after it."""
        step: tuple[int, fx.Effect | None] | None = token, effect
        while step is not None and step[1] is not None:
            step = self._take_turn(partial(self._go_on, actor, step[0], self._answer(step[1])))

    def _go_on(self, actor: Actor, token: int, answer: Any) -> tuple[int, fx.Effect | None]:
        effect = self._advance(actor, token, answer)
        return actor.token, effect

    def _advance(self, actor: Actor, token: int, answer: Any) -> fx.Effect | None:
        """Resumes a procedure; gives the effect that is to be performed for it now, unless it waits or is over."""
        if actor.token != token or token < 0:
            return None
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
            return None
        if not isinstance(effect, fx.Wait | fx.Sleep):
            return effect
        token = actor.token
        if isinstance(effect, fx.Wait) and actor.poked:
            actor.poked = False
            self.call(lambda: self._resume(actor, token, None))
        else:
            actor.waiting = isinstance(effect, fx.Wait)
            self.later(effect.ms / 1000, lambda: self._resume(actor, token, None))
        return None

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
            failure = error
            self._take_turn(lambda: _raise(failure))

    last_trouble = ""
    """What storage or a table said when something last failed there; it is tried again."""


def _raise(error: BaseException) -> None:
    raise error
