"""What a query's error means for a retry, and the message for the user."""

from __future__ import annotations

import re

from cutwater.protocol.base.errors import VERIFY_FIRST
from cutwater.protocol.base.paths import channel_copy_of, channel_file_of
from cutwater.protocol.member.next_query import QueryEnd
from cutwater.spark.checkpoint.leaves import SourcesChanged, sources_advice
from cutwater.spark.feed import FeedClosed
from cutwater.spark.internals.queries import java_trace
from cutwater.spark.kafka import KafkaLoss
from cutwater.spark.micro_batch import StopAsked
from cutwater.spark.option_values import options_meant
from cutwater.spark.plan import Source
from cutwater.spark.refusals import without_plan

STOPPED = (
    "its query was stopped from outside Cutwater: by spark.streams, a listener, or a notebook's stop button"
)
"""Shown for a query that ended without an error although Cutwater did not stop it."""

MOST_SAID = 500
UNREADABLE = re.compile(r"\[FAILED_READ_FILE[A-Z_.]*\] Encountered error while reading file (\S.*?)\.\s")
"""Spark's error condition for a file that it cannot read, whatever the reason."""
INCOMPATIBLE = re.compile(
    r"\[[A-Z0-9_.]*(NOT_COMPATIBLE|INCOMPATIBLE|INVALID_SCHEMA|VALIDATION_FAILURE)[A-Z0-9_.]*\]"
)
"""Spark's error conditions, as it prints them before a message. (An error of the user may contain the same words.)"""
OTHER_SOURCES = ("sources in the checkpoint", SourcesChanged.__name__)


REFUSED = frozenset({
    "AnalysisException", "ExtendedAnalysisException", "ParseException", "IllegalArgumentException",
    "SparkIllegalArgumentException", "UnsupportedFileSystemException", "UnsupportedOperationException",
    "NumberFormatException", "PatternSyntaxException",
})  # fmt: skip
"""Errors about the plan or an option, as long as no batch has begun. (Later, a catalog or a name server has failed.)"""
WRONG_START = re.compile(
    r"startingOffsets contains specific offsets|\[[A-Z_.]*OFFSET_DOES_NOT_MATCH_ASSIGNED[A-Z_.]*\]"
)
"""What Spark's Kafka source says about `startingOffsets` that do not fit the topics; its class depends on the version."""
UNFIT = frozenset({
    "ClassNotFoundException", "SparkClassNotFoundException", "NoClassDefFoundError", "NoSuchMethodError",
    "NoSuchFieldError", "AbstractMethodError", "IncompatibleClassChangeError", "UnsupportedClassVersionError",
})  # fmt: skip
"""A jar is missing, or was made for another version of Spark."""


def misconfigured(stage: str, end: QueryEnd, error: str, sources: tuple[Source, ...] = ()) -> str:
    """What to tell about an error that lies in the configuration, so that the run ends at once. `sources`: what the stage
    reads, whose options may be meant."""
    if end is QueryEnd.UNFIT:
        advice = "A jar is missing from Spark's class path, or was made for another version of Spark"
    else:
        options = options_meant(sources, error)
        meant = f" (the options of its sources are {', '.join(options)})" if options else ""
        advice = f"Correct the stage's code, or the option that is meant{meant}, and start again"
    return f"stage '{stage}' cannot run, now or later: {error.rstrip('.')}. {advice}"


def _root(error: BaseException) -> str:
    """The name, without its package, of the error that caused the others."""
    lines = java_trace(error).splitlines()
    causes = [line for line in lines if line.startswith("Caused by: ")]
    first = lines[0] if lines else ""
    words = (causes[-1].removeprefix("Caused by: ") if causes else first).split(":")[0].split()
    found = words[-1].rpartition(".")[2] if words else ""
    return found if found in REFUSED | UNFIT or causes else type(error).__name__


def was_asked(error: BaseException) -> bool:
    """Whether the query ended because Cutwater stopped it."""
    return any(asked.__name__ in str(error) for asked in (StopAsked, FeedClosed))


def is_incompatible(error: BaseException) -> bool:
    """Whether Spark refuses to continue from this state with this code, so that a retry cannot help."""
    return (
        isinstance(error, KafkaLoss) or is_about_sources(error) or INCOMPATIBLE.search(str(error)) is not None
    )


def is_about_sources(error: BaseException | None) -> bool:
    """Whether the code reads other sources than those that its recorded positions belong to."""
    return isinstance(error, SourcesChanged) or any(word in str(error) for word in OTHER_SOURCES)


def is_overload(error: BaseException) -> bool:
    """Whether a Python worker took longer to start than Spark waits (ten seconds, not configurable)."""
    return "failed to connect back" in str(error)


def kind_of(error: BaseException | None) -> QueryEnd:
    """What the end of a query means for a retry; `None` means that it ended without an error."""
    if error is None:
        return QueryEnd.STOPPED
    if was_asked(error):
        return QueryEnd.ASKED
    if is_incompatible(error):
        return QueryEnd.HOPELESS
    if is_overload(error):
        return QueryEnd.OVERLOADED
    name = _root(error)
    if name in UNFIT:
        return QueryEnd.UNFIT
    trace = java_trace(error)
    is_refused = WRONG_START.search(trace) or (name in REFUSED and "UnknownHostException" not in trace)
    return QueryEnd.REFUSED if is_refused else QueryEnd.FAILED


def describe(stage: str, error: BaseException | None) -> str:
    """Why a query ended, for the user; with advice if a retry cannot help."""
    if error is None:
        return STOPPED
    if isinstance(error, KafkaLoss):
        return str(error)
    if not is_incompatible(error):
        return reason_of(error)
    return f"{reason_of(error)}. {way_out(stage, error)}"


def way_out(stage: str, error: BaseException) -> str:
    """Advice for code that has changed too much."""
    if is_about_sources(error):
        return error.advice(stage) if isinstance(error, SourcesChanged) else sources_advice(stage, False)
    return (
        f"The code of stage '{stage}' has changed beyond what its state allows: go back to the old code, or restore "
        f"a checkpoint with --restore REF --reset {stage}, which drops its state"
    )


def spark_is_gone(error: BaseException) -> str:
    """The message for a JVM that no longer answers."""
    return (
        f"Spark's process has ended during this run ({reason_of(error)}): it crashed or was killed. Nothing is lost; "
        "start the pipeline again"
    )


def reason_of(error: BaseException) -> str:
    """The user's error, extracted from what Spark reports: its last line."""
    text = str(error).partition("terminated with exception: ")[2] or str(error)
    # Spark's message about the batch, without the stack trace around it.
    text = text.rpartition("BatchFailed: ")[2]
    text = text.partition("\n=== Streaming Query ===")[0]
    text = without_plan(text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    python = [line for line in lines if _is_error_line(line) and not line.startswith("Py4J")]
    java = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    reasons = python[-1:] or java[-1:] or lines
    said = _shortened(" ".join(reasons)) if reasons else type(error).__name__
    unreadable = UNREADABLE.search(text) if not python else None
    return _naming(unreadable[1], said) if unreadable is not None else said


def _naming(url: str, reason: str) -> str:
    """The message for a file that Spark cannot read: its reason alone may name no file, or another place for it."""
    said = f"{url} cannot be read ({reason})"
    if not _is_of_a_channel(url):
        return said
    return (
        f"{said}. If it is damaged: {VERIFY_FIRST}restore the newest checkpoint that it reports as restorable"
    )


def _is_of_a_channel(url: str) -> bool:
    """Whether it is a file of a channel in the store, or a checkpoint's copy of one."""
    parts = url.split("/")
    names = ("/".join(parts[first:]) for first in range(len(parts)))
    return any(channel_file_of(name) is not None or channel_copy_of(name) is not None for name in names)


def _shortened(text: str) -> str:
    """A long text, up to the end of a word."""
    return (
        text
        if len(text) <= MOST_SAID
        else f"{text[: MOST_SAID + 1].rpartition(' ')[0] or text[:MOST_SAID]} ..."
    )


def _is_error_line(line: str) -> bool:
    head = line.split(":", 1)[0]
    return ":" in line and head.replace(".", "").isidentifier() and head.endswith(("Error", "Exception"))
