"""Catching up when nobody can serve; the serving side; and the wire format."""

from __future__ import annotations

import msgspec
import pytest

from cutwater.protocol.base.errors import PeerError, StoreError, UserError
from cutwater.protocol.base.replay_wire import (
    AskRange,
    Compacted,
    EntriesChunk,
    FetchEntries,
    HaveRange,
    Message,
    decode_replay,
    encode_replay,
)
from cutwater.protocol.replay.messages import Action, Deliver, Fetch, ReplayConfig, ReplayDone, ReplayFailed
from cutwater.protocol.replay.provider import Provider
from tests.support.replay_world import LOG, begin, data, extend, only, serve, world


def test_it_fails_with_the_range_and_every_reason_when_nobody_can_serve() -> None:
    w = world(a="silent", b="empty")
    w.store_up = False
    w.run()
    [failed] = w.ends
    assert isinstance(failed, ReplayFailed)
    assert isinstance(failed.error, StoreError)
    text = str(failed.error)
    assert "entries 1-100" in text
    assert "the store: is down" in text
    assert "a: did not answer within 100 ms" in text
    assert "b: sent nothing for 1-10" in text


def test_it_needs_the_store_only_for_the_target_if_the_gap_fits_the_buffer() -> None:
    w = world(LOG[:20], a="honest", b="honest")
    w.store_up = False
    w.run()
    assert w.delivered == LOG[:20]


def test_it_fails_if_nothing_can_be_proven_and_the_buffer_is_full() -> None:
    w = world(extend(LOG, 100), a="honest", b="honest")
    w.store_up = False
    w.run()
    [failed] = w.ends
    assert isinstance(failed, ReplayFailed)
    assert "provide or confirm" in str(failed.error)
    assert w.delivered == []


def test_a_store_that_recovers_is_used_again() -> None:
    w = world(a="silent")
    w.store_up = False

    def recover() -> list[Action]:
        w.store_up = True
        return []

    w.at(400, recover)
    w.run()
    assert w.delivered == LOG


@pytest.mark.parametrize("wrong", [{"buffer_bytes": 10}, {"chunk_entries": 0}])
def test_an_invalid_configuration_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(UserError, match="replay: "):
        ReplayConfig(**wrong)


def test_a_provider_answers_within_every_limit_but_with_at_least_one_entry() -> None:
    provider = Provider(11, data(LOG, 11, 60), max_entries=20, max_bytes=10_000)
    one = len(LOG[19].data)
    assert provider.available() == (11, 60)
    assert provider.serve(20, 90, 5, 10_000) == data(LOG, 20, 24)
    assert provider.serve(20, 90, 100, 100_000) == data(LOG, 20, 39)
    assert provider.serve(20, 22, 100, 100_000) == data(LOG, 20, 22)
    assert provider.serve(20, 90, 100, 3 * one) == data(LOG, 20, 22)
    assert provider.serve(20, 90, 0, 1) == data(LOG, 20, 20)
    assert provider.serve(60, 90, 100, 10_000) == data(LOG, 60, 60)
    assert provider.serve(61, 90, 100, 10_000) == []
    assert provider.serve(20, 19, 100, 10_000) == []
    assert provider.serve(10, 20, 100, 10_000) == 11


def test_a_provider_compacts_follows_snapshots_and_refuses_entries_that_it_has() -> None:
    provider = Provider(1, data(LOG, 1, 50))
    provider.compact(40)
    assert provider.available() == (40, 50)
    assert provider.serve(41, 42, 9, 9_999) == data(LOG, 41, 42)
    provider.append(51, data(LOG, 51, 52))
    assert provider.serve(50, 99, 9, 9_999) == data(LOG, 50, 52)
    with pytest.raises(UserError, match="already held"):
        provider.append(52, data(LOG, 52, 52))
    provider.append(60, data(LOG, 60, 61))
    assert provider.available() == (60, 61)
    assert provider.held_bytes == sum(len(s.data) for s in LOG[59:61])
    provider.compact(99)
    assert provider.available() == (99, 98)
    with pytest.raises(UserError, match="first index of a log is 1"):
        Provider(0)


def test_a_member_that_catches_up_serves_what_it_has() -> None:
    session, actions = begin("a", held=LOG[:20])
    provider = Provider()
    assert provider.answer(AskRange(1)) == HaveRange(1, 1, 0)
    while not only(ReplayDone, actions):
        actions = serve(session, only(Fetch, actions)[0])
        for delivery in only(Deliver, actions):
            provider.append(delivery.entries[0].entry.index, [s.data for s in delivery.entries])
    assert provider.answer(AskRange(2)) == HaveRange(2, 1, 20)
    assert provider.answer(FetchEntries(3, 19, 40, 9_999)) == EntriesChunk(3, 19, data(LOG, 19, 20))
    provider.compact(10)
    assert provider.answer(FetchEntries(4, 1, 40, 9_999)) == Compacted(4, 10)


@pytest.mark.parametrize(
    "message",
    [
        AskRange(1),
        HaveRange(1, 2, 3),
        FetchEntries(1, 2, 3, 4),
        EntriesChunk(1, 2, [b"\xff\x00", b""]),
        Compacted(1, 2),
    ],
)
def test_messages_survive_a_round_trip_and_bad_bytes_are_a_peer_error(message: Message) -> None:
    wire = encode_replay(message)
    assert decode_replay(wire) == message
    for bad in (
        b"",
        b"\xc1",
        wire[:-1],
        wire + b"\x00",
        msgspec.msgpack.encode({"type": "?"}),
        b"\x91" * 9_000,
    ):
        with pytest.raises(PeerError, match="not a catch-up message"):
            decode_replay(bad)
