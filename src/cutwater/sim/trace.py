"""One readable line per event, with the state of the whole cluster at its end."""

from __future__ import annotations

from cutwater.protocol.leader.leader import LeaderPhase
from cutwater.protocol.member.stage import StagePhase
from cutwater.sim.oracle import WatchedScene
from cutwater.sim.scene import ProcessView

_MARKS = {
    StagePhase.OPENING: "~",
    StagePhase.RUNNING: "",
    StagePhase.RESTING: "z",
    StagePhase.STOPPED: "!",
    StagePhase.FENCED: "x",
}


def line(world: WatchedScene, process: ProcessView | None, what: str) -> str:
    """The time, the process and the event; then for every process: L if it leads, z if it is paused, its journal index,
    and its stages' last batches."""
    who = str(process) if process is not None else ""
    cluster = " ".join(_process(p) for p in world.processes)
    return f"{world.now_ms:>6} {who:<6} {what:<64} | E{world.oracle.ledger.head or 0} | {cluster}"


def _process(process: ProcessView) -> str:
    leads = "L" if process.leader.phase is LeaderPhase.LEADING else ""
    sleeps = "z" if process.paused else ""
    stages = ",".join(
        f"{name}:{stage.log.state.last}{_MARKS[stage.phase]}" for name, stage in process.member.stages.items()
    )
    return f"{process}{leads}{sleeps}@{process.member.journal.index}[{stages}]"
