"""The checker: whether a recorded run, simulated or real, followed the rules.

It reads the recordings of the processes (`cutwater.store.recording`) and judges them with its own implementation of the
design. From the protocol's code it uses only the formats, nothing that decides. Gaps in a recording, because a process
was killed in the middle of a line or was not recorded at all, are counted and never reported as problems.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from cutwater.protocol.base import paths
from cutwater.protocol.base import records as r
from cutwater.protocol.base.wire import Ack, Announcement
from cutwater.sim.checker.chains import build_chain
from cutwater.sim.checker.commits import check_commits
from cutwater.sim.checker.deletions import check_deletions
from cutwater.sim.checker.evidence import Findings, Problem, Trace, load
from cutwater.sim.checker.history import History, Reader
from cutwater.sim.checker.processes import check_processes
from cutwater.sim.checker.stages import read_stages
from cutwater.sim.checker.table_versions import Steps, TableVersions, check_tables
from cutwater.store import recording as rec

RULES = {
    "trace": "the trace is complete: no process's line is missing, and every record matches its hash",
    "one-writer": "every place in a log was created once, by the process that the entry names",
    "chain": "every entry names the hash of the entry before it",
    "terms": "terms increase",
    "leader": "only the leader of a term writes in it",
    "fenced": "nobody writes in a term or a generation that is over",
    "checkpoint-id": "a checkpoint's id is the index of its BEGUN entry",
    "one-fate": "an epoch is begun once and decided at most once, and not after it became void",
    "watermark": "the pipeline-wide watermark never goes back",
    "restored": "a restore goes to the cut of a retained checkpoint",
    "expired": "neither the newest checkpoint nor a savepoint expires",
    "snapshot": "a SNAPSHOT of the journal agrees with the entries before it",
    "incarnation": "only the newest incarnation of a stage writes to its log",
    "batch": "the batches of a stage are consecutive, and positions never go back",
    "barrier": "a stage is cut once per checkpoint, after its last batch, by its newest incarnation",
    "acks": "a commit comes after an ack of every member",
    "reports": "an ack comes after the barriers that it reports, and a manifest agrees with the members' acks",
    "manifest": "a commit comes after its manifest, and agrees with it",
    "cut": "every committed cut is consistent, and agrees with the stages' logs",
    "published": "only a committed epoch is published, with the files that its manifest names",
    "publish-order": "a table's transactions increase, each is published once, and none is skipped",
    "rewind": "a table is rewound exactly when a restore requires it, to the version of its epoch",
    "mark": "an epoch is marked as published only after it was published, with its version",
    "deleted": "nothing is deleted that a retained checkpoint or a reader of a log may need",
    "announced": "nothing is announced before it is in the journal",
}
"""What is checked, by the name of the rule."""


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a check."""

    counts: dict[str, int]
    not_recorded: dict[str, int]
    problems: list[Problem]


def check_recording(path: Path) -> Report:
    """Checks a trace: a file, or a folder of files. Raises `OSError` if there is none to read."""
    findings = Findings()
    trace = load(path, findings)
    build_chain(trace, trace.journal, findings)
    history = Reader(trace.journal, findings).read()
    for (_, generation), log in sorted(trace.stages.items()):
        build_chain(trace, log, findings, abandoned=generation in history.gone_generations)
    barriers = read_stages(trace, history, findings)
    tables, steps = TableVersions(trace), Steps(trace, history, findings)
    check_commits(trace, history, barriers, findings)
    check_processes(trace, history, tables, steps, findings)
    check_tables(trace, history, tables, steps, findings)
    check_deletions(trace, history, findings)
    _count_gaps(trace, findings)
    return Report(
        _counts(trace, history, tables), dict(sorted(findings.not_recorded.items())), findings.problems
    )


def _count_gaps(trace: Trace, findings: Findings) -> None:
    logs = [trace.journal, *trace.stages.values()]
    places = sum(max(log.chain) - min(log.chain) + 1 - len(log.chain) for log in logs if log.chain)
    silent = {v.writer for log in logs for v in log.chain.values()} - trace.processes.keys()
    for what, count in (("log entry", places), ("process that wrote an entry", len(silent))):
        if count:
            findings.not_recorded[what] += count


def _counts(trace: Trace, history: History, tables: TableVersions) -> dict[str, int]:
    lines = Counter(type(at.line) for found in trace.processes.values() for at in found)
    messages = [
        at.line.message for found in trace.processes.values() for at in found if isinstance(at.line, rec.Sent)
    ]
    bodies = Counter(type(v.entry.body) for log in trace.stages.values() for v in log.chain.values())
    made = [line for commits in tables.commits.values() for _, line, _ in commits]
    committed = sum(index in history.log.chain for index in history.commits)
    return {
        "members": len(set(filter(None, trace.members.values()))),
        "processes": len(trace.processes),
        "commands": sum(not member for member in trace.members.values()),
        "processes that reported their end": len(trace.ended),
        "lines": sum(lines.values()),
        "journal entries": len(history.log.chain),
        "terms": sum(isinstance(v.entry.body, r.Leader) for v in history.log.chain.values()),
        "epochs begun": sum(isinstance(v.entry.body, r.Begun) for v in history.log.chain.values()),
        "epochs committed": committed,
        "epochs aborted": history.aborted,
        "epochs void": history.void,
        "restores": sum(index in history.log.chain for index in history.restores),
        "stage log entries": sum(bodies.values()),
        "batches": bodies[r.Batch],
        "barriers": bodies[r.BarrierAt],
        "manifests": len(trace.manifests),
        "acks sent": sum(isinstance(m, Ack) for m in messages),
        "announcements sent": sum(isinstance(m, Announcement) for m in messages),
        "publishes": sum(isinstance(line, rec.Publishing) for line in made),
        "rewinds": sum(isinstance(line, rec.Rewinding) for line in made),
        "marks": len({name for name, _ in trace.records if name.startswith(paths.MARK_PREFIX)}),
        "deletions": lines[rec.Deletion],
    }
