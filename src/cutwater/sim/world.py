"""One simulated cluster, driven by one seed: virtual time, faults, and the phases of a schedule.

A schedule has two phases. While faults are on, anything may go wrong. Then they stop, dead and paused processes come
back, and the pipeline must make progress within a bound. At the end it is drained, and every sink must show exactly
what it should.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random
from typing import Any

from cutwater.protocol.base.effects import ReadPrepared
from cutwater.protocol.base.paths import spark_prefix
from cutwater.protocol.base.records import Prepared, Topology
from cutwater.protocol.base.wire import Request, RequestKind
from cutwater.protocol.leader.coordinator_actions import CoordinatorConfig
from cutwater.protocol.leader.leader import LeaderConfig, LeaderPhase
from cutwater.protocol.member.config import MemberConfig
from cutwater.protocol.replay.messages import ReplayConfig
from cutwater.sim import faults as fault_plan
from cutwater.sim import topology
from cutwater.sim.chaos import Chaos
from cutwater.sim.commands import Command
from cutwater.sim.io import Io
from cutwater.sim.network import Network
from cutwater.sim.oracle import Oracle, Violation
from cutwater.sim.process import Process
from cutwater.sim.scene import ProcessView
from cutwater.sim.spark import START, Attempt, Folder, GoneForZombie, State
from cutwater.sim.store import Rows, SimStore, SimTable

EPOCHS = 10
"""Every schedule commits at least this many epochs."""

PROGRESS_MS = 12_000
"""After faults have stopped, the next commit must follow within this virtual time."""

FIRST_EVENT_MS = (0, 0, 0, 0, 0, 0, 500, 10**9)
"""When a source has its first event: most immediately, some later, some never."""

EPOCHS_AFTER_FAULTS = 2
"""Then the drain is one more."""

DEPLOYMENTS = (0, 0, 1, 2)
"""How often a user changes the code after faults have stopped."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one schedule."""

    seed: int
    violation: str | None
    epochs: int
    faults: int


class World:
    """Everything that one seed determines. `tracer` receives readable lines; `record` receives what each process does
    and sees, in the format of `cutwater.store.recording`."""

    def __init__(
        self,
        seed: int,
        members: int | None = None,
        tracer: Callable[[str], None] | None = None,
        record: Callable[[bytes], object] | None = None,
    ) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.now_ms = 0
        self.fault_count = 0
        self.tracer = tracer
        self.record = record
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0
        count = members if members is not None else self.rng.randint(3, 5)
        self.model = topology.draw(self.rng, count, max(count, self.rng.randint(4, 8)))
        self.faults = fault_plan.draw(self.rng, seed)
        self.member_config, self.leader_config = self._draw_config()
        self.rates = {n: self.rng.uniform(0.01, 0.06) for n in self.model.stages}
        self.begins_ms = {n: self.rng.choice(FIRST_EVENT_MS) for n in self.model.stages}
        self.trigger_ms = {n: self.rng.choice(self._triggers(m)) for n, m in self.model.stages.items()}
        self.io_ms = self.rng.choice((2, 2, 2, 2, 3, 3, 3, 5, 12))
        self.table_ms = self.rng.choice((5, 40, 60))
        self.batch_most_ms = self.rng.choice((6, 9, 12, 25))
        self.store = SimStore()
        self.tables = {sink: SimTable() for sink in self.model.topology.sinks()}
        self.folders: dict[tuple[str, int, int], Folder] = {}
        self.attempts: list[Attempt] = []
        self.slow_until_ms: dict[str, int] = {}
        self.slowness = 40
        """The factor by which the batches of a slow stage take longer."""
        self.broken_until_ms: dict[str, int] = {}
        """Until when every batch of a stage fails, wherever it runs."""
        self.healed_ms = 0
        """When faults stopped."""
        self.wants_rest = False
        """Whether the user who started the processes wants the pipeline to be drained."""
        self.rested: set[tuple[str, int, int]] = set()
        """The incarnations of stages whose queries have found nothing to do at least once."""
        self.under_way: set[tuple[str, int, int]] = set()
        """The incarnations whose queries are running a batch, or were when they ended."""
        self.took_all: set[tuple[str, int]] = set()
        """With `once`: the stages, by generation, whose sources have been read completely."""
        self.oracle = Oracle(self)
        self.network = Network(self)
        self.io = Io(self)
        self.chaos = Chaos(self)
        self.processes: list[Process] = []
        self.commands: list[Command] = []
        self.requests: dict[str, Request] = {}
        """The users' requests, by id."""
        self.last_start_ms: dict[str, int] = {}
        self._boots = 0

    @staticmethod
    def _triggers(model: topology.StageModel) -> tuple[int, ...]:
        """How long a query waits after a batch. Roots are slow, to limit the number of events to simulate. No query runs
        batches faster than they are logged just because time passes."""
        if not model.spec.inputs:
            return (80, 180, 300)
        return (50, 80) if model.native or model.ticks else (5, 15, 40)

    def _draw_config(self) -> tuple[MemberConfig, LeaderConfig]:
        rng = self.rng
        coordinator = CoordinatorConfig(
            interval_ms=rng.choice((40, 80, 160)),
            min_pause_ms=rng.choice((0, 0, 30)),
            timeout_ms=rng.choice((1_000, 1_800)),
            alignment_timeout_ms=rng.choice((None, 80, 250)),
            max_concurrent=rng.choice((1, 1, 1, 2)),
            retained=rng.choice((1, 2, 3)),
            full_every=rng.choice((None, None, 4)),
        )
        replay = ReplayConfig(
            chunk_entries=rng.choice((1, 10)),
            chunk_bytes=6_000,
            anchor_bytes=rng.choice((2_000, 8_000)),
            buffer_bytes=20_000,
            timeout_ms=60,
            backoff_ms=20,
            backoff_max_ms=200,
            ask_again_ms=60,
        )
        compact_after = rng.choice((8, 16, 40))
        restarts, backoff_ms = rng.choice((0, 1, 3)), rng.choice((2, 20))
        tolerated = rng.choice((None, None, 0, 2))
        idle_after_ms, rest_within_ms = rng.choice((0, 40, 200)), rng.choice((20, 60, 150))
        member = MemberConfig(
            poll_ms=250, resend_ms=250, compact_after=compact_after, small_gap=2, replay=replay, restarts=restarts,
            backoff_ms=backoff_ms, tolerated_failures=tolerated, idle_after_ms=idle_after_ms,
            rest_within_ms=rest_within_ms, once=False, publish_tries=None,
        )  # fmt: skip
        return member, LeaderConfig(timeout_ms=250, heartbeat_ms=80, coordinator=coordinator)

    # --- time -----------------------------------------------------------------------------------------

    def schedule(self, delay_ms: int, call: Callable[..., None], *args: Any) -> None:
        self._sequence = sequence = self._sequence + 1
        heappush(self._heap, (self.now_ms + delay_ms, sequence, call, args))

    def between(self, low: int, high: int) -> int:
        """A random integer from `low` to `high`, three times as fast as `randint`."""
        return low + int(self.rng.random() * (high - low + 1))

    def run_until(self, end_ms: int, done: Callable[[], bool] | None = None) -> bool:
        """Plays events up to `end_ms`, or until `done`. Returns whether it is done."""
        heap = self._heap
        count = 0
        while heap and heap[0][0] <= end_ms:
            self.now_ms, _, call, args = heappop(heap)
            call(*args)
            if done is not None:
                count += 1
                if count % 16 == 0 and done():
                    return True
        self.now_ms = max(self.now_ms, end_ms)
        return done is None or done()

    # --- the phases of a schedule ---------------------------------------------------------------------

    def run(self) -> Result:
        """Plays the whole schedule; a violation ends it."""
        violation = None
        try:
            self._play()
        except Violation as found:
            violation = str(found)
        except BrokenPipeError:  # the reader of the trace has ended
            raise
        except Exception as error:  # any error in a procedure is a bug that the schedule has found
            where = traceback.extract_tb(error.__traceback__)[-1]
            violation = f"at {self.now_ms} ms: {error!r} in {where.name}, {where.filename}:{where.lineno}"
        if violation is not None:
            self.trace(None, f"VIOLATION {violation}")
        return Result(self.seed, violation, self.oracle.epochs, self.fault_count)

    def _play(self) -> None:
        for name in self.graph.members():
            self.start(name)
        self.chaos.begin()
        self.run_until(self.rng.randint(700, 2_000))
        self.chaos.end()
        self.healed_ms = self.now_ms
        committed = self.oracle.epochs
        target = max(EPOCHS - 1, committed + EPOCHS_AFTER_FAULTS)
        while self.oracle.epochs < target:
            if self.oracle.ledger.drained:
                self.chaos.start_again()
            if not self.run_until(self.now_ms + PROGRESS_MS, self._progress_since(self.oracle.epochs)):
                self.oracle.violation(f"no epoch committed within {PROGRESS_MS} ms after faults stopped")
        if not self.run_until(self.now_ms + PROGRESS_MS, lambda: not self.chaos.askers.unanswered):
            self.oracle.violation(f"requests without an answer: {sorted(self.chaos.askers.unanswered)}")
        for _ in range(self.rng.choice(DEPLOYMENTS)):
            self._deploy()
        self._drain()

    def _progress_since(self, epochs: int) -> Callable[[], bool]:
        return lambda: self.oracle.epochs > epochs

    def _deploy(self) -> None:
        """A user changes the code of the healthy pipeline: a restore with another graph or with reset stages, right after
        an unaligned checkpoint. Nothing else goes wrong, so nothing hides what the restore gets wrong."""
        if self.oracle.ledger.drained:
            return
        self.chaos.ask(Request(RequestKind.CHECKPOINT, self.chaos.new_id(), unaligned=True), withdraws=False)
        if not self.run_until(self.now_ms + PROGRESS_MS, lambda: not self.chaos.askers.unanswered):
            self.oracle.violation(f"no answer to a checkpoint within {PROGRESS_MS} ms without faults")
        request = self.chaos.operator.draw_deployment(self.chaos.new_id())
        command = Command(self, request)
        self.requests[request.request_id] = request
        command.ended(command.run_now())
        if not self.run_until(self.now_ms + PROGRESS_MS, self._progress_since(self.oracle.epochs)):
            self.oracle.violation(f"no epoch committed within {PROGRESS_MS} ms after a deployment")

    def _drain(self) -> None:
        """The end of every schedule: drain, publish, and compare every sink with every source."""
        end_ms = self.now_ms + PROGRESS_MS
        if self.oracle.ledger.drained:  # by a request that was still in progress
            self.chaos.start_again()
            self.run_until(end_ms, lambda: not self.oracle.ledger.drained)
        self.chaos.want_rest()
        if not self.run_until(end_ms, lambda: self.oracle.ledger.drained):
            self.oracle.violation(f"no drain committed within {PROGRESS_MS} ms after the request")
        if not self.run_until(self.now_ms + PROGRESS_MS, self.oracle.all_settled):
            self.oracle.violation(
                f"a sink has not published everything within {PROGRESS_MS} ms: {self.oracle.unsettled()}"
            )
        self.oracle.final_check()
        if not self.run_until(self.now_ms + PROGRESS_MS, lambda: all(p.leaving for p in self.processes)):
            self.oracle.violation(f"a process does not notice within {PROGRESS_MS} ms that the run is over")

    # --- processes ------------------------------------------------------------------------------------

    @property
    def graph(self) -> Topology:
        """The pipeline's current graph: the journal's, once it has one."""
        return self.oracle.ledger.topology or self.model.topology

    def add_stage(self, model: topology.StageModel) -> None:
        """Adds a stage for a future graph; `model` knows every stage that ever existed."""
        name = model.spec.name
        self.model.stages[name] = model
        self.rates[name], self.trigger_ms[name] = 0.0, self.rng.choice(self._triggers(model))
        for sink in model.spec.sinks:
            self.tables[sink.name] = SimTable()

    def run_command(self, request: Request) -> None:
        """A user runs a command on the store."""
        command = Command(self, request)
        self.commands.append(command)
        self.requests[request.request_id] = request
        command.start()

    def start(self, name: str) -> Process:
        self._boots += 1
        process = Process(self, name, self._boots)
        self.processes.append(process)
        self.last_start_ms[name] = self.now_ms
        self.network.tell_presence(name)
        return process

    def stop(self, process: ProcessView) -> None:
        assert isinstance(process, Process)
        process.crash()
        self.processes.remove(process)
        self.network.tell_presence(process.name)

    def leaders(self) -> list[Process]:
        return [p for p in self.processes if p.leader.phase is LeaderPhase.LEADING]

    # --- what the models need -------------------------------------------------------------------------

    def available(self, root: str, at_ms: int | None = None) -> int:
        """How many events a root's source has now, or had at `at_ms`."""
        at_ms = self.now_ms if at_ms is None else at_ms
        return int(self.rates[root] * max(0, at_ms - self.begins_ms.get(root, 0)))

    def batch_ms(self, stage: str) -> int:
        slow = self.slow_until_ms.get(stage, 0) > self.now_ms
        return self.between(3, self.batch_most_ms) * (self.slowness if slow else 1)

    def new_attempt(self, attempt: Attempt) -> int:
        self.attempts.append(attempt)
        return len(self.attempts) - 1

    @staticmethod
    def state_name(stage: str, generation: int, incarnation: int, batch: int) -> str:
        return f"{spark_prefix(stage, generation, incarnation)}state/{batch}"

    def state_at(
        self, stage: str, generation: int, incarnation: int, batch: int, reader: int | None = None
    ) -> State:
        """The state after a batch in an incarnation's folder, for that incarnation or for `reader`."""
        if batch < 0:
            return START
        name = self.state_name(stage, generation, incarnation, batch)
        needs = stage, generation, reader if reader is not None else incarnation
        state: State = self._needed(name, f"{stage} needs its state at batch {batch}", needs)
        return state

    def state_of_report(self, stage: str, generation: int, incarnation: int, report: Any) -> State:
        if report is None or not report.state:
            return START
        (name,) = report.state
        state: State = self._needed(name, f"{stage} is restored", (stage, generation, incarnation))
        return state

    def read_prepared(self, effect: ReadPrepared) -> Prepared | None:
        """A prepared record is valid once Spark has committed its batch."""
        folder = self.folders[effect.stage, effect.generation, effect.incarnation]
        return folder.prepared.get(effect.batch) if effect.batch <= folder.last else None

    def put_state(self, stage: str, generation: int, incarnation: int, batch: int, state: State) -> None:
        if batch >= 0:
            name = self.state_name(stage, generation, incarnation, batch)
            self.store.delete(name)
            self.store.create(name, state, synced=False)

    def read_data(self, name: str, what: str, reader: tuple[str, int, int]) -> tuple[int, Rows]:
        data: tuple[int, Rows] = self._needed(name, what, reader)
        return data

    def read_staged(self, name: str, sink: str) -> Rows:
        rows: Rows = self._needed(name, f"sink {sink} publishes")
        return rows

    def _needed(self, name: str, what: str, incarnation: tuple[str, int, int] | None = None) -> Any:
        """Reads an object that must exist. It is a violation if it is gone, unless a zombie needs it."""
        found = self.store.objects.get(name)
        if found is None:
            if incarnation is not None and not self.oracle.is_open(*incarnation):
                raise GoneForZombie(name)
            self.oracle.violation(f"{what}, but {name} was deleted")
        return found

    # --- tracing --------------------------------------------------------------------------------------

    def fault(self, what: str) -> None:
        self.fault_count += 1
        if self.tracer is not None:
            self.trace(None, f"fault: {what}")

    def trace(self, process: ProcessView | None, what: str) -> None:
        if self.tracer is not None:
            from cutwater.sim.trace import line

            self.tracer(line(self, process, what))
