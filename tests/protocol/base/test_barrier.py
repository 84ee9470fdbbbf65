import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutwater.protocol.base.barrier import (
    Barrier,
    Flags,
    known_flags,
)
from cutwater.protocol.base.errors import PeerError, UserError

U64 = st.integers(0, 2**64 - 1)
FLAGS = st.builds(Flags, st.integers(0, 15))
BARRIERS = st.builds(Barrier, U64, U64, FLAGS)


def test_a_barrier_packs_to_three_little_endian_u64_id_epoch_and_flags() -> None:
    packed = Barrier(1, 2, Flags.DRAIN | Flags.UNALIGNED).pack()
    assert packed == bytes([1, *[0] * 7, 2, *[0] * 7, 10, *[0] * 7])
    assert len(packed) == 24


@given(BARRIERS)
def test_pack_and_unpack_are_inverse(barrier: Barrier) -> None:
    assert Barrier.unpack(barrier.pack()) == barrier


@given(st.binary(max_size=64))
def test_any_bytes_are_either_a_barrier_that_packs_to_the_same_bytes_or_a_peer_error(data: bytes) -> None:
    try:
        barrier = Barrier.unpack(data)
    except PeerError:
        return
    assert barrier.pack() == data


@pytest.mark.parametrize("length", [0, 23, 25, 48])
def test_a_wrong_length_is_a_peer_error_that_names_it(length: int) -> None:
    with pytest.raises(PeerError, match=f"24 bytes, not {length}"):
        Barrier.unpack(bytes(length))


@pytest.mark.parametrize("bits", [16, 17, 2**32, 2**63, 2**64 - 1])
def test_unknown_flags_are_a_peer_error(bits: int) -> None:
    data = Barrier(1, 1).pack()[:16] + bits.to_bytes(8, "little")
    with pytest.raises(PeerError, match="unknown barrier flags"):
        Barrier.unpack(data)


@pytest.mark.parametrize("bits", [-1, -2, 16, 2**64])
def test_unknown_flags_are_never_read_as_known_ones(bits: int) -> None:
    with pytest.raises(PeerError):
        known_flags(bits)


@pytest.mark.parametrize(("checkpoint_id", "epoch"), [(-1, 1), (2**64, 1), (1, -1), (1, 2**64)])
def test_an_id_or_epoch_out_of_range_is_refused_not_truncated(checkpoint_id: int, epoch: int) -> None:
    with pytest.raises(UserError, match="must lie between"):
        Barrier(checkpoint_id, epoch)


def test_an_unknown_flag_is_refused_when_a_barrier_is_created() -> None:
    with pytest.raises(UserError, match="flags"):
        Barrier(1, 1, 16)  # type: ignore[arg-type]


def test_a_barrier_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Barrier(1, 1).epoch = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (Barrier(7, 3, Flags.UNALIGNED), True),
        (Barrier(8, 3), False),
        (Barrier(7, 4), False),
    ],
)
def test_id_and_epoch_identify_the_checkpoint_and_flags_do_not(other: Barrier, same: bool) -> None:
    assert Barrier(7, 3).same_checkpoint(other) is same


def test_seed_b03_every_flag_has_its_bit_and_survives_being_packed() -> None:
    assert {flag.name: int(flag) for flag in Flags} == {
        "FULL_SNAPSHOT": 1,
        "DRAIN": 2,
        "CANCEL": 4,
        "UNALIGNED": 8,
    }
    for bits in range(16):
        assert Barrier.unpack(Barrier(1, 1, Flags(bits)).pack()).flags is Flags(bits)
