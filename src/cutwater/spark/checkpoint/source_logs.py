"""The log that a file source keeps of the files it has read: `sources/<source>/<entry>` in a Spark checkpoint.

Every n-th entry is named `<entry>.compact` and contains all entries before it. This interval is not stored. When Spark
starts, it derives the interval from the file names: from the last two `.compact` files; from a single one and its
setting; or from the setting alone. Spark cannot read entries that do not match the derived interval, so a copy of a log
has at least the last two. If a log still does not match (the setting has changed, or an old copy lacks the one before
the last), it is rewritten as Spark would have written it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.base.paths import source_log_name, source_log_of

SETTING = "spark.sql.streaming.fileSource.log.compactInterval"
DEFAULT_INTERVAL = 10
KEPT = 2
"""How many `.compact` files determine the interval."""

Log = Mapping[int, str]
"""The names of a log's files, by entry."""


class Entry(msgspec.Struct, frozen=True):
    """The part of a line that matters here: the entry that it belongs to, and the file as a URL."""

    batchId: int
    path: str = ""


def needed_entries(log: Log, after: int | None, upto: int) -> set[int]:
    """The entries that a source needs to continue if it has read up to `upto`, in its last batch from `after` on: those
    from the last `.compact` file on, the `.compact` file before it, which determines the interval, and the last
    batch's own."""
    compacted = _compacted(log, upto)
    first = compacted[-1] if compacted else 0
    begin = first if after is None else min(first, after + 1)
    return {*compacted[-KEPT:], *range(begin, upto + 1)}


def can_start(log: Log, setting: int) -> bool:
    """Whether Spark can read a log with this setting for the interval."""
    if not log:
        return True
    interval = _interval(_compacted(log), setting)
    last = max(log)
    first = max(0, (last + 1) // interval * interval - 1)
    return all(
        entry in log and _is_compact_file(log[entry]) == _is_compact(entry, interval)
        for entry in range(first, last + 1)
    )


def rewrite_log(
    prefix: str, contents: Mapping[str, bytes], log: Log, lowest: int, setting: int
) -> dict[str, bytes]:
    """The files of the same log, by name, as Spark would have written them with this setting. It can be cut anywhere from
    `lowest` on. `contents`: the log's files below `prefix`."""
    last = max(log)
    of = source_log_of(log[last])
    assert of is not None
    lines = [line for name, data in contents.items() for line in _lines(prefix + name, data)]
    if {entry for entry, _ in lines} != set(range(last + 1)):
        raise StoreError(
            f"the log of source {of.source} in {prefix} does not have all entries up to {last}; restore another "
            "checkpoint"
        )
    found: dict[str, bytes] = {}
    begin = (lowest + 1) // setting * setting - 1
    for entry in range(max(begin - setting, 0), last + 1):
        if _is_compact(entry, setting):
            found[source_log_name(of.source, entry, compact=True)] = _text(
                line for of, line in lines if of <= entry
            )
        elif entry > begin:
            found[source_log_name(of.source, entry)] = _text(line for of, line in lines if of == entry)
    return found


def is_file_log(entries: Iterable[bytes]) -> bool:
    """Whether these are entries of a file source's log, not of another kind of source."""
    try:
        return all(len(_lines("", data)) > 0 for data in entries)
    except StoreError:
        return False


def needed_to_rewrite(log: Log) -> range:
    """The entries that together contain all lines of a log."""
    return range(max(_compacted(log), default=0), max(log) + 1)


def _compacted(log: Log, upto: int | None = None) -> list[int]:
    return sorted(e for e, name in log.items() if _is_compact_file(name) and (upto is None or e <= upto))


def _is_compact(entry: int, interval: int) -> bool:
    return (entry + 1) % interval == 0


def _interval(compacted: list[int], setting: int) -> int:
    """The interval that Spark derives (`CompactibleFileStreamLog.compactInterval`)."""
    if not compacted:
        return setting
    if len(compacted) > 1:
        return compacted[-1] - compacted[-2]
    count = compacted[-1] + 1
    if setting >= count // 2:
        return count
    return next(number for number in range(setting, count + 1) if count % number == 0)


def files_of(name: str, data: bytes, entry: int) -> list[str]:
    """The files that belong to an entry, as URLs, from the log's file with that entry."""
    found = (msgspec.json.decode(line, type=Entry) for of, line in _lines(name, data) if of == entry)
    return [file.path for file in found]


def _lines(name: str, data: bytes) -> list[tuple[int, bytes]]:
    version, *lines = data.split(b"\n")
    try:
        if version != b"v1":
            raise ValueError(f"it has version {version[:20]!r}")
        return [(msgspec.json.decode(line, type=Entry).batchId, line) for line in lines if line]
    except ValueError as error:
        raise StoreError(
            f"the source log {name} cannot be read ({error}); restore another checkpoint"
        ) from error


def _text(lines: Iterable[bytes]) -> bytes:
    return b"\n".join([b"v1", *lines])


def _is_compact_file(name: str) -> bool:
    of = source_log_of(name)
    return of is not None and of.compact
