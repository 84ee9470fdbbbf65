"""What an error of a query means: for the next try, and for the user."""

from __future__ import annotations

import re

from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]

from cutwater.protocol.member.stage import QueryEnd
from cutwater.spark.checkpoint.leaves import SourcesChanged, sources_advice
from cutwater.spark.feed import FeedClosed
from cutwater.spark.micro_batch import StopAsked

STOPPED = (
    "something else than Cutwater has stopped its query: spark.streams, a listener, a notebook's stop button"
)
"""Shown for a query that has ended without an error although nobody here has stopped it."""

INCOMPATIBLE = re.compile(
    r"\[[A-Z0-9_.]*(NOT_COMPATIBLE|INCOMPATIBLE|INVALID_SCHEMA|VALIDATION_FAILURE)[A-Z0-9_.]*\]"
)
"""The names of Spark's own error conditions, as it puts them before a message. A user's error may use the same words."""
OTHER_SOURCES = ("sources in the checkpoint", SourcesChanged.__name__)


def was_asked(error: BaseException) -> bool:
    """Whether the query has ended because Cutwater told it to."""
    return any(asked.__name__ in str(error) for asked in (StopAsked, FeedClosed))


def is_incompatible(error: BaseException) -> bool:
    """Whether Spark refuses to go on from this state with this code, which no retry can help."""
    return is_about_sources(error) or INCOMPATIBLE.search(str(error)) is not None


def is_about_sources(error: BaseException | None) -> bool:
    """Whether the code reads other sources than those that its positions belong to."""
    return isinstance(error, SourcesChanged) or any(word in str(error) for word in OTHER_SOURCES)


def is_overload(error: BaseException) -> bool:
    """Whether a Python worker took longer to start than Spark waits for it (ten seconds, which cannot be set)."""
    return "failed to connect back" in str(error)


def kind_of(error: BaseException | None) -> QueryEnd:
    """What the end of a query means for the next try; `None` is an end without an error."""
    if error is None:
        return QueryEnd.STOPPED
    if was_asked(error):
        return QueryEnd.ASKED
    if is_incompatible(error):
        return QueryEnd.HOPELESS
    return QueryEnd.OVERLOADED if is_overload(error) else QueryEnd.FAILED


def describe(stage: str, error: BaseException | None) -> str:
    """Why a query has ended, for the user; with the way out if no retry can help."""
    if error is None:
        return STOPPED
    if not is_incompatible(error):
        return reason_of(error)
    return f"{reason_of(error)}. {way_out(stage, error)}"


def way_out(stage: str, error: BaseException) -> str:
    """What helps when the code has changed too much."""
    if is_about_sources(error):
        return sources_advice(stage, isinstance(error, SourcesChanged) and error.reset_helps)
    return (
        f"The code of stage '{stage}' has changed beyond what its state allows: bring the old code back, or go "
        f"back to a checkpoint with --restore REF --reset {stage}, which drops its state"
    )


def is_spark_gone(error: BaseException) -> bool:
    """Whether the JVM no longer answers."""
    return isinstance(error, Py4JNetworkError | ConnectionError) or "Error while sending or receiving" in str(
        error
    )


def spark_is_gone(error: BaseException) -> str:
    """What to tell the user when the JVM no longer answers."""
    return (
        f"Spark has gone away under this run ({reason_of(error)}): its process has ended, by itself or by somebody's "
        "hand. Nothing is lost; start the pipeline again"
    )


def reason_of(error: BaseException) -> str:
    """The user's own error, extracted from what Spark reports: the last line has it."""
    text = str(error).partition("terminated with exception: ")[2] or str(error)
    # What Spark said of the batch, without the stack through which it learned of it.
    text = text.rpartition("BatchFailed: ")[2]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    python = [line for line in lines if _is_error_line(line) and not line.startswith("Py4J")]
    java = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    told = python[-1:] or java[-1:] or lines
    return (" ".join(told) if told else type(error).__name__)[:500]


def _is_error_line(line: str) -> bool:
    head = line.split(":", 1)[0]
    return ":" in line and head.replace(".", "").isidentifier() and head.endswith(("Error", "Exception"))
