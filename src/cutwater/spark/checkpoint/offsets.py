"""What Spark writes to its checkpoint for a batch: `offsets/<batch>` before it, `commits/<batch>` after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from cutwater.protocol.base.errors import StoreError

_NO_OFFSET = "-"

Topics = dict[str, dict[int, int]]
"""Positions in Kafka by topic and partition: the offset of the next record."""


class Offsets(msgspec.Struct, frozen=True):
    """The plan of a batch: how far it reads each source, one per leaf of the query's plan in order (Spark's JSON, `None`
    for a source that has nothing yet), and the watermark that it uses."""

    watermark_ms: int
    timestamp_ms: int
    conf: dict[str, str]
    sources: tuple[str | None, ...]

    @property
    def native(self) -> tuple[int, ...]:
        """The indexes of the sources that are not channels."""
        return tuple(
            leaf for leaf, text in enumerate(self.sources) if text is None or position_in(text) is None
        )

    def log_offset(self, leaf: int) -> int | None:
        """How far a file source's log is read; `None` if it is another kind of source or has nothing yet."""
        text = self.sources[leaf] if leaf < len(self.sources) else None
        try:
            offset = msgspec.json.decode(text) if text is not None else None
        except ValueError:
            return None
        found = offset.get("logOffset") if isinstance(offset, dict) else None
        return found if isinstance(found, int) else None


class BatchCommit(msgspec.Struct, frozen=True):
    """The commit of a batch: the next batch's watermark, and by operator and partition the unique ids of the state that
    the batch wrote (`None` if state files have no ids). `version` is that of the file's format."""

    watermark_ms: int
    ids: dict[int, tuple[tuple[str, ...], ...]] | None
    version: str = "v1"

    def ids_of(self, operator: int, partition: int) -> tuple[str, ...] | None:
        """The ids of one partition's state stores; `None` if state files have no ids."""
        if self.ids is None:
            return None
        partitions = self.ids.get(operator, ())
        return partitions[partition] if partition < len(partitions) else ()


def position_in(offset: str) -> tuple[str, int] | None:
    """The channel and the position in one of Spark's offsets; `None` for a native source."""
    try:
        value = msgspec.json.decode(offset)
    except ValueError:
        return None
    if not isinstance(value, dict) or value.keys() - {"incarnation"} != {"channel", "batch"}:
        return None
    return str(value["channel"]), int(value["batch"])


def topics_in(offset: str | None) -> Topics | None:
    """The positions in one of Spark's offsets by Kafka topic and partition; `None` for another kind of source."""
    try:
        value = msgspec.json.decode(offset or "", type=dict[str, dict[str, int]])
        return {topic: {int(p): at for p, at in offsets.items()} for topic, offsets in value.items()}
    except ValueError:
        return None


def parse_offsets(name: str, data: bytes) -> Offsets:
    """Parse `offsets/<batch>`. Raises `StoreError`, which names the file, if it cannot be parsed."""
    version, metadata, *sources = _lines(name, data, 2)
    if version != "v1":
        raise StoreError(
            f"{name} has version {version!r}, in which sources have names; Cutwater supports only v1. Set "
            "spark.sql.streaming.queryEvolution.enableSourceEvolution to false"
        )
    values = _json(name, metadata or "{}")
    try:
        return Offsets(
            watermark_ms=int(values.get("batchWatermarkMs", 0)),
            timestamp_ms=int(values.get("batchTimestampMs", 0)),
            conf=dict(values.get("conf") or {}),
            sources=tuple(None if line == _NO_OFFSET else line for line in sources),
        )
    except (TypeError, ValueError) as error:
        raise _unreadable(name, error) from error


def next_plan(name: str, data: bytes, watermark_ms: int, timestamp_ms: int) -> bytes:
    """The contents of the next `offsets/<batch>`, for a batch that reads nothing and uses a later watermark."""
    version, metadata, *sources = _lines(name, data, 2)
    values = _json(name, metadata or "{}")
    values["batchWatermarkMs"] = watermark_ms
    values["batchTimestampMs"] = max(timestamp_ms, values.get("batchTimestampMs", 0))
    return "\n".join([version, msgspec.json.encode(values).decode(), *sources]).encode()


def moved_plan(name: str, data: bytes, positions: Sequence[str | None]) -> bytes:
    """The contents of an `offsets/<batch>` with other positions."""
    version, metadata, *_ = _lines(name, data, 2)
    return "\n".join(
        [version, metadata, *(_NO_OFFSET if text is None else text for text in positions)]
    ).encode()


def position_of(channel: str, batch: int) -> str:
    """Spark's offset for a position in a channel."""
    return msgspec.json.encode({"channel": channel, "batch": batch}).decode()


def starting_plan(plan: Offsets, consumed: Mapping[str, int]) -> bytes:
    """The contents of an `offsets/<batch>` with the positions of `plan`, or of `consumed` for channels, and with its
    settings, which say how state is kept; but without its watermark."""
    metadata = {"batchWatermarkMs": 0, "batchTimestampMs": plan.timestamp_ms, "conf": plan.conf}
    lines = ["v1", msgspec.json.encode(metadata).decode()]
    for text in plan.sources:
        found = position_in(text) if text is not None else None
        if found is not None and found[0] in consumed:
            text = position_of(found[0], consumed[found[0]])
        lines.append(_NO_OFFSET if text is None else text)
    return "\n".join(lines).encode()


def parse_commit(name: str, data: bytes) -> BatchCommit:
    """Parse `commits/<batch>`. Raises `StoreError`, which names the file, if it cannot be parsed."""
    version, *rest = _lines(name, data, 1)
    if version not in ("v1", "v2", "v3"):
        raise StoreError(
            f"{name} has version {version!r}, which this Cutwater does not know; update Cutwater"
        )
    values = _json(name, rest[0] if rest else "{}")
    ids = values.get("stateUniqueIds") or None
    try:
        return BatchCommit(
            watermark_ms=int(values.get("nextBatchWatermarkMs", 0)),
            ids={int(op): tuple(map(tuple, parts)) for op, parts in ids.items()} if ids is not None else None,
            version=version,
        )
    except (TypeError, ValueError, AttributeError) as error:
        raise _unreadable(name, error) from error


def starting_commit(last: BatchCommit | None) -> bytes:
    """The contents of `commits/<batch>` for a batch that did nothing, in the format of the query's last commit. Spark 4.0
    and 4.1 read only the format that belongs to their setting for state files, and 4.3 takes from it whether state files
    have unique names. (A `v3` also names sinks: without them it is a `v2` or a `v1`.)"""
    has_ids = last is not None and (last.version == "v2" or last.ids is not None)
    return f"{'v2' if has_ids else 'v1'}\n".encode() + b'{"nextBatchWatermarkMs":0}'


def _lines(name: str, data: bytes, least: int) -> list[str]:
    try:
        lines = data.decode().split("\n")
    except UnicodeDecodeError as error:
        raise _unreadable(name, error) from error
    if len(lines) < least or not lines[0].startswith("v"):
        raise _unreadable(name, "it is truncated")
    return lines


def _json(name: str, text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except ValueError as error:
        raise _unreadable(name, error) from error


def _unreadable(name: str, why: object) -> StoreError:
    return StoreError(f"{name} cannot be read ({why}); restore the newest checkpoint")
