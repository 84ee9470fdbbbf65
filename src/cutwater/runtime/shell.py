"""The shell: drives the protocol's procedures in a running process.

One thread at a time holds the turn, and only the holder resumes procedures, so no procedure is interrupted between two
effects. Effects touch storage, tables and Spark, and are performed without the turn. A pool of equal threads does all
this: a thread takes the turn, runs the queued tasks, releases the turn, and performs the first resulting effect (the
other effects go to other threads). Then it takes the turn again with the answer, and so on. So a message or an effect
costs at most one thread switch. One more thread handles timers, and takes the turn when all others are busy. Effects
that call a user function (`apart`) may take any time or never return, so they run on a thread of their own per sink.
The duties of a shell are in `protocol/base/effects.py`.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Event, RLock, Thread, get_ident
from typing import Any, NamedTuple, TypeVar

from cutwater.protocol.base import effects as fx
from cutwater.protocol.base.errors import PeerError, StoreError, UserError
from cutwater.protocol.base.events import Observe, ignore
from cutwater.protocol.member.member import Member
from cutwater.runtime.troubles import Troubles
from cutwater.runtime.workers import Task, Workers

T = TypeVar("T")
THREADS = 24
LOOK_S = 10.0
"""How long `look` waits for a turn to end; no turn takes a fraction of that."""


class Actor:
    """One procedure and its state."""

    __slots__ = ("name", "poked", "procedure", "token", "waiting")

    def __init__(self, name: str, procedure: fx.Procedure[None]) -> None:
        self.name = name
        self.procedure = procedure
        self.token = 0
        self.waiting = False
        self.poked = False


class Wanted(NamedTuple):
    """An effect that an actor wants performed. The answer resumes the actor if its token is still `token`."""

    actor: Actor
    token: int
    effect: fx.AnyOperation


class Raised:
    """An answer that is an error, to be raised in the procedure."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class Shell:
    """Runs a member's actors.

    `perform` performs one effect and returns the answer; it is called without the turn. `send` sends a message,
    `on_ended` is called for each actor that was ended, and `after_step` after the queued tasks of a turn; these three
    are called with the turn held. `on_failure` is called with the error that ended the shell. `apart` names the thread
    of an effect that may take any time; effects of one name run one after the other on that thread. `emit` is called
    with the member's events; it must neither wait nor raise. `troubles` notes which effects fail.
    """

    def __init__(
        self,
        member: Member,
        perform: Callable[[fx.AnyOperation], Any],
        send: Callable[[fx.Send], None],
        on_ended: Callable[[str], None],
        after_step: Task,
        on_failure: Callable[[BaseException], None],
        apart: Callable[[fx.AnyOperation], str | None] = lambda effect: None,
        emit: Observe = ignore,
        troubles: Troubles | None = None,
    ) -> None:
        self.member = member
        self._troubles = troubles or Troubles(emit)
        self.actors: dict[str, Actor] = {}
        self._perform = perform
        self._send = send
        self._on_ended = on_ended
        self._after_step = after_step
        self._on_failure = on_failure
        self._emit = emit
        self._apart = apart
        self._tasks: deque[Task] = deque()
        self._wanted: list[Wanted] = []
        self._timers: list[tuple[float, int, Task]] = []
        self._order = itertools.count()
        self._pool = Workers(THREADS, "cutwater-io")
        self._threads_apart: dict[str, Workers] = {}
        self._stopped = Event()
        self._turn = RLock()
        self._holder: int | None = None
        """The thread that holds the turn."""
        self._summoned = True
        """Whether a thread holds the turn, or is about to, and will run all `_tasks`; at first the timer thread."""
        self._timer_wakeups: SimpleQueue[None] = SimpleQueue()
        self._timer_thread = Thread(target=self._run_timers, name="cutwater", daemon=True)

    # --- from any thread ------------------------------------------------------------------------------

    def start(self) -> None:
        self._timer_thread.start()

    def stop(self) -> None:
        """Ends the shell. No procedure is resumed after that; effects in progress are not waited for."""
        self._stopped.set()
        self._timer_wakeups.put(None)
        if self._timer_thread.is_alive() and self._holder != get_ident():
            self._timer_thread.join(timeout=30)
        self._pool.close()
        for workers in list(self._threads_apart.values()):
            workers.close()
        if self._turn.acquire(timeout=30):  # the last holder is done, and nobody takes it again
            self._turn.release()

    def call(self, task: Task) -> None:
        """Schedules a task to run in a turn, after all tasks that were scheduled before."""
        self._tasks.append(task)
        if self._holder != get_ident():  # else it runs at the end of this turn
            self._summon()

    def work(self, task: Task) -> None:
        """Runs a task in a thread of the pool."""
        if not self._stopped.is_set():
            self._pool.submit(lambda: self._guarded(task))

    def poke(self, name: str) -> None:
        """Resumes an actor that waits; one that is busy will not wait the next time."""
        self.call(lambda: self._poke(name))

    def look(self, at: Callable[[], T]) -> T:
        """Calls a function that only reads, while no turn is in progress, and returns its result. Works also after
        `stop`. Raises `TimeoutError` if a turn does not end in time."""
        if not self._turn.acquire(timeout=LOOK_S):
            raise TimeoutError(f"a turn has not ended within {LOOK_S:g} s")
        try:
            return at()
        finally:
            self._turn.release()

    # --- callers must hold the turn ---------------------------------------------------------------------

    def later(self, seconds: float, task: Task) -> None:
        """Schedules a task to run in a turn after `seconds`."""
        timer = (time.monotonic() + seconds, next(self._order), task)
        heapq.heappush(self._timers, timer)
        if self._timers[0] is timer and get_ident() != self._timer_thread.ident:
            self._timer_wakeups.put(None)  # the timer thread waits for a later one

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
        """Ends, spawns and wakes the actors that the member has named since the last call."""
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

    # --- turns ----------------------------------------------------------------------------------------

    def _summon(self) -> None:
        """Ensures that a thread takes the turn for the queued tasks."""
        if not self._summoned:
            self._summoned = True
            if not self._pool.offer(lambda: self._work_on(self._run_queued())):
                self._timer_wakeups.put(None)

    def _run_timers(self) -> None:
        while not self._stopped.is_set():
            first = self._run_queued()
            if first is not None:
                self._guarded(partial(self._hand_over, first))
            with self._turn:
                wait = self._timers[0][0] - time.monotonic() if self._timers else None
            with suppress(Empty):
                self._timer_wakeups.get(timeout=None if wait is None else max(0.0, wait))

    def _run_queued(self) -> Wanted | None:
        """Takes the turn for the queued tasks."""
        return self._take_turn(lambda: None)

    def _take_turn(self, task: Task) -> Wanted | None:
        """Takes the turn and runs `task`, the queued tasks and the timers that are due; does nothing after `stop`.
        Returns the first resulting effect, for this thread to perform. An error ends the shell before another thread
        gets the turn."""
        with self._turn:
            if self._stopped.is_set():
                return None
            self._holder, self._summoned = get_ident(), True
            try:
                self._do(task)
                self._do_tasks()
                wanted = self._take_wanted()
                for other in wanted[1:]:
                    self._hand_over(other)
            except BaseException as error:
                self._stopped.set()
                self._timer_wakeups.put(None)  # wakes the timer thread, which then ends
                self._on_failure(error)
                return None
            finally:
                self._holder = None
        return wanted[0] if wanted else None

    def _take_wanted(self) -> list[Wanted]:
        """The effects that resulted from a turn, except those that run apart: these are handed to their threads here."""
        wanted, self._wanted = self._wanted, []
        here = []
        for one in wanted:
            name = self._apart(one.effect)
            if name is None:
                here.append(one)
                continue
            if name not in self._threads_apart:
                self._threads_apart[name] = Workers(1, f"cutwater-{name}")
            self._threads_apart[name].submit(partial(self._work_apart, one))
        return here

    def _do_tasks(self) -> None:
        """Runs all queued tasks. A caller of `call` either finds `_summoned` false, or its task runs here."""
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            self._tasks.append(heapq.heappop(self._timers)[2])
        while True:
            self._summoned = True
            while self._tasks and not self._stopped.is_set():
                self._do(self._tasks.popleft())
            self._after_step()
            self._summoned = False
            if not self._tasks or self._stopped.is_set():
                return

    def _do(self, task: Task) -> None:
        self.member.now_ms = int(time.monotonic() * 1000)
        try:
            task()
        finally:
            self._emit_events()
        self.settle()

    def _emit_events(self) -> None:
        events, self.member.events = self.member.events, []
        for event in events:
            self._emit(event)

    def _poke(self, name: str) -> None:
        actor = self.actors.get(name)
        if actor is None:
            return
        if actor.waiting:
            self._resume(actor, actor.token, None)
        else:
            actor.poked = True

    def _resume(self, actor: Actor, token: int, answer: Any) -> None:
        """Resumes a procedure until it wants an effect, waits or ends."""
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
            while isinstance(effect, fx.Send):
                self._send(effect)
                effect = procedure.send(None)
        except StopIteration:
            if self.actors.get(actor.name) is actor:
                del self.actors[actor.name]
            return
        token = actor.token
        if not isinstance(effect, fx.Wait | fx.Sleep):
            self._wanted.append(Wanted(actor, token, effect))
        elif isinstance(effect, fx.Wait) and actor.poked:
            actor.poked = False
            self.call(lambda: self._resume(actor, token, None))
        else:
            actor.waiting = isinstance(effect, fx.Wait)
            self.later(effect.ms / 1000, lambda: self._resume(actor, token, None))

    # --- without the turn -------------------------------------------------------------------------------

    def _hand_over(self, wanted: Wanted) -> None:
        self._pool.submit(lambda: self._work_on(wanted))

    def _work_on(self, wanted: Wanted | None) -> None:
        """Performs an effect, and those that result from it, one after the other."""
        while wanted is not None and not self._stopped.is_set():
            wanted = self._perform_one(wanted)

    def _perform_one(self, wanted: Wanted) -> Wanted | None:
        try:
            answer = self._answer(wanted.effect)
        except BaseException as error:
            return self._take_turn(partial(_raise, error))
        return self._take_turn(partial(self._resume, wanted.actor, wanted.token, answer))

    def _work_apart(self, wanted: Wanted) -> None:
        """Performs an effect in a thread that does nothing else; resulting effects go to the pool."""
        following = self._perform_one(wanted)
        if following is not None:
            self._guarded(partial(self._hand_over, following))

    def _answer(self, effect: fx.AnyOperation) -> Any:
        """Performs an effect. A storage error does not say what happened, so it is answered with `FAILED`; an error that
        a retry cannot fix is raised in the procedure."""
        try:
            answer = self._perform(effect)
        except OSError as error:
            self._troubles.effect_failed(effect, str(error))
            return fx.FAILED
        except (UserError, StoreError, PeerError) as error:
            return Raised(error)
        self._troubles.effect_worked(effect)
        return answer

    def _guarded(self, task: Task) -> None:
        try:
            task()
        except BaseException as error:
            self._take_turn(partial(_raise, error))


def _raise(error: BaseException) -> None:
    raise error
