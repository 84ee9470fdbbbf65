"""Messages of a catch-up between members.

The messages are encoded as MessagePack, because entries are bytes. Every answer contains the id of its request, so
that late answers are recognized.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from cutwater.protocol.base.errors import PeerError

Count = Annotated[int, msgspec.Meta(ge=0)]


class AskRange(msgspec.Struct, frozen=True, tag_field="type", tag="ask_range"):
    """Asks which entries a member holds."""

    request_id: Count


class HaveRange(msgspec.Struct, frozen=True, tag_field="type", tag="have_range"):
    """The sender holds `first` to `last`; nothing if `last` is below `first`."""

    request_id: Count
    first: Count
    last: Count


class FetchEntries(msgspec.Struct, frozen=True, tag_field="type", tag="fetch_entries"):
    """Asks for the entries from `first` on, up to `last` and `max_bytes`, but at least one."""

    request_id: Count
    first: Count
    last: Count
    max_bytes: Count


class EntriesChunk(msgspec.Struct, frozen=True, tag_field="type", tag="entries_chunk"):
    """The entries from `first` on; possibly fewer than requested, and none if the sender holds none of them."""

    request_id: Count
    first: Count
    entries: list[bytes]


class Compacted(msgspec.Struct, frozen=True, tag_field="type", tag="compacted"):
    """The sender no longer holds the requested entries; its range begins at `first`."""

    request_id: Count
    first: Count


Message = AskRange | HaveRange | FetchEntries | EntriesChunk | Compacted

_ENCODE = msgspec.msgpack.Encoder().encode
_DECODER: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode_replay(message: Message) -> bytes:
    """Encodes a message."""
    return _ENCODE(message)


def decode_replay(data: bytes) -> Message:
    """Decodes a message. Raises `PeerError` if the bytes are not a message."""
    try:
        return _DECODER.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise PeerError(f"not a catch-up message ({error}): {data[:60]!r}; it is ignored") from error
