"""The feed: what a member tells the planners of one stage, in one local file per input (see `source.py`)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

MAX_BYTES = 4_000_000
"""Size at which a feed is written anew, without what the reader has left behind."""


class FeedWriter:
    """Appends to one feed. `locate` makes of an object's name what executors open."""

    def __init__(self, path: Path, after: int, locate: Callable[[str], str]) -> None:
        self.path = path
        self.start = self.known = after
        """The last batch that is in the feed."""
        self.limit = after
        self._locate = locate
        self._batches: dict[int, str] = {}
        self._rewrite_at = MAX_BYTES
        self._write_anew()

    def add(self, batches: Sequence[tuple[int, Sequence[str], int]], limit: int) -> None:
        """Tells of further batches (number, files, rows), in order, and how far may be read."""
        lines: list[str] = []
        for number, files, rows in batches:
            line = json.dumps({"b": number, "f": [self._locate(f) for f in files], "n": rows})
            self._batches[number] = line
            lines.append(line)
            self.known = number
        if limit > self.limit:
            self.limit = limit
            lines.append(json.dumps({"to": limit}))
        if lines:
            with self.path.open("a") as file:
                file.write("".join(f"{line}\n" for line in lines))
                size = file.tell()
            if size > self._rewrite_at:
                self._write_anew()

    def forget(self, upto: int) -> None:
        """Drops batches that the reader's log has behind it."""
        for number in [b for b in self._batches if b <= upto]:
            del self._batches[number]

    def _write_anew(self) -> None:
        fresh = self.path.with_suffix(".new")
        lines = [json.dumps({"start": self.start}), *self._batches.values(), json.dumps({"to": self.limit})]
        fresh.write_text("".join(f"{line}\n" for line in lines))
        self._rewrite_at = MAX_BYTES + 2 * fresh.stat().st_size
        os.replace(fresh, self.path)
