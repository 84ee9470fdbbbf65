"""What a stage's status says in words, for the live view, for `cutwater status` and for notebooks."""

from __future__ import annotations

from cutwater.protocol.base.durations import readable
from cutwater.store.figures import count, plural, size
from cutwater.store.stage_status import SourceLag, StageStatus

PARTITIONS = 5
"""How many partitions of a source are named."""


def state_of(stage: StageStatus, short: bool = False) -> str:
    """What the stage is doing."""
    if stage.runs_in:
        return f"in {stage.runs_in}"
    if stage.waits_for:
        return f"holds {stage.waits_for}"
    if stage.first_batch_s is not None:
        lasts = readable(stage.first_batch_s)
        return f"1st batch {lasts}" if short else f"in its first batch for {lasts}"
    return f"{stage.state} ({stage.restarts})" if stage.restarts else stage.state


def behind(stage: StageStatus) -> str:
    """How far it is behind everything that it reads, in the unit that says most."""
    sources = stage.sources
    rows = stage.lag_rows + sum(source.rows or 0 for source in sources)
    files = sum(source.files or 0 for source in sources)
    length = sum(source.bytes or 0 for source in sources)
    longest = max((source.seconds or 0.0 for source in sources), default=0.0)
    if rows:
        return f"{count(rows)} rows" if rows > 1 else "1 row"
    if files:
        return plural(files, "file")
    if length:
        return size(length)
    if longest:
        return readable(longest)
    return plural(stage.lag_batches, "batch") if stage.lag_batches else "-"


def source_lines(stage: StageStatus) -> list[str]:
    """One line for each of its own sources that it is behind; of a source with partitions, the largest first."""
    return [f"{stage.name} is behind {text}" for source in stage.sources if (text := _lag(source))]


def rule_lines(stage: StageStatus) -> list[str]:
    """A line with the rules that rows of the stage have violated."""
    broken = [rule for rule in stage.rules if rule.total]
    if not broken:
        return []
    where = "dropped" if stage.on_violation == "drop" else f"in quarantine {stage.on_violation}"
    texts = (f"'{rule.name}' by {plural(rule.rows, 'row')} ({count(rule.total)} in all)" for rule in broken)
    return [f"{stage.name}: rules violated in the newest epoch: {', '.join(texts)}; {where}"]


def _lag(source: SourceLag) -> str:
    partitions = sorted(((n, p) for p, n in source.partitions.items() if n), key=lambda of: (-of[0], of[1]))
    if partitions:
        more = f", {len(partitions) - PARTITIONS} more" if len(partitions) > PARTITIONS else ""
        return ", ".join(f"{partition} {count(rows)}" for rows, partition in partitions[:PARTITIONS]) + more
    parts = [
        f"{count(source.rows)} rows" if source.rows else "",
        plural(source.files, "file") if source.files else "",
        size(source.bytes) if source.bytes else "",
        readable(source.seconds) if source.seconds else "",
    ]
    amount = ", ".join(part for part in parts if part)
    return f"{source.source} by {amount}" if amount else ""
