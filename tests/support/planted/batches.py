"""Rules 4 to 7: batches, positions, the hold rule, incarnations."""

from __future__ import annotations

from typing import Any

from cutwater.protocol.base import effects as fx
from cutwater.protocol.base import log
from cutwater.protocol.member import (
    channel,
    stage,
)
from cutwater.protocol.member.journal import Fate, fate
from cutwater.sim import io, spark, world
from tests.support.planted.registry import Patch, bug

# --- rule 4: nobody sees a batch before Spark has committed it -------------------------------------------


@bug
def rule_4_a_batch_is_visible_before_sparks_commit(patch: Patch) -> None:
    def read_prepared(self: Any, effect: Any) -> Any:
        return self.folders[effect.stage, effect.generation, effect.incarnation].prepared.get(effect.batch)

    patch.setattr(world.World, "read_prepared", read_prepared)


@bug
def rule_4_a_batch_that_spark_will_not_run_again_is_forgotten(patch: Patch) -> None:
    real = spark.copy_folder

    def copy_folder(source: Any, keep_plan: bool) -> Any:
        folder = real(source, keep_plan)
        folder.prepared.clear()
        return folder

    patch.setattr(io, "copy_folder", copy_folder)


# --- rule 5: positions count batches ---------------------------------------------------------------------


@bug
def rule_5_passing_a_barrier_moves_the_position(patch: Patch) -> None:
    real = spark.Query._next_position

    def next_position(self: Any, name: str, position: int) -> int:
        after = real(self, name, position)
        barriers = self.member.log(name).state.barriers.values()
        last = self.member.log(name).state.last
        return after + 1 if after < last and any(b.batch == after for b in barriers) else after

    patch.setattr(spark.Query, "_next_position", next_position)


# --- rule 6: the hold rule -------------------------------------------------------------------------------


@bug
def rule_6_a_reader_passes_an_open_barrier(patch: Patch) -> None:
    patch.setattr(channel, "readable", lambda state, reader, producer: producer.last)


@bug
def rule_6_an_unknown_epoch_does_not_hold(patch: Patch) -> None:
    real = channel.holds

    def holds(state: Any, reader: Any, barrier: Any) -> bool:
        return fate(state, barrier.epoch) is not Fate.UNKNOWN and real(state, reader, barrier)

    patch.setattr(channel, "holds", holds)


@bug
def rule_6_an_aborted_epoch_still_holds(patch: Patch) -> None:
    patch.setattr(
        channel,
        "holds",
        lambda state, reader, barrier: (
            barrier.epoch not in reader.barriers and fate(state, barrier.epoch) is not Fate.COMMITTED
        ),
    )


# --- rule 7: two of the same are harmless ----------------------------------------------------------------


@bug
def rule_7_a_new_incarnation_does_not_take_the_zombies_place(patch: Patch) -> None:
    """It continues under the incarnation that it finds, in its own folder."""
    real = stage.Stage._open

    def open_(self: Any) -> Any:
        yield from log.follow(self.log.view)
        if self.log.state.incarnation == 0:
            return (yield from real(self))
        self.incarnation = self.log.state.incarnation
        self._step("opened")
        yield fx.StartQuery(self.name, self.generation, self.incarnation, self.log.state.consumed, self.pace)
        return None

    patch.setattr(stage.Stage, "_open", open_)


@bug
def rule_7_a_new_incarnation_works_in_the_folder_of_its_predecessor(patch: Patch) -> None:
    patch.setattr(io, "copy_folder", lambda source, keep_plan: source)


@bug
def rule_7_a_fenced_incarnation_keeps_writing(patch: Patch) -> None:
    patch.setattr(stage.Stage, "_is_fenced", lambda self: False)
