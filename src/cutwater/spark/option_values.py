"""Values of options of Spark's own sources that Spark would refuse when the query starts. They are detected earlier.

Only what Spark certainly refuses is listed: it parses numbers with Java's `parseInt` and `parseLong`, which take no
spaces, points or units; truth values are `true` and `false` in any case; durations are a whole number with a unit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from cutwater.spark.plan import Source
from cutwater.spark.source_options import FILES, known_options

_NUMBER = re.compile(r"[+-]?\d+")
_DURATION = re.compile(r"-?[0-9]+(us|ms|s|m|min|h|d)?")
_OFFSETS = '{"topic": {"0": 23, "1": -2}}'


def _whole(bits: int, least: int | None = None) -> tuple[Callable[[str], bool], str]:
    """A whole number that fits into this many bits, and is not less than `least`."""

    def is_fit(value: str) -> bool:
        limit = 1 << (bits - 1)
        if not _NUMBER.fullmatch(value) or not -limit <= int(value) < limit:
            return False
        return least is None or int(value) >= least

    more = "" if least is None else f" that is at least {least}"
    return is_fit, f"a whole number{more}, without a unit"


def _is_truth(value: str) -> bool:
    return value.lower() in ("true", "false")


def _is_duration(value: str) -> bool:
    return _DURATION.fullmatch(value.lower().strip()) is not None


def _is_per_partition(value: str) -> bool:
    """Whether a text is JSON with a value for each partition of each topic. Spark ignores what follows the JSON."""
    try:
        found: Any = json.JSONDecoder(strict=False).raw_decode(value.strip())[0]
    except ValueError:
        return False
    return isinstance(found, dict) and all(
        isinstance(each, dict) and all(_NUMBER.fullmatch(partition) for partition in each)
        for each in found.values()
    )


def _is_start(value: str) -> bool:
    return value.strip().lower() in ("earliest", "latest") or _is_per_partition(value)


Rule = tuple[Callable[[str], bool], str]
_TRUTH: Rule = (_is_truth, "true or false")
_TIME: Rule = (_is_duration, "a duration, such as 30s or 10m")
_FILES: dict[str, Rule] = {
    "maxFilesPerTrigger": _whole(32, 1),
    "maxBytesPerTrigger": _whole(64, 1),
    "maxCachedFiles": _whole(32, 0),
    "maxFileAge": _TIME,
    "latestFirst": _TRUTH,
    "fileNameOnly": _TRUTH,
}
_KAFKA: dict[str, Rule] = {
    "startingOffsets": (_is_start, f"earliest, latest, or JSON as in {_OFFSETS}"),
    "startingOffsetsByTimestamp": (_is_per_partition, f"JSON as in {_OFFSETS}, with times in ms since 1970"),
    "startingTimestamp": (lambda value: _whole(64)[0](value.strip()), "a time in ms since 1970"),
    "startingOffsetsByTimestampStrategy": (
        lambda value: value.lower() in ("error", "latest"),
        "error or latest",
    ),
    "failOnDataLoss": _TRUTH,
    "includeHeaders": _TRUTH,
    "minPartitions": _whole(32, 1),
    "maxRecordsPerPartition": _whole(64, 1),
    "maxOffsetsPerTrigger": _whole(64),
    "minOffsetsPerTrigger": _whole(64),
    "maxTriggerDelay": _TIME,
    "kafkaConsumer.pollTimeoutMs": _whole(64),
    "fetchOffset.numRetries": _whole(32),
    "fetchOffset.retryIntervalMs": _whole(64),
}
_RATE: dict[str, Rule] = {"rowsPerSecond": _whole(64, 1), "numPartitions": _whole(32, 1), "rampUpTime": _TIME}
_RULES = {**dict.fromkeys(FILES, _FILES), "kafka": _KAFKA, "rate": _RATE}
_STARTS = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
"""Where Kafka is read from at first. Spark takes the first of these that is there, and looks at no other."""


def wrong_values(source: Source) -> Iterator[str]:
    """What Spark would refuse about the options of a source, and what they must be."""
    options = dict(source.options)
    unread = {name.lower() for name in _ignored(options)}
    for name, (is_fit, expected) in _RULES.get(source.format, {}).items():
        value = options.get(name.lower())
        if value is not None and name.lower() not in unread and not is_fit(value):
            yield f"{name}={value!r}, which must be {expected}"
    if source.format in FILES and {"maxfilespertrigger", "maxbytespertrigger"} <= options.keys():
        yield "maxFilesPerTrigger and maxBytesPerTrigger, of which Spark takes only one: remove the other"


def _ignored(options: Mapping[str, str]) -> tuple[str, ...]:
    given = [name for name in _STARTS if name.lower() in options]
    return tuple(given[1:])


def options_meant(sources: tuple[Source, ...], error: str) -> list[str]:
    """The options of a stage's sources that Spark's error may be about: those whose value it quotes, or else all that say
    what and how much is read."""
    given = [
        (known, value)
        for source in sources
        for known in known_options(source)
        if (value := dict(source.options).get(known.lower())) is not None and known != "path"
    ]
    quoted = [name for name, value in given if value and f'"{value}"' in error]
    return list(dict.fromkeys(quoted or [name for name, _ in given]))
