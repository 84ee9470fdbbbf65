"""`final_by`, checked against the columns of a stage before the stage runs."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from cutwater.protocol.base.errors import UserError
from cutwater.spark.final_by import check_final_by


@pytest.mark.parametrize(
    ("final_by", "said"),
    [
        (
            "windoww.end",
            "sink 'out' has final_by='windoww.end', which its rows do not have; they have window, window.start, "
            "window.end, count; did you mean 'window.end'?",
        ),
        ("window.ende", "which its rows do not have; they have window, .* did you mean 'window.end'"),
        (
            "window.end +",
            "which Spark refuses: Syntax error at or near end of input.*; its rows have window, ",
        ),
        ("count", "sink 'out': final_by='count' is a long, and must be the timestamp"),
    ],
)
def test_final_by_that_gives_no_timestamp_is_refused_in_one_line(
    spark: SparkSession, final_by: str, said: str
) -> None:
    rows = spark.readStream.format("rate").load().withWatermark("timestamp", "1 minute")
    counted = rows.groupBy(F.window("timestamp", "1 minute")).count()
    with pytest.raises(UserError, match=said) as refused:
        check_final_by(counted, "out", final_by)
    assert "\n" not in str(refused.value)
    assert "SQLSTATE" not in str(refused.value)
    check_final_by(counted, "out", "window.end")
    check_final_by(counted, "out", "window.end + INTERVAL 1 HOUR")
