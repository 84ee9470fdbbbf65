"""What happens in a run, as lines of the standard logger `cutwater`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LOG = logging.getLogger("cutwater")
Log = logging.LoggerAdapter[logging.Logger]


def log_of(pipeline: str, member: str) -> Log:
    """The logger for a member. Its records say in `pipeline` and `member` whose they are."""
    return logging.LoggerAdapter(LOG, {"pipeline": pipeline, "member": member})


@contextmanager
def lines_to(tell: Callable[[str], None]) -> Iterator[None]:
    """Gives `tell` every line from INFO up, however logging is configured. Where logging is configured to show INFO
    too, lines go on to its handlers; else `tell` alone gets them."""
    handler, level, propagates = _Lines(tell), LOG.level, LOG.propagate
    LOG.propagate = propagates and LOG.isEnabledFor(logging.INFO)
    LOG.setLevel(min(LOG.getEffectiveLevel(), logging.INFO))
    LOG.addHandler(handler)
    try:
        yield
    finally:
        LOG.removeHandler(handler)
        LOG.setLevel(level)
        LOG.propagate = propagates


@contextmanager
def lines_printed() -> Iterator[None]:
    """Prints the lines, unless logging is configured: then it decides where they go."""
    if LOG.hasHandlers():
        yield
        return
    with lines_to(_print):
        yield


def _print(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


class _Lines(logging.Handler):
    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__(logging.INFO)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        self._tell(record.getMessage())
