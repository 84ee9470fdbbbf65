"""Classifying errors of Spark queries."""

from __future__ import annotations

import pytest

from cutwater.protocol.member.stage import QueryEnd
from cutwater.spark import errors
from cutwater.spark.checkpoint.leaves import SourcesChanged


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            "x terminated with exception: a.b.C: no\n at z\nCaused by: java.io.IOException: full",
            "java.io.IOException: full",
        ),
        ("Traceback\n  File x\nValueError: bad row\n\nCaused by: a.Java: y", "ValueError: bad row"),
        ("x\nBatchFailed: KeyError: 'id'\nPy4JError: z", "KeyError: 'id'"),
        ("something", "something"),
        ("", "RuntimeError"),
    ],
)
def test_the_reason_of_a_failed_query_is_the_users_own_error(said: str, reason: str) -> None:
    assert errors.reason_of(RuntimeError(said)) == reason


def test_a_python_worker_that_is_slow_to_start_counts_as_overload() -> None:
    assert errors.kind_of(RuntimeError("Python worker failed to connect back.")) is QueryEnd.OVERLOADED
    assert errors.kind_of(RuntimeError("[STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE]")) is QueryEnd.HOPELESS
    assert errors.kind_of(RuntimeError("x")) is QueryEnd.FAILED


def test_a_reset_is_advised_only_where_it_helps() -> None:
    assert "--reset a" in errors.describe("a", RuntimeError("[STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE]"))
    assert "--reset a" in errors.describe("a", SourcesChanged("other channels", reset_helps=True))
    for error in (
        SourcesChanged("other files"),
        RuntimeError("There are [1] sources in the checkpoint offsets and now there are [2]"),
    ):
        said = errors.describe("a", error)
        assert "--reset" not in said
        assert "--drop a" in said
