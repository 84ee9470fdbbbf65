"""The status of a running member, for the live view, for `cutwater status`, and to detect a second process.

The member writes it to the store at an interval, as `status/<member>.json`. It is only a hint: the journal and the
logs are authoritative. A member is running if its status changes (`presence.py`).
"""

from __future__ import annotations

import msgspec

from cutwater.protocol.base.durations import readable
from cutwater.protocol.base.paths import STATUS_PREFIX
from cutwater.store.contract import Store
from cutwater.store.html_table import html_table
from cutwater.store.process_identity import ProcessId
from cutwater.store.stage_status import StageStatus
from cutwater.store.stage_texts import behind, rule_lines, source_lines, state_of
from cutwater.store.timestamps import moment

ALONE = "main"
"""The name of the only member of a pipeline."""
REPORT_S = 1.0
REPORT_REMOTE_S = 5.0
"""How often a member writes its status to a local store, and to a remote one."""


class Status(msgspec.Struct, frozen=True):
    """One member. Times are seconds by its own clock, comparable only with each other. `state` is starting, running,
    draining, drained, stopped or failed."""

    pipeline: str
    member: str
    boot: str
    host: str
    pid: int
    state: str
    started_at: float
    updated_at: float
    generation: int
    term: int
    epoch: int | None
    epoch_at: float | None
    epoch_s: float | None
    open_epoch: int | None
    open_since: float | None
    watermark: int | None
    every_s: float
    stages: tuple[StageStatus, ...]
    unpublished: dict[str, int]
    trouble: str = ""
    leads: bool = False
    process: ProcessId | None = None
    beat: int = 0
    """Counts up with each report."""
    report_s: float = REPORT_REMOTE_S
    """How often it reports."""
    ignored: int = 0
    """Messages in the name of other members that it ignored: they had no valid seal, or could not be decoded."""
    version: str = ""
    """The version of Cutwater."""
    spark: str = ""
    """The version of Spark."""
    spark_ui: str | None = None
    """The address of Spark's own pages, if it has them."""
    catching_up: tuple[int, int] | None = None
    """While it catches up on the journal: how many of the missing entries it has, and how many are missing."""

    @property
    def is_over(self) -> bool:
        return self.state in ("stopped", "failed", "drained")

    def _repr_html_(self) -> str:
        """The status as notebooks show it."""
        who = self.pipeline if self.member == ALONE else f"{self.pipeline} · {self.member}"
        head = f"{who}: {self.state}, generation {self.generation}, "
        head += "no checkpoint yet" if self.epoch is None else f"epoch {self.epoch}"
        lines = [head, *([f"trouble: {self.trouble}"] if self.trouble else [])]
        lines += [f"{stage.name}: {stage.error}" for stage in self.stages if stage.error]
        lines += [line for stage in self.stages for line in (*source_lines(stage), *rule_lines(stage))]
        columns = ("stage", "state", "batch", "rows/s", "took", "behind", "watermark (UTC)")
        return html_table(lines, columns, [_cells(stage) for stage in self.stages])


def _cells(stage: StageStatus) -> tuple[str, ...]:
    watermark = "-"
    if stage.watermark is not None:
        watermark = f"{moment(stage.watermark / 1000):%Y-%m-%d %H:%M:%S}"
    return (
        stage.name,
        state_of(stage),
        str(stage.batch) if stage.batch >= 0 else "-",
        f"{stage.rows_per_s:,.0f}" if stage.rows_per_s else "-",
        readable(stage.batch_s) if stage.batch_s else "-",
        behind(stage),
        watermark,
    )


def decode_status(data: bytes) -> Status | None:
    """Decodes a status; `None` if the bytes are not one."""
    try:
        return _decoder.decode(data)
    except (ValueError, RecursionError):
        return None


_decoder = msgspec.json.Decoder(Status)


def read_status(store: Store) -> list[Status]:
    """The last status of each member, whether or not it is running."""
    found = (decode_status(data) for data in store.read_many(store.list(STATUS_PREFIX)) if data is not None)
    return [status for status in found if status is not None]
