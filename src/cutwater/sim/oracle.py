"""The oracle: sees everything that becomes durable, and checks the invariants of the design.

It interprets the logs independently (`ledger.py`), and knows which events every attempt at a batch really read and
wrote. So it knows exactly which events are in every committed cut and every table version.
"""

from __future__ import annotations

from typing import Any, NoReturn, Protocol, assert_never

import msgspec

from cutwater.protocol.base import paths
from cutwater.protocol.base import records as r
from cutwater.protocol.base.chain import Sealed, follows
from cutwater.protocol.base.effects import ReadTableHistory
from cutwater.protocol.base.failures import FailureReason
from cutwater.protocol.base.replay_wire import AskRange, Compacted, EntriesChunk, FetchEntries, HaveRange
from cutwater.protocol.base.replay_wire import Message as ReplayMessage
from cutwater.protocol.base.watermark import WatermarkKind
from cutwater.protocol.base.wire import (
    Ack,
    Announcement,
    Heartbeat,
    LogGrown,
    Phase,
    Reply,
    RequestKind,
    SourcesDone,
)
from cutwater.protocol.base.wire import Message as WireMessage
from cutwater.protocol.base.wire import Request as WireRequest
from cutwater.protocol.member.stage import Stage, StagePhase
from cutwater.sim.ledger import Kept, Ledger, StageLedger, is_drain, member_view
from cutwater.sim.scene import ProcessView
from cutwater.sim.spark import SparkScene, input_progress
from cutwater.sim.store import checksum_of
from cutwater.sim.topology import WINDOW, Path


class Violation(Exception):
    """An invariant does not hold."""


class WatchedScene(SparkScene, Protocol):
    """A world with its oracle."""

    @property
    def oracle(self) -> Oracle: ...


class Oracle:
    """Checks one world."""

    def __init__(self, world: SparkScene) -> None:
        self.world = world
        self.ledger = Ledger()
        self.stages: dict[tuple[str, int], StageLedger] = {}
        self.epochs = 0
        self.replays = 0
        self.manifests: dict[int, r.Manifest] = {}
        self.acks: set[tuple[str, int, int, int]] = set()
        self.refusals: set[tuple[str, int, int, int]] = set()
        self.emitted: dict[tuple[str, int, int], dict[Path, int]] = {}
        self.taken: dict[tuple[str, int, int], dict[Path, int]] = {}
        self._chain: Sealed[Any] | None = None
        self._stage_chains: dict[tuple[str, int], Sealed[Any]] = {}
        self._named: dict[str, set[int]] = {}
        self._stopped: list[Stage] = []
        self._without_query: set[Stage] = set()
        self._looked_back_ms: dict[tuple[str, str, int], int] = {}

    def violation(self, what: str) -> NoReturn:
        raise Violation(f"at {self.world.now_ms} ms: {what}")

    # --- what becomes durable -------------------------------------------------------------------------

    def created(self, name: str, data: bytes) -> None:
        if paths.journal_entry_of(name) is not None:
            self._journal_entry(r.JOURNAL.open(data))
        elif (of := paths.stage_entry_of(name)) is not None:
            self._stage_entry(of.stage, of.generation, r.STAGE.open(data))
        elif paths.mark_of(name) is not None:
            mark = r.decode(name, data, r.Published)
            shown = self.world.tables[mark.sink].versions[mark.version].shown
            self._check_shown(mark.sink, mark.index, shown)

    def _journal_entry(self, sealed: Sealed[r.JournalBody]) -> None:
        ledger, entry = self.ledger, sealed.entry
        if entry.index <= ledger.snapshot:
            self.world.trace(None, f"a write lands in the compacted place {entry.index}")
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
            self.world.trace(None, f"journal {entry.index}: {_short(entry.body)}")

    def _fold(self, body: r.JournalBody, index: int) -> None:
        ledger = self.ledger
        if isinstance(body, r.Leader):
            if body.term <= ledger.term:
                self.violation(f"term {body.term} was used before")
            resumes = ledger.drained and body.resumes
            if resumes and self.world.last_start_ms.get(body.name, -1) < ledger.drained_ms:
                self.violation(f"{body.name} sets a drained pipeline going, and nobody has started it again")
            ledger.leader = body.name
            ledger.term, ledger.open, ledger.drained = body.term, {}, ledger.drained and not body.resumes
            return
        if body.term != ledger.term:
            self.violation(f"the leader of term {body.term} wrote {_short(body)} in term {ledger.term}")
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
                        f"the acked parts of epoch {body.epoch} are no consistent cut: {body.detail}"
                    )
                self._close(body)
                self._carried_out(body.request, None)
                ledger.aborted.append((self.world.now_ms, body))
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

    def replied(self, reply: Reply) -> None:
        """A user who is told that a request is done can rely on it. (A cancellation before the checkpoint has begun
        leaves nothing in the journal.)"""
        request = self.world.requests.get(reply.request_id)
        if request is not None and request.kind is RequestKind.CANCEL:
            return
        if reply.ok and reply.request_id not in self.ledger.requests:
            self.violation(f"request {reply.request_id} is answered as done, and it is not")
        if reply.ok and reply.epoch != self.ledger.requests[reply.request_id]:
            self.violation(f"request {reply.request_id} is answered with epoch {reply.epoch}")

    def _close(self, body: r.Aborted | r.Committed) -> r.Begun:
        begun = self.ledger.open.pop(body.epoch, None)
        if begun is None or begun.checkpoint_id != body.checkpoint_id:
            self.violation(f"epoch {body.epoch} is decided, but it is not open: a second decision")
        return begun

    # --- commits --------------------------------------------------------------------------------------

    def _committed(self, begun: r.Begun, body: r.Committed, index: int) -> None:
        ledger = self.ledger
        for member in self.world.graph.members():
            if (member, body.epoch, body.checkpoint_id, body.term) not in self.acks:
                self.violation(f"epoch {body.epoch} committed without an ack of {member} for this checkpoint")
        name = paths.manifest_name(body.epoch, body.checkpoint_id)
        data = self.world.store.objects.get(name)
        if data is None:
            self.violation(f"epoch {body.epoch} committed without a manifest")
        manifest = msgspec.json.decode(data, type=r.Manifest)
        self.manifests[body.epoch] = manifest
        self._check_watermark(body, manifest)
        self._check_cut(body, manifest)
        kept = Kept(body, index, begun.flags, ledger.head)
        ledger.kept[body.epoch] = ledger.history[body.epoch] = kept
        ledger.by_index[index] = body
        ledger.head, ledger.watermark, ledger.drained = body.epoch, body.watermark, is_drain(begun)
        ledger.drained_ms = self.world.now_ms
        ledger.aborted = [(ms, a) for ms, a in ledger.aborted if a.checkpoint_id > body.checkpoint_id]
        if begun.savepoint is not None:
            if begun.savepoint in ledger.savepoints:
                self.violation(f"savepoint {begun.savepoint} is taken away from its epoch")
            ledger.savepoints[begun.savepoint] = body.epoch
        self.epochs += 1
        for named in manifest.objects():
            self._named.setdefault(named, set()).add(body.epoch)
        self._check_objects(body.epoch)
        if is_drain(begun):
            self._check_drained(body, manifest)

    def check_kept(self) -> None:
        """Every retained checkpoint can be restored."""
        for epoch in self.ledger.kept:
            self._check_objects(epoch)

    def _check_objects(self, epoch: int) -> None:
        """Everything that a manifest names exists, and its checksum holds."""
        for named, checksum in self.manifests[epoch].objects().items():
            content = self.world.store.objects.get(named)
            if content is None:
                self.violation(f"epoch {epoch} names {named}, which does not exist")
            if checksum is not None and checksum_of(content) != checksum:
                self.violation(f"epoch {epoch} names {named}, which has changed since")

    def _check_watermark(self, body: r.Committed, manifest: r.Manifest) -> None:
        before, reports = self.ledger.watermark, manifest.stages.values()
        for report in reports:
            has_time = self.world.model.stages[report.stage].event_time
            if has_time == (report.watermark.kind is WatermarkKind.NONE):
                self.violation(f"{report.stage} reports {report.watermark.kind.value} of its event time")
        known = [w.ms for s in reports if (w := s.watermark).kind is WatermarkKind.KNOWN and w.ms is not None]
        unknown = any(s.watermark.kind is WatermarkKind.UNKNOWN for s in reports)
        if body.watermark == before:
            return
        if body.watermark is None or (before is not None and body.watermark < before):
            self.violation(f"the watermark went back from {before} to {body.watermark}")
        idle = [w.ms for s in reports if (w := s.watermark).kind is WatermarkKind.IDLE and w.ms is not None]
        if unknown or body.watermark > min(known or idle, default=-1):
            self.violation(f"the watermark passed a stage's: {body.watermark}, reported {sorted(known)}")

    def _check_cut(self, body: r.Committed, manifest: r.Manifest) -> None:
        for stage in self.world.graph.stages:
            model = self.world.model.stages[stage]
            report = manifest.stages.get(stage)
            ledger = self.stages.get((stage, body.generation))
            if report is None or ledger is None:
                self.violation(f"epoch {body.epoch} has no cut of {stage}")
            barrier = ledger.barriers.get(body.epoch)
            if barrier is None or barrier.batch != report.batch or body.cuts[stage] != report.batch:
                self.violation(f"epoch {body.epoch}: {stage} was not cut at {report.batch} in its log")
            if report.batch > ledger.last:
                self.violation(
                    f"epoch {body.epoch}: {stage} was cut at {report.batch}, behind its last batch"
                )
            for producer, pairs in model.paths.items():
                made = self.emitted_by(producer, body.generation, body.cuts[producer])
                got = self._taken(stage, body.generation, report.batch)
                for before, after in pairs:
                    have, want = got.get(after, 0), made.get(before, 0)
                    if have > want or (have < want and not report.unaligned):
                        self.violation(
                            f"epoch {body.epoch}: {stage} has {have} events of {before}; "
                            f"{producer} made {want}"
                        )

    def _check_drained(self, body: r.Committed, manifest: r.Manifest) -> None:
        if any(files for flight in manifest.in_flight for files in flight.batches.values()):
            self.violation(f"epoch {body.epoch} drained the pipeline and left batches in flight")
        times = [s.watermark.ms for s in manifest.stages.values() if s.watermark.ms is not None]
        unknown = any(s.watermark.kind is WatermarkKind.UNKNOWN for s in manifest.stages.values())
        if unknown:
            self.violation(
                f"epoch {body.epoch} drained the pipeline, and a stage at rest held back the watermark"
            )
        if times and (body.watermark or 0) < min(times):
            self.violation(f"epoch {body.epoch} drained at {body.watermark}; all stand at {min(times)}")
        for stage in self.world.graph.stages:
            model = self.world.model.stages[stage]
            if model.windowed:
                taken = self._taken(stage, body.generation, body.cuts[stage])
                made = self.emitted_by(stage, body.generation, body.cuts[stage])
                end = min(input_progress(model, taken), default=0) // WINDOW * WINDOW
                if any(made.get(path, 0) < min(n, end) for path, n in taken.items()):
                    self.violation(f"epoch {body.epoch}: {stage} was drained before its windows were emitted")

    def _restored(self, body: r.Restored, index: int) -> None:
        ledger = self.ledger
        target = ledger.kept.get(body.epoch)
        if target is None:
            self.violation(f"restored to epoch {body.epoch}, which is not kept")
        if target.entry.cuts != body.forks:
            self.violation(f"restored to epoch {body.epoch} at other positions than its cut's")
        asked = self.world.requests.get(body.request)
        if asked is not None and asked.name is not None and ledger.savepoints.get(asked.name) != body.epoch:
            self.violation(f"restored to epoch {body.epoch}, which is not savepoint {asked.name} any more")
        self._check_others(body, target)
        ledger.open, ledger.drained, ledger.aborted = {}, False, []
        ledger.floors, ledger.pinned = {}, ()
        ledger.parents[body.generation] = target.entry.generation
        ledger.generation = body.generation
        ledger.forks[body.generation] = body
        ledger.by_index[index] = body
        ledger.head, ledger.watermark = body.epoch, target.entry.watermark
        for stage, batch in body.forks.items():
            parent = target.entry.generation
            for table in (self.emitted, self.taken):
                table[stage, body.generation, batch] = table.get((stage, parent, batch), {})
        if body.topology is not None:
            self._check_dropped(body, body.topology)
            ledger.topology, ledger.topology_hash = body.topology, body.topology_hash
        self._bear_stages(body)

    def looked_back(self, process: str, effect: ReadTableHistory) -> None:
        """Remembers when a process read what others did to a table."""
        self._looked_back_ms[process, effect.sink, effect.transaction] = self.world.now_ms

    def _check_others(self, body: r.Restored, target: Kept) -> None:
        """A restore does not undo others' changes to a table unless it is forced. Changes at the same time as the
        restore are exempt, because it cannot know them."""
        sinks = (body.topology or self.world.graph).sinks()
        for sink, table in self.world.tables.items():
            known_ms = self._looked_back_ms.get((self.ledger.leader, sink, target.index), self.world.now_ms)
            is_marked = paths.mark_name(target.index, sink) in self.world.store.objects
            version = table.find(target.index)
            if sink not in sinks or not is_marked or version is None or body.force:
                continue
            if any(ms < known_ms for ms in table.foreign(version)):
                self.violation(f"the restore of epoch {body.epoch} undoes what others did to {sink}")

    def _check_dropped(self, body: r.Restored, topology: r.Topology) -> None:
        """No stage is dropped unless the request says so."""
        request = self.world.requests.get(body.request)
        said = set(request.drop) if request is not None else set()
        gone = self.world.graph.stages.keys() - topology.stages.keys() - said
        if gone:
            self.violation(
                f"stages {sorted(gone)} went with the restore of {body.request}, which names others"
            )
        for stage, spec in topology.stages.items():
            if not set(spec.inputs) <= topology.stages.keys():
                self.violation(f"{stage} reads {spec.inputs}, and not all of them are in the graph")

    def _bear_stages(self, body: r.Restored) -> None:
        """A stage that the checkpoint does not have starts at its cut, and skips what its inputs had emitted."""
        for stage, model in self.world.model.stages.items():
            if stage in self.world.graph.stages and stage not in body.forks:
                passed: dict[Path, int] = {}
                for producer, pairs in model.paths.items():
                    made = self.emitted_by(producer, body.generation, body.forks.get(producer, -1))
                    passed.update({after: made.get(before, 0) for before, after in pairs})
                for table in (self.emitted, self.taken):
                    table[stage, body.generation, -1] = passed

    def birth(self, sink: str, index: int) -> dict[Path, int] | None:
        """What a sink skips because its stage begins with the restore at `index`; `None` if it does not."""
        body, stage = self.ledger.by_index[index], self._stage_of(sink)
        if not isinstance(body, r.Restored) or stage in body.forks:
            return None
        return self.emitted.get((stage, body.generation, -1))  # none, if the stage was not in that graph

    def _stage_of(self, sink: str) -> str:
        return next(n for n, m in self.world.model.stages.items() for k in m.spec.sinks if k.name == sink)

    def _expired(self, body: r.Expired) -> None:
        ledger = self.ledger
        for epoch in body.epochs:
            kept = ledger.kept.pop(epoch, None)
            if kept is None:
                continue
            if epoch == ledger.head:
                self.violation(f"epoch {epoch} expired, and it is what a restart or restore needs")
            if epoch in ledger.savepoints.values():
                self.violation(f"epoch {epoch} expired, and it is a savepoint")
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

    # --- stage logs -----------------------------------------------------------------------------------

    def _stage_entry(self, stage: str, generation: int, sealed: Sealed[r.StageBody]) -> None:
        entry = sealed.entry
        key = stage, generation
        ledger = self.stages.setdefault(key, StageLedger())
        if entry.index <= ledger.snapshot or generation in self.ledger.gone_generations:
            return  # a late write at a place that nobody reads any more
        if not follows(self._stage_chains.get(key), sealed):
            self.violation(f"log entry {entry.index} of {stage} does not continue at {ledger.last_index}")
        self._stage_chains[key] = sealed
        ledger.last_index = entry.index
        ledger.hashes[entry.index] = sealed.hash
        if entry.snapshot == entry.index:
            ledger.snapshot = entry.index
        body = entry.body
        if self.world.tracer is not None:
            self.world.trace(None, f"log of {stage}/{generation} {entry.index}: {_short(body)}")
        if isinstance(body, r.Open):
            if ledger.incarnation == 0:
                ledger.last, ledger.consumed = body.batch, body.consumed
                self.emitted.setdefault((stage, generation, body.batch), {})
                self.taken.setdefault((stage, generation, body.batch), {})
            ledger.incarnation = entry.index
            return
        if body.incarnation != ledger.incarnation:
            self.violation(
                f"{stage}: incarnation {body.incarnation} wrote after {ledger.incarnation} had opened"
            )
        match body:
            case r.Batch():
                self._batch(stage, generation, ledger, body)
            case r.BarrierAt():
                self._barrier(stage, generation, ledger, body)
            case r.StageSnapshot():
                pass
            case _:
                assert_never(body)

    def _barrier(self, stage: str, generation: int, ledger: StageLedger, body: r.BarrierAt) -> None:
        if body.epoch in ledger.barriers:
            self.violation(f"{stage} was cut twice for epoch {body.epoch}")
        if (body.epoch, body.checkpoint_id) not in self.ledger.begun_ids:
            self.violation(f"{stage} was cut for epoch {body.epoch}, which was never begun")
        if body.batch != ledger.last:
            self.violation(f"{stage} was cut at {body.batch}, its last batch is {ledger.last}")
        is_idle = body.watermark.kind is WatermarkKind.IDLE
        if is_idle and (stage, generation, body.incarnation) not in self.world.rested:
            self.violation(f"{stage} says that it is idle, and has had something to do all the time")
        ledger.barriers[body.epoch] = body

    def _batch(self, stage: str, generation: int, ledger: StageLedger, body: r.Batch) -> None:
        if body.batch != ledger.last + 1:
            self.violation(f"{stage}: batch {body.batch} logged after batch {ledger.last}")
        attempt = self.world.attempts[int(body.offsets["attempt"])]
        if attempt.dropped:
            self.violation(f"{stage}: {attempt.dropped} rows were later than the watermark and dropped")
        folder = self.world.folders.get((stage, generation, body.incarnation))
        if folder is None or folder.last < body.batch:
            self.violation(f"{stage}: batch {body.batch} can be seen before Spark has committed it")
        before = self._taken(stage, generation, ledger.last)
        for producer, pairs in self.world.model.stages[stage].paths.items():
            position = body.consumed[producer]
            if position < ledger.consumed.get(producer, -1):
                self.violation(f"{stage} went back on {producer}")
            made = self.emitted_by(producer, generation, position)
            for path, after in pairs:
                if attempt.taken.get(after, 0) != made.get(path, 0):
                    self.violation(
                        f"{stage}: at batch {body.batch} it has {attempt.taken.get(after, 0)} events of "
                        f"{path}; {producer} had made {made.get(path, 0)} by its batch {position}"
                    )
            self._check_versions(stage, generation, producer, attempt.inputs.get(producer, {}))
        for path, count in before.items():
            if attempt.taken.get(path, 0) < count:
                self.violation(f"{stage}: events of {path} would be counted twice at batch {body.batch}")
        ledger.last, ledger.consumed = body.batch, body.consumed
        ledger.batches[body.batch] = body
        self.emitted[stage, generation, body.batch] = attempt.emitted
        self.taken[stage, generation, body.batch] = attempt.taken

    def _check_versions(self, stage: str, generation: int, producer: str, seen: dict[int, int]) -> None:
        """All readers see the one version of a batch that is in the log."""
        for batch, attempt in seen.items():
            logged = self._logged(producer, generation, batch)
            if logged is None or logged.offsets["attempt"] != attempt:
                self.violation(f"{stage} read another version of batch {batch} of {producer} than was logged")

    def _logged(self, stage: str, generation: int, batch: int) -> r.Batch | None:
        number: int | None = generation
        while number is not None:
            ledger = self.stages.get((stage, number))
            found = ledger.batches.get(batch) if ledger is not None else None
            fork = self.ledger.forks.get(number)
            if fork is None or batch > fork.forks.get(stage, -1):
                return found
            number = self.ledger.parents.get(number)
        return None

    def _lookup(
        self, table: dict[tuple[str, int, int], dict[Path, int]], stage: str, generation: int, batch: int
    ) -> dict[Path, int]:
        number: int | None = generation
        while number is not None:
            found = table.get((stage, number, batch))
            if found is not None:
                return found
            number = self.ledger.parents.get(number)
        if batch >= 0:
            self.violation(f"batch {batch} of {stage} is not in any log")
        return {}

    def emitted_by(self, stage: str, generation: int, batch: int) -> dict[Path, int]:
        """The last event of each path that a stage had emitted after a batch."""
        return self._lookup(self.emitted, stage, generation, batch)

    def _taken(self, stage: str, generation: int, batch: int) -> dict[Path, int]:
        return self._lookup(self.taken, stage, generation, batch)

    def is_open(self, stage: str, generation: int, incarnation: int) -> bool:
        """Whether an incarnation is the one that may write, in the current timeline."""
        ledger = self.stages.get((stage, generation))
        current = ledger is not None and ledger.incarnation == incarnation
        return current and generation == self.ledger.generation

    # --- tables ---------------------------------------------------------------------------------------

    def published(self, sink: str, transaction: int, shown: dict[Path, int]) -> None:
        body = self.ledger.by_index.get(transaction)
        if not isinstance(body, r.Committed):
            self.violation(f"{sink} published under index {transaction}, which is no commit")
        self._check_order(sink)
        self._check_shown(sink, transaction, shown)
        self.world.trace(None, f"{sink} shows epoch {body.epoch}")

    def rewound(self, sink: str, transaction: int, shown: dict[Path, int]) -> None:
        body = self.ledger.by_index.get(transaction)
        if not isinstance(body, r.Restored):
            self.violation(f"{sink} went back under index {transaction}, which is no restore")
        self._check_order(sink)
        self._check_shown(sink, transaction, shown)
        self.world.trace(None, f"{sink} is back at epoch {body.epoch}")

    def _check_order(self, sink: str) -> None:
        before, after = self.world.tables[sink].versions[-2:]
        if after.transaction <= before.transaction:
            self.violation(f"{sink}: index {after.transaction} came after {before.transaction}")

    def _check_shown(self, sink: str, index: int, shown: dict[Path, int]) -> None:
        """Compares a sink with the commit or restore at `index`."""
        epoch = self.ledger.by_index[index].epoch
        born = self.birth(sink, index)
        expected = self.expected(sink, epoch) if born is None else {p: n for p, n in born.items() if n}
        if {p: n for p, n in shown.items() if n} != expected:
            self.violation(f"{sink} at epoch {epoch} shows {shown}, and should show {expected}")

    def expected(self, sink: str, epoch: int) -> dict[Path, int]:
        """The last event of each path that a sink should show at an epoch, according to what its stage had emitted."""
        stage = self._stage_of(sink)
        entry = self.ledger.history[epoch].entry
        if stage not in entry.cuts:
            return {}
        made = self.emitted_by(stage, entry.generation, entry.cuts[stage])
        if not self._is_final(sink, stage):
            return {p: n for p, n in made.items() if n}
        end = (entry.watermark or 0) // WINDOW * WINDOW
        return {p: min(n, end) for p, n in made.items() if min(n, end)}

    def _is_final(self, sink: str, stage: str) -> bool:
        return any(k.final for k in self.world.model.stages[stage].spec.sinks if k.name == sink)

    # --- deletions ------------------------------------------------------------------------------------

    def deleting(self, name: str) -> None:
        ledger = self.ledger
        if self._named.get(name):
            self.violation(f"{name} is deleted, and epochs {sorted(self._named[name])} need it")
        index = paths.journal_entry_of(name)
        if index is not None and index >= ledger.snapshot:
            self.violation(f"{name} is deleted, and no snapshot covers it")
        of_checkpoint = paths.checkpoint_of(name)
        if of_checkpoint is not None:
            epoch = of_checkpoint.epoch
            if epoch in ledger.kept or epoch in ledger.open:
                self.violation(f"{name} is deleted, and epoch {epoch} has not expired")
        if paths.generation_of(name) == ledger.generation:
            self._deleting_of_stage(name)

    def _deleting_of_stage(self, name: str) -> None:
        entry = paths.stage_entry_of(name)
        if entry is not None and entry.index >= self.stages[entry.stage, entry.generation].snapshot:
            self.violation(f"{name} is deleted, and no snapshot covers it")
        file = paths.channel_file_of(name)
        if file is not None:
            logged = self.stages[file.stage, file.generation].batches.get(file.attempt.batch)
            if logged is not None and name in logged.files:
                for reader in self.world.graph.readers(file.stage):
                    if self._position(reader, file.stage, file.generation) < file.attempt.batch:
                        self.violation(f"{name} is deleted, and {reader} has not read it")

    def _position(self, reader: str, producer: str, generation: int) -> int:
        ledger = self.stages.get((reader, generation))
        if ledger is None or ledger.incarnation == 0:
            return -1
        return ledger.consumed.get(producer, -1)

    # --- processes ------------------------------------------------------------------------------------

    def sending(self, process: ProcessView, message: WireMessage | ReplayMessage) -> None:
        """Nothing is announced before it is durable."""
        match message:
            case Ack():
                self.check_caught_up(process, "acks")
                what = message.member, message.epoch, message.checkpoint_id, message.term
                (self.acks if message.ok else self.refusals).add(what)
            case Heartbeat():
                process.beat_ms = self.world.now_ms
            case Reply():
                self.replied(message)
            case Announcement():
                self._announced(message)
            case LogGrown() | WireRequest() | SourcesDone():
                pass
            case AskRange() | FetchEntries() | HaveRange() | EntriesChunk() | Compacted():
                pass
            case _:
                assert_never(message)

    def _announced(self, message: Announcement) -> None:
        if (message.epoch, message.checkpoint_id) not in self.ledger.begun_ids:
            self.violation(f"epoch {message.epoch} was announced before it was begun in the journal")
        if message.phase is Phase.COMMIT and message.epoch not in self.ledger.history:
            self.violation(f"the commit of epoch {message.epoch} was announced before it was in the journal")

    def check_caught_up(self, process: ProcessView, what: str) -> None:
        """A member that was away acts only after it has caught up with what was decided before it came back."""
        if process.member.journal.index < process.must_know:
            self.violation(f"{process} {what} before it has caught up")

    def check_journal(self, process: ProcessView) -> None:
        """A process's journal must be a prefix of the real one, and lead to the same state."""
        journal = process.member.journal
        index = process.checked_index = journal.index
        if journal.view.entries[-1].hash != self.ledger.hashes.get(index):
            self.violation(f"{process} believes another journal entry {index} than the store's")
        if member_view(journal.state) != self.ledger.states[index]:
            self.violation(
                f"{process} derives {member_view(journal.state)} at {index}, not {self.ledger.states[index]}"
            )

    def watch_replay(self, process: ProcessView) -> None:
        """An answer to a request that is no longer in flight changes nothing in a catch-up."""
        catch_up = process.member.catch_up
        real = catch_up.take

        def take(session: Any, peer: str, reply: Any) -> Any:
            self.replays += 1
            source = session.sources.peers[peer]
            in_flight = source.request is not None and source.request.id == reply.request_id
            before = session.pieces.size, session.progress().done, source.held
            actions = real(session, peer, reply)
            if not in_flight and before != (session.pieces.size, session.progress().done, source.held):
                self.violation(f"{process} took answer {reply.request_id} of {peer}, which came too late")
            return actions

        catch_up.take = take  # type: ignore[method-assign]

    def check_campaign(self, process: ProcessView) -> None:
        """A process that was paused does not mistake its own pause for silence of the leader."""
        now_ms, config = self.world.now_ms, process.leader.config
        slept_ms = process.woke_ms - process.paused_ms
        awake_ms, before_ms = now_ms - process.woke_ms, now_ms - process.woke_before_ms
        if (
            slept_ms <= 2 * config.heartbeat_ms
            or awake_ms >= config.timeout_ms
            or before_ms < 5 * config.timeout_ms
        ):
            return
        for leader in self.world.leaders():
            shows_itself = now_ms - leader.beat_ms <= 2 * config.heartbeat_ms and not leader.paused
            if leader.member.journal.state.term == self.ledger.term and shows_itself:
                self.violation(f"{process} wakes up and tries to unseat {leader}, which leads and says so")

    def check_give_up(self, process: ProcessView) -> None:
        """A member gives up because of its own failures, not because others refused or were late; immediately if one
        of its stages can never start."""
        tolerated = process.member.config.tolerated_failures
        enough = 0 if process.member.hopeless else tolerated
        late = FailureReason.DEADLINE.value
        own = [
            a
            for at_ms, a in self.ledger.aborted
            if at_ms >= process.started_ms
            and (
                (process.name, a.epoch, a.checkpoint_id, a.term) in self.refusals
                or (a.reason == late and process.name in a.detail)
            )
        ]
        if enough is None or tolerated is None or len(own) <= enough:
            self.violation(
                f"{process} gives up after {len(own)} failures of its own: {process.member.given_up}"
            )

    def check_over(self, process: ProcessView) -> None:
        """A run is over when its last epoch is published everywhere."""
        state = process.member.journal.state
        assert state.head is not None
        index = state.committed[state.head].index
        marks = r.settled(list(self.world.store.objects))
        late = [sink for sink in self.world.graph.sinks() if marks.get(sink, 0) < index]
        if late or not state.drained:
            self.violation(
                f"{process} takes the run for over before {late} have published epoch {state.head}"
            )

    def check_busy(self, stage: Stage) -> None:
        """A stage that is running a batch is not idle."""
        if stage.phase is StagePhase.RUNNING and stage.idle:
            self.violation(f"{stage.name} is called idle while a batch is under way")

    def check_quiet(self, stage: Stage) -> None:
        """The query of a quiet stage does nothing, and everything that it did is in the log."""
        incarnation = stage.name, stage.generation, stage.incarnation
        if incarnation in self.world.under_way:
            self.violation(f"{stage.name} is called quiet while a batch is under way")
        folder = self.world.folders[incarnation]
        if folder.last > stage.log.state.last:
            self.violation(f"{stage.name} is called quiet, and its batch {folder.last} is not logged")

    def check_working(self, stage: Stage) -> None:
        """If a drain is aborted, a query that ended for it is followed by another. (Checked when the appender waits: by
        the second time it must have noticed.)"""
        has_ended = stage.phase is StagePhase.RUNNING and stage.took_all and not stage.draining
        if not has_ended or stage.member.config.once:
            self._without_query.discard(stage)
        elif stage in self._without_query:
            self.violation(f"{stage.name} has no query, and nobody starts one")
        else:
            self._without_query.add(stage)

    def check_stage(self, stage: Stage) -> None:
        """A drained stage stops only after the commit, as far as its member knows the journal."""
        if stage.phase is StagePhase.STOPPED and stage not in self._stopped:
            self._stopped.append(stage)
            if not stage.member.journal.state.drained:
                self.violation(f"{stage.name} stopped before the drain was committed")

    # --- the end --------------------------------------------------------------------------------------

    def all_settled(self) -> bool:
        return not self.unsettled()

    def unsettled(self) -> list[str]:
        """The sinks that have not yet reached the journal's head, with their marks."""
        head = self.ledger.head
        if head is None:
            return []
        index = self.ledger.history[head].index
        late = []
        for sink in sorted(self.world.graph.sinks()):
            table = self.world.tables[sink]
            mark = paths.mark_name(index, sink)
            if table.transaction > index or mark not in self.world.store.objects:
                late.append(sink)
        return late

    def _check_read(self, entry: r.Committed) -> None:
        """Every stage has read what its own source had when faults stopped."""
        for stage in self.world.graph.stages:
            if self.world.model.stages[stage].native:
                has = self._taken(stage, entry.generation, entry.cuts[stage]).get(stage, 0)
                had = self.world.available(stage, self.world.healed_ms)
                if has < had:
                    self.violation(
                        f"{stage} has read {has} events of its source, which had {had} long before"
                    )

    def final_check(self) -> None:
        """After a drain every sink shows every event of every source once per path, and every retained checkpoint can
        still be restored."""
        head = self.ledger.head
        assert head is not None
        self.check_kept()
        entry = self.ledger.history[head].entry
        self._check_read(entry)
        for sink, stage in self.world.graph.sinks().items():
            shown = self.world.tables[sink].versions[-1].shown
            self._check_shown(sink, self.ledger.history[head].index, shown)
            windowed = [s for s, m in self.world.model.stages.items() if m.windowed]
            for path in self.world.model.stages[stage].out_paths:
                passes = path.split(".")
                if self._is_final(sink, stage) or any(s in windowed for s in passes):
                    continue
                root = passes[0]
                made = self.emitted_by(root, entry.generation, entry.cuts[root]).get(root, 0)
                if shown.get(path, 0) != made:
                    self.violation(f"{sink} shows {shown.get(path, 0)} events of {path}; {root} gave {made}")


def _short(body: object) -> str:
    """A short description of a record, for traces and violations."""
    name = type(body).__name__
    words = []
    for field in (
        "term",
        "name",
        "generation",
        "epoch",
        "checkpoint_id",
        "batch",
        "incarnation",
        "watermark",
        "epochs",
    ):
        value = getattr(body, field, None)
        if value is not None and not isinstance(value, msgspec.Struct):
            words.append(f"{field}={value}")
    return f"{name}({', '.join(words)})"
