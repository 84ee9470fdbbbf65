import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutwater.protocol.base.barrier import Barrier, Flags
from cutwater.protocol.base.errors import IllegalStep, InvariantBroken, UserError
from cutwater.protocol.member.aligner import ALIGNER, Aligner, AlignerPhase, Cut, Outcome

BARRIER = Barrier(checkpoint_id=70, epoch=7)


def every_batch_has_rows(_: str, after: int, upto: int) -> bool:
    return after < upto


def align(positions: dict[str, int], barrier: Barrier = BARRIER) -> Aligner:
    return Aligner(list(positions), barrier, positions, every_batch_has_rows)


def consumed(aligner: Aligner, name: str, batch: int) -> Aligner:
    """The aligner of the stage's next attempt, after it has consumed an input up to `batch`: made again from positions
    and barriers, as `Inputs.aligner` does."""
    positions = aligner._positions | {name: batch}
    found = Aligner(list(positions), aligner.barrier, positions, aligner._rows_between)
    if aligner.phase is AlignerPhase.UNALIGNED:
        found.turn_unaligned()
    for input, at in aligner._barriers.items():
        found.on_barrier(input, BARRIER, at)
    return found


def state(aligner: Aligner) -> object:
    """The whole state of an aligner, as a value."""
    return {name: dict(v) if isinstance(v, dict) else v for name, v in vars(aligner).items()}


def unchanged_by(aligner: Aligner, error: type[Exception], step: Callable[[], object]) -> str:
    before = state(aligner)
    with pytest.raises(error) as raised:
        step()
    assert state(aligner) == before
    return str(raised.value)


# --- when a stage cuts --------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [Flags.NONE, Flags.UNALIGNED])
def test_a_root_cuts_at_once(flags: Flags) -> None:
    assert align({}, Barrier(70, 7, flags)).cut() == Cut(True, {}, {})


def test_a_single_input_is_aligned_when_its_position_reaches_the_barrier() -> None:
    aligner = align({"a": 3})
    assert aligner.cut() is None
    assert aligner.on_barrier("a", BARRIER, 4) is Outcome.ACCEPTED
    assert aligner.cut() is None
    aligner = consumed(aligner, "a", 4)
    assert aligner.cut() == Cut(True, {"a": 4}, {})
    assert aligner.phase is AlignerPhase.CUT


def test_a_barrier_before_the_first_batch_delays_nothing() -> None:
    aligner = align({"a": -1})
    aligner.on_barrier("a", BARRIER, -1)
    assert aligner.cut() == Cut(True, {"a": -1}, {})


def test_a_fan_in_waits_for_every_barrier_and_position_and_names_what_it_waits_for() -> None:
    aligner = align({"a": 1, "b": 1, "c": 1})
    assert aligner.waiting_for() == ("a", "b", "c")
    aligner.on_barrier("b", BARRIER, 1)
    assert aligner.waiting_for() == ("a", "c")
    aligner.on_barrier("a", BARRIER, 3)
    aligner.on_barrier("c", BARRIER, 2)
    assert aligner.waiting_for() == ("a", "c")
    aligner = consumed(aligner, "c", 2)
    aligner = consumed(aligner, "a", 2)
    assert aligner.waiting_for() == ("a",)
    assert aligner.cut() is None
    aligner = consumed(aligner, "a", 3)
    assert aligner.waiting_for() == ()
    assert aligner.cut() == Cut(True, {"a": 3, "b": 1, "c": 2}, {})


def test_batches_without_rows_delay_nothing() -> None:
    rows = {4}
    aligner = Aligner(
        ["a"], BARRIER, {"a": 3}, lambda name, after, upto: any(after < b <= upto for b in rows)
    )
    aligner.on_barrier("a", BARRIER, 6)
    assert aligner.cut() is None
    aligner = consumed(aligner, "a", 4)
    # Spark never reads 5 and 6; the real position is also in the stage's own log.
    assert aligner.cut() == Cut(True, {"a": 4}, {})


def test_a_stage_waits_until_the_leader_orders_otherwise() -> None:
    aligner = align({"a": 1})
    aligner.on_barrier("a", BARRIER, 5)
    assert aligner.cut() is None
    aligner.turn_unaligned()
    assert aligner.cut() == Cut(False, {"a": 1}, {"a": (1, 5)})


def test_an_input_whose_barrier_has_not_come_is_in_flight_without_an_end() -> None:
    aligner = align({"a": 1, "b": 1})
    aligner.on_barrier("a", BARRIER, 1)
    assert aligner.cut() is None
    assert aligner.waiting_for() == ("b",)
    aligner.turn_unaligned()
    assert aligner.phase is AlignerPhase.UNALIGNED
    assert aligner.waiting_for() == ()
    assert aligner.cut() == Cut(False, {"a": 1, "b": 1}, {"b": (1, None)})


def test_seed_b03_a_barrier_with_the_unaligned_flag_is_cut_at_once() -> None:
    aligner = align({"a": 2, "b": 4}, Barrier(70, 7, Flags.UNALIGNED | Flags.FULL_SNAPSHOT))
    assert aligner.phase is AlignerPhase.UNALIGNED
    aligner.on_barrier("b", BARRIER, 4)
    assert aligner.cut() == Cut(False, {"a": 2, "b": 4}, {"a": (2, None)})


@pytest.mark.parametrize("flags", [Flags.NONE, Flags.FULL_SNAPSHOT, Flags.DRAIN, Flags.CANCEL])
def test_no_other_flag_cuts_an_unaligned_stage(flags: Flags) -> None:
    aligner = align({"a": 2}, Barrier(70, 7, flags))
    aligner.on_barrier("a", BARRIER, 3)
    assert aligner.cut() is None


def test_an_unaligned_stage_with_nothing_in_flight_counts_as_aligned() -> None:
    aligner = align({"a": 2})
    aligner.on_barrier("a", BARRIER, 2)
    aligner.turn_unaligned()
    assert aligner.cut() == Cut(True, {"a": 2}, {})


def test_a_redundant_order_to_turn_unaligned_is_harmless() -> None:
    for end in (Aligner.turn_unaligned, Aligner.cut):
        aligner = align({})
        end(aligner)
        before = state(aligner)
        aligner.turn_unaligned()
        assert state(aligner) == before


# --- which barriers count -----------------------------------------------------------------------------


def test_a_duplicate_is_harmless() -> None:
    aligner = align({"a": 1, "b": 1})
    aligner.on_barrier("a", BARRIER, 2)
    before = state(aligner)
    assert aligner.on_barrier("a", BARRIER, 2) is Outcome.DUPLICATE
    assert state(aligner) == before


@pytest.mark.parametrize(
    ("barrier", "outcome"),
    [
        (Barrier(60, 6), Outcome.LATE),
        (Barrier(70, 6), Outcome.LATE),
        (Barrier(71, 7), Outcome.OTHER),
        (Barrier(69, 7), Outcome.OTHER),
        (Barrier(80, 8), Outcome.OTHER),
        (Barrier(70, 8), Outcome.OTHER),
    ],
)
def test_a_barrier_of_an_older_epoch_or_of_another_checkpoint_changes_nothing(
    barrier: Barrier, outcome: Outcome
) -> None:
    aligner = align({"a": 1})
    before = state(aligner)
    assert aligner.on_barrier("a", barrier, 1) is outcome
    assert state(aligner) == before
    assert aligner.cut() is None


def test_a_barrier_after_the_cut_is_late() -> None:
    aligner = align({"a": 1, "b": 1}, Barrier(70, 7, Flags.UNALIGNED))
    aligner.on_barrier("a", BARRIER, 2)
    aligner.cut()
    before = state(aligner)
    assert aligner.on_barrier("a", BARRIER, 2) is Outcome.LATE
    assert aligner.on_barrier("b", BARRIER, 2) is Outcome.LATE
    assert state(aligner) == before


def test_a_second_barrier_of_the_checkpoint_at_another_position_violates_an_invariant_and_changes_nothing() -> (
    None
):
    aligner = align({"a": 1})
    aligner.on_barrier("a", BARRIER, 2)
    message = unchanged_by(aligner, InvariantBroken, lambda: aligner.on_barrier("a", BARRIER, 3))
    assert "epoch 7, checkpoint 70" in message
    assert "input 'a'" in message


def test_an_unknown_input_is_an_error_that_names_the_known_ones_and_changes_nothing() -> None:
    aligner = align({"a": 1, "b": 1})
    message = unchanged_by(aligner, UserError, lambda: aligner.on_barrier("z", BARRIER, 1))
    assert "no input 'z'; its inputs: a, b" in message


@pytest.mark.parametrize(
    ("inputs", "positions"), [(["a", "a"], {"a": 1}), (["a"], {}), (["a"], {"a": 1, "b": 1})]
)
def test_inputs_and_positions_must_match(inputs: list[str], positions: dict[str, int]) -> None:
    with pytest.raises(UserError, match="do not match"):
        Aligner(inputs, BARRIER, positions, every_batch_has_rows)


def test_a_barrier_that_was_passed_before_it_was_seen_violates_an_invariant() -> None:
    aligner = align({"a": 3})
    unchanged_by(aligner, InvariantBroken, lambda: aligner.on_barrier("a", BARRIER, 2))


def test_a_stage_is_cut_once() -> None:
    aligner = align({})
    aligner.cut()
    assert not ALIGNER.allows(aligner.phase, "cut")
    unchanged_by(aligner, IllegalStep, aligner.cut)


# --- the weaknesses of the seed -----------------------------------------------------------------------


def test_seed_c01_the_canonical_barrier_is_the_one_announced_whatever_arrives_last() -> None:
    flagged = Barrier(70, 7, Flags.DRAIN)
    for order in (("a", "b"), ("b", "a")):
        aligner = align({"a": 1, "b": 1})
        for name in order:
            aligner.on_barrier(name, flagged if name == "b" else BARRIER, 1)
        aligner.cut()
        assert aligner.barrier is BARRIER


def test_seed_c02_two_checkpoints_never_mix() -> None:
    aligner = align({"a": 1, "b": 1})
    aligner.on_barrier("a", BARRIER, 1)
    for other in (Barrier(71, 7), Barrier(70, 8), Barrier(60, 6)):
        aligner.on_barrier("b", other, 1)
        assert aligner.cut() is None
    assert aligner.waiting_for() == ("b",)
    aligner.on_barrier("b", BARRIER, 1)
    assert aligner.cut() is not None


def test_seed_c05_an_aligner_keeps_two_numbers_per_input_however_much_is_held() -> None:
    aligner = align({"a": -1, "b": 0})
    aligner.on_barrier("b", BARRIER, 0)
    for batch in range(1000):
        aligner = consumed(aligner, "a", batch)
        aligner.on_barrier("b", BARRIER, 0)
    containers = [v for v in vars(aligner).values() if hasattr(v, "__len__")]
    assert sorted(map(len, containers)) == [1, 2]


@pytest.mark.parametrize("unaligned", [False, True])
def test_seed_c09_nothing_after_a_barrier_enters_the_state_before_the_cut(unaligned: bool) -> None:
    aligner = align({"fast": 5, "slow": 1})
    aligner.on_barrier("fast", BARRIER, 5)
    if unaligned:
        aligner.turn_unaligned()
    message = unchanged_by(aligner, InvariantBroken, lambda: consumed(aligner, "fast", 6))
    assert "batch 6 of input 'fast' was consumed before the cut" in message


# --- every interleaving -------------------------------------------------------------------------------

Step = tuple[str, str, int]


@st.composite
def schedules(draw: st.DrawFn) -> tuple[dict[str, int], dict[str, int], dict[str, set[int]], list[Step]]:
    """A fan-in with batches, some of them empty, a barrier per input, and its events in some order: barriers, including
    repeated and foreign ones, and the consumption of each input up to its barrier."""
    names = [f"in{i}" for i in range(draw(st.integers(1, 4)))]
    positions, barriers, rows = {}, {}, {}
    lanes: list[list[Step]] = []
    for name in names:
        positions[name] = draw(st.integers(-1, 3))
        barriers[name] = positions[name] + draw(st.integers(0, 4))
        behind = range(positions[name] + 1, barriers[name] + 1)
        rows[name] = {batch for batch in behind if draw(st.booleans())}
        lanes.append([("consumed", name, batch) for batch in sorted(rows[name])])
        lanes.append([("barrier", name, barriers[name])] * draw(st.integers(1, 2)))
        lanes.append([(kind, name, draw(st.integers(0, 9))) for kind in ("late", "other")])
    return positions, barriers, rows, interleave(lanes, draw(st.randoms(use_true_random=False)))


def interleave(lanes: list[list[Step]], rng: random.Random) -> list[Step]:
    """All steps in a random order that keeps the order within each lane."""
    order = [i for i, lane in enumerate(lanes) for _ in lane]
    rng.shuffle(order)
    left = [iter(lane) for lane in lanes]
    return [next(left[i]) for i in order]


def apply(aligner: Aligner, step: Step) -> Aligner:
    kind, name, batch = step
    if kind == "consumed":
        return consumed(aligner, name, batch)
    if kind == "barrier":
        assert aligner.on_barrier(name, BARRIER, batch) is not Outcome.OTHER
    elif kind == "late":
        assert aligner.on_barrier(name, Barrier(60, 6), batch) is Outcome.LATE
    else:
        assert aligner.on_barrier(name, Barrier(71, 7), batch) is Outcome.OTHER
    return aligner


@given(schedules(), st.booleans())
def test_the_aligned_cut_does_not_depend_on_the_order_of_events_and_leaves_nothing_before_the_barriers(
    schedule: tuple[dict[str, int], dict[str, int], dict[str, set[int]], list[Step]], eager: bool
) -> None:
    positions, barriers, rows, steps = schedule

    def rows_between(name: str, after: int, upto: int) -> bool:
        return any(after < batch <= upto for batch in rows[name])

    aligner = Aligner(list(positions), BARRIER, positions, rows_between)
    cut = None
    for step in steps:
        aligner = apply(aligner, step)
        if eager and cut is None:
            waiting = aligner.waiting_for()
            cut = aligner.cut()
            assert (cut is None) == bool(waiting)
    if cut is None:
        cut = aligner.cut()
    # The expected cut follows from the channels alone, so it is the same for every order.
    assert cut == Cut(True, {name: max(rows[name], default=positions[name]) for name in positions}, {})
    for name, position in cut.positions.items():
        assert position <= barriers[name]
        assert not rows_between(name, position, barriers[name])


@given(schedules(), st.data())
def test_an_unaligned_cut_at_any_moment_names_exactly_what_is_in_flight(
    schedule: tuple[dict[str, int], dict[str, int], dict[str, set[int]], list[Step]], data: st.DataObject
) -> None:
    positions, _, rows, steps = schedule
    happened = steps[: data.draw(st.integers(0, len(steps)))]
    aligner = Aligner(
        list(positions),
        BARRIER,
        positions,
        lambda name, after, upto: any(after < batch <= upto for batch in rows[name]),
    )
    for step in happened:
        aligner = apply(aligner, step)
    aligner.turn_unaligned()
    cut = aligner.cut()
    assert cut is not None
    seen = {name: batch for kind, name, batch in happened if kind == "barrier"}
    consumed = {name: batch for kind, name, batch in happened if kind == "consumed"}
    assert cut.positions == {**positions, **consumed}
    for name, position in cut.positions.items():
        pending = name not in seen or any(batch > position for batch in rows[name])
        assert (name in cut.in_flight) is pending
        if pending:
            assert cut.in_flight[name] == (position, seen.get(name))
    assert cut.aligned is (not cut.in_flight)
