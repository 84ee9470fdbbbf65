"""What Spark says about a query, on a model of Spark's Java side."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cutwater.protocol.base.paths import batch_file_name, spark_prefix
from cutwater.protocol.member.stage import QueryEnd
from cutwater.spark.errors import kind_of
from cutwater.spark.query import WAITING, Query
from cutwater.store.opening import open_store

FOLDER = spark_prefix("s", 1, 1)


def query(executor: str = "SingleBatchExecutor", looked: bool = False, last: int | None = 0) -> Query:
    """A query with AvailableNow that has prepared batch `last`, and whose commit 0 is in the store."""
    store = open_store("memory://")
    store.put(FOLDER + batch_file_name("offsets", 0), b"")
    store.put(FOLDER + batch_file_name("commits", 0), b"")
    writer: Any = SimpleNamespace(store=store, folder=FOLDER, last=last, base=-1)
    made = Query(writer, takes_all=True)
    kind = SimpleNamespace(getClass=lambda: SimpleNamespace(getSimpleName=lambda: executor))
    execution = SimpleNamespace(noNewData=lambda: looked, triggerExecutor=lambda: kind)
    made.spark = SimpleNamespace(_jsq=SimpleNamespace(streamingQuery=lambda: execution))
    return made


@pytest.mark.parametrize(
    ("status", "waits"),
    [
        ({"message": WAITING, "isTriggerActive": False}, True),
        ({"message": WAITING, "isTriggerActive": True}, False),
        ({"message": "Processing new data", "isTriggerActive": False}, False),
        (None, False),
    ],
)
def test_a_query_is_waiting_when_spark_says_so_and_it_has_not_ended(status: Any, waits: bool) -> None:
    made = query()
    made.spark = SimpleNamespace(status=status)
    assert made.waits() is waits


def test_a_source_that_is_read_in_one_batch_is_finished_when_that_batch_is_committed() -> None:
    assert query().has_taken_all()
    assert query("MultiBatchExecutor", looked=True).has_taken_all()
    assert not query("MultiBatchExecutor").has_taken_all()
    planned = query()
    planned.writer.store.put(FOLDER + batch_file_name("offsets", 1), b"planned, and not committed")
    assert not planned.has_taken_all()
    assert not query(last=1).has_taken_all(), "its last batch is not committed"
    assert not query(last=None).has_taken_all(), "it has prepared nothing"


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("[STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] Provided key schema does not match", QueryEnd.HOPELESS),
        ("PythonException: ValueError: payload says INVALID_SCHEMA", QueryEnd.FAILED),
        ("ValueError: [INCOMPATIBLE with the price list]", QueryEnd.FAILED),
    ],
)
def test_only_an_error_condition_of_spark_means_that_the_code_has_changed(text: str, end: QueryEnd) -> None:
    assert kind_of(RuntimeError(text)) is end
