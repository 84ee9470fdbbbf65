"""What members that catch up say to each other.

The messages travel as MessagePack, because entries are bytes. Every answer names the request that it answers, so
one that comes too late is known for what it is.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from cutwater.protocol.base.errors import PeerError

Count = Annotated[int, msgspec.Meta(ge=0)]


class AskRange(msgspec.Struct, frozen=True, tag_field="type", tag="ask_range"):
    """Which entries do you hold?"""

    request_id: Count


class HaveRange(msgspec.Struct, frozen=True, tag_field="type", tag="have_range"):
    """I hold `first` to `last`; nothing if `last` is below `first`."""

    request_id: Count
    first: Count
    last: Count


class FetchEntries(msgspec.Struct, frozen=True, tag_field="type", tag="fetch_entries"):
    """Send me entries from `first` on, at most up to `last` and `max_bytes`, but at least one."""

    request_id: Count
    first: Count
    last: Count
    max_bytes: Count


class EntriesChunk(msgspec.Struct, frozen=True, tag_field="type", tag="entries_chunk"):
    """The entries from `first` on; it may be fewer than were asked for, and none if I hold none."""

    request_id: Count
    first: Count
    entries: list[bytes]


class Compacted(msgspec.Struct, frozen=True, tag_field="type", tag="compacted"):
    """I no longer hold what you asked for; what I hold begins at `first`."""

    request_id: Count
    first: Count


Message = AskRange | HaveRange | FetchEntries | EntriesChunk | Compacted

_ENCODE = msgspec.msgpack.Encoder().encode
_DECODER: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """The bytes of a message."""
    return _ENCODE(message)


def decode(data: bytes) -> Message:
    """The message that these bytes are. Raises `PeerError` if they are none."""
    try:
        return _DECODER.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise PeerError(f"not a catch-up message ({error}): {data[:60]!r}; it is ignored") from error
