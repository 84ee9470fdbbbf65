"""Checks that nothing was deleted that may still be needed."""

from __future__ import annotations

from collections import defaultdict

from cutwater.protocol.base import paths
from cutwater.sim.checker.evidence import At, Findings, Trace, log_of, place_of
from cutwater.sim.checker.history import CommittedEpoch, History
from cutwater.store import recording as rec


def check_deletions(trace: Trace, history: History, findings: Findings) -> None:
    """Checks every deletion, whatever its answer was."""
    named: dict[str, list[CommittedEpoch]] = defaultdict(list)
    for commit in history.commits.values():
        found = trace.manifests.get(commit.manifest)
        for name in found[0].objects() if found is not None else ():
            named[name].append(commit)
    for at in (at for lines in trace.processes.values() for at in lines):
        if isinstance(at.line, rec.Deletion):
            for name in at.line.names:
                for commit in named.get(name, ()):
                    _check_over(history, name, commit.epoch, commit.index, at, findings, commit.lines)
                of_checkpoint = paths.checkpoint_of(name)
                if of_checkpoint is not None:
                    since = of_checkpoint.checkpoint_id
                    _check_over(history, name, of_checkpoint.epoch, since, at, findings, ())
                elif paths.log_prefix_of(name) is not None:
                    _check_entry(trace, history, name, at, findings)


def _check_over(
    history: History,
    name: str,
    epoch: int,
    since: int,
    at: At,
    findings: Findings,
    lines: tuple[At, ...],
) -> None:
    """The epoch must be over by the part of the journal that the process knew when it began to delete."""
    knew = at.line.knows
    over = history.over.get(epoch)
    if over is not None and over <= knew:
        return
    if not history.log.whole(max(since, 1), max(since, knew)):
        findings.not_recorded["end of an epoch whose objects were deleted"] += 1
        return
    fate = "is kept" if epoch in history.epochs else "is open"
    what = f"{at.line.process}, which knew the journal up to {knew}, deletes {name}, but epoch {epoch} {fate}"
    findings.wrong("deleted", what, *lines, at)


def _check_entry(trace: Trace, history: History, name: str, at: At, findings: Findings) -> None:
    """A log entry may be deleted only if a later SNAPSHOT covers it, or with its whole generation."""
    journal = paths.journal_entry_of(name) is not None
    if paths.generation_of(name) in history.gone_generations:
        return
    log, index = log_of(trace, name), place_of(name)
    if log.newest_snapshot > index:
        return
    if not journal and not history.log.whole(min(history.log.chain, default=1), at.line.knows):
        findings.not_recorded["end of a generation whose objects were deleted"] += 1
    elif log.whole(index, max(log.chain, default=0)) and log.chain:
        findings.wrong("deleted", f"{name} is deleted, but no snapshot covers it", at)
    else:
        findings.not_recorded["snapshot of a log whose entries were deleted"] += 1
