"""Captures what Spark's processes write to stderr while a pipeline runs.

They inherit the file descriptor, so their output would land in the middle of the live view, and every start would begin
with the same notices. Python's own `sys.stderr` still goes where it went before.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread

NOISE = (
    "WARNING: Using incubator modules",
    "Setting default log level to",
    "To adjust logging level use",
    "Using Spark's default log4j profile",
)
"""Beginnings of the notices that every start of Spark prints."""

TIME = re.compile(r"^\d\d:\d\d:\d\d (?=spark )")
"""Spark's own time of day; the display adds one anyway."""


@contextmanager
def capture_stderr(write: Callable[[str], None]) -> Iterator[None]:
    """Pass what is written to file descriptor 2 to `write`, line by line, without the notices."""
    sys.stderr.flush()
    before = os.dup(2)
    reader, writer = os.pipe()
    os.dup2(writer, 2)
    os.close(writer)
    python, sys.stderr = sys.stderr, os.fdopen(before, "w", buffering=1, closefd=False)
    Thread(target=_forward, args=(reader, write), daemon=True).start()
    try:
        yield
    finally:
        sys.stderr.flush()
        sys.stderr = python
        os.dup2(before, 2)
        os.close(before)


def _forward(reader: int, write: Callable[[str], None]) -> None:
    with os.fdopen(reader, errors="replace") as lines:
        for line in lines:
            if line.strip() and not line.startswith(NOISE):
                write(TIME.sub("", line.rstrip()))
