"""Whether stages' reports form a consistent cut, and the manifest that they make.

`check_cut` is the only definition of a consistent cut. The leader calls it before it commits, and `verify` calls it
again. A cut is consistent if every stage is in it once, no channel has more consumed than produced, an aligned reader
has nothing left between its position and the barrier, and every report says what the stage's own log says.
"""

from __future__ import annotations

from collections.abc import Mapping

from cutwater.protocol.base.records import (
    Begun,
    InFlight,
    JournalState,
    Manifest,
    Position,
    StagedFile,
    StageReport,
    StageState,
    Topology,
    columns,
)
from cutwater.protocol.base.watermark import advance
from cutwater.protocol.member.channel import Channel, carried_batches
from cutwater.protocol.member.publish import contents

Logs = Mapping[str, StageState]


def check_cut(
    topology: Topology,
    begun: Begun,
    reports: Mapping[str, StageReport],
    logs: Logs,
    previous: Manifest | None,
) -> list[str]:
    """Descriptions of everything that is wrong with a cut; empty if it is consistent.

    `logs` are the stages' logs in this generation, `previous` the manifest of the newest checkpoint.
    """
    problems = [f"stage {s} is missing" for s in sorted(topology.stages.keys() - reports.keys())]
    problems += [f"stage {s} is not in the topology" for s in sorted(reports.keys() - topology.stages.keys())]
    for name in sorted(topology.stages.keys() & reports.keys()):
        problems += _check_log(begun, reports[name], logs[name])
    if problems:  # positions are compared only where they are what the logs say
        return problems
    for name in sorted(topology.stages):
        for producer in topology.stages[name].inputs:
            channel = Channel(logs[producer], carried_batches(previous, name, producer))
            problems += _check_channel(reports[name], reports[producer], channel)
    return problems


def _check_log(begun: Begun, report: StageReport, log: StageState) -> list[str]:
    barrier = log.barriers.get(begun.epoch)
    if barrier is None or barrier.checkpoint_id != begun.checkpoint_id:
        return [f"stage {report.stage} has no barrier of checkpoint {begun.checkpoint_id} in its log"]
    problems = []
    for field in ("batch", "unaligned", "incarnation", *Position.__struct_fields__):
        said, logged = getattr(report, field), getattr(barrier, field)
        if said != logged:
            problems.append(f"stage {report.stage} reports {field} {said}, its log says {logged}")
    return problems


def _check_channel(reader: StageReport, producer: StageReport, channel: Channel) -> list[str]:
    consumed = reader.consumed.get(producer.stage)
    where = f"channel {producer.stage} → {reader.stage}"
    if consumed is None:
        return [f"{where}: no position reported"]
    if consumed > producer.batch:
        return [f"{where}: consumed {consumed}, but only {producer.batch} were produced at the cut"]
    if not reader.unaligned and channel.unread(consumed, producer.batch):
        return [f"{where}: cut as aligned at {consumed}, but rows up to {producer.batch} were not consumed"]
    return []


def merge_reports(
    topology: Topology, parts: Mapping[str, Mapping[str, StageReport]]
) -> tuple[dict[str, StageReport], list[str]]:
    """The reports of all stages from all members; and descriptions of those that come from a member that does not host
    the stage."""
    reports: dict[str, StageReport] = {}
    problems: list[str] = []
    for member, part in sorted(parts.items()):
        for name, report in part.items():
            spec = topology.stages.get(name)
            if spec is not None and spec.member != member:
                problems.append(f"stage {name} is reported by {member}, but {spec.member} hosts it")
            reports[name] = report
    return reports, problems


def make_manifest(
    state: JournalState,
    begun: Begun,
    reports: Mapping[str, StageReport],
    logs: Logs,
    previous: Manifest | None,
) -> Manifest:
    """The manifest of a consistent cut: positions, in-flight batches, what sinks publish and hold."""
    topology = state.topology
    assert topology is not None
    watermark = advance(state.watermark, (reports[s].watermark for s in sorted(reports)))
    in_flight: list[InFlight] = []
    release: dict[str, tuple[str, ...]] = {}
    held: dict[str, tuple[StagedFile, ...]] = {}
    for name in sorted(topology.stages):
        spec, report = topology.stages[name], reports[name]
        for producer in spec.inputs:
            channel = Channel(logs[producer], carried_batches(previous, name, producer))
            after, upto = report.consumed[producer], reports[producer].batch
            if after < upto:
                written = columns(topology.stages[producer].schema)
                in_flight.append(
                    InFlight(producer, name, after, upto, channel.between(after, upto), {}, written)
                )
        since = state.head_cuts.get(name, -1)
        batches = [logs[name].batches[b] for b in range(since + 1, report.batch + 1)]
        for sink in spec.sinks:
            before = previous.held.get(sink.name, ()) if previous is not None else ()
            release[sink.name], kept = contents(batches, sink, before, watermark)
            if kept:
                held[sink.name] = kept
    return Manifest(
        epoch=begun.epoch,
        checkpoint_id=begun.checkpoint_id,
        generation=begun.generation,
        term=begun.term,
        flags=begun.flags,
        savepoint=begun.savepoint,
        topology_hash=begun.topology_hash,
        stages=dict(reports),
        in_flight=tuple(in_flight),
        release=release,
        held=held,
        watermark=watermark,
        chained=topology.chained,
    )
