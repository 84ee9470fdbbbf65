"""What Spark knows about a running query but does not expose."""

from __future__ import annotations

import re
from typing import Any

import msgspec


def java_trace(error: BaseException) -> str:
    """The stack trace of a Java error, which pyspark leaves out of its text."""
    return str(getattr(error, "_stackTrace", None) or error)


def found_nothing_new(query: Any) -> bool:
    """Whether the query's last look at its sources found nothing new. Spark remembers that after the query has ended."""
    return bool(query._jsq.streamingQuery().noNewData())


def is_one_batch(query: Any) -> bool:
    """Whether a query with `availableNow` reads everything in one batch, because one of its sources cannot say what is
    available now."""
    executor = query._jsq.streamingQuery().triggerExecutor()
    return bool(executor.getClass().getSimpleName() == "SingleBatchExecutor")


class UnreadFiles(msgspec.Struct, frozen=True):
    """Files that a source has listed, and that no batch has taken yet."""

    files: int
    bytes: int | None


def unread_files(query: Any) -> dict[str, UnreadFiles]:
    """By the description of each file source, what waits behind the batch that was planned last. Sources that keep no
    list of it are left out: those without a limit for a batch, which take everything that they list at once, those with
    `latestFirst`, and those of a query with `availableNow`."""
    found: dict[str, UnreadFiles] = {}
    sources = query._jsq.streamingQuery().sources()
    for number in range(sources.size()):
        source = sources.apply(number)
        if source.getClass().getSimpleName() == "FileStreamSource" and _keeps_a_list(source):
            found[str(source.toString())] = _measured(_private(source, "unreadFiles"))
    return found


def _keeps_a_list(source: Any) -> bool:
    options = _private(source, "sourceOptions")
    is_limited = source.getDefaultReadLimit().getClass().getSimpleName() != "ReadAllAvailable"
    return bool(
        is_limited
        and not options.latestFirst()
        and options.maxCachedFiles() > 0
        and _private(source, "allFilesForTriggerAvailableNow") is None
    )


def _private(source: Any, name: str) -> Any:
    field = source.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(source)


def _measured(files: Any) -> UnreadFiles:
    """Of a Scala list of `NewFileEntry(path, size, timestamp)`, as text: one call, and not two for each file."""
    if files is None:
        return UnreadFiles(0, 0)
    sizes = re.findall(r",(\d+),\d+\)$", str(files.mkString("\n")), re.MULTILINE)
    count = int(files.size())
    return UnreadFiles(count, sum(map(int, sizes)) if len(sizes) == count else None)
