"""What fails at present in the store, a table or a link, and is retried. The status shows it until it succeeds."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock

from cutwater.protocol.base import effects as fx
from cutwater.protocol.base.events import Observe, OperationFailed, ignore

FORGOTTEN_S = 900.0
"""What has not failed again for so long is no longer tried: another process did it, or a restore made it needless."""
MAX_FAILING = 100
_TARGETS = ("sink", "stage", "name", "names", "prefix", "places", "source")


class Troubles:
    """Notes what fails and what succeeds again, from any thread, and emits an event of each failure. Decides nothing."""

    def __init__(self, emit: Observe = ignore, clock: Callable[[], float] = time.monotonic) -> None:
        self._emit = emit
        self._clock = clock
        self._failing: dict[tuple[str, str], tuple[float, str]] = {}
        """By operation and what it is done to, since when, and why; the latest failure last."""
        self._lock = Lock()

    @property
    def latest(self) -> str:
        """The last failure of something that has not succeeded since; empty if there is none."""
        with self._lock:
            at_s, said = next(reversed(self._failing.values()), (0.0, ""))
        return said if self._clock() - at_s < FORGOTTEN_S else ""

    def failed(self, operation: str, error: str, of: str = "") -> None:
        with self._lock:
            self._failing.pop((operation, of), None)
            self._failing[operation, of] = self._clock(), f"{operation}: {error}"
            if len(self._failing) > MAX_FAILING:
                del self._failing[next(iter(self._failing))]
        self._emit(OperationFailed(operation, error))

    def worked(self, operation: str, of: str = "") -> None:
        if self._failing:
            with self._lock:
                self._failing.pop((operation, of), None)

    def effect_failed(self, effect: fx.AnyOperation, error: str) -> None:
        self.failed(type(effect).__name__, error, _target(effect))

    def effect_worked(self, effect: fx.AnyOperation) -> None:
        if self._failing:
            self.worked(type(effect).__name__, _target(effect))


def _target(effect: fx.AnyOperation) -> str:
    """What an operation is done to: the same when it is tried again."""
    return next((str(found) for name in _TARGETS if (found := getattr(effect, name, None)) is not None), "")
