"""Commands that show checkpoints: `checkpoints`, `show`, `tables`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from cutwater.api.tables import versions_at
from cutwater.cli.output import (
    REF,
    AsJson,
    Ref,
    StoreUrl,
    command,
    local,
    local_ms,
    show,
    table,
)
from cutwater.documents.kept_checkpoints import KeptCheckpoint, kept, kept_checkpoints
from cutwater.documents.one_checkpoint import checkpoint_document
from cutwater.protocol.base.durations import readable
from cutwater.protocol.base.records import StageReport
from cutwater.protocol.base.watermark import Watermark, WatermarkKind
from cutwater.spark.checkpoint.offsets import topics_in
from cutwater.store.at_rest import read_journal, resolve
from cutwater.store.figures import plural, size
from cutwater.store.opening import open_store


@command
def checkpoints(store: StoreUrl = "./state", as_json: AsJson = False) -> None:
    """List the kept checkpoints."""
    where = open_store(store)
    state = read_journal(where).state
    found = kept_checkpoints(where, state)
    shown = table(
        "epoch", "savepoint", "committed", "took", "gen", "how", "watermark", "state", "published",
        right=("epoch", "took", "gen", "state"),
    )  # fmt: skip
    for one in found:
        shown.add_row(
            str(one.checkpoint.epoch),
            ", ".join(one.savepoints) or "-",
            local(one.committed_at),
            readable(one.took_s) if one.took_s is not None else "-",
            str(one.checkpoint.generation),
            ", ".join(one.labels()) or "aligned",
            local_ms(one.checkpoint.watermark),
            size(one.state_bytes),
            _published(one),
            style="dim" if one.abandoned else None,
        )
    document = {"store": where.url, "generation": state.generation, "head": state.head}
    document["checkpoints"] = [one.document() for one in found]
    if found:
        show(as_json, document, shown)
    else:
        show(as_json, document, "no checkpoint has been committed yet")


def _published(one: KeptCheckpoint) -> str:
    missing = [sink for sink, version in one.published.items() if version is None]
    if not one.published:
        return "no sinks"
    return f"not in {', '.join(missing)}" if missing else "everywhere"


@command
def show_checkpoint(ref: Ref, store: StoreUrl = "./state", as_json: AsJson = False) -> None:
    """Show one checkpoint: each stage's position, rows in flight, and the table versions that belong to it."""
    where = open_store(store)
    state = read_journal(where).state
    one = kept(where, state, resolve(state, ref))
    document = checkpoint_document(where, one)
    heading = Text.assemble(
        (f"epoch {one.checkpoint.epoch}", "bold"), f"  {', '.join(one.labels()) or 'aligned'}"
    )
    for name in one.savepoints:
        heading.append(f"  savepoint '{name}'")
    facts = Text(
        f"committed {local(one.committed_at)}, generation {one.checkpoint.generation}, checkpoint id "
        f"{one.checkpoint.checkpoint_id}, watermark {local_ms(one.checkpoint.watermark)}"
    )
    if one.manifest is None:
        show(as_json, document, heading, facts, Text(one.problem, style="red"))
        raise typer.Exit(1)
    manifest = one.manifest
    stages = table("stage", "batch", "cut", "reads up to", "watermark", "files", "state",
                   right=("batch", "files", "state"))  # fmt: skip
    for name, report in sorted(manifest.stages.items()):
        held = size(document["stages"][name]["state_bytes"]) if report.state else "-"
        stages.add_row(
            name, str(report.batch), "unaligned" if report.unaligned else "aligned", _positions(report),
            describe_watermark(report.watermark), f"{len(report.state):,}", held,
        )  # fmt: skip
    lines = [
        f"in flight  {flight.producer} → {flight.reader}: batches {flight.after + 1} to {flight.upto}, "
        f"{plural(len(flight.names()), 'file')}"
        for flight in manifest.in_flight
        if flight.names()
    ]
    lines += [
        f"source     {name}: {topic} at {_partitions(offsets)}"
        for name, stage in document["stages"].items()
        for topics in stage["topics"].values()
        for topic, offsets in sorted(topics.items())
    ]
    lines += [
        f"held       {sink}: {plural(len(files), 'file')} of windows that were still open"
        for sink, files in sorted(manifest.held.items())
        if files
    ]
    lines += [f"table      {sink}: {describe_version(version)}" for sink, version in one.published.items()]
    show(as_json, document, heading, facts, "", stages, "", *(Text(line) for line in lines))


def _positions(report: StageReport) -> str:
    inputs = [f"{name} {batch}" for name, batch in sorted(report.consumed.items())]
    sources = [_offset(offset) for _, offset in sorted(report.offsets.items())]
    return ", ".join(inputs + sources) or "-"


def _partitions(offsets: dict[int, int]) -> str:
    return ", ".join(f"{partition}:{offset}" for partition, offset in sorted(offsets.items()))


def _offset(offset: int | str) -> str:
    text = str(offset)
    if (topics := topics_in(text)) is not None:
        return ", ".join(f"{topic} ({plural(len(p), 'partition')})" for topic, p in sorted(topics.items()))
    return f"source at {text if len(text) <= 40 else text[:37] + '...'}"


def describe_watermark(mark: Watermark) -> str:
    """A stage's watermark, for people."""
    if mark.kind is WatermarkKind.NONE:
        return "none"
    if mark.kind is WatermarkKind.UNKNOWN:
        return "no event yet"
    return local_ms(mark.ms) + (" (idle)" if mark.kind is WatermarkKind.IDLE else "")


def describe_version(version: int | None) -> str:
    """A table's version, for people. A table without rows has none."""
    if version is None:
        return "not published"
    return f"version {version}" if version >= 0 else "no rows yet"


@command
def tables(
    store: StoreUrl = "./state",
    epoch: Annotated[
        str | None,
        typer.Option(
            "--epoch",
            metavar="REF",
            help=f"{REF}; by default the newest epoch that is published everywhere.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the table versions that belong to one epoch, for reading them together by time travel."""
    where = open_store(store)
    state = read_journal(where).state
    found, versions = versions_at(where, state, epoch)
    shown = table("table", "version", right=("version",))
    for sink, version in versions.items():
        shown.add_row(sink, describe_version(version).removeprefix("version "))
    text = shown if versions else "the pipeline has no sinks"
    show(as_json, {"store": where.url, "epoch": found, "tables": versions}, f"epoch {found}", text)
