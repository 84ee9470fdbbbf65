"""The live view of a running pipeline, for a terminal. `cutwater status` prints the same once."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from cutwater.protocol.base.durations import readable
from cutwater.store.figures import count
from cutwater.store.printable import one_line
from cutwater.store.stage_status import StageStatus
from cutwater.store.stage_texts import behind, rule_lines, source_lines, state_of
from cutwater.store.status import ALONE, Status

NEWS = 6
STYLES = {
    "running": "green", "idle": "dim", "waiting": "dim", "opening": "dim", "starting": "yellow",
    "resting": "yellow", "draining": "yellow", "restarting": "red", "failed": "red",
}  # fmt: skip


def view(status: Status, where: str, now: float, news: list[str], width: int = 80) -> RenderableType:
    """Everything that the view shows, for a terminal of this width."""
    head = Text(overflow="ellipsis", no_wrap=True)
    head.append(status.pipeline, style="bold")
    if status.member != ALONE:
        head.append(f" · {status.member}", style="bold")
        head.append(" leads" if status.leads else "", style="cyan")
    head.append("  ")
    head.append(status.state, style=STYLES.get(status.state, ""))
    head.append(
        f" for {readable(max(0.0, now - status.started_at))}  generation {status.generation}  {where}"
    )
    parts: list[RenderableType] = [head, _checkpoint_line(status, now)]
    if status.unpublished:
        waiting = ", ".join(f"{sink} ({count})" for sink, count in sorted(status.unpublished.items()))
        parts.append(Text(f"not yet published in {waiting}", style="yellow"))
    if status.trouble:
        parts.append(_line(f"trouble: {status.trouble}", "red"))
    if status.ignored:
        parts.append(_line(f"{status.ignored} messages ignored; the log says whose", "yellow"))
    parts += ["", _stages(status, width), ""]
    parts += [_line(f"{s.name}: {s.error}", "red") for s in status.stages if s.error]
    parts += [_line(line, "yellow") for stage in status.stages for line in rule_lines(stage)]
    parts += [_line(line, "dim") for stage in status.stages for line in source_lines(stage)]
    parts += [_line(line, "dim") for line in news]
    return Group(*parts)


def _line(text: str, style: str) -> Text:
    return Text(one_line(text), style=style, overflow="ellipsis", no_wrap=True)


def _checkpoint_line(status: Status, now: float) -> Text:
    line = Text(overflow="ellipsis", no_wrap=True)
    if status.epoch is None:
        line.append("no checkpoint yet")
    else:
        line.append(f"epoch {status.epoch}", style="bold")
        if status.epoch_at is not None:
            line.append(f" {readable(max(0.0, now - status.epoch_at))} ago")
        if status.epoch_s is not None:
            line.append(f", took {readable(status.epoch_s)}")
    if status.open_epoch is not None:
        line.append(f"  epoch {status.open_epoch} in progress", style="cyan")
        if status.open_since is not None:
            line.append(f" for {readable(max(0.0, now - status.open_since))}", style="cyan")
    elif status.epoch_at is not None and status.state == "running":
        line.append(f"  next in {readable(max(0.0, status.epoch_at + status.every_s - now))}")
    if status.watermark is not None:
        line.append(f"  watermark {_moment(status.watermark)}")
    return line


def _stages(status: Status, width: int) -> Table:
    narrow = width < 100
    shown = Table(box=None, pad_edge=False, padding=(0, 1 if narrow else 2, 0, 0), header_style="bold")
    shown.add_column("stage", no_wrap=True, max_width=16 if narrow else 28)
    shown.add_column("state", no_wrap=True, max_width=15 if narrow else 28)
    for name in ("batch", "rows/s", "took", "behind"):
        shown.add_column(name, justify="right", no_wrap=True)
    shown.add_column("watermark", no_wrap=True)
    for stage in status.stages:
        shown.add_row(
            stage.name,
            _state(stage, narrow),
            str(stage.batch) if stage.batch >= 0 else "-",
            count(round(stage.rows_per_s)) if stage.rows_per_s else "-",
            readable(stage.batch_s) if stage.batch_s else "-",
            behind(stage),
            _watermark(stage),
        )
    return shown


def _state(stage: StageStatus, narrow: bool) -> Text:
    text = state_of(stage, short=narrow)
    if stage.waits_for:
        return Text.assemble(("holds ", "cyan"), text.removeprefix("holds "))
    shown = Text(text, style=STYLES.get(stage.state, ""))
    if stage.restarts and stage.first_batch_s is None:
        shown.stylize("red", len(stage.state))
    return shown


def _watermark(stage: StageStatus) -> str:
    if stage.watermark is not None:
        return _moment(stage.watermark)
    return {"unknown": "no event yet", "none": "-"}.get(stage.watermark_kind, stage.watermark_kind)


def _moment(at_ms: int) -> str:
    moment = time.localtime(at_ms / 1000)
    today = moment[:3] == time.localtime()[:3]
    return time.strftime("%H:%M:%S" if today else "%y-%m-%d %H:%M:%S", moment)


class LiveView:
    """Shows the status of a pipeline until it is closed. `status` returns `None` while the pipeline starts."""

    def __init__(self, console: Console, where: str, name: str, status: Callable[[], Status | None]) -> None:
        self._console = console
        self._where = where
        self._status = status
        self._news: deque[str] = deque(maxlen=NEWS)
        self._spinner = Spinner("dots", f"starting {name}: Spark, then its stages")
        self._last: Status | None = None
        self._live = Live(self, console=console, refresh_per_second=4)

    def start(self) -> None:
        self._live.start()

    def add_line(self, line: str) -> None:
        """Show a log line below the status."""
        self._news.append(f"{time.strftime('%H:%M:%S')} {line}")

    def close(self, state: str | None = None) -> None:
        """Leave the last picture on the screen, with the pipeline's final state."""
        if state is not None and self._last is not None:
            self._last = msgspec.structs.replace(self._last, state=state)
            self._status = lambda: None
        self._live.stop()

    def __rich__(self) -> RenderableType:
        self._last = self._status() or self._last
        if self._last is None:
            return Group(self._spinner, *(_line(line, "dim") for line in self._news))
        return view(self._last, self._where, time.time(), list(self._news), self._console.width)
