"""Makes things go wrong while faults are on, asks for things as users do, and mends all in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutwater.protocol.effects import Procedure
from cutwater.protocol.journal import Journal
from cutwater.protocol.log import append, follow
from cutwater.protocol.records import Leader, Restored
from cutwater.protocol.wire import Request, RequestKind, encode
from cutwater.sim.faults import TIMES_MS, Faults

if TYPE_CHECKING:
    from cutwater.sim.process import Process
    from cutwater.sim.world import World


class Chaos:
    """The faults of one schedule that come by time, and its users."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.on = False
        self._requests = 0

    def begin(self) -> None:
        self.on = True
        for name in TIMES_MS:
            self._next(name)

    def end(self) -> None:
        """Stops all faults; the dead and the sleeping come back, zombies go."""
        world = self.world
        self.on = False
        world.trace(None, "faults stop")
        world.faults = Faults()
        world.network.blocked.clear()
        world.slow_until_ms.clear()
        for table in world.tables.values():
            table.failing_until_ms = 0
        newest = {p.name: p for p in world.processes}
        for process in list(world.processes):
            process.store_down_until_ms = 0
            process.member.failures.clear()
            if process is not newest[process.name] or world.oracle.ledger.drained:
                world.stop(process)
            elif process.paused:
                process.wake_up()
        self._revive_all()

    def _revive_all(self) -> None:
        running = {p.name for p in self.world.processes}
        for name in self.world.model.topology.members():
            if name not in running:
                self.world.start(name)

    def _next(self, name: str) -> None:
        every_ms = getattr(self.world.faults, name)
        if every_ms:
            delay = int(self.world.rng.expovariate(1 / every_ms)) + 1
            self.world.schedule(delay, self._strike, name)

    def _strike(self, name: str) -> None:
        if self.on:
            getattr(self, f"_{name.removesuffix('_every_ms')}")()
            self._next(name)

    def _some_process(self) -> Process | None:
        """A process that runs; the leader twice as often as the others."""
        running = [p for p in self.world.processes if not p.paused]
        running += [p for p in self.world.leaders() if not p.paused]
        return self.world.rng.choice(running) if running else None

    # --- faults ---------------------------------------------------------------------------------------

    def _crash(self) -> None:
        process = self._some_process()
        if process is None:
            return
        self.world.fault(f"{process} crashes")
        self.world.stop(process)
        self.world.schedule(self.world.rng.randint(50, 900), self._restart, process.name)

    def _restart(self, name: str) -> None:
        if not any(p.name == name for p in self.world.processes):
            self.world.trace(None, f"{name} starts again")
            self.world.start(name)

    def interrupt(self, process: Process) -> None:
        """A process sleeps or dies in the middle of a write."""
        if self.world.rng.random() < 0.5:
            process.pause()
            self.world.schedule(self.world.rng.randint(200, 2_500), self._wake, process)
        else:
            self.world.stop(process)
            self.world.schedule(self.world.rng.randint(50, 900), self._restart, process.name)

    def superseded(self, process: Process) -> None:
        """A process learns that another one has taken over. It ends, but a zombie takes its time."""
        self.world.trace(process, "is superseded")
        self.world.schedule(self.world.rng.randint(0, 600) if self.on else 0, self._leave, process)

    def _leave(self, process: Process) -> None:
        if process.alive:
            if process.recorder is not None:
                process.recorder.ended("superseded")
            self.world.stop(process)
            self.world.schedule(self.world.rng.randint(20, 300), self._restart, process.name)

    def _pause(self) -> None:
        process = self._some_process()
        if process is not None:
            self.world.fault(f"{process} sleeps")
            process.pause()
            self.world.schedule(self.world.rng.randint(50, 1_500), self._wake, process)

    def _replace(self) -> None:
        """A process sleeps, its successor starts, and then it comes back: both believe to be the member."""
        process = self._some_process()
        if process is not None:
            self.world.fault(f"{process} sleeps and is replaced")
            if self.world.rng.random() < 0.8:
                process.pause()
                self.world.schedule(self.world.rng.randint(150, 1_800), self._wake, process)
            self.world.schedule(self.world.rng.randint(20, 400), self._succeed, process.name)

    def _succeed(self, name: str) -> None:
        if self.on and sum(p.name == name for p in self.world.processes) < 2:
            self.world.start(name)

    def _wake(self, process: Process) -> None:
        if process.alive and process.paused:
            self.world.trace(process, "wakes up")
            process.wake_up()

    def _partition(self) -> None:
        world, rng = self.world, self.world.rng
        names = list(world.model.topology.members())
        alone = set(rng.sample(names, rng.randint(1, max(1, len(names) // 2))))
        pairs = {(a, b) for a in names for b in names if (a in alone) != (b in alone)}
        if rng.random() < 0.5:
            pairs = {(a, b) for a, b in pairs if a in alone}
        world.fault(f"partition of {sorted(alone)}")
        world.network.blocked |= pairs
        world.schedule(rng.randint(100, 1_200), self._heal, pairs)

    def _heal(self, pairs: set[tuple[str, str]]) -> None:
        self.world.network.blocked -= pairs

    def _store_down(self) -> None:
        """The store is out of reach, for all or for one."""
        world, rng = self.world, self.world.rng
        until = world.now_ms + rng.randint(50, 800)
        process = self._some_process()
        victims = world.processes if process is None or rng.random() < 0.4 else [process]
        world.fault(f"store out of reach for {len(victims)}")
        for victim in victims:
            victim.store_down_until_ms = until

    def _slow_stage(self) -> None:
        rng = self.world.rng
        stage = rng.choice(sorted(self.world.model.stages))
        self.world.fault(f"{stage} is slow")
        self.world.slow_until_ms[stage] = self.world.now_ms + rng.randint(200, 1_500)

    def _sink_fails(self) -> None:
        """A sink fails to publish, perhaps for longer than retention lasts."""
        rng = self.world.rng
        sink = rng.choice(sorted(self.world.tables))
        self.world.fault(f"sink {sink} fails")
        self.world.tables[sink].failing_until_ms = self.world.now_ms + rng.randint(200, 3_000)

    def _power_cut(self) -> None:
        """All machines go dark, and what was not made durable is gone. Logs may then name batches whose files are
        no more, so somebody goes back to the newest checkpoint before anything starts again."""
        world, journal = self.world, Journal()
        self._perform(follow(journal.view))
        state = journal.state
        if state.head is None or state.drained:
            return
        world.fault("power cut")
        for process in list(world.processes):
            world.stop(process)
        world.store.lose_power()
        world.oracle.check_kept()
        term = state.term + 1
        back = state.committed[state.head]
        for body in (Leader(term, "operator"), Restored(term, state.generation + 1, back.epoch, back.cuts)):
            self._requests += 1
            self._perform(append(journal.view, journal.view.seal(body, f"operator-{self._requests}")))
        world.schedule(world.rng.randint(50, 900), self._revive_all)

    def _perform(self, procedure: Procedure[object]) -> None:
        """Has a procedure done at once, by somebody whom no fault troubles."""
        answer = None
        while True:
            try:
                answer = self.world.io.answer(procedure.send(answer))
            except StopIteration:
                return

    # --- users ----------------------------------------------------------------------------------------

    def _request(self) -> None:
        rng, ledger = self.world.rng, self.world.oracle.ledger
        draw = rng.random()
        if ledger.drained:
            self._after_drain()
        elif draw < 0.3 and ledger.kept:
            self._ask_restore()
            if rng.random() < 0.4:  # a user who has thought better of it
                self.world.schedule(rng.randint(5, 150), self._ask_restore)
        elif draw < 0.5:
            self.ask(Request(RequestKind.SAVEPOINT, self._id(), f"save{self._requests}"))
        elif draw < 0.55:
            epoch = rng.choice(sorted(ledger.kept)) if ledger.kept else 1
            self.ask(Request(RequestKind.SAVEPOINT, self._id(), f"named{self._requests}", epoch))
        elif draw < 0.6:
            name = rng.choice(sorted(ledger.savepoints)) if ledger.savepoints else "none"
            self.ask(Request(RequestKind.FORGET, self._id(), name))
        elif draw < 0.7:
            self.ask(
                Request(
                    RequestKind.CHECKPOINT, self._id(), full=rng.random() < 0.3, unaligned=rng.random() < 0.6
                )
            )
        elif draw < 0.8:
            self.ask(Request(RequestKind.CANCEL, self._id()))
        elif draw < 0.9:
            self.ask_drain()
        else:
            self._refuse()

    def _refuse(self) -> None:
        """A stage fails for good on one member, which then refuses checkpoints, until it is mended."""
        process = self._some_process()
        if process is not None:
            self.world.fault(f"a stage of {process} has failed")
            process.member.failures[sorted(process.member.stages)[0] if process.member.stages else "?"] = (
                "failed"
            )
            self.world.schedule(self.world.rng.randint(50, 500), process.member.failures.clear)

    def _ask_restore(self) -> None:
        kept = sorted(self.world.oracle.ledger.kept)
        if kept:
            epoch = self.world.rng.choice(kept)
            reset = tuple(s for s in self._expendable(epoch) if self.world.rng.random() < 0.3)
            self.ask(Request(RequestKind.RESTORE, self._id(), None, epoch, reset=reset))

    def _expendable(self, epoch: int) -> list[str]:
        """The stages whose state at a cut holds no rows: resetting one of them loses nothing, and the
        comparison of sinks with sources still holds."""
        cut = self.world.oracle.manifests[epoch].stages
        models = self.world.model.stages.items()
        return [n for n, m in models if not (m.windowed or m.native or cut[n].unaligned)]

    def _after_drain(self) -> None:
        """All processes of a drained pipeline end, not always at once, or somebody starts it again."""
        leaders = self.world.leaders()
        if leaders and self.world.rng.random() < 0.6:
            self.world.trace(leaders[0], "ends, as the pipeline is drained")
            self.world.stop(leaders[0])
        else:
            self.start_again()

    def start_again(self) -> None:
        """The pipeline was drained; somebody starts it again."""
        self.world.trace(None, "the drained pipeline is started again")
        for process in list(self.world.processes):
            self.world.stop(process)
        self._revive_all()

    def ask_drain(self) -> None:
        self.ask(Request(RequestKind.DRAIN, self._id()))

    def _id(self) -> str:
        self._requests += 1
        return f"r{self._requests}"

    def ask(self, request: Request) -> None:
        """Reaches whoever leads, or believes to."""
        self.world.trace(None, f"asks for {request.kind.value} {request.name or request.epoch or ''}")
        for process in self.world.leaders():
            self.world.schedule(1, process.deliver, "user", encode(request))
