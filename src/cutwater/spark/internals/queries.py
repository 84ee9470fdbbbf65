"""What Spark knows about a running query but does not expose."""

from __future__ import annotations

from typing import Any


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


def waiting_files(query: Any) -> dict[str, int]:
    """By the description of each file source, how many files it has listed but not given to a batch yet. It keeps such a
    list only if the source limits its batches."""
    found: dict[str, int] = {}
    sources = query._jsq.streamingQuery().sources()
    for number in range(sources.size()):
        source = sources.apply(number)
        if source.getClass().getSimpleName() != "FileStreamSource":
            continue
        field = source.getClass().getDeclaredField("unreadFiles")
        field.setAccessible(True)
        unread = field.get(source)
        found[str(source.toString())] = int(unread.size()) if unread is not None else 0
    return found
