"""Checks what happened to the tables. A table's versions are an order of their own, common to all processes."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from cutwater.sim.checker.evidence import At, Findings, Trace
from cutwater.sim.checker.history import History
from cutwater.store import recording as rec

TableCommit = rec.Publishing | rec.Rewinding


class TableVersions:
    """What is known about each sink's table."""

    def __init__(self, trace: Trace) -> None:
        self.commits: dict[str, list[tuple[int, TableCommit, At]]] = defaultdict(list)
        """Per sink the table commits that succeeded, by version."""
        self.heads: dict[str, dict[int, tuple[int, At]]] = defaultdict(dict)
        """Per sink the transaction of each version, from its commit or from a later read."""
        self._made: dict[tuple[str, int], tuple[int, At]] = {}
        for at in (at for lines in trace.processes.values() for at in lines):
            line = at.line
            if isinstance(line, rec.TableRead):
                self.heads[line.sink].setdefault(line.version, (line.transaction, at))
            elif isinstance(line, rec.Publishing | rec.Rewinding) and isinstance(line.answer, int):
                self.commits[line.sink].append((line.answer, line, at))
                self.heads[line.sink].setdefault(line.answer, (line.transaction, at))
                self._made.setdefault((line.sink, line.transaction), (line.answer, at))
        for commits in self.commits.values():
            commits.sort(key=lambda commit: commit[0])

    def made(self, sink: str, transaction: int) -> tuple[int, At] | None:
        """The version that a transaction created, if its commit was answered."""
        return self._made.get((sink, transaction))

    def transaction(self, sink: str, version: int) -> int | None:
        """The transaction of a version, if known. A table that has forgotten it, or that others have written to since,
        still contains what was published before."""
        head = self.heads[sink].get(version)
        if head is None:
            return None
        return head[0] or max((c[1].transaction for c in self.commits[sink] if c[0] <= version), default=0)


def check_tables(
    trace: Trace, history: History, tables: TableVersions, steps: Steps, findings: Findings
) -> None:
    """Checks that only committed epochs are published, in order and once, and that no restore is skipped."""
    for sink, commits in sorted(tables.commits.items()):
        _check_order(sink, commits, findings)
        for _, line, at in commits:
            if line.knows < line.transaction:
                what = f"sink {sink}: transaction {line.transaction}, but the process knew only entry {line.knows}"
                findings.wrong("published", what, at)
            before = tables.transaction(sink, line.expected_version)
            if before is not None and before >= line.transaction:
                what = f"sink {sink}: transaction {line.transaction} on top of transaction {before}"
                findings.wrong("publish-order", what, at)
            elif before is not None:
                steps.check(sink, before, line.transaction, at)
            if isinstance(line, rec.Publishing):
                _check_publish(trace, history, line, at, findings)
            else:
                _check_rewind(history, tables, line, at, findings)
    for sink, heads in sorted(tables.heads.items()):
        for version, (transaction, at) in sorted(heads.items()):
            before = tables.transaction(sink, version - 1)
            if before is not None and before < transaction:
                steps.check(sink, before, transaction, at)


def _check_order(sink: str, commits: list[tuple[int, TableCommit, At]], findings: Findings) -> None:
    for (before, first, at_first), (after, second, at_second) in pairwise(commits):
        if (before, first.transaction) == (after, second.transaction):
            continue  # the same commit, answered twice
        if before == after or first.transaction >= second.transaction:
            what = (
                f"sink {sink}: version {before} is transaction {first.transaction}, "
                f"version {after} is transaction {second.transaction}"
            )
            findings.wrong("publish-order", what, at_first, at_second)


class Steps:
    """Checks the step from one transaction of a table to the next: whatever lies between was skipped."""

    def __init__(self, trace: Trace, history: History, findings: Findings) -> None:
        self._trace = trace
        self._history = history
        self._findings = findings
        self._seen: set[tuple[str, int, int]] = set()

    def check(self, sink: str, before: int, after: int, at: At) -> None:
        if (sink, before, after) in self._seen:
            return
        self._seen.add((sink, before, after))
        history = self._history
        restore = history.restores.get(after)
        commit = history.commits.get(after)
        if commit is not None:
            commits = history.line_before(commit, before)
            restores = history.restores_before(commit.generation, before)
        elif restore is not None:
            target = history.commits.get(restore.target)
            own = [target] if target is not None and target.index > before else []
            commits = own + (history.line_before(target, before) if target is not None else [])
            restores = history.restores_before(restore.parent, before) if restore.parent is not None else []
        else:
            return
        for earlier in commits:
            manifest = self._trace.manifests.get(earlier.manifest)
            if manifest is not None and manifest[0].release.get(sink):
                what = (
                    f"sink {sink} goes from transaction {before} to {after}: epoch {earlier.epoch} is skipped"
                )
                self._findings.wrong("publish-order", what, *earlier.lines, at)
        for missed in restores:
            if missed.topology is not None and sink in missed.topology.sinks():
                entry = history.log.chain.get(missed.index)
                what = f"sink {sink} goes from transaction {before} to {after}: restore {missed.index} is skipped"
                self._findings.wrong("rewind", what, *(entry.lines if entry is not None else ()), at)


def _check_publish(trace: Trace, history: History, line: rec.Publishing, at: At, findings: Findings) -> None:
    index, sink = line.transaction, line.sink
    commit = history.commits.get(index)
    if commit is None:
        entry = history.log.chain.get(index)
        if entry is not None:
            what = f"sink {sink} publishes under entry {index}, which is not a commit"
            findings.wrong("published", what, *entry.lines, at)
        else:
            findings.not_recorded["commit of a publish"] += 1
        return
    found = trace.manifests.get(commit.manifest)
    if found is None:
        findings.not_recorded["manifest of a publish"] += 1
    elif found[0].release.get(sink, ()) != line.files:
        what = f"sink {sink} publishes different files for epoch {commit.epoch} than its manifest names"
        findings.wrong("published", what, found[1], at)


def _check_rewind(
    history: History, tables: TableVersions, line: rec.Rewinding, at: At, findings: Findings
) -> None:
    restore = history.restores.get(line.transaction)
    if restore is None:
        entry = history.log.chain.get(line.transaction)
        if entry is not None:
            what = f"sink {line.sink} is rewound under entry {line.transaction}, which is not a restore"
            findings.wrong("rewind", what, *entry.lines, at)
        else:
            findings.not_recorded["restore of a rewind"] += 1
        return
    own = tables.transaction(line.sink, line.to_version)
    following = tables.transaction(line.sink, line.to_version + 1)
    too_new = own is not None and own > restore.target
    too_old = own is not None and following is not None and own != following <= restore.target
    if restore.target and (too_new or too_old):
        what = (
            f"sink {line.sink} is rewound to version {line.to_version} for epoch {restore.epoch}, "
            "which is not the version of that epoch"
        )
        findings.wrong("rewind", what, at)
