"""The logs of stages in a simulated world."""

from __future__ import annotations

from cutwater.protocol.base import paths
from cutwater.protocol.base import records as r
from cutwater.sim.world import World


def log_of(world: World, stage: str, generation: int = 1) -> list[r.StageBody]:
    """The bodies in a stage's log, in order."""
    names = world.store.list(paths.stage_log_prefix(stage, generation))
    return [r.STAGE.open(world.store.objects[name]).entry.body for name in names]


def incarnations(world: World, stage: str) -> list[int]:
    return [body.incarnation for body in log_of(world, stage) if isinstance(body, r.Open)]
