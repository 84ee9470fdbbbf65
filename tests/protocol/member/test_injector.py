"""The injector, with real threads."""

import sys
import threading
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutwater.protocol.base.barrier import Barrier, Flags
from cutwater.protocol.base.errors import UserError
from cutwater.protocol.member.injector import BarrierInjector, BarrierRequest, Counters, PollHandle, Word
from cutwater.runtime.local_word import LocalWord


@pytest.fixture
def word() -> Word:
    return LocalWord()


@pytest.fixture
def injector(word: Word) -> BarrierInjector:
    return BarrierInjector(word)


def test_nothing_is_pending_at_first(injector: BarrierInjector) -> None:
    assert injector.handle().poll(1) is None
    assert injector.counters() == Counters(0, 0, None, None)


def test_a_trigger_is_polled_once_with_the_pollers_epoch(injector: BarrierInjector) -> None:
    handle = injector.handle()
    assert injector.trigger(42, Flags.FULL_SNAPSHOT | Flags.DRAIN) is None
    assert handle.poll(7) == Barrier(42, 7, Flags.FULL_SNAPSHOT | Flags.DRAIN)
    assert handle.poll(7) is None
    assert injector.counters().claimed == 1


def test_exactly_one_of_many_handles_claims(injector: BarrierInjector) -> None:
    handles = [injector.handle() for _ in range(5)]
    injector.trigger(1)
    claims = [handle.poll(1) for handle in handles]
    assert claims == [Barrier(1, 1), None, None, None, None]


@given(st.integers(1, 2**32 - 1), st.integers(0, 15))
def test_the_word_is_the_id_above_the_flags(checkpoint_id: int, bits: int) -> None:
    word = LocalWord()
    BarrierInjector(word).trigger(checkpoint_id, bits)
    assert word.cell[0] == checkpoint_id * 2**32 + bits
    assert BarrierRequest.unpack(word.cell[0]) == BarrierRequest(checkpoint_id, Flags(bits))


@pytest.mark.parametrize("pending", [None, 9])
@pytest.mark.parametrize(
    ("checkpoint_id", "flags"),
    [
        (0, 0),
        (0, 1),
        (-1, 0),
        (2**32, 0),
        (2**32 + 5, 0),
        (2**64, 0),
        (5, -1),
        (5, 16),
        (5, 2**32),
        (5, 2**40),
    ],
)
def test_seed_b01_and_seed_b02_an_id_of_zero_or_out_of_range_is_refused_and_changes_nothing(
    injector: BarrierInjector, pending: int | None, checkpoint_id: int, flags: int
) -> None:
    if pending is not None:
        injector.trigger(pending)
    before = injector.counters()
    with pytest.raises(UserError, match="cannot be triggered"):
        injector.trigger(checkpoint_id, flags)
    assert injector.counters() == before
    claimed = injector.handle().poll(1)
    assert claimed == (None if pending is None else Barrier(pending, 1))


def test_seed_b01_an_id_of_zero_without_flags_is_an_error_and_never_ignored(
    injector: BarrierInjector,
) -> None:
    with pytest.raises(UserError, match="checkpoint id 0"):
        injector.trigger(0, Flags.NONE)


def test_seed_b02_an_id_is_never_truncated_to_32_bits(injector: BarrierInjector) -> None:
    injector.trigger(2**32 - 1)
    assert injector.handle().poll(1) == Barrier(2**32 - 1, 1)
    with pytest.raises(UserError, match=str(2**32 + 1)):
        injector.trigger(2**32 + 1)
    assert injector.handle().poll(1) is None


def test_seed_b04_a_superseded_barrier_is_returned_counted_and_named(injector: BarrierInjector) -> None:
    assert injector.trigger(1, Flags.DRAIN) is None
    assert injector.trigger(2) == BarrierRequest(1, Flags.DRAIN)
    assert injector.trigger(3) == BarrierRequest(2, Flags.NONE)
    assert injector.handle().poll(5) == Barrier(3, 5)
    assert injector.trigger(4) is None
    assert injector.counters() == Counters(
        triggered=4,
        superseded=2,
        pending=BarrierRequest(4, Flags.NONE),
        last_superseded=BarrierRequest(2, Flags.NONE),
    )
    assert injector.counters().claimed == 1


def test_a_poll_that_cannot_create_a_barrier_claims_nothing(injector: BarrierInjector) -> None:
    injector.trigger(1)
    with pytest.raises(UserError):
        injector.handle().poll(-1)
    assert injector.handle().poll(1) == Barrier(1, 1)


def test_polling_with_nothing_pending_is_a_single_load() -> None:
    loads = Counter[str]()

    class OneLoad:
        def __getitem__(self, index: int, /) -> int:
            loads["load"] += 1
            return 0

    class Untouchable:
        cell = OneLoad()

        def swap(self, value: int) -> int:
            raise AssertionError

        def take(self, expected: int) -> bool:
            raise AssertionError

        def counters(self) -> Counters:
            raise AssertionError

    assert PollHandle(Untouchable()).poll(1) is None
    assert loads == {"load": 1}


@pytest.mark.parametrize("winner", ["another handle", "a newer trigger"])
def test_a_request_that_is_gone_between_the_load_and_the_claim_is_not_claimed(winner: str) -> None:
    word = LocalWord()
    injector = BarrierInjector(word)

    class Overtaken:
        """A word that somebody else always changes between the load and the claim."""

        cell = word.cell
        swap = word.swap
        counters = word.counters

        def take(self, expected: int) -> bool:
            if winner == "another handle":
                assert injector.handle().poll(1) == Barrier(1, 1)
            else:
                injector.trigger(2)
            return word.take(expected)

    injector.trigger(1)
    assert PollHandle(Overtaken()).poll(1) is None
    expected = None if winner == "another handle" else Barrier(2, 1)
    assert injector.handle().poll(1) == expected


def add_up(
    injector: BarrierInjector, triggered: list[int], claimed: list[int], superseded: list[int]
) -> None:
    """Every request has exactly one outcome, and the counters agree."""
    counters = injector.counters()
    pending = [counters.pending.checkpoint_id] if counters.pending else []
    assert Counter(claimed) + Counter(superseded) + Counter(pending) == Counter(triggered)
    assert counters.triggered == len(triggered)
    assert counters.superseded == len(superseded)
    assert counters.claimed == len(claimed)


class Interruptible(list[int]):
    """A cell at which the interpreter may switch threads just before a store, unlike a plain list."""

    def __setitem__(self, index: object, value: object) -> None:
        for _ in range(20):
            pass
        super().__setitem__(index, value)  # type: ignore[call-overload]


def test_threads_claim_each_barrier_exactly_once_or_see_it_superseded(word: Word) -> None:
    if isinstance(word, LocalWord):
        word.cell = Interruptible([0])
    injector = BarrierInjector(word)
    each, triggerers, pollers = 200, 3, 4
    superseded: list[int] = []
    claimed: list[int] = []
    done = threading.Event()

    def trigger(first: int) -> None:
        for checkpoint_id in range(first, first + each):
            old = injector.trigger(checkpoint_id)
            if old is not None:
                superseded.append(old.checkpoint_id)

    def poll() -> None:
        handle = injector.handle()
        while not done.is_set():
            barrier = handle.poll(1)
            if barrier is not None:
                claimed.append(barrier.checkpoint_id)

    triggering = [threading.Thread(target=trigger, args=(1 + i * each,)) for i in range(triggerers)]
    polling = [threading.Thread(target=poll) for _ in range(pollers)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # so that threads interleave often
    try:
        for thread in polling + triggering:
            thread.start()
        for thread in triggering:
            thread.join()
        done.set()
        for thread in polling:
            thread.join()
    finally:
        done.set()
        sys.setswitchinterval(interval)
    add_up(injector, list(range(1, 1 + each * triggerers)), claimed, superseded)


def test_counters_can_be_encoded_as_json(injector: BarrierInjector) -> None:
    injector.trigger(1)
    injector.trigger(2, Flags.DRAIN)
    counters = injector.counters()
    assert msgspec.json.decode(msgspec.json.encode(counters), type=Counters) == counters
