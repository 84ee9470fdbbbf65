"""Messages on the key-value interface."""

import msgspec
import pytest

from cutwater.protocol.base.barrier import Barrier, Flags
from cutwater.protocol.base.errors import PeerError
from cutwater.protocol.base.records import StageReport
from cutwater.protocol.base.watermark import UNKNOWN, Watermark, WatermarkKind, idle, known
from cutwater.protocol.base.wire import (
    Ack,
    Announcement,
    Heartbeat,
    Message,
    Phase,
    Request,
    RequestKind,
    ack_key,
    announcement_key,
    decode_message,
    encode_message,
)

REPORT = StageReport(
    "clean",
    1,
    17,
    False,
    consumed={"orders": 4},
    offsets={"source": '{"n":1}'},
    watermark=known(9),
    state={"a/b": "ab"},
)
PREPARE = Announcement(Phase.PREPARE, Barrier(42, 5, Flags.DRAIN | Flags.FULL_SNAPSHOT).pack(), 3, 1, 42)
MESSAGES: list[Message] = [
    PREPARE,
    Announcement(Phase.COMMIT, Barrier(42, 5).pack(), 3, 1, 43, watermark=-7),
    Announcement(Phase.ABORT, Barrier(42, 5, Flags.CANCEL).pack(), 3, 1, 43, reason="deadline"),
    Ack("a", "boot-1", 5, 42, 3, True, None, known(9), {"clean": REPORT}),
    Ack("b", "boot-2", 5, 42, 3, False, "disk full", UNKNOWN, {}),
    Ack("c", "boot-3", 5, 42, 3, True, None, idle(), {}),
    Heartbeat("a", "boot-1", 0, 17),
    *(Request(kind, "r-1", name="n", epoch=4, full=True, unaligned=True) for kind in RequestKind),
    Request(RequestKind.RESTORE, "r-2", epoch=4, reset=("a", "b")),
]


def announced(barrier: bytes) -> bytes:
    """An announcement with these bytes in place of its barrier."""
    fields = msgspec.json.decode(encode_message(PREPARE))
    return msgspec.json.encode(fields | {"barrier": barrier})


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_survives_a_round_trip(message: Message) -> None:
    assert decode_message(encode_message(message)) == message


def test_a_request_needs_only_a_kind_and_an_id() -> None:
    request = decode_message(b'{"type":"request","kind":"cancel","request_id":"r"}')
    assert request == Request(RequestKind.CANCEL, "r")


@pytest.mark.parametrize("message", MESSAGES)
def test_truncated_json_in_a_slot_is_a_peer_error(message: Message) -> None:
    data = encode_message(message)
    for end in range(len(data)):
        with pytest.raises(PeerError):
            decode_message(data[:end])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"null",
        b"[]",
        b"{}",
        b'{"type":"vote"}',
        b'{"type":"ack"}',
        announced(b""),
        announced(Barrier(42, 5).pack()[:-1]),
        announced(Barrier(42, 5).pack()[:-8] + (16).to_bytes(8, "little")),
        announced(Barrier(0, 5).pack()),
        announced(Barrier(2**32, 5).pack()),
        encode_message(PREPARE).replace(b'"index":42', b'"index":-42'),
        encode_message(PREPARE).replace(b'"index":42', b'"index":"42"'),
        b'{"type":"reply\xff"}',
        b'{"type":"reply","x":' + b"[" * 100_000,
    ],
)
def test_bytes_that_are_not_a_message_are_a_peer_error_that_shows_them(data: bytes) -> None:
    with pytest.raises(PeerError, match="not a message of this version"):
        decode_message(data)


@pytest.mark.parametrize("phase", [b'"decided"', b"null", b'"ABORT"', b'""', b"3"])
def test_seed_a10_an_unreadable_decision_is_an_error_and_never_an_abort(phase: bytes) -> None:
    data = encode_message(MESSAGES[1]).replace(b'"commit"', phase)
    with pytest.raises(PeerError):
        decode_message(data)


def test_seed_a10_a_decision_without_a_phase_is_an_error() -> None:
    fields = msgspec.json.decode(encode_message(MESSAGES[1]))
    del fields["phase"]
    with pytest.raises(PeerError):
        decode_message(msgspec.json.encode(fields))


def test_seed_a06_flags_are_sent_with_prepare() -> None:
    heard = decode_message(encode_message(PREPARE))
    assert isinstance(heard, Announcement)
    assert heard.flags == Flags.DRAIN | Flags.FULL_SNAPSHOT
    assert (heard.epoch, heard.checkpoint_id) == (5, 42)


def test_seed_a06_flags_cannot_be_left_out_of_an_announcement() -> None:
    fields = msgspec.json.decode(encode_message(PREPARE))
    del fields["barrier"]
    with pytest.raises(PeerError, match="barrier"):
        decode_message(msgspec.json.encode(fields))


def test_seed_a02_acks_of_different_checkpoints_have_different_slots() -> None:
    slots = {ack_key(7): "ack 7"}
    slots[ack_key(8)] = "ack 8"
    assert slots[ack_key(7)] == "ack 7"
    assert len({key(i) for i in range(50) for key in (ack_key, announcement_key)}) == 100


@pytest.mark.parametrize("field", ["epoch", "checkpoint_id", "term"])
def test_seed_a03_an_ack_always_says_which_attempt_it_answers(field: str) -> None:
    fields = msgspec.json.decode(encode_message(MESSAGES[3]))
    del fields[field]
    with pytest.raises(PeerError, match=field):
        decode_message(msgspec.json.encode(fields))


@pytest.mark.parametrize("phase", [Phase.PREPARE, Phase.ABORT])
def test_seed_a15_no_watermark_is_published_before_the_decision(phase: Phase) -> None:
    with pytest.raises(ValueError, match="cannot carry a watermark"):
        Announcement(phase, Barrier(42, 5).pack(), 3, 1, 42, watermark=1)
    with pytest.raises(PeerError, match="cannot carry a watermark"):
        decode_message(encode_message(MESSAGES[1]).replace(b'"commit"', f'"{phase.value}"'.encode()))


def test_a_known_watermark_without_a_time_is_a_peer_error() -> None:
    with pytest.raises(PeerError, match="without a time"):
        decode_message(encode_message(MESSAGES[3]).replace(b'"ms":9', b'"ms":null'))
    with pytest.raises(ValueError, match="without a time"):
        Ack("a", "boot", 5, 42, 3, True, None, Watermark(WatermarkKind.KNOWN), {})


def test_the_error_quotes_only_the_beginning_of_unreadable_bytes() -> None:
    with pytest.raises(PeerError) as caught:
        decode_message(b"x" * 1_000_000)
    assert len(str(caught.value)) < 400
