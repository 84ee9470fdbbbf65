"""Injects faults, makes the requests of users, and repairs everything when faults stop."""

from __future__ import annotations

from typing import Protocol

import msgspec

from cutwater.protocol.base.effects import Procedure
from cutwater.protocol.base.log import follow
from cutwater.protocol.base.paths import manifest_name, mark_name
from cutwater.protocol.base.wire import Request, RequestKind
from cutwater.protocol.member.journal import Journal
from cutwater.protocol.member.staged import Needed
from cutwater.sim.askers import Askers
from cutwater.sim.commands import Command, CommandScene, Operator
from cutwater.sim.faults import TIMES_MS, Faults
from cutwater.sim.network import Network
from cutwater.sim.scene import ProcessView
from cutwater.sim.spark import staging_prefix
from cutwater.sim.store import TableVersion

RESTORE_AGAIN_MS = 2_000
"""How long a user waits for a restore before requesting it again."""


ANSWERED_AT_LAST = (RequestKind.CHECKPOINT, RequestKind.SAVEPOINT, RequestKind.FORGET)
"""The requests that stay open when faults stop. Others would change what is checked after that."""


class ChaosScene(CommandScene, Protocol):
    """A world in which anything may go wrong."""

    @property
    def network(self) -> Network: ...


class Chaos:
    """The timed faults of one schedule, and its users."""

    def __init__(self, world: ChaosScene) -> None:
        self.world = world
        self.on = False
        self.askers = Askers(world)
        self.operator = Operator(world)
        self._requests = 0

    def begin(self) -> None:
        self.on = True
        for name in TIMES_MS:
            self._next(name)

    def end(self) -> None:
        """Stops all faults. Dead and paused processes come back, zombies end."""
        world = self.world
        self.on = False
        world.trace(None, "faults stop")
        world.faults = Faults()
        world.network.unblock(list(world.network.blocked))
        world.slow_until_ms.clear()
        world.broken_until_ms.clear()
        for table in world.tables.values():
            table.failing_until_ms = 0
        newest = {p.name: p for p in world.processes}
        for running in list(world.commands):
            running.crash()
        for process in list(world.processes):
            process.store_down_until_ms = 0
            if process is not newest[process.name] or world.oracle.ledger.drained:
                world.stop(process)
            elif process.paused:
                process.wake_up()
        self.askers.keep(i for i, r in self.askers.unanswered.items() if r.kind in ANSWERED_AT_LAST)
        self._heal_stages()
        self.start_members()

    def _heal_stages(self) -> None:
        """Repairs given-up stages as users would: by restarting the member, or by a restore."""
        world = self.world
        failed = [p for p in world.processes if p.member.failures]
        if failed and world.oracle.ledger.kept and world.rng.random() < 0.5:
            self._restore_until_healed()
            return
        for process in failed:
            world.stop(process)

    def _restore_until_healed(self) -> None:
        """Repeats the request while a stage is given up: a request reaches nobody while nobody leads. If others have
        changed a table, the user forces it."""
        if any(p.member.failures for p in self.world.processes):
            self._ask_restore(force=True)
            self.world.schedule(RESTORE_AGAIN_MS, self._restore_until_healed)

    def start_members(self) -> None:
        """Starts every member of the graph that is not running; it may have just joined."""
        running = {p.name for p in self.world.processes}
        for name in self.world.graph.members():
            if name not in running:
                self.world.start(name)

    def graph_changed(self, process: ProcessView) -> None:
        """A process notices that the graph has changed: it ends, and starts again as part of the new one."""
        self.world.trace(process, "ends: the graph has changed")
        if process.recorder is not None:
            process.recorder.ended("graph changed")
        self.world.stop(process)
        self.world.schedule(self.world.rng.randint(20, 300) if self.on else 1, self._restart, process.name)

    def _next(self, name: str) -> None:
        every_ms = getattr(self.world.faults, name)
        if every_ms:
            delay = int(self.world.rng.expovariate(1 / every_ms)) + 1
            self.world.schedule(delay, self._strike, name)

    def _strike(self, name: str) -> None:
        if self.on:
            getattr(self, f"_{name.removesuffix('_every_ms')}")()
            self._next(name)

    def _some_process(self) -> ProcessView | None:
        """A random running process; the leader is twice as likely as the others."""
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

    def _start_alone(self, name: str) -> None:
        runs = any(p.name == name for p in self.world.processes)
        if not runs and name in self.world.graph.members():
            self.world.trace(None, f"{name} starts again")
            self.world.start(name)

    def _restart(self, name: str) -> None:
        self._start_alone(name)
        if not self.on:
            self.start_members()  # a restore that came in when faults stopped may have brought new ones

    def interrupt(self, process: ProcessView) -> None:
        """Pauses or kills a process in the middle of a write."""
        if process not in self.world.processes:  # a command, which is not restarted
            process.crash()
        elif self.world.rng.random() < 0.5:
            process.pause()
            self.world.schedule(self.world.rng.randint(200, 2_500), self._wake, process)
        else:
            self.world.stop(process)
            self.world.schedule(self.world.rng.randint(50, 900), self._restart, process.name)

    def ends(self, process: ProcessView, why: str) -> None:
        """A process learns that another one has taken over, or gives up. It ends; a zombie may take a while."""
        self.world.trace(process, why)
        self.world.schedule(self.world.rng.randint(0, 600) if self.on else 0, self._leave, process, why)

    def is_over(self, process: ProcessView) -> None:
        """A process notices that the run is over, and ends for good. (Without faults all stay.)"""
        if self.on:
            self.world.trace(process, "ends, as the run is over")
            self.world.schedule(self.world.rng.randint(0, 600), self._end_for_good, process)

    def _end_for_good(self, process: ProcessView) -> None:
        if process.alive and process.member.drained:
            self.world.stop(process)

    def _leave(self, process: ProcessView, why: str) -> None:
        if process.alive:
            if process.recorder is not None:
                process.recorder.ended(why)
            self.world.stop(process)
            self.world.schedule(self.world.rng.randint(20, 300), self._restart, process.name)

    def _pause(self) -> None:
        process = self._some_process()
        if process is not None:
            self.world.fault(f"{process} sleeps")
            process.pause()
            self.world.schedule(self.world.rng.randint(50, 1_500), self._wake, process)

    def _replace(self) -> None:
        """A process is paused, its successor starts, and then it resumes: both believe that they are the member."""
        process = self._some_process()
        if process is not None:
            self.world.fault(f"{process} sleeps and is replaced")
            if self.world.rng.random() < 0.8:
                process.pause()
                self.world.schedule(self.world.rng.randint(150, 1_800), self._wake, process)
            self.world.schedule(self.world.rng.randint(20, 400), self._succeed, process.name)

    def replace(self, process: ProcessView) -> int:
        """A process sleeps and is replaced. Returns for how many milliseconds it sleeps."""
        self.world.fault(f"{process} sleeps before it publishes, and is replaced")
        sleeps_ms = self.world.rng.randint(400, 1_500)
        process.pause()
        self.world.schedule(sleeps_ms, self._wake, process)
        self.world.schedule(self.world.rng.randint(20, 200), self._succeed, process.name)
        return sleeps_ms

    def _succeed(self, name: str) -> None:
        member = name in self.world.graph.members()
        if self.on and member and sum(p.name == name for p in self.world.processes) < 2:
            self.world.start(name)

    def _wake(self, process: ProcessView) -> None:
        if process.alive and process.paused:
            self.world.trace(process, "wakes up")
            process.wake_up()

    def _partition(self) -> None:
        world, rng = self.world, self.world.rng
        names = list(world.graph.members())
        alone = set(rng.sample(names, rng.randint(1, max(1, len(names) // 2))))
        pairs = {(a, b) for a in names for b in names if (a in alone) != (b in alone)}
        if rng.random() < 0.5:
            pairs = {(a, b) for a, b in pairs if a in alone}
        world.fault(f"partition of {sorted(alone)}")
        world.network.block(pairs)
        world.schedule(rng.randint(100, 1_200), self._heal, pairs)

    def _heal(self, pairs: set[tuple[str, str]]) -> None:
        self.world.network.unblock(pairs)

    def _store_down(self) -> None:
        """The store is unreachable, for all or for one."""
        world, rng = self.world, self.world.rng
        until = world.now_ms + rng.randint(50, 800)
        process = self._some_process()
        victims = world.processes if process is None or rng.random() < 0.4 else [process]
        world.fault(f"store out of reach for {len(victims)}")
        for victim in victims:
            victim.store_down_until_ms = until

    def _slow_stage(self) -> None:
        rng = self.world.rng
        stage = rng.choice(sorted(self.world.graph.stages))
        self.world.fault(f"{stage} is slow")
        self.world.slow_until_ms[stage] = self.world.now_ms + rng.randint(200, 1_500)

    def _sink_fails(self) -> None:
        """A sink fails to publish, possibly for longer than checkpoints are retained."""
        rng = self.world.rng
        sink = rng.choice(sorted(self.world.tables))
        self.world.fault(f"sink {sink} fails")
        self.world.tables[sink].failing_until_ms = self.world.now_ms + rng.randint(200, 3_000)

    def _table_forgets(self) -> None:
        """A table forgets its transactions, except one that was just committed: by the time that is old enough, it is
        marked, or `head` still finds it in the table's log."""
        tables, objects = self.world.tables, self.world.store.objects
        marked = [
            sink
            for sink, table in sorted(tables.items())
            if table.head().transaction and mark_name(table.transaction, sink) in objects
        ]
        if marked:
            sink = self.world.rng.choice(marked)
            self.world.fault(f"the table of {sink} forgets its transactions")
            tables[sink].forgotten = len(tables[sink].versions) - 1

    def _others_write(self) -> None:
        """Somebody else commits to a table. What Cutwater shows in it, and its transaction, stay unchanged."""
        sink = self.world.rng.choice(sorted(self.world.tables))
        newest = self.world.tables[sink].versions[-1]
        self.world.fault(f"others write to the table of {sink}")
        mine = TableVersion(newest.transaction, newest.shown, foreign_ms=self.world.now_ms)
        self.world.tables[sink].versions.append(mine)

    def _discard(self) -> None:
        """A member removes, after a delay, staged output that nobody will publish according to its own journal."""
        world, process = self.world, self._some_process()
        state = process.member.journal.state if process is not None else None
        if process is None or state is None or state.head is None:
            return
        names = [manifest_name(c.epoch, c.checkpoint_id) for c in state.committed.values()]
        if any(name not in world.store.objects for name in names):
            return  # it has expired by now
        manifests = [world.oracle.manifests[epoch] for epoch in state.committed]
        graph = process.member.topology
        for sink, stage in graph.sinks().items():
            if graph.stages[stage].member == process.name:
                needed, prefix = Needed(state, stage, sink, manifests), staging_prefix(sink)
                found = world.store.list(prefix, "")
                gone = [n for n in found if n.removeprefix(prefix).split("/")[0] not in needed]
                world.schedule(world.between(0, 200), self._remove, tuple(gone))

    def _remove(self, names: tuple[str, ...]) -> None:
        for name in names:
            self.world.store.delete(name)

    def _power_cut(self) -> None:
        """All machines lose power, and everything not durable is gone. Logs may then name batches whose files are
        lost, so a user restores the newest checkpoint before anything starts again."""
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
        # The head may still have stages that a restore with a changed graph dropped.
        assert state.topology is not None
        gone = world.oracle.manifests[state.head].stages.keys() - state.topology.stages.keys()
        drop = tuple(sorted(gone))
        request = Request(RequestKind.RESTORE, self.new_id(), epoch=state.head, drop=drop, force=True)
        reply = Command(world, request).run_now()
        if not reply.ok:
            world.oracle.violation(f"a restore after a power cut is refused: {reply}")
        world.schedule(world.rng.randint(50, 900), self.start_members)

    def _perform(self, procedure: Procedure[object]) -> None:
        """Runs a procedure immediately, without faults."""
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
            if rng.random() < 0.4:  # the user has changed their mind
                self.world.schedule(rng.randint(5, 150), self._ask_restore)
        elif draw < 0.5:
            for _ in range(rng.choice([1, 1, 2])):  # two users may want the same name
                self.ask(Request(RequestKind.SAVEPOINT, self.new_id(), f"save{self._requests // 2}"))
        elif draw < 0.55:
            epoch = rng.choice(sorted(ledger.kept)) if ledger.kept else 1
            self.ask(Request(RequestKind.SAVEPOINT, self.new_id(), f"named{self._requests}", epoch))
        elif draw < 0.6:
            name = rng.choice(sorted(ledger.savepoints)) if ledger.savepoints else "none"
            if name in ledger.savepoints and rng.random() < 0.5:  # another user still wants to restore it
                epoch = ledger.savepoints[name]
                self.ask(Request(RequestKind.RESTORE, self.new_id(), name, epoch))
            self.ask(Request(RequestKind.FORGET, self.new_id(), name))
        elif draw < 0.7:
            self.ask(
                Request(
                    RequestKind.CHECKPOINT,
                    self.new_id(),
                    full=rng.random() < 0.3,
                    unaligned=rng.random() < 0.6,
                )
            )
        elif draw < 0.8:
            self.ask(Request(RequestKind.CANCEL, self.new_id()))
        elif draw < 0.9:
            self.ask_drain()
        else:
            self._break_stage()

    def _break_stage(self) -> None:
        """Every batch of a stage fails for a while: the stage is given up, unless the time is short. Then its member
        refuses checkpoints until the next generation or its own restart."""
        world, rng = self.world, self.world.rng
        stage = rng.choice(sorted(world.graph.stages))
        world.fault(f"{stage} is broken")
        lasts_ms = rng.randint(20, 600)
        world.broken_until_ms[stage] = world.now_ms + lasts_ms
        host = world.graph.stages[stage].member
        for process in world.processes:
            if process.name == host and rng.random() < 0.5:
                world.schedule(lasts_ms, self._replace_failed, process)

    def _replace_failed(self, process: ProcessView) -> None:
        """A supervisor or a user restarts the member."""
        if process.alive and process.member.failures:
            self.world.stop(process)
            self._restart(process.name)

    def _ask_restore(self, force: bool = False) -> None:
        kept = sorted(self.world.oracle.ledger.kept)
        if kept:
            epoch = self.world.rng.choice(kept)
            names = [
                name for name, named in sorted(self.world.oracle.ledger.savepoints.items()) if named == epoch
            ]
            name = names[0] if names and self.world.rng.random() < 0.5 else None
            reset = tuple(s for s in self.operator.expendable(epoch) if self.world.rng.random() < 0.3)
            force = self.world.rng.random() < 0.5 or force
            self.ask(Request(RequestKind.RESTORE, self.new_id(), name, epoch, reset=reset, force=force))

    def _after_drain(self) -> None:
        """All processes of a drained pipeline end, not always at the same time, or a user starts it again."""
        leaders = self.world.leaders()
        if self.world.rng.random() < 0.2:
            self._command()
        elif leaders and self.world.rng.random() < 0.6:
            self.world.trace(leaders[0], "ends, as the pipeline is drained")
            self.world.stop(leaders[0])
        else:
            self.start_again()

    def start_again(self) -> None:
        """A user starts the drained pipeline again."""
        self.world.trace(None, "the drained pipeline is started again")
        for process in list(self.world.processes):
            self.world.stop(process)
        self.start_members()

    def ask_drain(self) -> None:
        self.ask(Request(RequestKind.DRAIN, self.new_id()))

    def want_rest(self) -> None:
        """Drains the pipeline: every process asks for it when it leads (a signal, or all sources are read), or a user
        requests it once. The drain may take longer than a checkpoint is allowed to."""
        world = self.world
        if world.rng.random() < 0.5:
            last = [s for s in sorted(world.graph.stages) if not world.graph.readers(s)]
            world.slow_until_ms[world.rng.choice(last)] = world.now_ms + world.rng.randint(500, 3_000)
            world.slowness = 200
            world.faults.query_ends_at_rest = 0.3
        draw = world.rng.random()
        if draw < 0.4:
            self._start_once()
        elif draw < 0.7:
            world.wants_rest = True
            for process in world.processes:
                process.turn(process.member.want_rest)
        else:
            self.ask(Request(RequestKind.DRAIN, self.new_id()), withdraws=False)

    def _start_once(self) -> None:
        """A user starts the pipeline with `once`, one member long after the others: it reads all sources, and drains."""
        world = self.world
        world.trace(None, "the pipeline is started with once")
        world.member_config = msgspec.structs.replace(world.member_config, once=True)
        for process in list(world.processes):
            world.stop(process)
        members = world.graph.members()
        last = world.rng.choice(members)
        for name in members:
            delay_ms = world.between(400, 3_000) if name == last else world.between(1, 300)
            world.schedule(delay_ms, self._restart if name == last else self._start_alone, name)

    def new_id(self) -> str:
        self._requests += 1
        return f"r{self._requests}"

    def ask(self, request: Request, withdraws: bool = True) -> None:
        """Somebody asks through the store, and stops waiting after a while if it `withdraws`."""
        self.world.trace(None, f"asks for {request.kind.value} {request.name or request.epoch or ''}")
        if withdraws:
            self.world.schedule(self.world.rng.randint(300, 2_000), self._withdraw, request.request_id)
        self.askers.ask(request, may_die=withdraws and self.on)

    def _withdraw(self, request_id: str) -> None:
        """The user stops waiting. After faults have stopped, every user waits for the answer."""
        if self.on:
            self.askers.withdraw(request_id)

    def _stranger(self) -> None:
        process = self._some_process()
        if process is not None:
            self.world.fault("a stranger speaks")
            self.world.network.speak_as_stranger(process)

    def _command(self) -> None:
        """A user runs a command on the store while members may be running; sometimes two users do so at once."""
        for _ in range(2 if self.world.rng.random() < 0.3 else 1):
            request = self.operator.draw(self.new_id())
            if request is not None:
                self.world.fault(f"command: {request.kind.value}")
                delay_ms = self.world.rng.randint(1, 60)
                self.world.schedule(delay_ms, self._run_command, request)

    def _run_command(self, request: Request) -> None:
        if self.on:  # what is done after faults have stopped must last
            self.world.run_command(request)
