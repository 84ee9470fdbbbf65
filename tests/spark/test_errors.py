"""Classifying errors of Spark queries, and the messages about them."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]

from cutwater.protocol.base.paths import Attempt, channel_copy_name, channel_file_name
from cutwater.protocol.member.next_query import QueryEnd
from cutwater.spark.checkpoint.leaves import SourcesChanged
from cutwater.spark.errors import STOPPED, describe, kind_of, misconfigured, reason_of, spark_is_gone
from cutwater.spark.feed import FeedClosed
from cutwater.spark.internals.gateway import is_spark_gone
from cutwater.spark.kafka import KafkaLoss
from cutwater.spark.micro_batch import StopAsked
from cutwater.spark.plan import Source

OTHER_STATE = RuntimeError("[STATE_STORE_INVALID_SCHEMA.KEY] no")
OTHER_SOURCES = (
    SourcesChanged("stage 's' reads channel 'a' where its position is 7"),
    RuntimeError("There are [2] sources in the checkpoint offsets and now there are [1]"),
    RuntimeError("a.b.C: An exception was raised by Python: SourcesChanged: x"),
)


@pytest.mark.parametrize(
    ("error", "end"),
    [
        (None, QueryEnd.STOPPED),
        (RuntimeError(f"Caused by: {StopAsked.__name__}"), QueryEnd.ASKED),
        (RuntimeError(f"Caused by: {FeedClosed.__name__}: no longer wanted"), QueryEnd.ASKED),
        (
            RuntimeError(f"{StopAsked.__name__} [STATE_STORE_INVALID_SCHEMA] failed to connect back"),
            QueryEnd.ASKED,
        ),
        (OTHER_STATE, QueryEnd.HOPELESS),
        (KafkaLoss("the topic 't' is gone"), QueryEnd.HOPELESS),
        *((error, QueryEnd.HOPELESS) for error in OTHER_SOURCES),
        (RuntimeError("Python worker failed to connect back."), QueryEnd.OVERLOADED),
        (RuntimeError("no disk"), QueryEnd.FAILED),
        (RuntimeError('java.lang.NumberFormatException: For input string: "ten"'), QueryEnd.REFUSED),
        (RuntimeError("java.util.regex.PatternSyntaxException: Unclosed group"), QueryEnd.REFUSED),
        (
            RuntimeError(
                "java.lang.AssertionError: assertion failed: If startingOffsets contains specific offsets, you must "
                "specify all TopicPartitions."
            ),
            QueryEnd.REFUSED,
        ),
        (RuntimeError("java.lang.AssertionError: assertion failed"), QueryEnd.FAILED),
        # only an error condition of Spark's own says that the code has changed
        (RuntimeError("[STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] Provided key schema"), QueryEnd.HOPELESS),
        (RuntimeError("PythonException: ValueError: payload says INVALID_SCHEMA"), QueryEnd.FAILED),
        (RuntimeError("ValueError: [INCOMPATIBLE with the price list]"), QueryEnd.FAILED),
    ],
)
def test_the_end_of_a_query_says_whether_to_try_again(error: BaseException | None, end: QueryEnd) -> None:
    assert kind_of(error) is end


def test_an_error_that_a_retry_may_fix_is_reported_unchanged() -> None:
    assert describe("s", RuntimeError("no disk")) == "no disk"
    assert describe("s", None) == STOPPED


@pytest.mark.parametrize(
    ("error", "is_gone"),
    [
        (Py4JNetworkError("Answer from Java side is empty"), True),
        (ConnectionRefusedError(), True),
        (RuntimeError("An error: Error while sending or receiving"), True),
        (RuntimeError("no disk"), False),
        (OSError("no disk"), False),
    ],
)
def test_spark_is_gone_when_its_jvm_does_not_answer(error: BaseException, is_gone: bool) -> None:
    assert is_spark_gone(error) is is_gone
    assert f"({reason_of(error)})" in spark_is_gone(error)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("Py4JJavaError: An error\nCaused by: a.B: first\nCaused by: a.C: last", "a.C: last"),
        ("a.b.MyError: first\nmore of it\nx.YException: last", "x.YException: last"),
        ("the row Error: is not the name of one\nIt ends", "the row Error: is not the name of one It ends"),
        ("An Error\nwithout a colon", "An Error without a colon"),
        ("  one \n\n two  ", "one two"),
        (
            "x terminated with exception: a.b.C: no\n at z\nCaused by: java.io.IOException: full",
            "java.io.IOException: full",
        ),
        ("Traceback\n  File x\nValueError: bad row\n\nCaused by: a.Java: y", "ValueError: bad row"),
        ("x\nBatchFailed: KeyError: 'id'\nPy4JError: z", "KeyError: 'id'"),
        (
            "[STREAM_FAILED] Query x terminated with exception: Invalid value '-1' SQLSTATE: XXKST\n"
            "=== Streaming Query ===\nIdentifier: y",
            "Invalid value '-1'",
        ),
        ("", "RuntimeError"),
        ("x" * 600, "x" * 500 + " ..."),
        ("word " * 200, "word " * 100 + "..."),
        (
            "[UNRESOLVED_COLUMN] A column `a` cannot be resolved. SQLSTATE: 42703; line 1 pos 0;\n'Project ['a]\n+- x",
            "[UNRESOLVED_COLUMN] A column `a` cannot be resolved.",
        ),
        ("It is closed\n\tat org.apache.A.b(A.scala:1)\n\t... 20 more", "It is closed"),
    ],
)
def test_the_last_error_that_is_named_is_the_reason_and_else_all_lines(said: str, expected: str) -> None:
    assert reason_of(RuntimeError(said)) == expected


def test_a_reset_is_advised_only_where_it_helps() -> None:
    assert "--reset a" in describe("a", RuntimeError("[STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE]"))
    assert "--reset a" in describe("a", SourcesChanged("other channels", reset_helps=True))
    for error in OTHER_SOURCES:
        said = describe("a", error)
        assert said.startswith(reason_of(error))
        assert "--reset" not in said, "it would read its sources again, into tables that have their rows"
        assert "--drop a" in said


class OfJava(RuntimeError):
    """An error as pyspark makes it: Java's stack trace is not in its text."""

    def __init__(self, text: str, trace: str) -> None:
        super().__init__(text)
        self._stackTrace = trace


class AnalysisException(Exception):
    pass


WRONG_OPTION = OfJava(
    "no", "a.StreamingQueryException: no\n\tat x\nCaused by: java.lang.IllegalArgumentException: no"
)


@pytest.mark.parametrize(
    ("error", "end"),
    [
        (WRONG_OPTION, QueryEnd.REFUSED),
        (AnalysisException("Sorting is not supported"), QueryEnd.REFUSED),
        (OfJava("no", "java.lang.NoSuchMethodError: 'x y'\n\tat z"), QueryEnd.UNFIT),
        (
            RuntimeError(
                "An error occurred while calling o1.start.\n: a.B: x\nCaused by: ClassNotFoundException: k"
            ),
            QueryEnd.UNFIT,
        ),
        # what may pass
        (
            OfJava("no", "a.AnalysisException: no\nCaused by: java.net.ConnectException: refused"),
            QueryEnd.FAILED,
        ),
        (
            OfJava("no", "java.lang.IllegalArgumentException: java.net.UnknownHostException: nn1"),
            QueryEnd.FAILED,
        ),
        (RuntimeError("no disk"), QueryEnd.FAILED),
        (RuntimeError(""), QueryEnd.FAILED),
    ],
)
def test_an_error_of_the_configuration_is_distinguished_from_a_temporary_one(
    error: BaseException, end: QueryEnd
) -> None:
    assert kind_of(error) is end


def test_an_error_of_the_configuration_says_what_to_do() -> None:
    kafka = Source(
        "kafka", (("kafka.x", "1"), ("maxoffsetspertrigger", "ten"), ("startingoffsets", "earliest"))
    )
    quoted = misconfigured("s", QueryEnd.REFUSED, 'For input string: "ten"', (kafka,))
    assert "option that is meant (the options of its sources are maxOffsetsPerTrigger)" in quoted
    every = misconfigured("s", QueryEnd.REFUSED, "no", (kafka, Source("parquet", (("path", "/in"),))))
    assert "sources are startingOffsets, maxOffsetsPerTrigger)" in every
    said = misconfigured("s", QueryEnd.REFUSED, "no sorting")
    assert said.startswith(
        "stage 's' cannot run, now or later: no sorting. Correct the stage's code, or the option"
    )
    assert "A jar is missing" in misconfigured("s", QueryEnd.UNFIT, "no class")


def test_lost_records_are_described_in_their_own_words() -> None:
    assert describe("s", KafkaLoss("the topic 't' is gone. Do this")) == "the topic 't' is gone. Do this"


def unreadable(url: str, cause: str) -> RuntimeError:
    """What Spark reports of a batch that meets a damaged file."""
    return RuntimeError(
        "[STREAM_FAILED] Query terminated with exception: cutwater.spark.micro_batch.BatchFailed: Py4JJavaError: An "
        "error occurred while calling o45.parquet.\n"
        f": org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file {url}.  "
        f"SQLSTATE: KD001\nCaused by: java.io.IOException: could not decode\nCaused by: {cause}\n SQLSTATE: 39000\n"
        "=== Streaming Query ===\nIdentifier: [id = 1]"
    )


@pytest.mark.parametrize(
    "name",
    [
        channel_file_name("clean", 2, Attempt(3, 4, "00ff00ff"), "part-0.c000.snappy.parquet"),
        channel_copy_name(7, 70, "clean", 4, "00ff00ff-part-0.c000.parquet"),
    ],
    ids=["channel", "copy in a checkpoint"],
)
def test_a_damaged_file_of_a_channel_is_named_with_what_to_do(name: str) -> None:
    error = unreadable(f"file:///data/state.d/{name}", "java.io.IOException: FAILED_TO_UNCOMPRESS(5)")
    assert describe("s", error) == (
        f"file:///data/state.d/{name} cannot be read (java.io.IOException: FAILED_TO_UNCOMPRESS(5)). If it is damaged: "
        "run `cutwater verify` to see what else is damaged, then restore the newest checkpoint that it reports as "
        "restorable"
    )
    assert kind_of(error) is QueryEnd.FAILED, (
        "a store that does not answer for a while is reported in the same way"
    )


def test_a_damaged_file_of_the_user_is_named() -> None:
    error = unreadable("s3a://bucket/in/a.parquet", "java.lang.RuntimeException: not a Parquet file")
    assert describe("s", error) == (
        "s3a://bucket/in/a.parquet cannot be read (java.lang.RuntimeException: not a Parquet file)"
    )
