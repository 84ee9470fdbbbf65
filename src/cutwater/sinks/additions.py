"""What one version of a table added, from the table's own log; for people, so what cannot be told is `None`."""

from __future__ import annotations

from contextlib import suppress

import msgspec

from cutwater.protocol.base.errors import StoreError
from cutwater.sinks.delta.log import commit_name
from cutwater.sinks.parquet import VERSIONS
from cutwater.sinks.records import Description
from cutwater.store.contract import Store
from cutwater.store.opening import open_place


class Addition(msgspec.Struct, frozen=True):
    """The files that a version added, with their rows and their size where the log has them."""

    files: int
    rows: int | None
    bytes: int | None


NOTHING = Addition(0, 0, 0)


class _Add(msgspec.Struct):
    size: int = 0
    stats: str | None = None


class _Line(msgspec.Struct):
    add: _Add | None = None


class _Stats(msgspec.Struct):
    numRecords: int | None = None


class _Version(msgspec.Struct):
    files: list[str]
    complete: bool = False


def addition(known: Description, version: int) -> Addition | None:
    """What a version of a sink's target added; `None` if that is not recorded (any more)."""
    if known.url is None or version < 0:
        return None
    try:
        place = open_place(known.url)
        if known.kind == "delta":
            data = place.read(commit_name(version))
            return _of_delta(data) if data is not None else None
        if known.kind == "parquet":
            return _of_parquet(place, version)
    except (StoreError, OSError, ValueError):
        pass
    return None


def _of_delta(data: bytes) -> Addition:
    added = [
        line.add for text in data.splitlines() if text.strip() and (line := _decode(text)).add is not None
    ]
    rows: int | None = 0
    for one in added:
        found = None
        if one is not None and one.stats:
            with suppress(ValueError):
                found = msgspec.json.decode(one.stats, type=_Stats).numRecords
        rows = rows + found if rows is not None and found is not None else None
    return Addition(len(added), rows, sum(one.size for one in added if one is not None))


def _decode(text: bytes) -> _Line:
    return msgspec.json.decode(text, type=_Line)


def _of_parquet(place: Store, version: int) -> Addition | None:
    data = place.read(f"{VERSIONS}{version:012d}.json")
    if data is None:
        return None
    found = msgspec.json.decode(data, type=_Version)
    if found.complete:
        return None  # it lists what was there before, too
    sizes = [place.size(name) for name in found.files]
    return Addition(len(sizes), None, None if None in sizes else sum(size or 0 for size in sizes))
