"""The meaning of a stage's log: incarnations fence, batches are in order, a snapshot keeps what is needed."""

from __future__ import annotations

import copy
import random

import msgspec
import pytest

from cutwater.protocol.base.chain import Sealed
from cutwater.protocol.base.effects import Procedure
from cutwater.protocol.base.log import AppendPhase, append, compact, follow
from cutwater.protocol.base.records import (
    STAGE,
    BarrierAt,
    Batch,
    Open,
    StageBody,
    StagedFile,
    StageSnapshot,
    StageState,
)
from cutwater.protocol.base.watermark import UNKNOWN, known
from cutwater.protocol.member.stage_log import StageLog, is_void, trimmed
from tests.support.driver import Choose, Outcome, Store, drive, drive_together, every_run


def batch(incarnation: int, number: int, text: str = "") -> Batch:
    files = (f"data/{incarnation}-{number}{text}",)
    staged: dict[str, tuple[StagedFile, ...]] = {"sink": (StagedFile(f"sink/{number}", end=number),)}
    return Batch(
        incarnation,
        number,
        files,
        staged,
        consumed={"in": 2 * number},
        offsets={"0": number},
        watermark=known(100 * number),
    )


def barrier(incarnation: int, epoch: int, at: int, checkpoint_id: int = 50) -> BarrierAt:
    return BarrierAt(
        incarnation,
        epoch,
        checkpoint_id,
        1,
        at,
        False,
        consumed={"in": 2 * at},
        offsets={"0": at},
        watermark=UNKNOWN,
    )


class Appender:
    """Writes a stage's log entry by entry, and knows its state. Nothing is stored."""

    def __init__(self) -> None:
        self.stage_log = StageLog("s", 1)
        self.entries: list[Sealed[StageBody]] = []

    @property
    def state(self) -> StageState:
        return self.stage_log.state

    @property
    def place(self) -> int:
        return self.stage_log.view.last + 1

    def write(self, body: StageBody) -> None:
        view = self.stage_log.view
        sealed = view.seal(body, f"n{self.place}", snapshot=isinstance(body, StageSnapshot))
        self.entries.append(STAGE.open(sealed.data))
        view.push(sealed)

    def open(self, at: int = -1) -> int:
        """Opens a new incarnation and returns its number. A generation's first one starts after batch `at`."""
        self.write(
            Open(self.place, at, consumed={"in": 2 * at}, offsets={"0": at}, watermark=known(100 * at))
        )
        return self.state.incarnation

    def batches(self, count: int) -> None:
        for _ in range(count):
            self.write(batch(self.state.incarnation, self.state.last + 1))

    def cut(self, epoch: int) -> None:
        self.write(barrier(self.state.incarnation, epoch, self.state.last))

    def snapshot(self, floor: int = -1, open_epochs: tuple[int, ...] = ()) -> None:
        kept = trimmed(self.state, floor, open_epochs)
        self.write(StageSnapshot(self.state.incarnation, kept))


def opened(at: int = -1) -> Appender:
    appender = Appender()
    appender.open(at)
    return appender


def changes_nothing(appender: Appender, body: StageBody) -> None:
    """Asserts that the entry is void, and that writing it does not change the state."""
    before = copy.deepcopy(appender.state)
    assert is_void(appender.state, body, appender.place)
    appender.write(body)
    assert appender.state == before


# --- incarnations -------------------------------------------------------------------------------------------


def test_a_generations_first_incarnation_starts_where_the_cut_left_it() -> None:
    appender = opened(7)
    state = appender.state
    assert (state.incarnation, state.last) == (1, 7)
    assert (state.consumed, state.offsets, state.watermark) == ({"in": 14}, {"0": 7}, known(700))
    assert state.batches == {}
    appender.batches(1)
    assert state.batches.keys() == {8}


def test_a_later_incarnation_continues_at_the_end_of_the_log() -> None:
    appender = opened()
    appender.batches(3)
    appender.open(at=99)
    state = appender.state
    assert (state.incarnation, state.last, state.consumed) == (5, 2, {"in": 4})
    appender.batches(1)
    assert state.last == 3


def test_entries_of_an_older_incarnation_are_void() -> None:
    appender = opened()
    appender.batches(2)
    appender.open()
    for incarnation in (1, 2, 99):
        changes_nothing(appender, batch(incarnation, 2))
        changes_nothing(appender, barrier(incarnation, 1, 1))
        changes_nothing(appender, StageSnapshot(incarnation, StageState(incarnation=incarnation, last=50)))


def test_an_incarnation_whose_number_is_not_its_index_is_void() -> None:
    appender = opened()
    for off in (-1, 1):
        changes_nothing(appender, Open(appender.place + off, -1, consumed={}, offsets={}, watermark=UNKNOWN))


def test_nothing_counts_before_the_first_incarnation() -> None:
    appender = Appender()
    changes_nothing(appender, batch(1, 0))
    changes_nothing(appender, barrier(1, 1, -1))


def write_as(log: StageLog, body: StageBody, nonce: str) -> Procedure[AppendPhase]:
    return append(log.view, log.view.seal(body, nonce))


def test_a_fenced_incarnation_and_its_successor_never_both_log_a_batch() -> None:
    """Rule 7, in every interleaving: the successor's OPEN takes the place, or the batch was first."""
    seen = set()

    def play(choose: Choose) -> None:
        store = Store()
        old, new = StageLog("s", 1), StageLog("s", 1)
        drive(write_as(old, Open(1, -1, consumed={}, offsets={}, watermark=UNKNOWN), "first"), store)
        drive(follow(new.view), store)

        def successor() -> Procedure[None]:
            while new.state.incarnation == 1:
                place = new.view.last + 1
                if (
                    yield from write_as(
                        new, Open(place, -1, consumed={}, offsets={}, watermark=UNKNOWN), f"n{place}"
                    )
                ) is not (AppendPhase.MINE):
                    yield from follow(new.view)
            incarnation = new.state.incarnation
            yield from write_as(new, batch(incarnation, new.state.last + 1, "-new"), "batch")

        zombie = write_as(old, batch(1, 0, "-old"), "zombie")
        phase, _ = drive_together([zombie, successor()], store, choose, outcomes=(None, *Outcome))
        final = StageLog("s", 1)
        drive(follow(final.view), store)
        drive(follow(new.view), store)
        assert final.state == new.state
        texts = [b.files[0].rsplit("-", 1)[1] for _, b in sorted(final.state.batches.items())]
        assert texts == (["old", "new"] if phase is AppendPhase.MINE else ["new"])
        seen.add(phase)

    assert every_run(play) > 100
    assert seen == {AppendPhase.MINE, AppendPhase.TAKEN}


# --- batches and barriers -----------------------------------------------------------------------------------


def test_a_batch_advances_the_stage() -> None:
    appender = opened()
    appender.batches(3)
    state = appender.state
    assert state.last == 2
    assert (state.consumed, state.offsets, state.watermark) == ({"in": 4}, {"0": 2}, known(200))
    assert [b.files for _, b in sorted(state.batches.items())] == [(f"data/1-{n}",) for n in range(3)]


@pytest.mark.parametrize("number", [-1, 0, 1, 3, 99])
def test_a_batch_out_of_order_is_void(number: int) -> None:
    appender = opened()
    appender.batches(2)
    changes_nothing(appender, batch(1, number, "-again"))


def test_a_barrier_follows_the_last_batch_once_per_epoch() -> None:
    appender = opened()
    appender.batches(2)
    changes_nothing(appender, barrier(1, 1, 0))
    changes_nothing(appender, barrier(1, 1, 2))
    appender.cut(1)
    assert appender.state.barriers == {1: barrier(1, 1, 1)}
    assert appender.state.last == 1  # a barrier does not advance the batch
    changes_nothing(appender, barrier(1, 1, 1, checkpoint_id=51))
    appender.batches(1)
    changes_nothing(appender, barrier(1, 1, 2))
    appender.cut(2)
    assert appender.state.barriers.keys() == {1, 2}


def test_a_stage_without_a_batch_can_be_cut() -> None:
    appender = opened()
    appender.cut(1)
    assert appender.state.barriers[1].batch == -1


# --- compaction ---------------------------------------------------------------------------------------------


def test_trimming_drops_barriers_of_decided_epochs_and_keeps_open_ones() -> None:
    appender = opened()
    for epoch in (1, 2, 3):
        appender.batches(1)
        appender.cut(epoch)
    before = copy.deepcopy(appender.state)
    assert trimmed(appender.state, -1, {2, 9}).barriers.keys() == {2}
    assert trimmed(appender.state, -1, ()).barriers == {}
    assert appender.state == before  # it is a copy


@pytest.mark.parametrize(
    ("floor", "left"), [(-1, [0, 1, 2, 3]), (0, [1, 2, 3]), (2, [3]), (3, [3]), (99, [3])]
)
def test_trimming_drops_batches_up_to_the_floor_and_keeps_the_last(floor: int, left: list[int]) -> None:
    appender = opened()
    appender.batches(4)
    kept = trimmed(appender.state, floor, ())
    assert sorted(kept.batches) == left
    rest = [msgspec.structs.replace(s, batches={}, barriers={}) for s in (kept, appender.state)]
    assert rest[0] == rest[1]


def test_a_snapshot_has_the_same_effect_on_readers_that_follow_and_on_those_that_jump() -> None:
    appender = opened()
    appender.batches(4)
    appender.cut(1)
    appender.cut(2)
    appender.snapshot(floor=1, open_epochs=(2,))
    appender.batches(1)
    assert sorted(appender.state.batches) == [2, 3, 4]
    assert appender.state.barriers.keys() == {2}
    late = StageLog("s", 1)
    late.view.jump(appender.entries[-2])
    late.view.push(appender.entries[-1])
    assert late.state == appender.state


def test_a_snapshot_in_the_log_is_not_changed_by_later_entries() -> None:
    appender = opened()
    appender.batches(1)
    appender.snapshot()
    jumped = StageLog("s", 1)
    sealed = appender.entries[-1]
    jumped.view.jump(sealed)
    jumped.view.push(jumped.view.seal(batch(1, 1), "n"))
    assert STAGE.open(sealed.data) == sealed
    assert isinstance(sealed.entry.body, StageSnapshot)
    assert sealed.entry.body.state.last == 0


@pytest.mark.parametrize("seed", range(30))
def test_a_snapshot_and_the_following_entries_give_the_same_state_as_all_entries(seed: int) -> None:
    rnd = random.Random(seed)
    appender = Appender()
    for _ in range(80):
        state, place = appender.state, appender.place
        incarnation = state.incarnation if rnd.random() < 0.9 else rnd.randint(0, place)
        kind = rnd.random()
        if kind < 0.15:
            appender.write(
                Open(place + (rnd.random() < 0.1), -1, consumed={"in": -1}, offsets={}, watermark=UNKNOWN)
            )
        elif kind < 0.65:
            appender.write(batch(incarnation, state.last + rnd.choice((1, 1, 1, 1, 0, 2))))
        elif kind < 0.9:
            appender.write(barrier(incarnation, rnd.randint(1, 9), state.last + rnd.choice((0, 0, 0, 1))))
        elif state.incarnation:
            open_epochs = tuple(rnd.sample(range(1, 10), 4))
            appender.snapshot(rnd.randint(-1, state.last + 1), open_epochs)
    snapshots = [n for n, s in enumerate(appender.entries) if isinstance(s.entry.body, StageSnapshot)]
    assert snapshots
    for start in snapshots:
        late = StageLog("s", 1)
        late.view.jump(appender.entries[start])
        for sealed in appender.entries[start + 1 :]:
            late.view.push(sealed)
        assert late.state == appender.state
    assert appender.state.batches.keys() <= set(range(appender.state.last + 1))


def test_a_stage_log_is_not_kept_forever() -> None:
    store, log = Store(), StageLog("s", 1)
    drive(write_as(log, Open(1, -1, consumed={}, offsets={}, watermark=UNKNOWN), "n"), store)
    most = 0
    for number in range(500):
        drive(write_as(log, batch(1, number), "n"), store)
        drive(write_as(log, barrier(1, number, number), "n"), store)
        if number % 20 == 19:
            snapshot = StageSnapshot(1, trimmed(log.state, number - 2, ()))
            assert drive(compact(log.view, snapshot, "n"), store) is AppendPhase.MINE
            assert len(log.state.batches) == 2
        most = max(most, len(store.objects))
    assert most <= 2 * 20 + 1
    assert max(len(data) for data in store.objects.values()) < 2_000
    fresh = StageLog("s", 1)
    drive(follow(fresh.view), store)
    assert fresh.state == log.state
