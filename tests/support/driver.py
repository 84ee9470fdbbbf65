"""Drives the protocol's procedures in tests: with an in-memory store, scripted faults, and every interleaving.

`drive` performs the effects of one procedure in order and returns its result. `drive_together` does so for several
procedures concurrently, and asks after every effect which one continues. `every_run` plays a test once for each
combination of answers, so a small race is explored exhaustively.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from cutwater.protocol.base.chain import digest
from cutwater.protocol.base.effects import (
    EXISTS,
    FAILED,
    Create,
    Effect,
    Operation,
    Procedure,
    Send,
    Sleep,
    Wait,
)
from cutwater.protocol.base.performer import Checksums, Contents, NameLists, Names, perform
from cutwater.store.perform import MemberlessPerformer

R = TypeVar("R")

LIMIT = 10_000
"""After this many effects a procedure is assumed not to end."""


class Crashed(Exception):
    """The script ended the procedure early."""


class Stalled(AssertionError):
    """The procedure does not end."""


class Objects:
    """Objects by name, in memory."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects = objects

    def create(self, name: str, data: bytes) -> bool:
        created = name not in self.objects
        self.objects.setdefault(name, data)
        return created

    def read(self, name: str) -> bytes | None:
        return self.objects.get(name)

    def read_many(self, names: Sequence[str]) -> Contents:
        return [self.objects.get(name) for name in names]

    def list(self, prefix: str, after: str = "") -> Names:
        after = max(after, prefix)
        return sorted(name for name in self.objects if name.startswith(prefix) and name > after)

    def list_many(self, places: Sequence[tuple[str, str]]) -> NameLists:
        return [self.list(*place) for place in places]

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            self.objects.pop(name, None)

    def copy(self, source: str, target: str) -> None:
        if source not in self.objects:
            raise FileNotFoundError(source)
        self.objects.setdefault(target, self.objects[source])

    def checksum_many(self, names: Sequence[str]) -> Checksums:
        return [digest(self.objects[name]) if name in self.objects else None for name in names]


class Store:
    """Objects by name, and every effect that was applied to them."""

    def __init__(self, objects: dict[str, bytes] | None = None) -> None:
        self.objects = dict(objects or {})
        self.seen: list[Effect] = []
        self._performer = MemberlessPerformer(Objects(self.objects))

    def copy(self) -> Store:
        """Another store with the same objects."""
        return Store(self.objects)

    def apply(self, effect: Effect) -> Any:
        """Performs a store effect and returns its answer."""
        self.seen.append(effect)
        assert isinstance(effect, Operation), effect
        return perform(self._performer, effect)

    def names(self, prefix: str = "") -> list[str]:
        """The sorted names below a prefix."""
        return sorted(n for n in self.objects if n.startswith(prefix))

    def count(self, kind: type) -> int:
        """How many effects of a kind were applied."""
        return sum(isinstance(e, kind) for e in self.seen)


class Outcome(Enum):
    """How an effect fails."""

    FAILED = "failed"
    """Answered `FAILED`, without effect."""
    LOST = "lost answer"
    """Answered `FAILED`, but took effect."""
    FALSE_EXISTS = "false exists"
    """Answered `EXISTS`, although nothing was or is there."""


@dataclass(frozen=True)
class Fault:
    """The `nth` effect of this kind has this outcome."""

    kind: type
    outcome: Outcome = Outcome.FAILED
    nth: int = 1


Hook = Callable[[int, Effect], object]
"""Called before the n-th effect (from 1) of a procedure is applied, so that others can act."""


def drive(
    procedure: Procedure[R],
    store: Store,
    *,
    faults: Iterable[Fault] = (),
    before: Hook | None = None,
    on_send: Callable[[Send], object] | None = None,
    on_wait: Callable[[int], object] | None = None,
    crash_after: int | None = None,
    limit: int = LIMIT,
) -> R:
    """Performs the effects of `procedure` and returns its result.

    `on_wait` receives the milliseconds of each `Sleep` and `Wait`. Raises `Crashed` after `crash_after` effects, without
    the answer to the last one, and `Stalled` after `limit` effects.
    """
    script = {(f.kind, f.nth): f.outcome for f in faults}
    seen: dict[type, int] = {}
    answer: Any = None
    for number in range(1, limit + 1):
        try:
            effect = procedure.send(answer)
        except StopIteration as stop:
            result: R = stop.value
            return result
        if before is not None:
            before(number, effect)
        kind = type(effect)
        seen[kind] = seen.get(kind, 0) + 1
        answer = None
        if isinstance(effect, Sleep | Wait):
            if on_wait is not None:
                on_wait(effect.ms)
        elif isinstance(effect, Send):
            if on_send is not None:
                on_send(effect)
        else:
            answer = apply(store, effect, script.get((kind, seen[kind])))
        if number == crash_after:
            procedure.close()
            raise Crashed(f"after effect {number}: {effect}")
    raise Stalled(f"not over after {limit} effects; the last ones: {store.seen[-6:]}")


class Interrupt:
    """A hook that calls `act` before the `moment`-th effect; `done` says whether that has happened."""

    def __init__(self, moment: int, act: Callable[[], object]) -> None:
        self.moment = moment
        self.act = act
        self.done = False

    def __call__(self, number: int, _: Effect) -> None:
        if number == self.moment:
            self.done = True
            self.act()


def every_moment(play: Callable[[int], bool]) -> int:
    """Calls `play` for moments 1, 2, ... until it returns that there was no such moment. Returns how many there were."""
    moment = 1
    while play(moment):
        moment += 1
    return moment - 1


def apply(store: Store, effect: Effect, outcome: Outcome | None) -> Any:
    """Performs a store effect with this outcome (`None`: success)."""
    if outcome is None:
        return store.apply(effect)
    if outcome is Outcome.LOST:
        store.apply(effect)
    return EXISTS if outcome is Outcome.FALSE_EXISTS else FAILED


# --- every interleaving ----------------------------------------------------------------------------------

Choose = Callable[[int], int]
"""Chooses one of a number of possible answers."""


def every_run(play: Callable[[Choose], object]) -> int:
    """Plays `play` once for every combination of answers to its questions. Returns the number of runs."""
    prefix: list[int] = []
    runs = 0
    while True:
        trail: list[list[int]] = []

        def choose(options: int, trail: list[list[int]] = trail, prefix: list[int] = prefix) -> int:
            place = len(trail)
            trail.append([prefix[place] if place < len(prefix) else 0, options])
            return trail[-1][0]

        play(choose)
        runs += 1
        while trail and trail[-1][0] + 1 == trail[-1][1]:
            trail.pop()
        if not trail:
            return runs
        prefix = [choice for choice, _ in trail]
        prefix[-1] += 1


def drive_together(
    procedures: Sequence[Procedure[Any]],
    store: Store,
    choose: Choose,
    *,
    outcomes: Sequence[Outcome | None] = (None,),
    late_writes: Iterable[Effect] = (),
) -> list[Any]:
    """Drives several procedures concurrently and returns their results; `choose` decides whose effect is next.

    `outcomes` are those that the first `Create` of the first procedure may have. Each of `late_writes` is in progress
    from the start and may take effect at any time.
    """
    results: list[Any] = [None] * len(procedures)
    due: dict[int, Effect] = {}

    def resume(who: int, answer: Any) -> None:
        due.pop(who, None)
        try:
            effect = procedures[who].send(answer)
            while isinstance(effect, Sleep | Wait | Send):
                effect = procedures[who].send(None)
            due[who] = effect
        except StopIteration as stop:
            results[who] = stop.value

    for who in range(len(procedures)):
        resume(who, None)
    late = list(late_writes)
    faulty = len(outcomes) > 1
    for _ in range(LIMIT):
        options = len(due) + len(late)
        if not options:
            return results
        chosen = choose(options) if options > 1 else 0
        if chosen >= len(due):
            store.apply(late.pop(chosen - len(due)))
            continue
        who = sorted(due)[chosen]
        outcome = None
        if faulty and who == 0 and isinstance(due[who], Create):
            faulty = False
            outcome = outcomes[choose(len(outcomes))]
        resume(who, apply(store, due[who], outcome))
    raise Stalled(f"not over after {LIMIT} effects; the last ones: {store.seen[-6:]}")
