"""With `once`: when all sources are read completely."""

from __future__ import annotations

import msgspec

from cutwater.protocol.base import records as r
from cutwater.protocol.base.barrier import Flags
from cutwater.protocol.base.wire import RequestKind, SourcesDone
from cutwater.protocol.leader.sources import Sources
from cutwater.sim.world import World
from tests.support.builders import CHAIN, ask, calm_world, entries, of, rest, until


def done(member: str, generation: int = 1) -> SourcesDone:
    return SourcesDone(member, f"{member}1", generation)


def test_all_members_must_have_reported() -> None:
    sources = Sources(1_000)
    assert sources.all_done((), 1, 0)
    sources.hear(done("a"), 10)
    assert sources.all_done(("a",), 1, 20)
    assert not sources.all_done(("a", "b"), 1, 20)
    sources.hear(done("b"), 30)
    assert sources.all_done(("a", "b"), 1, 40)


def test_the_report_of_a_silent_member_does_not_count() -> None:
    """It may have crashed, and its successor may have more to read."""
    sources = Sources(1_000)
    sources.hear(done("a"), 10)
    assert sources.all_done(("a",), 1, 1_010)
    assert not sources.all_done(("a",), 1, 1_011)


def test_after_a_restore_the_sources_are_read_again() -> None:
    sources = Sources(1_000)
    sources.hear(done("a", generation=1), 10)
    assert not sources.all_done(("a",), 2, 20)


def once_world() -> World:
    world = calm_world()
    world.member_config = msgspec.structs.replace(world.member_config, once=True)
    return world


def drains(world: World) -> list[r.Begun]:
    return [begun for begun in entries(world, r.Begun) if begun.flags & Flags.DRAIN]


def test_a_leader_drains_when_the_sources_of_another_member_are_done() -> None:
    world = once_world()
    for name in ("m1", "m2"):
        world.start(name)
    until(world, lambda: bool(world.leaders()))
    rest(world, 1_000)
    assert not drains(world), "m0, which has the source, is not running yet"
    world.start("m0")
    until(world, lambda: world.oracle.ledger.drained and world.oracle.all_settled())
    world.oracle.final_check()
    until(world, lambda: all(process.member.drained for process in world.processes))


def test_a_restore_revokes_that_the_sources_are_done() -> None:
    world = once_world()
    for name in CHAIN.members():
        world.start(name)
    until(world, lambda: of(world, "m0").member.sources_done)
    until(world, lambda: world.oracle.epochs > 0)
    ask(world, RequestKind.RESTORE, epoch=1)
    until(world, lambda: world.oracle.ledger.generation == 2)
    until(world, lambda: world.oracle.ledger.drained and world.oracle.all_settled())
    world.oracle.final_check()
