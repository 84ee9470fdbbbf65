"""Invariants of the journal: terms, one fate per epoch, savepoints, requests, expiry."""

from __future__ import annotations

from typing import assert_never

from cutwater.protocol.base import paths
from cutwater.protocol.base import records as r
from cutwater.protocol.base.chain import Sealed, follows
from cutwater.protocol.base.failures import FailureReason
from cutwater.sim.ledger import is_drain
from cutwater.sim.oracle.cuts import Cuts
from cutwater.sim.oracle.facts import short
from cutwater.sim.oracle.restores import Restores


class JournalEntries(Cuts, Restores):
    """Checks each entry of the journal."""

    def _journal_entry(self, sealed: Sealed[r.JournalBody]) -> None:
        ledger, entry = self.ledger, sealed.entry
        if entry.index <= ledger.snapshot:
            self.world.trace(None, f"a late write in the compacted place {entry.index}")
            return
        if not follows(self._chain, sealed):
            self.violation(f"journal entry {entry.index} does not continue the chain at {ledger.last}")
        self._chain = sealed
        ledger.last = entry.index
        ledger.hashes[entry.index] = sealed.hash
        if entry.snapshot == entry.index:
            ledger.snapshot = entry.index
        self._fold(entry.body, entry.index)
        ledger.states[entry.index] = ledger.view()
        if self.world.tracer is not None:
            self.world.trace(None, f"journal {entry.index}: {short(entry.body)}")

    def _fold(self, body: r.JournalBody, index: int) -> None:
        ledger = self.ledger
        if isinstance(body, r.Leader):
            if body.term <= ledger.term:
                self.violation(f"term {body.term} was used before")
            resumes = ledger.drained and body.resumes
            if resumes and self.world.last_start_ms.get(body.name, -1) < ledger.drained_ms:
                self.violation(f"{body.name} restarts a drained pipeline that no user has started again")
            ledger.leader = body.name
            ledger.term, ledger.open, ledger.drained = body.term, {}, ledger.drained and not body.resumes
            return
        if body.term != ledger.term:
            self.violation(f"the leader of term {body.term} wrote {short(body)} in term {ledger.term}")
        match body:
            case r.TopologySet():
                if ledger.topology is not None:
                    self.violation("the graph changes without a restore")
                ledger.topology, ledger.topology_hash = body.topology, body.hash
            case r.Begun():
                if body.epoch in ledger.used:
                    self.violation(f"epoch {body.epoch} was begun before")
                ledger.used.add(body.epoch)
                ledger.begun_ids.add((body.epoch, body.checkpoint_id))
                ledger.open[body.epoch] = body
                self._check_once(body)
            case r.Aborted():
                if body.reason == FailureReason.INCONSISTENT_CUT.value:
                    self.violation(
                        f"the acked parts of epoch {body.epoch} are not a consistent cut: {body.detail}"
                    )
                self._close(body)
                self._carried_out(body.request, None)
                ledger.aborted.append((self.world.now_ms, index, body))
            case r.Committed():
                begun = self._close(body)
                self._committed(begun, body, index)
                for request in begun.requests:
                    self._carried_out(request, body.epoch)
            case r.Restored():
                self._restored(body, index)
                self._carried_out(body.request, body.epoch)
            case r.Expired():
                self._expired(body)
            case r.Savepoint():
                self._named_savepoint(body)
                self._carried_out(body.request, body.epoch)
            case r.Snapshot():
                pass
            case _:
                assert_never(body)

    def _check_once(self, begun: r.Begun) -> None:
        """With `once` nothing is drained before all sources are read completely, unless a user requests it."""
        if not self.world.member_config.once or not is_drain(begun) or begun.requests:
            return
        for name, spec in self.world.graph.stages.items():
            if not spec.inputs and (name, begun.generation) not in self.world.took_all:
                self.violation(f"epoch {begun.epoch} drains the pipeline before the source of {name} is read")

    def _named_savepoint(self, body: r.Savepoint) -> None:
        savepoints = self.ledger.savepoints
        if body.kept:
            if body.epoch not in self.ledger.kept:
                self.violation(f"savepoint '{body.name}' is epoch {body.epoch}, which is not kept")
            if savepoints.get(body.name, body.epoch) != body.epoch:
                self.violation(f"savepoint '{body.name}' of epoch {savepoints[body.name]} loses its name")
            savepoints[body.name] = body.epoch
        elif savepoints.pop(body.name, None) != body.epoch:
            self.violation(f"savepoint '{body.name}' is forgotten, which epoch {body.epoch} does not have")

    def _carried_out(self, request: str, epoch: int | None) -> None:
        if request and request in self.ledger.requests:
            self.violation(f"request {request} was carried out twice")
        if request:
            self.ledger.requests[request] = epoch

    def _close(self, body: r.Aborted | r.Committed) -> r.Begun:
        begun = self.ledger.open.pop(body.epoch, None)
        if begun is None or begun.checkpoint_id != body.checkpoint_id:
            self.violation(f"epoch {body.epoch} is decided, but it is not open: a second decision")
        return begun

    def _expired(self, body: r.Expired) -> None:
        ledger = self.ledger
        for epoch in body.epochs:
            kept = ledger.kept.pop(epoch, None)
            if kept is None:
                continue
            if epoch == ledger.head:
                self.violation(f"epoch {epoch} expired, but a restart or restore needs it")
            if epoch in ledger.savepoints.values():
                self.violation(f"epoch {epoch} expired, but it is a savepoint")
            for sink in self.world.graph.sinks():
                if not self._has_settled(sink, kept.index):
                    self.violation(f"epoch {epoch} expired before {sink} had settled it")
            ledger.expired.add(epoch)
            for child in ledger.kept.values():
                if child.parent == epoch:
                    child.parent = kept.parent
            for named in self.manifests[epoch].objects():
                self._named[named].discard(epoch)
        ledger.gone_generations.update(body.generations)
        ledger.floors, ledger.pinned = body.floors, body.pinned

    def _has_settled(self, sink: str, index: int) -> bool:
        marks = self.world.store.list(paths.mark_prefix(sink), paths.mark_name(index - 1, sink))
        return bool(marks) or self.world.tables[sink].transaction >= index
