"""Whole pipelines as text: one command per line, and after the arrow all its durable effects.

The pipeline is a → b → c, one stage per member (m0, m1, m2); c has the sink `out`. Each command has 1.5 s, and two
checkpoints are retained. An epoch without rows is only marked in the sink, as the first one always is.
"""

from __future__ import annotations

import pytest

from cutwater.protocol.base import paths
from cutwater.protocol.base import records as r
from cutwater.protocol.base.wire import RequestKind
from cutwater.sim.world import World
from tests.support.builders import ask, calm_world, of, refusal, rest

SCENARIOS = {
    "a savepoint outlives retention, and the pipeline goes back to it": """
        start all          -> m0 leads in term 1; epoch 1 committed; out marks 1
        savepoint good     -> epoch 2 committed; out shows 2
        checkpoint         -> epoch 3 committed; out shows 3
        checkpoint         -> epoch 4 committed; epochs 1 expired; out shows 4
        restore good       -> restored to 2; epoch 5 committed; epochs 3 expired; out rewinds to 2, marks 5
        restore epoch 1    -> refused: no checkpoint of epoch 1 is kept
        drain              -> epoch 6 committed; epochs 4 expired; out shows 6
    """,
    "a table goes back to an epoch without rows, and others such expire": """
        start all          -> m0 leads in term 1; epoch 1 committed; out marks 1
        sources stop
        checkpoint         -> epoch 2 committed; out shows 2
        checkpoint         -> epoch 3 committed; epochs 1 expired; out marks 3
        sources flow
        checkpoint         -> epoch 4 committed; epochs 2 expired; out shows 4
        restore epoch 3    -> restored to 3; epoch 5 committed; epochs 3 expired; out rewinds to 3, marks 5
        drain              -> epoch 6 committed; epochs 4 expired; out shows 6
    """,
    "a sink that fails is waited for, and nothing that it needs expires": """
        start all          -> m0 leads in term 1; epoch 1 committed; out marks 1
        sink fails
        checkpoint         -> epoch 2 committed
        checkpoint         -> epoch 3 committed; epochs 1 expired
        checkpoint         -> epoch 4 committed
        crash m2
        start m2
        sink is well       -> epochs 2 expired; out shows 2, shows 3, shows 4
        drain              -> epoch 5 committed; epochs 3 expired; out shows 5
    """,
    "the leader dies, and what it had begun is void": """
        start all          -> m0 leads in term 1; epoch 1 committed; out marks 1
        crash m1
        checkpoint
        crash m0           -> m2 leads in term 2
        start m0
        start m1           -> epoch 3 committed; epoch 4 committed; epochs 1 expired; out shows 3, shows 4
        drain              -> epoch 5 committed; epochs 3 expired; out shows 5
    """,
    "a member that is away aborts epochs and nothing else": """
        start all          -> m0 leads in term 1; epoch 1 committed; out marks 1
        crash m1
        checkpoint
        cancel             -> epoch 2 aborted: cancelled
        cancel             -> refused: none is in flight
        start m1
        checkpoint         -> epoch 3 committed; out shows 3
        drain              -> epoch 4 committed; epochs 1 expired; out shows 4
    """,
    "a drained pipeline is started again, and drained again": """
        start all          -> m0 leads in term 1; epoch 1 committed; out marks 1
        drain              -> epoch 2 committed; out shows 2
        checkpoint         -> refused: no further checkpoint begins
        crash all
        start all          -> m0 leads in term 2; epoch 3 committed; epochs 1 expired; out marks 3
        drain              -> epoch 4 committed; epochs 2 expired; out shows 4
    """,
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name: str) -> None:
    world = calm_world(retained=2)
    wanted, happened = [], []
    for line in SCENARIOS[name].strip().splitlines():
        command, _, expected = (part.strip() for part in line.partition("->"))
        index, version = world.oracle.ledger.last, len(world.tables["out"].versions)
        marks = world.store.list(paths.MARK_PREFIX)
        for process in world.leaders():
            process.member.events.clear()
        do(world, *command.split())
        rest(world, 1_500)
        wanted.append(f"{command} -> {expected}")
        happened.append(
            f"{command} -> {'; '.join([*decisions(world, index), *shown(world, version, marks)])}"
        )
    assert happened == wanted
    world.oracle.final_check()


def do(world: World, verb: str, what: str = "", *rest_of_line: str) -> None:
    """One command."""
    members = world.model.topology.members() if what == "all" else (what,)
    match verb:
        case "start":
            for name in members:
                world.start(name)
        case "crash":
            for name in members:
                world.stop(of(world, name))
        case "sources":
            world.rates = dict.fromkeys(world.rates, 0.05 if what == "flow" else 0.0)
        case "sink":
            world.tables["out"].failing_until_ms = 10**9 if what == "fails" else 0
        case "savepoint":
            ask(world, RequestKind.SAVEPOINT, name=what)
        case "restore" if what == "epoch":
            ask(world, RequestKind.RESTORE, epoch=int(rest_of_line[0]))
        case "restore":
            ask(world, RequestKind.RESTORE, name=what)
        case _:
            ask(world, RequestKind(verb))


def decisions(world: World, after: int) -> list[str]:
    """What the journal says after `after`, and why the leader refused something."""
    said: list[str] = []
    for name in world.store.list(paths.JOURNAL_PREFIX):
        entry = r.JOURNAL.open(world.store.objects[name]).entry
        if entry.index <= after:
            continue
        match entry.body:
            case r.Leader(term, who):
                said.append(f"{who} leads in term {term}")
            case r.Committed():
                said.append(f"epoch {entry.body.epoch} committed")
            case r.Aborted():
                said.append(f"epoch {entry.body.epoch} aborted: {entry.body.reason}")
            case r.Restored():
                said.append(f"restored to {entry.body.epoch}")
            case r.Expired():
                said.append(f"epochs {', '.join(map(str, entry.body.epochs))} expired")
            case _:
                pass
    if world.leaders() and not said and refusal(world):
        said.append(f"refused: {refusal(world)}")
    return said


def shown(world: World, after: int, marks: list[str]) -> list[str]:
    """What the sink has shown, or only marked, since it had `after` versions and these marks."""
    verbs = {}
    for version in world.tables["out"].versions[after:]:
        body = world.oracle.ledger.by_index[version.transaction]
        verbs[version.transaction] = "rewinds to" if isinstance(body, r.Restored) else "shows"
    for name in set(world.store.list(paths.MARK_PREFIX)) - set(marks):
        verbs.setdefault(r.decode(name, world.store.objects[name], r.Published).index, "marks")
    said = [f"{verb} {world.oracle.ledger.by_index[index].epoch}" for index, verb in sorted(verbs.items())]
    return [f"out {', '.join(said)}"] if said else []
