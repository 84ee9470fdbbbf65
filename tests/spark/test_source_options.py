"""Options of Spark's sources that are misspelled."""

from __future__ import annotations

import pytest

from cutwater.spark.plan import Source
from cutwater.spark.source_options import FILES, misspelled


def found(format: str, *names: str) -> list[tuple[str, str]]:
    return misspelled(Source(format, tuple((name.lower(), "1") for name in names)))


@pytest.mark.parametrize(
    ("format", "given", "meant"),
    [
        ("parquet", "maxFilePerTrigger", "maxFilesPerTrigger"),
        ("json", "max_files_per_trigger", "maxFilesPerTrigger"),
        ("csv", "maxByesPerTrigger", "maxBytesPerTrigger"),
        ("kafka", "startingOffset", "startingOffsets"),
        ("kafka", "maxOffsetPerTrigger", "maxOffsetsPerTrigger"),
        ("kafka", "failOnDataLost", "failOnDataLoss"),
        ("rate", "rowPerSecond", "rowsPerSecond"),
    ],
)
def test_an_option_that_is_nearly_one_of_the_source_is_named(format: str, given: str, meant: str) -> None:
    assert found(format, given, "path") == [(given.lower(), meant)]


@pytest.mark.parametrize(
    ("format", "names"),
    [
        (
            "csv",
            "sep header inferSchema enforceSchema maxColumns maxCharsPerColumn multiLine mode nullValue dateFormat "
            "timestampFormat timestampNTZFormat columnNameOfCorruptRecord lineSep encoding samplingRatio escape "
            "unescapedQuoteHandling ignoreLeadingWhiteSpace ignoreTrailingWhiteSpace positiveInf negativeInf",
        ),
        (
            "json",
            "primitivesAsString prefersDecimal allowComments multiLine dropFieldIfAllNull timeZone mode",
        ),
        ("parquet", "datetimeRebaseMode int96RebaseMode mergeSchema fs.s3a.endpoint"),
        (
            "kafka",
            "kafka.bootstrap.servers kafka.group.id minOffsetsPerTrigger maxOffsetsPerTrigger endingOffsets",
        ),
        ("delta", "maxFilePerTrigger startingVersion"),
    ],
)
def test_options_of_the_format_and_of_others_are_left_alone(format: str, names: str) -> None:
    assert found(format, *names.split()) == []


def test_every_known_option_is_spelt_right() -> None:
    for format in (*FILES, "kafka", "rate"):
        assert found(format, "maxFilesPerTrigger", "latestFirst", "subscribePattern", "rowsPerSecond") == []
