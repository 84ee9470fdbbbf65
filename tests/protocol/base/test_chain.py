"""The envelope of a log entry, and the chain."""

from __future__ import annotations

import gc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutwater.protocol.base.chain import GENESIS, Codec, Entry, Sealed, digest, follows
from cutwater.protocol.base.errors import PeerError


class Body(msgspec.Struct, frozen=True):
    text: str
    numbers: dict[str, int] = {}


CODEC: Codec[Body] = Codec(Body)
NUMBERS = st.integers(-(2**63), 2**63 - 1)
ENTRIES = st.builds(
    Entry,
    index=st.integers(1, 2**63 - 1),
    prev=st.text(),
    snapshot=st.integers(0, 2**63 - 1),
    nonce=st.text(),
    body=st.builds(Body, text=st.text(), numbers=st.dictionaries(st.text(), NUMBERS)),
)


def seal(index: int, prev: str) -> Sealed[Body]:
    return CODEC.seal(Entry(index, prev, 0, f"n{index}", Body("x")))


FIRST = seal(1, GENESIS)
SECOND = seal(2, FIRST.hash)


@given(ENTRIES)
def test_an_entry_decodes_from_its_bytes_with_the_same_hash(entry: Entry[Body]) -> None:
    sealed = CODEC.seal(entry)
    assert sealed.entry == entry
    assert sealed.hash == digest(sealed.data)
    assert CODEC.open(sealed.data) == sealed


def test_the_first_entry_follows_nothing_and_names_the_genesis_hash() -> None:
    assert follows(None, FIRST)
    assert not follows(None, seal(2, GENESIS))
    assert not follows(None, seal(1, FIRST.hash))


def test_an_entry_follows_the_one_whose_hash_it_names_at_the_next_index() -> None:
    assert follows(FIRST, SECOND)
    assert not follows(FIRST, seal(2, GENESIS))
    assert not follows(FIRST, seal(3, FIRST.hash))
    assert not follows(FIRST, seal(1, FIRST.hash))
    assert not follows(SECOND, SECOND)


def test_the_chain_hashes_the_bytes_so_the_same_entry_in_other_bytes_breaks_it() -> None:
    spaced = CODEC.open(FIRST.data + b" ")
    assert spaced.entry == FIRST.entry
    assert not follows(spaced, SECOND)


BARE = msgspec.json.encode(FIRST.entry)
"""The form of entries before they had checksums."""


def test_an_entry_without_a_checksum_is_accepted() -> None:
    assert CODEC.open(BARE).entry == FIRST.entry
    assert CODEC.open(BARE).data == BARE


def test_every_flipped_bit_of_an_entry_is_detected() -> None:
    for place in range(len(FIRST.data)):
        for bit in range(8):
            spoilt = bytearray(FIRST.data)
            spoilt[place] ^= 1 << bit
            with pytest.raises(PeerError):
                CODEC.open(bytes(spoilt))


def test_a_truncated_or_edited_entry_is_detected() -> None:
    for length in range(len(FIRST.data)):
        with pytest.raises(PeerError):
            CODEC.open(FIRST.data[:length])
    edited = FIRST.data.replace(b'"text":"x"', b'"text":"y"')
    for end in (b"", b"\n", b"\r\n", b" \n"):
        with pytest.raises(PeerError, match="its checksum differs"):
            CODEC.open(edited + end)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"null",
        b"[]",
        BARE[:-1],
        BARE + b"}",
        BARE.replace(b'"index":1', b'"index":"1"'),
        BARE.replace(b'"index":1', b'"index":' + b"1" * 10_000),
        BARE.replace(b'"index":1', b'"index":1e999'),
        BARE.replace(b'"body":{"text":"x"', b'"body":{"text":7'),
        BARE.replace(b'"nonce":"n1",', b""),
        BARE.replace(b'"nonce":"n1"', b'"nonce":"\\ud800"'),
        BARE.replace(b'"nonce":"n1"', b'"nonce":"\xff"'),
        BARE.replace(b'"text":"x"', b'"text":"\xc3\x28"'),
        BARE.replace(b'"text":"x"', b'"\xff":"x"'),
        BARE.replace(b'"text":"x"', b'"text":"x","more":' + b'{"a":' * 50_000),
        b"[" * 50_000,
    ],
)
def test_bytes_that_are_not_an_entry_are_a_peer_error_that_shows_their_beginning(data: bytes) -> None:
    with pytest.raises(PeerError, match="not a log entry") as caught:
        CODEC.open(data)
    assert str(caught.value).endswith(repr(data[:60]))
    assert len(str(caught.value)) < 500


@given(st.binary() | st.binary().map(lambda b: FIRST.data[:-2] + b + b'"}}'))
def test_any_bytes_are_either_an_entry_or_a_peer_error(data: bytes) -> None:
    try:
        sealed = CODEC.open(data)
    except PeerError:
        return
    assert sealed.data == data


def test_the_cyclic_collector_does_not_walk_entries() -> None:
    assert not gc.is_tracked(FIRST)
    assert not gc.is_tracked(FIRST.entry)
    opened = CODEC.open(FIRST.data)
    assert not gc.is_tracked(opened)
    assert not gc.is_tracked(opened.entry)
