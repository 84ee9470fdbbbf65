"""Determines which entries a log contained, and checks that each followed the one before.

The chain is followed from its end. An entry names the hash of its predecessor, so if several entries were seen at one
place, the successor shows which of them is valid. Any other can have been created only after compaction had emptied the
place, by a delayed write or a process that woke up; it means nothing (rule 2).
"""

from __future__ import annotations

from cutwater.protocol.base import paths
from cutwater.protocol.base.chain import GENESIS, Entry
from cutwater.sim.checker.evidence import At, Findings, Log, Trace, Variant
from cutwater.store import recording as rec


def build_chain(trace: Trace, log: Log, findings: Findings, abandoned: bool = False) -> None:
    """Builds the chain of a log. `abandoned`: its whole generation has expired, so its places were emptied."""
    wanted: str | None = None
    for index in range(max(log.places, default=0), min(log.places, default=1) - 1, -1):
        variants = log.places.get(index, {})
        chosen = variants.get(wanted) if wanted is not None else None
        if chosen is None:
            chosen = _best(log, index)
            if chosen is not None and wanted is not None:
                after = log.chain[index + 1]
                if abandoned or _came_too_late(trace, index, chosen):
                    chosen = None
                else:
                    findings.wrong(
                        "chain",
                        f"{log.name}: entry {index + 1} does not name the hash of entry {index}",
                        *chosen.lines,
                        *after.lines,
                    )
        wanted = None
        if chosen is not None:
            log.chain[index] = chosen
            wanted = chosen.entry.prev
    first = log.chain.get(1)
    if first is not None and first.entry.prev != GENESIS:
        findings.wrong("chain", f"{log.name}: entry 1 names a predecessor", *first.lines)
    log.chain = dict(sorted(log.chain.items()))
    log.newest_snapshot = max((i for i, v in log.chain.items() if v.entry.snapshot == i), default=0)
    _check_writers(log, findings, abandoned)


def _best(log: Log, index: int) -> Variant | None:
    standing = [v for v in log.places.get(index, {}).values() if v.stands]
    before = log.places.get(index - 1, {})
    fitting = [v for v in standing if v.entry.prev in before]
    return next(iter(fitting or standing), None)


def _came_too_late(trace: Trace, index: int, variant: Variant) -> bool:
    """Whether every process that created or found the entry then saw that its place had been compacted."""
    return all(_saw_a_snapshot(trace, index, at) for at in [*variant.made, *variant.found])


def _saw_a_snapshot(trace: Trace, index: int, at: At) -> bool:
    if not isinstance(at.line, rec.Creation | rec.Reading):
        return False  # a process that announces an entry knows that it is in the log
    log = paths.log_prefix_of(at.line.name)
    for later in trace.processes[at.line.process][at.line.n :]:
        look = later.line
        if not isinstance(look, rec.Reading) or look.hash is None or look.name <= at.line.name:
            continue
        if paths.log_prefix_of(look.name) == log and (look.name, look.hash) in trace.records:
            record = trace.records[look.name, look.hash]
            return isinstance(record, Entry) and record.snapshot > index
    return False


def _check_writers(log: Log, findings: Findings, abandoned: bool) -> None:
    for index, variants in sorted(log.places.items()):
        made = [at for v in variants.values() for at in v.made]
        standing = [v for v in variants.values() if v.stands]
        if (len(made) > 1 or len(standing) > 1) and not (index < log.newest_snapshot or abandoned):
            shown = made if len(made) > 1 else [at for v in standing for at in v.lines]
            findings.wrong("one-writer", f"{log.name}: entry {index} was created more than once", *shown)
        for variant in variants.values():
            for at in [*variant.made, *variant.tried]:
                if at.line.process != variant.writer:
                    findings.wrong(
                        "one-writer",
                        f"{log.name}: {at.line.process} wrote entry {index} in the name of {variant.writer}",
                        at,
                    )
            if variant.entry.index != index:
                findings.wrong(
                    "one-writer",
                    f"{log.name}: place {index} contains entry {variant.entry.index}",
                    *variant.lines,
                )
