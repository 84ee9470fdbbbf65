"""Log lines about a run, through the standard logger `cutwater`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cutwater.store.printable import printable

LOG = logging.getLogger("cutwater")
Log = logging.LoggerAdapter[logging.Logger]


def log_of(pipeline: str, member: str) -> Log:
    """The logger of a member. Its records have the attributes `pipeline` and `member`."""
    return logging.LoggerAdapter(LOG, {"pipeline": pipeline, "member": member})


@contextmanager
def lines_to(write: Callable[[str], None]) -> Iterator[None]:
    """Pass every line from INFO up to `write`, however logging is configured. Other handlers get the lines too if
    logging is configured to show INFO."""
    handler, level, propagates = _Lines(write), LOG.level, LOG.propagate
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
    """Print the lines, unless logging is configured: then its handlers decide."""
    if LOG.hasHandlers():
        yield
        return
    with lines_to(_print):
        yield


def _print(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


class _Lines(logging.Handler):
    def __init__(self, write: Callable[[str], None]) -> None:
        super().__init__(logging.INFO)
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        self._write(printable(record.getMessage().replace("\r\n", "\n")))
