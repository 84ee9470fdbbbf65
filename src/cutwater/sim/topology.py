"""Random pipelines: several roots, fan-in, fan-out, diamonds, stages spread over members."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from cutwater.protocol.base.records import SinkSpec, StageSpec, Topology

WINDOW = 8
"""Events per window: event n of every root happens at time n, so a window's end is a multiple of this."""

MAX_PATHS = 6
"""The maximum number of paths from roots to one stage; more would only make runs slower."""

Path = str
"""The path that events take: the joined names of the stages that they pass, root first."""


@dataclass(slots=True)
class StageModel:
    """How the modelled query of one stage behaves."""

    spec: StageSpec
    windowed: bool
    """Whether it keeps rows until the watermark has closed their window, instead of passing them on."""
    event_time: bool
    """Whether its plan has a watermark, on each input below the fan-in."""
    native: bool
    """Whether it reads a source of its own. Every root does, and so do some stages that read channels."""
    ticks: bool = False
    """Whether it runs batches as time passes, at its own pace."""
    paths: dict[str, tuple[tuple[Path, Path], ...]] = field(default_factory=dict)
    """Per input: the paths of its rows, before and after this stage."""

    @property
    def out_paths(self) -> tuple[Path, ...]:
        own = (self.spec.name,) if self.native else ()
        return (*own, *(after for pairs in self.paths.values() for _, after in pairs))


@dataclass(slots=True)
class Model:
    """A drawn pipeline."""

    topology: Topology
    stages: dict[str, StageModel]


def draw(rng: Random, members: int, stages: int) -> Model:
    """Draws a pipeline with that many members and stages."""
    names = [f"s{i}" for i in range(stages)]
    roots = rng.randint(1, max(1, min(3, stages // 2)))
    hosts = [f"m{i % members}" for i in range(stages)]
    rng.shuffle(hosts)
    models: dict[str, StageModel] = {}
    for i, name in enumerate(names):
        inputs: tuple[str, ...] = ()
        if i >= roots:
            # The first stages after the roots read one root each, so that no root stays unread by chance.
            wanted = rng.choice((1, 1, 2, 2, 3))
            first = [names[i - roots]] if i - roots < roots else []
            others = [n for n in names[:i] if n not in first]
            rng.shuffle(others)
            inputs = _affordable(models, (first + others)[:wanted])
        single = all(len(models[n].out_paths) == 1 for n in inputs)
        event_time = single and rng.random() < 0.8
        windowed = bool(inputs) and event_time and rng.random() < 0.4
        spec = StageSpec(name, inputs, hosts[i])
        model = StageModel(spec, windowed, event_time, native=not inputs or rng.random() < 0.15)
        model.ticks = bool(inputs) and not event_time and rng.random() < 0.15
        for producer in inputs:
            model.paths[producer] = tuple((p, f"{p}.{name}") for p in models[producer].out_paths)
        models[name] = model
    read = {n for m in models.values() for n in m.spec.inputs}
    for name, model in models.items():
        if name not in read or rng.random() < 0.25:
            final = model.event_time and rng.random() < 0.5
            sinks = [SinkSpec(f"{name}-t0", final)]
            if rng.random() < 0.2:
                sinks.append(SinkSpec(f"{name}-t1"))
            spec = model.spec
            model.spec = StageSpec(spec.name, spec.inputs, spec.member, tuple(sinks))
    return Model(Topology({n: m.spec for n, m in models.items()}), models)


def _affordable(models: dict[str, StageModel], inputs: list[str]) -> tuple[str, ...]:
    taken: list[str] = []
    for name in inputs:
        if not taken or sum(len(models[n].out_paths) for n in (*taken, name)) <= MAX_PATHS:
            taken.append(name)
    return tuple(sorted(taken))
