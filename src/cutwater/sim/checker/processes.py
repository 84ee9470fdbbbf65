"""Checks each process's actions in their order: nothing may come before what it depends on."""

from __future__ import annotations

from collections import defaultdict
from typing import assert_never

from cutwater.protocol.base import paths
from cutwater.protocol.base import records as r
from cutwater.protocol.base.chain import Entry
from cutwater.protocol.base.wire import Ack, Announcement, Phase
from cutwater.sim.checker.evidence import At, Findings, Trace
from cutwater.sim.checker.history import History
from cutwater.sim.checker.table_versions import Steps, TableVersions
from cutwater.store import recording as rec

ENTRIES = {Phase.PREPARE: r.Begun, Phase.COMMIT: r.Committed, Phase.ABORT: r.Aborted}
"""The entry that must be in the journal before each announcement."""


class Walk:
    """Walks through one process's lines, from first to last."""

    def __init__(
        self,
        trace: Trace,
        history: History,
        tables: TableVersions,
        steps: Steps,
        process: str,
        findings: Findings,
    ) -> None:
        self._trace = trace
        self._history = history
        self._tables = tables
        self._steps = steps
        self._process = process
        self._findings = findings
        self._stands: dict[tuple[str, str], At] = {}
        """What this process knows to be in the store, by name and hash."""
        self._entries: dict[tuple[type, int, int], tuple[r.Begun | r.Committed | r.Aborted, At]] = {}
        self._barriers: set[tuple[str, int]] = set()
        """The barriers that this process knows to be in the logs, by stage and checkpoint."""
        self._acks: dict[tuple[str, int, int, int], list[tuple[Ack, At]]] = defaultdict(list)
        self._transactions: dict[str, set[int]] = defaultdict(set)
        """Per sink the transactions that this process made, or saw in the table or in marks."""
        self._lost: set[tuple[str, int]] = set()
        self._hears = False
        """Whether this process's recording contains received messages at all."""
        self._term = 0
        self._judged: set[tuple[str, str]] = set()

    def run(self) -> None:
        for at in self._trace.processes[self._process]:
            self._line(at)
        for variant in self._history.log.chain.values():  # written, but killed before it could record that
            body = variant.entry.body
            if variant.writer == self._process and isinstance(body, r.Committed):
                self._commit(body, variant.hash, *variant.lines)

    def _line(self, at: At) -> None:
        line = at.line
        match line:
            case rec.Creation():
                record = self._trace.records.get((line.name, line.hash))
                if isinstance(record, Entry) and isinstance(record.body, r.Committed):
                    self._commit(record.body, line.hash, at)
                elif isinstance(record, r.Published):
                    self._mark(record, line, at)
                if line.answer == "created":
                    self._is_there(line.name, line.hash, at)
                    self._append(line.name, record, at)
            case rec.Reading():
                if line.hash is not None:
                    self._is_there(line.name, line.hash, at)
            case rec.Sent():
                self._sent(line.message, at)
            case rec.Received():
                self._hears = True
                if isinstance(line.message, Ack):
                    self._heard(line.message, at)
            case rec.Publishing() | rec.Rewinding():
                if isinstance(line.answer, int):
                    self._transactions[line.sink].add(line.transaction)
            case rec.TableRead():
                self._transactions[line.sink].add(line.transaction)
            case rec.TableSearch():
                if line.version is None:
                    self._lost.add((line.sink, line.transaction))
            case rec.Began() | rec.Ended() | rec.Deletion() | rec.Copying():
                pass
            case _:
                assert_never(line)

    def _sent(self, message: Announcement | Ack | None, at: At) -> None:
        if isinstance(message, Announcement):
            self._announce(message, at)
        elif isinstance(message, Ack):
            self._acknowledge(message, at)
            if message.member == self._trace.members.get(self._process):
                self._heard(message, at)  # a leader's own ack need not be sent

    def _is_there(self, name: str, hashed: str, at: At) -> None:
        self._stands.setdefault((name, hashed), at)
        record = self._trace.records.get((name, hashed))
        if isinstance(record, Entry) and isinstance(record.body, r.Begun | r.Committed | r.Aborted):
            body = record.body
            self._entries.setdefault((type(body), body.epoch, body.checkpoint_id), (body, at))
        elif isinstance(record, Entry) and isinstance(record.body, r.BarrierAt | r.StageSnapshot):
            of = paths.stage_entry_of(name)
            assert of is not None
            self._know_barriers(of.stage, record.body)
        elif isinstance(
            record, r.Published
        ):  # a mark is evidence too, because a table may forget its transactions
            self._transactions[record.sink].add(record.index)

    def _know_barriers(self, stage: str, body: r.BarrierAt | r.StageSnapshot) -> None:
        barriers = body.state.barriers.values() if isinstance(body, r.StageSnapshot) else [body]
        self._barriers.update({(stage, barrier.checkpoint_id) for barrier in barriers})

    def _heard(self, ack: Ack, at: At) -> None:
        if ack.ok:
            self._acks[ack.member, ack.epoch, ack.checkpoint_id, ack.term].append((ack, at))

    # --- the journal ----------------------------------------------------------------------------------

    def _append(self, name: str, record: object, at: At) -> None:
        if paths.journal_entry_of(name) is not None and isinstance(record, Entry):
            if record.body.term < self._term:
                what = f"{self._process} appends in term {record.body.term}, after term {self._term}"
                self._findings.wrong("fenced", what, at)
            self._term = max(self._term, record.body.term)

    def _commit(self, body: r.Committed, hashed: str, *lines: At) -> None:
        """COMMITTED requires the manifest, which requires an ack of every member."""
        key = "commit", hashed
        if key in self._judged:
            return
        self._judged.add(key)
        manifest = paths.manifest_name(body.epoch, body.checkpoint_id)
        if (manifest, body.manifest) not in self._stands:
            what = f"epoch {body.epoch} is committed before its manifest is in the store"
            self._findings.wrong("manifest", what, *lines)
        topology = self._history.topology_of(body.checkpoint_id)
        if topology is None:
            self._findings.not_recorded["topology of a commit"] += 1
            return
        found = self._trace.manifests.get(body.manifest)
        stages = found[0].stages if found is not None else {}
        for member in topology.members():
            acks = self._acks.get((member, body.epoch, body.checkpoint_id, body.term), [])
            if not acks and not self._hears:
                self._findings.not_recorded["messages that a leader received"] += 1
            elif not acks:
                what = f"epoch {body.epoch} is committed, but {self._process} has no ack of {member} for it"
                self._findings.wrong("acks", what, *lines)
            elif found is not None and not any(
                ack.reports == {s: stages.get(s) for s in topology.hosted(member)} for ack, _ in acks
            ):
                what = f"the manifest of epoch {body.epoch} does not agree with the ack of {member}"
                self._findings.wrong("reports", what, acks[-1][1], found[1], *lines)

    # --- messages -------------------------------------------------------------------------------------

    def _acknowledge(self, ack: Ack, at: At) -> None:
        for stage in ack.reports:
            if (stage, ack.checkpoint_id) not in self._barriers:
                what = f"{self._process} acks epoch {ack.epoch} before the barrier of {stage} is in its log"
                self._findings.wrong("reports", what, at)

    def _announce(self, said: Announcement, at: At) -> None:
        kind = ENTRIES[said.phase]
        known = self._entries.get((kind, said.epoch, said.checkpoint_id))
        if known is None:
            what = f"{said.phase.value} of epoch {said.epoch} is announced, but {kind.__name__.upper()} is not written"
            self._findings.wrong("announced", what, at)
        elif isinstance(known[0], r.Committed) and known[0].watermark != said.watermark:
            what = (
                f"the commit of epoch {said.epoch} is announced with watermark {said.watermark}, "
                f"not {known[0].watermark}"
            )
            self._findings.wrong("announced", what, known[1], at)

    # --- marks ----------------------------------------------------------------------------------------

    def _mark(self, mark: r.Published, line: rec.Creation, at: At) -> None:
        if (line.name, line.hash) in self._judged:
            return
        self._judged.add((line.name, line.hash))
        if mark.index not in self._transactions[mark.sink]:
            commit = self._history.commits.get(mark.index)
            manifest = self._trace.manifests.get(commit.manifest) if commit is not None else None
            if manifest is None and mark.index not in self._history.restores:
                self._findings.not_recorded["manifest of a mark"] += 1
            elif manifest is None or manifest[0].release.get(mark.sink):
                what = f"sink {mark.sink}: epoch {mark.epoch} is marked before it was published"
                self._findings.wrong("mark", what, at)
            else:  # it has no rows, so there is only the mark; earlier transactions are in the table
                self._steps.check(mark.sink, max(self._transactions[mark.sink], default=0), mark.index, at)
            return
        made = self._tables.made(mark.sink, mark.index)
        lost = (mark.sink, mark.index) in self._lost
        if made is not None and made[0] != mark.version and not lost:
            what = (
                f"sink {mark.sink}: epoch {mark.epoch} is version {made[0]}, but its mark says {mark.version}"
            )
            self._findings.wrong("mark", what, made[1], at)


def check_processes(
    trace: Trace, history: History, tables: TableVersions, steps: Steps, findings: Findings
) -> None:
    """Checks every process's recording."""
    for process in trace.processes:
        Walk(trace, history, tables, steps, process, findings).run()
