"""Small pipelines, records and shells for tests of the rules and the state machines.

`Play` writes a correct history of a small pipeline, entry by entry, so that a test can ask what a reader of only a part
of it knows. `Desk` is a store with tables that performs one procedure's effects. `calm_world` is the simulator without
faults, on a pipeline that the test chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from cutwater.protocol.base import effects as fx
from cutwater.protocol.base import paths
from cutwater.protocol.base import records as r
from cutwater.protocol.base.chain import digest
from cutwater.protocol.base.errors import CutwaterError
from cutwater.protocol.base.events import RequestsRefused
from cutwater.protocol.base.performer import perform
from cutwater.protocol.base.watermark import NONE, UNKNOWN, Watermark
from cutwater.protocol.base.wire import Request, RequestKind
from cutwater.protocol.leader.cut import make_manifest
from cutwater.protocol.member import journal
from cutwater.protocol.member import stage_log as stagelog
from cutwater.protocol.member.channel import Channel, readable
from cutwater.protocol.member.next_query import QueryEnd
from cutwater.protocol.member.retention import expire
from cutwater.sim.faults import Faults
from cutwater.sim.process import Process
from cutwater.sim.store import SimTable
from cutwater.sim.topology import Model, StageModel
from cutwater.sim.world import World
from cutwater.store.perform import MemberlessPerformer
from tests.support.configs import leader_config, member_config
from tests.support.driver import Objects

# --- topologies -------------------------------------------------------------------------------------------


def stage(name: str, inputs: str = "", member: str = "m0", sinks: Iterable[r.SinkSpec] = ()) -> r.StageSpec:
    """A stage; `inputs` are names separated by spaces."""
    return r.StageSpec(name, tuple(inputs.split()), member, tuple(sinks))


def pipeline(*stages: r.StageSpec) -> r.Topology:
    return r.Topology({s.name: s for s in stages})


OUT = r.SinkSpec("out")
CHAIN = pipeline(stage("a"), stage("b", "a", "m1"), stage("c", "b", "m2", [OUT]))
DIAMOND = pipeline(stage("a"), stage("b", "a", "m1"), stage("c", "a", "m1"), stage("d", "b c", "m2", [OUT]))

# --- records ----------------------------------------------------------------------------------------------


def begun(epoch: int, checkpoint_id: int, flags: int = 0, savepoint: str | None = None) -> r.Begun:
    return r.Begun(1, 1, epoch, checkpoint_id, flags, "h", savepoint)


def batch(
    number: int,
    files: Sequence[str] = (),
    consumed: dict[str, int] | None = None,
    sinks: dict[str, tuple[r.StagedFile, ...]] | None = None,
    incarnation: int = 1,
) -> r.Batch:
    return r.Batch(
        incarnation, number, tuple(files), sinks or {}, consumed=consumed or {}, offsets={}, watermark=UNKNOWN
    )


def barrier(epoch: int, checkpoint_id: int, at: int, consumed: dict[str, int] | None = None) -> r.BarrierAt:
    return r.BarrierAt(
        1, epoch, checkpoint_id, 1, at, False, consumed=consumed or {}, offsets={}, watermark=UNKNOWN
    )


def stage_state(last: int, *barriers: r.BarrierAt, empty: Iterable[int] = ()) -> r.StageState:
    """A stage whose batches 0 to `last` have a file each, except the empty ones."""
    files = {b: () if b in set(empty) else (f"file{b}",) for b in range(last + 1)}
    batches = {b: batch(b, names) for b, names in files.items()}
    return r.StageState(1, last, batches=batches, barriers={b.epoch: b for b in barriers})


def journal_of(*bodies: r.JournalBody | None) -> r.JournalState:
    """The state after these entries at indexes 1, 2, ...; `None` skips an index."""
    state = r.JournalState()
    for index, body in enumerate(bodies, 1):
        if body is not None:
            journal.apply(state, body, index)
    return state


def committed(
    epoch: int, checkpoint_id: int, generation: int = 1, cut: int = 0, manifest: str = ""
) -> r.Committed:
    return r.Committed(1, generation, epoch, checkpoint_id, manifest, None, {"a": cut})


def report_of(name: str, at: r.BarrierAt, state: dict[str, str] | None = None) -> r.StageReport:
    return r.StageReport(
        name,
        at.incarnation,
        at.batch,
        at.unaligned,
        consumed=at.consumed,
        offsets=at.offsets,
        watermark=at.watermark,
        state=state or {},
    )


def manifest(
    epoch: int,
    checkpoint_id: int,
    stages: Iterable[r.StageReport] = (),
    in_flight: Iterable[r.InFlight] = (),
    release: dict[str, tuple[str, ...]] | None = None,
    held: dict[str, tuple[r.StagedFile, ...]] | None = None,
) -> r.Manifest:
    return r.Manifest(
        epoch,
        checkpoint_id,
        1,
        1,
        0,
        None,
        "h",
        {report.stage: report for report in stages},
        tuple(in_flight),
        release or {},
        held or {},
        None,
    )


# --- a correct history ------------------------------------------------------------------------------------


class Play:
    """A small pipeline in its first generation, as one history of journal and stage log entries.

    It does what members and leader do, in the order that the test specifies, and ignores what the rules forbid.
    """

    def __init__(self, topology: r.Topology) -> None:
        self.topology = topology
        self.entries: list[r.JournalBody] = []
        self.logs: dict[str, list[r.StageBody]] = {name: [] for name in topology.stages}
        self.state = r.JournalState()
        self.stages = {name: r.StageState() for name in topology.stages}
        self.manifests: dict[int, r.Manifest] = {}
        self.record(r.Leader(1, "m0"))
        self.record(r.TopologySet(1, 1, "h", topology))
        for name, spec in topology.stages.items():
            self.log(name, r.Open(1, -1, consumed=dict.fromkeys(spec.inputs, -1), offsets={}, watermark=NONE))

    def record(self, body: r.JournalBody) -> None:
        self.entries.append(body)
        journal.apply(self.state, body, len(self.entries))

    def log(self, name: str, body: r.StageBody) -> None:
        self.logs[name].append(body)
        stagelog.apply(self.stages[name], body, len(self.logs[name]))

    def journal_at(self, count: int) -> r.JournalState:
        """The state after the first `count` journal entries."""
        return journal_of(*self.entries[:count])

    def stage_at(self, name: str, count: int) -> r.StageState:
        """The state after the first `count` entries of a stage's log."""
        state = r.StageState()
        for index, body in enumerate(self.logs[name][:count], 1):
            stagelog.apply(state, body, index)
        return state

    @property
    def open(self) -> r.Begun | None:
        return next(iter(self.state.open.values()), None)

    def begin(self, flags: int = 0, savepoint: str | None = None) -> None:
        if self.open is None:
            self.record(begun(self.state.next_epoch, len(self.entries) + 1, flags, savepoint))

    def batch(self, name: str, reach: int = 99, rows: bool = True, watermark: Watermark = NONE) -> None:
        """The stage runs a batch that reads each input `reach` batches further, as far as it may."""
        spec, state = self.topology.stages[name], self.stages[name]
        consumed = {}
        for producer in spec.inputs:
            limit = readable(self.state, state, self.stages[producer])
            consumed[producer] = max(state.consumed[producer], min(limit, state.consumed[producer] + reach))
        number = state.last + 1
        files = (data_name(name, number),) if rows else ()
        staged = [r.StagedFile(f"tables/{name}/{number}")] if rows else []
        sinks = {sink.name: tuple(staged) for sink in spec.sinks}
        self.log(name, r.Batch(1, number, files, sinks, consumed=consumed, offsets={}, watermark=watermark))

    def unread(self, name: str) -> bool:
        """Whether there are rows between the stage's positions and the open epoch's barriers, or a barrier is
        missing."""
        assert self.open is not None
        for producer in self.topology.stages[name].inputs:
            at = self.stages[producer].barriers.get(self.open.epoch)
            if at is None:
                return True
            channel = Channel(self.stages[producer], {})
            if channel.unread(self.stages[name].consumed[producer], at.batch):
                return True
        return False

    def cut(self, name: str, unaligned: bool = False) -> None:
        """Cuts the stage for the open epoch, if that is allowed."""
        state = self.stages[name]
        if self.open is None or self.open.epoch in state.barriers:
            return
        behind = self.unread(name)
        if behind and not unaligned:
            return
        self.log(
            name,
            r.BarrierAt(
                1,
                self.open.epoch,
                self.open.checkpoint_id,
                1,
                state.last,
                behind,
                consumed=state.consumed,
                offsets={},
                watermark=state.watermark,
            ),
        )

    def cut_all(self, unaligned: Iterable[str] = ()) -> None:
        """Cuts every stage in topological order; stages read first if they have to."""
        self.begin()
        for name in self.topology.stages:
            self.cut(name, name in set(unaligned))
            while self.open is not None and self.open.epoch not in self.stages[name].barriers:
                self.batch(name)
                self.cut(name)

    def reports(self) -> dict[str, r.StageReport]:
        """The stages' reports for the open epoch."""
        assert self.open is not None
        found = {}
        for name, state in self.stages.items():
            at = state.barriers[self.open.epoch]
            found[name] = report_of(name, at, {state_name(name, at.batch): "sum"} if at.batch >= 0 else None)
        return found

    def previous(self) -> r.Manifest | None:
        return self.manifests[self.state.head] if self.state.head is not None else None

    def commit(self) -> r.Manifest:
        """Commits the open epoch, for which every stage must have been cut."""
        opened = self.open
        assert opened is not None
        found = make_manifest(self.state, opened, self.reports(), self.stages, self.previous())
        self.manifests[opened.epoch] = found
        cuts = {name: report.batch for name, report in found.stages.items()}
        self.record(
            r.Committed(
                1, 1, opened.epoch, opened.checkpoint_id, digest(r.encode(found)), found.watermark, cuts
            )
        )
        return found

    def abort(self) -> None:
        if self.open is not None:
            self.record(r.Aborted(1, 1, self.open.epoch, self.open.checkpoint_id, "deadline"))

    def expire(self, retained: int) -> r.Expired | None:
        """Expires what retention no longer keeps, assuming that every sink is up to date."""
        settled = dict.fromkeys(self.topology.sinks(), len(self.entries))
        body = expire(self.state, retained, settled, self.manifests)
        if body is not None:
            self.record(body)
            for epoch in body.epochs:
                del self.manifests[epoch]
        return body


def data_name(name: str, number: int, attempt: int = 0, generation: int = 1) -> str:
    return paths.channel_file_name(name, generation, paths.Attempt(1, number, str(attempt)), "rows")


def state_name(name: str, number: int, generation: int = 1) -> str:
    return f"{paths.spark_prefix(name, generation, 1)}state/{number}"


# --- a store with tables ----------------------------------------------------------------------------------


class Stuck(Exception):
    """A procedure does not end."""


class Version(msgspec.Struct, frozen=True):
    """One version of a table: its files, and Cutwater's transaction, which a foreign commit does not change."""

    transaction: int
    files: tuple[str, ...]


class Desk(Objects):
    """A store with tables that performs one procedure's effects in order.

    `before` is called with each effect before it is performed, so that a test can change the world. `lose` has the kinds
    of effects of which the next one is performed without an answer. `oldest` is the first version that the history of a
    table still has; a table in `forgetful` cannot say that it never had a transaction.
    """

    def __init__(self, *sinks: str) -> None:
        super().__init__({})
        self.tables = {sink: [Version(0, ())] for sink in sinks}
        self.oldest = dict.fromkeys(sinks, 0)
        self.forgetful: set[str] = set()
        self.done: list[fx.Effect] = []
        self.before: Callable[[fx.Effect], None] | None = None
        self.lose: list[type] = []
        self._performer = DeskPerformer(self)

    def run(self, procedure: fx.Procedure[Any], crash_after: int | None = None, limit: int = 500) -> Any:
        """Drives a procedure to its end; after `crash_after` effects it is never resumed."""
        answer: Any = None
        count = 0
        try:
            while count != crash_after:
                answer = self.perform(procedure.send(answer))
                count += 1
                if count > limit:
                    raise Stuck(f"{limit} effects, the last {self.done[-4:]}")
        except StopIteration as stop:
            return stop.value
        return None

    def perform(self, effect: fx.Effect) -> Any:
        if self.before is not None:
            self.before(effect)
        self.done.append(effect)
        answer = self._answer(effect)
        if type(effect) in self.lose:
            self.lose.remove(type(effect))
            return fx.FAILED
        return answer

    def _answer(self, effect: fx.Effect) -> Any:
        return perform(self._performer, effect) if isinstance(effect, fx.Operation) else None

    def find(self, sink: str, transaction: int) -> int | None:
        """The version with the highest transaction up to this one; commits of others come after it."""
        known = [*enumerate(self.tables[sink])][self.oldest[sink] :]
        found = [(-v.transaction, number) for number, v in known if v.transaction <= transaction]
        return min(found)[1] if found else None

    def history(self, sink: str, transaction: int) -> fx.TableHistory | None:
        found = self.find(sink, transaction)
        if found is None or (self.oldest[sink] and found == self.oldest[sink]):
            return None
        then, now = self.tables[sink][found], self.tables[sink][found:]
        files = len(then.files) - (len(self.tables[sink][found - 1].files) if found else 0)
        foreign = [str(n) for n in range(1, len(now)) if now[n].transaction == now[n - 1].transaction]
        return fx.TableHistory(then.transaction, max(files, 0), tuple(foreign))

    def commit(self, sink: str, expected: int, transaction: int, files: tuple[str, ...]) -> int | None:
        versions = self.tables[sink]
        if expected != len(versions) - 1:
            return None
        versions.append(Version(transaction, files))
        return len(versions) - 1

    def foreign_commit(self, sink: str, *files: str) -> None:
        """Somebody else adds to the table; Cutwater's transaction stays unchanged."""
        head = self.tables[sink][-1]
        self.tables[sink].append(Version(head.transaction, (*head.files, *files)))

    def shown(self, sink: str) -> tuple[str, ...]:
        return self.tables[sink][-1].files


class DeskPerformer(MemberlessPerformer):
    """Performs the operations on a desk."""

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk, desk.find, desk.history)
        self._desk = desk

    def read_table(self, operation: fx.ReadTable) -> fx.TableHead:
        versions = self._desk.tables[operation.sink]
        forgetful = operation.sink in self._desk.forgetful and not versions[-1].transaction
        return fx.TableHead(len(versions) - 1, versions[-1].transaction, forgetful)

    def publish_table(self, operation: fx.PublishTable) -> int | None:
        files = (*self._desk.shown(operation.sink), *operation.files)
        return self._desk.commit(operation.sink, operation.expected_version, operation.transaction, files)

    def rewind_table(self, operation: fx.RewindTable) -> int | None:
        files = self._desk.tables[operation.sink][operation.to_version].files
        return self._desk.commit(operation.sink, operation.expected_version, operation.transaction, files)


# --- the simulator without faults -------------------------------------------------------------------------

NEVER_MS = 10**9
"""An interval so long that no periodic checkpoint begins: the test requests each one, except the first."""


def calm_world(topology: r.Topology = CHAIN, tolerated: int | None = None, **coordinator: Any) -> World:
    """The simulator on this pipeline, without faults; nothing is started."""
    world = World(5, members=1)
    world.faults = Faults()
    world.model = _model(topology)
    world.rates = dict.fromkeys(topology.stages, 0.05)
    world.io_ms, world.table_ms, world.batch_most_ms = 2, 40, 9
    world.trigger_ms = {name: 15 if s.inputs else 80 for name, s in topology.stages.items()}
    world.tables = {sink: SimTable() for sink in topology.sinks()}
    world.member_config = member_config(
        poll_ms=100, resend_ms=100, compact_after=1_000, tolerated_failures=tolerated, rest_within_ms=50
    )
    settings = {"interval_ms": NEVER_MS, "timeout_ms": 5_000, **coordinator}
    world.leader_config = leader_config(250, 80, **settings)
    return world


def _model(topology: r.Topology) -> Model:
    models: dict[str, StageModel] = {}
    for name, spec in topology.stages.items():
        models[name] = StageModel(spec, windowed=False, event_time=False, native=not spec.inputs)
        for producer in spec.inputs:
            models[name].paths[producer] = tuple((p, f"{p}.{name}") for p in models[producer].out_paths)
    return Model(topology, models)


def running_world(topology: r.Topology = CHAIN, tolerated: int | None = None, **coordinator: Any) -> World:
    """A calm world whose first epoch is committed and published."""
    world = calm_world(topology, tolerated, **coordinator)
    for name in topology.members():
        world.start(name)
    until(world, lambda: world.oracle.epochs == 1 and world.oracle.all_settled())
    return world


def until(world: World, done: Callable[[], bool], ms: int = 20_000) -> None:
    assert world.run_until(world.now_ms + ms, done), "the condition did not become true"


def rest(world: World, ms: int = 400) -> None:
    """Lets time pass."""
    world.run_until(world.now_ms + ms)


def ask(world: World, kind: RequestKind, **what: Any) -> None:
    """Sends a request to the leader, and gives it time to receive it."""
    world.chaos.ask(Request(kind, f"at{world.now_ms}", **what))
    rest(world, 2)


def checkpoint(world: World, kind: RequestKind = RequestKind.CHECKPOINT, **what: Any) -> r.Manifest:
    """Requests a checkpoint, and returns its manifest once it is committed and published."""
    rest(world)
    before = world.oracle.epochs
    ask(world, kind, **what)
    until(world, lambda: world.oracle.epochs > before and world.oracle.all_settled())
    head = world.oracle.ledger.head
    assert head is not None
    return world.oracle.manifests[head]


def drain(world: World) -> None:
    """Drains the pipeline: afterwards every row is in the sink once."""
    rest(world)
    ask(world, RequestKind.DRAIN)
    until(world, lambda: world.oracle.ledger.drained and world.oracle.all_settled())
    world.oracle.final_check()


def of(world: World, member: str) -> Process:
    """The newest process of a member."""
    return [p for p in world.processes if p.name == member][-1]


def leader_of(world: World) -> Process:
    (process,) = world.leaders()
    return process


def entries(world: World, kind: type) -> list[Any]:
    """The bodies of this kind in the journal, in order."""
    found = [
        r.JOURNAL.open(world.store.objects[n]).entry.body for n in world.store.list(paths.JOURNAL_PREFIX)
    ]
    return [body for body in found if isinstance(body, kind)]


def table_commits(world: World, sink: str = "out") -> list[int]:
    """The transactions of a table's commits, in order."""
    return [version.transaction for version in world.tables[sink].versions[1:]]


def epochs_with_rows(world: World, sink: str = "out") -> list[int]:
    """The journal indexes of the committed epochs that have rows for a sink, in order."""
    ledger, manifests = world.oracle.ledger, world.oracle.manifests
    return [kept.index for epoch, kept in ledger.history.items() if manifests[epoch].release[sink]]


def mark_of(world: World, epoch: int, sink: str = "out") -> r.Published:
    """The mark of an epoch for a sink."""
    name = paths.mark_name(world.oracle.ledger.history[epoch].index, sink)
    return r.decode(name, world.store.objects[name], r.Published)


def phases(world: World) -> dict[str, str]:
    """The phase of every stage."""
    return {n: s.phase.value for p in world.processes for n, s in sorted(p.member.stages.items())}


def all_phases(world: World, phase: str) -> bool:
    return phases(world) == dict.fromkeys(world.model.topology.stages, phase)


def slow_down(world: World, name: str, ms: int = 1_500, each_ms: int = 1_000) -> None:
    """For `ms`, each batch that the stage begins takes `each_ms`. Returns when it has begun one."""
    end_ms, usual = world.now_ms + ms, world.batch_ms

    def batch_ms(stage: str) -> int:
        return each_ms if stage == name and world.now_ms < end_ms else usual(stage)

    world.batch_ms = batch_ms  # type: ignore[method-assign]
    rest(world, 250)


def refusal(world: World) -> str:
    """Why the leader last refused a request; empty if it has refused none."""
    refused = [e for e in leader_of(world).member.events if isinstance(e, RequestsRefused)]
    return refused[-1].detail if refused else ""


def lose_query(process: Process, stage: str, end: QueryEnd = QueryEnd.FAILED) -> int | None:
    """Ends the query of a stage. Returns in how many ms its member starts the next one."""
    process.end(f"query {stage}")
    process.member.now_ms = process.world.now_ms + process.skew_ms
    after_ms = process.member.stages[stage].query_ended(end, "lost")
    process.poke(f"stage {stage}")
    return after_ms


def restart_all(world: World) -> None:
    """Crashes all processes, and starts all members again."""
    for process in list(world.processes):
        world.stop(process)
    for name in world.model.topology.members():
        world.start(name)


def errors_of(world: World, ms: int = 3_000) -> list[str]:
    """Lets time pass, during which actors may fail. Returns their distinct error messages."""
    end_ms, said = world.now_ms + ms, []
    while world.now_ms < end_ms:
        try:
            world.run_until(end_ms)
        except CutwaterError as error:
            said.append(f"{type(error).__name__}: {error}")
    return list(dict.fromkeys(said))


def manifest_of(world: World, epoch: int) -> str:
    """The name of a retained checkpoint's manifest."""
    return paths.manifest_name(epoch, world.oracle.ledger.kept[epoch].entry.checkpoint_id)


def damage(world: World, name: str) -> None:
    world.store.objects[name] = world.store.objects[name][:-1] + b" "


def add_stage(world: World, name: str, inputs: str, member: str) -> None:
    """Restores the newest checkpoint with an additional stage by a command, and restarts all members."""
    added = stage(name, inputs, member)
    model = _model(pipeline(*world.graph.stages.values(), added)).stages[name]
    world.add_stage(model)
    graph = pipeline(*world.graph.stages.values(), added)
    request = Request(RequestKind.RESTORE, f"add-{name}", epoch=world.oracle.ledger.head, topology=graph)
    world.run_command(request)
    until(world, lambda: name in world.graph.stages)
