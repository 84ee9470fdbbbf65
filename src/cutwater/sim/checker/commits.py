"""Checks what a commit depends on: its manifest, and the cut that the manifest describes."""

from __future__ import annotations

from cutwater.protocol.base import records as r
from cutwater.sim.checker.evidence import At, Findings, Trace
from cutwater.sim.checker.history import CommittedEpoch, History
from cutwater.sim.checker.stages import Barriers


def check_commits(trace: Trace, history: History, barriers: Barriers, findings: Findings) -> None:
    """Checks that every committed cut agrees with its manifest and is consistent."""
    for commit in history.commits.values():
        if commit.index not in history.log.chain:
            continue  # known only from a SNAPSHOT
        found = trace.manifests.get(commit.manifest)
        if found is None:
            findings.not_recorded["manifest of a commit"] += 1
            continue
        manifest, at = found
        lines = (at, *commit.lines)
        _check_agreement(commit, manifest, lines, findings)
        topology = history.topology_of(commit.checkpoint_id)
        if topology is None:
            findings.not_recorded["topology of a commit"] += 1
        else:
            _check_cut(topology, manifest, lines, findings)
        _check_barriers(manifest, barriers, lines, findings)


def _check_agreement(
    commit: CommittedEpoch, manifest: r.Manifest, lines: tuple[At, ...], findings: Findings
) -> None:
    said = {
        "epoch": (commit.epoch, manifest.epoch),
        "checkpoint id": (commit.checkpoint_id, manifest.checkpoint_id),
        "generation": (commit.generation, manifest.generation),
        "watermark": (commit.watermark, manifest.watermark),
        "cuts": (commit.cuts, {name: report.batch for name, report in manifest.stages.items()}),
    }
    for what, (ours, theirs) in said.items():
        if ours != theirs:
            findings.wrong(
                "manifest",
                f"epoch {commit.epoch} is committed with {what} {ours}, but its manifest says {theirs}",
                *lines,
            )


def _check_cut(topology: r.Topology, manifest: r.Manifest, lines: tuple[At, ...], findings: Findings) -> None:
    where = f"epoch {manifest.epoch}"
    if manifest.stages.keys() != topology.stages.keys():
        other = sorted(manifest.stages.keys() ^ topology.stages.keys())
        findings.wrong(
            "cut", f"{where}: {', '.join(other)} is in the cut or in the graph, but not in both", *lines
        )
        return
    flights = {(f.producer, f.reader): f for f in manifest.in_flight}
    for name, spec in sorted(topology.stages.items()):
        report = manifest.stages[name]
        for producer in spec.inputs:
            channel = f"{where}, channel {producer} → {name}"
            consumed, produced = report.consumed.get(producer), manifest.stages[producer].batch
            if consumed is None or consumed > produced:
                findings.wrong("cut", f"{channel}: consumed {consumed}, produced {produced}", *lines)
                continue
            flight = flights.get((producer, name))
            batches = flight.batches if flight is not None else {}
            if set(batches) != set(range(consumed + 1, produced + 1)):
                what = f"consumed {consumed}, produced {produced}, in flight {sorted(batches)}"
                findings.wrong("cut", f"{channel}: {what}", *lines)
            elif not report.unaligned and any(batches.values()):
                what = f"aligned cut at {consumed}, but rows up to {produced} were not consumed"
                findings.wrong("cut", f"{channel}: {what}", *lines)


def _check_barriers(
    manifest: r.Manifest, barriers: Barriers, lines: tuple[At, ...], findings: Findings
) -> None:
    for name, report in sorted(manifest.stages.items()):
        found = barriers.get((name, manifest.checkpoint_id))
        if found is None:
            findings.not_recorded["barrier of a cut"] += 1
            continue
        barrier, at = found
        for what in ("batch", "unaligned", "incarnation", "consumed", "offsets", "watermark"):
            said, logged = getattr(report, what), getattr(barrier, what)
            if said != logged:
                message = f"epoch {manifest.epoch}: {name} was cut with {what} {logged}, but the manifest says {said}"
                findings.wrong("cut", message, *at, *lines)
