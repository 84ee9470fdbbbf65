"""Commands: users who restore, name and forget savepoints without a member, and change the graph.

A command is a process of its own. It drives `steering.command` on the modelled store with the same faults as members,
and may be paused or killed between any two steps.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from cutwater.protocol.base import effects as fx
from cutwater.protocol.base.records import SinkSpec, StageSpec, Topology
from cutwater.protocol.base.wire import Reply, Request, RequestKind
from cutwater.protocol.leader.steering import command
from cutwater.protocol.member.journal import Journal
from cutwater.sim.io import Io
from cutwater.sim.oracle import WatchedScene
from cutwater.sim.topology import MAX_PATHS, StageModel
from cutwater.store.recording import Recorder


class CommandScene(WatchedScene, Protocol):
    """A world in which commands run."""

    commands: list[Command]

    @property
    def io(self) -> Io: ...


class Command:
    """One command. For `Io` it is its own and only actor."""

    def __init__(self, world: CommandScene, request: Request) -> None:
        self.world = world
        self.request = request
        self.name = f"command-{request.request_id}"
        self.alive = True
        self.paused = False
        self.store_down_until_ms = 0
        self.token = 0
        self._answer: Any = None
        self._nonces = 0
        self._journal = Journal()
        self._procedure = command(self._journal, self.name, self._nonce, request)
        self._recorder: Recorder | None = None
        if world.record is not None:
            self._recorder = Recorder(world.record, self.name, self._journal, lambda: world.now_ms)
        self._asked: tuple[fx.AnyOperation, int] | None = None

    def start(self) -> None:
        self.world.trace(None, f"{self}: {self.request.kind.value}")
        self.resume(self, self.token, None)

    def run_now(self) -> Reply:
        """Runs the whole command at once, without faults."""
        answer = None
        while True:
            knows = self._journal.index
            try:
                effect = self._procedure.send(answer)
            except StopIteration as end:
                reply: Reply = end.value
                return reply
            assert isinstance(effect, fx.Operation), effect
            answer = self.world.io.answer(effect)
            if self._recorder is not None:
                self._recorder.answered(effect, answer, knows)

    def _nonce(self) -> str:
        self._nonces += 1
        return f"{self.name}-{self._nonces}"

    def resume_later(self, delay_ms: int, actor: Any, answer: Any) -> None:
        self.world.schedule(delay_ms, self.resume, actor, self.token, answer)

    def resume(self, actor: Any, token: int, answer: Any) -> None:
        if not self.alive or token != self.token:
            return
        if self.paused:
            self.resume_later(20, actor, answer)
            return
        self.token += 1
        if self._recorder is not None and self._asked is not None:
            self._recorder.answered(self._asked[0], answer, self._asked[1])
        try:
            effect = self._procedure.send(answer)
        except StopIteration as end:
            self.crash()
            self.ended(end.value)
            return
        self._asked = None
        match effect:
            case fx.Sleep() | fx.Wait():
                self.resume_later(effect.ms, self, None)
            case fx.Send():
                raise AssertionError(f"a command sends nothing: {effect}")
            case _:
                self._asked = effect, self._journal.index
                self.world.io.perform(self, self, effect)  # type: ignore[arg-type]

    def ended(self, reply: Reply) -> None:
        self.world.trace(None, f"{self}: {'done' if reply.ok else reply.detail}")
        self.world.oracle.replied(reply)
        if reply.ok:
            self.world.chaos.start_members()

    def pause(self) -> None:
        self.paused = True

    def wake_up(self) -> None:
        self.paused = False

    def crash(self) -> None:
        self.alive = False
        if self in self.world.commands:
            self.world.commands.remove(self)

    def __str__(self) -> str:
        return self.name


class Operator:
    """Draws the commands that users run."""

    def __init__(self, world: CommandScene) -> None:
        self.world = world
        self._fresh = 0
        self._specs: dict[str, StageSpec] = {}
        """What each stage was when it was last in the graph."""

    def draw(self, request_id: str) -> Request | None:
        """Something that a user may request now; `None` if there is nothing to steer yet."""
        rng, ledger = self.world.rng, self.world.oracle.ledger
        if not ledger.kept:
            return None
        epoch, choice = rng.choice(sorted(ledger.kept)), rng.random()
        if choice < 0.25:
            names = [f"named{request_id}", *sorted(ledger.savepoints)]
            return Request(RequestKind.SAVEPOINT, request_id, rng.choice(names), epoch)
        if choice < 0.35:
            name = rng.choice(sorted(ledger.savepoints)) if ledger.savepoints else "none"
            return Request(RequestKind.FORGET, request_id, name)
        if choice < 0.6:
            return Request(RequestKind.RESTORE, request_id, None, epoch, force=rng.random() < 0.5)
        return self._with_another_graph(request_id, epoch)

    def draw_deployment(self, request_id: str) -> Request:
        """A restore of the newest checkpoint by a user who has changed the code, and does not care for what others did to
        the tables, but for rows in flight."""
        rng, epoch = self.world.rng, max(self.world.oracle.ledger.kept)
        reset = tuple(s for s in self.expendable(epoch) if rng.random() < 0.5)
        if rng.random() < 0.4:
            return Request(RequestKind.RESTORE, request_id, None, epoch, reset=reset, force=True)
        request = self._with_another_graph(request_id, epoch, careless=0.4)
        assert request.topology is not None
        before = self.world.graph.stages  # the model of a stage knows no other inputs than these
        kept = (s for s in reset if s in request.topology.stages)
        reset = tuple(s for s in kept if request.topology.stages[s].inputs == before[s].inputs)
        force = not self._awaited(list(request.drop), epoch)
        return msgspec.structs.replace(request, reset=reset, force=force)

    def expendable(self, epoch: int) -> list[str]:
        """The stages without rows in their state at a cut: resetting one of them loses nothing, so the comparison of
        sinks with sources stays valid."""
        cut = self.world.oracle.manifests[epoch].stages
        models = {n: self.world.model.stages[n] for n in self.world.graph.stages if n in cut}
        return [n for n, m in models.items() if not m.windowed]

    def _with_another_graph(self, request_id: str, epoch: int, careless: float = 0.1) -> Request:
        """A restore with changed code: a stage is added or dropped, a dropped one returns, or a sink no longer waits for
        windows to close. `careless`: how likely the user lets an old stage read another one as well, and does not know
        that it must be reset for that."""
        graph, rng = self.world.graph, self.world.rng
        stages = dict(graph.stages)
        self._specs |= stages
        drop: tuple[str, ...] = ()
        leaves = [n for n in sorted(stages) if not graph.readers(n)]
        gone = [n for n, m in self.world.model.stages.items() if n not in stages]
        gone = [n for n in gone if set(self.world.model.stages[n].spec.inputs) <= stages.keys()]
        choice = rng.random()
        if choice < 0.4 and len(leaves) > 1:
            name = rng.choice(self._awaited(leaves, epoch) or leaves)
            inputs = stages.pop(name).inputs
            read = {i for s in stages.values() for i in s.inputs}
            if all(i in read or stages[i].sinks for i in inputs):
                drop = (name,)
            else:
                stages = dict(graph.stages)
        elif choice < 0.45 and (needed := [n for n in sorted(stages) if graph.readers(n)]):
            drop = (rng.choice(needed),)  # dropped by somebody who does not know, or care, who reads it
            del stages[drop[0]]
        elif choice < 0.6 and gone:
            back = rng.choice(gone)
            stages[back] = self._specs.get(back, self.world.model.stages[back].spec)
        else:
            new = self._new_stage(stages)
            stages[new.name] = new
        final = [n for n in sorted(stages) if any(sink.final for sink in stages[n].sinks)]
        if final and rng.random() < 0.3:
            name = rng.choice(final)
            sinks = tuple(SinkSpec(sink.name) for sink in stages[name].sinks)
            stages[name] = msgspec.structs.replace(stages[name], sinks=sinks)
        old = [n for n in sorted(stages) if n in self.world.oracle.manifests[epoch].stages]
        if old and rng.random() < careless:
            reader = rng.choice(old)
            root = rng.choice([n for n in sorted(stages) if not stages[n].inputs] or [reader])
            if root != reader and root not in stages[reader].inputs:
                inputs = tuple(sorted((*stages[reader].inputs, root)))
                stages[reader] = msgspec.structs.replace(stages[reader], inputs=inputs)
        base = self.world.oracle.ledger.topology_hash if rng.random() < 0.5 else None
        # Stages of the checkpoint that an earlier change dropped must be named again.
        named = set(self.world.oracle.manifests[epoch].stages) - stages.keys() - set(drop)
        topology = Topology({n: stages[n] for n in sorted(stages)})
        drop = tuple(sorted({*drop, *named}))
        native = tuple(n for n in topology.stages if self.world.model.stages[n].native)
        return Request(
            RequestKind.RESTORE,
            request_id,
            None,
            epoch,
            drop=drop,
            topology=topology,
            base=base,
            native=native,
        )

    def _awaited(self, stages: list[str], epoch: int) -> list[str]:
        """The stages to which rows are in flight at a checkpoint: those are dropped first, by users who do not know."""
        flights = self.world.oracle.manifests[epoch].in_flight
        readers = {flight.reader for flight in flights if any(flight.batches.values())}
        return [name for name in stages if name in readers]

    def _new_stage(self, stages: dict[str, StageSpec]) -> StageSpec:
        """A new stage with a sink that reads one or two of the others; the world knows its model from now on."""
        world, rng = self.world, self.world.rng
        self._fresh += 1
        name = f"n{self._fresh}"
        models = {n: world.model.stages[n] for n in stages}
        readable = [n for n in sorted(stages) if len(models[n].out_paths) <= MAX_PATHS]
        inputs = tuple(sorted(rng.sample(readable, 1)))
        hosts = sorted({s.member for s in stages.values()})
        host = f"joined{self._fresh}" if rng.random() < 0.2 else rng.choice(hosts)
        spec = StageSpec(name, inputs, host, (SinkSpec(f"{name}-t0"),))
        model = StageModel(spec, windowed=False, event_time=False, native=False)
        for producer in inputs:
            model.paths[producer] = tuple((p, f"{p}.{name}") for p in models[producer].out_paths)
        world.add_stage(model)
        return spec
