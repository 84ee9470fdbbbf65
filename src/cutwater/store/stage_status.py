"""The status of one stage."""

from __future__ import annotations

import msgspec


class SourceLag(msgspec.Struct, frozen=True):
    """How far a stage was behind one of its own sources when its last batch was planned, in whatever the source can
    tell: records, in all and by partition (`topic-0`), files, bytes, seconds. `None` means that it cannot tell."""

    source: str
    rows: int | None = None
    files: int | None = None
    partitions: dict[str, int] = {}
    bytes: int | None = None
    seconds: float | None = None


class ChannelLag(msgspec.Struct, frozen=True):
    """How much of another stage's output a stage has not read yet."""

    producer: str
    batches: int
    rows: int


class RuleStatus(msgspec.Struct, frozen=True):
    """How many rows violate a rule: of the newest epoch, and of all epochs of this timeline up to it."""

    name: str
    rows: int
    total: int


class StageStatus(msgspec.Struct, frozen=True):
    """One stage: its `state` in one word, its last batch, input rows per second, and its lag behind the stages that it
    reads, and behind each of its own sources that can tell. `first_batch_s`: how long it has been in the first batch of
    its life, which may be slow; `None` if it is not. `channels` has its lag for each stage that it reads, and
    `cut` the newest epoch for which it is cut. `runs_in`: the stage whose query it is a part of, if its state is
    `chained`: then its rows are those that it gave, and the batch is the query's. `rules`: those that it has for its
    rows, and `on_violation` what happens to bad ones: fail, drop, or the name of the quarantine that gets them."""

    name: str
    state: str
    batch: int
    rows_per_s: float
    batch_s: float
    lag_batches: int
    lag_rows: int
    watermark: int | None
    watermark_kind: str
    restarts: int = 0
    error: str = ""
    waits_for: str = ""
    first_batch_s: float | None = None
    sources: tuple[SourceLag, ...] = ()
    runs_in: str = ""
    channels: tuple[ChannelLag, ...] = ()
    cut: int | None = None
    rules: tuple[RuleStatus, ...] = ()
    on_violation: str = ""
