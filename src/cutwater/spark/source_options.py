"""Misspelled options of Spark's own sources. Spark ignores options that it does not know, so a limit with a wrong name
limits nothing."""

from __future__ import annotations

from difflib import get_close_matches

from cutwater.spark.plan import Source

FILES = frozenset({"parquet", "orc", "json", "csv", "text", "xml", "avro"})
_FILES = (
    "path", "basePath", "maxFilesPerTrigger", "maxBytesPerTrigger", "maxCachedFiles", "discardCachedInputRatio",
    "latestFirst", "maxFileAge", "fileNameOnly", "cleanSource", "sourceArchiveDir", "recursiveFileLookup",
    "pathGlobFilter", "modifiedBefore", "modifiedAfter", "mergeSchema", "ignoreCorruptFiles", "ignoreMissingFiles",
)  # fmt: skip
_OPTIONS = {
    **dict.fromkeys(FILES, _FILES),
    "kafka": (
        "subscribe", "subscribePattern", "assign", "startingOffsets", "startingOffsetsByTimestamp",
        "startingTimestamp", "startingOffsetsByTimestampStrategy", "failOnDataLoss", "minPartitions",
        "maxRecordsPerPartition", "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "groupIdPrefix",
        "includeHeaders", "kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs",
    ),
    "rate": ("rowsPerSecond", "rampUpTime", "numPartitions"),
}  # fmt: skip
"""By format, the options that say what and how much a streaming source reads."""
NEAR = 0.85
"""How similar an unknown option must be to a known one to count as misspelled. Formats and vendors have many further
options, so an unknown one alone is not a mistake."""


def known_options(source: Source) -> tuple[str, ...]:
    """The options that a source of this format is known to have."""
    return _OPTIONS.get(source.format, ())


def misspelled(source: Source) -> list[tuple[str, str]]:
    """The options of a source that are probably misspelled (in lower case), each with the one that was meant."""
    known = {option.lower(): option for option in known_options(source)}
    found = []
    for name, _ in source.options:
        if name not in known and not name.startswith("kafka."):
            near = get_close_matches(name.replace("_", ""), known, n=1, cutoff=NEAR)
            found += [(name, known[option]) for option in near]
    return found
