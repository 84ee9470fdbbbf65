"""A running member's links to the others: the protocol's messages over the key-value interface.

Messages about a checkpoint are in a slot whose key contains the checkpoint's id, so late members still receive them,
and none overwrites another. Catch-up messages are posted: they concern two members, and only now. User requests and
their answers are in the store; members only send each other a `Hint` to look there.

A `MemoryKv` provides the same for members in one process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

import msgspec

from cutwater.cluster.kv import COMMAND, ClusterKv
from cutwater.cluster.rejections import Rejections
from cutwater.protocol.base import replay_wire as replay
from cutwater.protocol.base.errors import PeerError
from cutwater.protocol.base.wire import (
    Ack,
    Announcement,
    Heartbeat,
    LogGrown,
    Message,
    Reply,
    Request,
    SourcesDone,
    ack_key,
    announcement_key,
    decode_message,
    encode_message,
)

KEEP = {Announcement: 8, Ack: 2}
"""How many messages of one kind a member keeps in its slots. Acks can be large; one that was removed too early is sent
again."""
HEARTBEAT = "heartbeat"
SOURCES = "sources"
SHOWN = "shown"
ADVICE = (
    "this version of Cutwater does not understand it. If all members run the same version, check that member"
)


class Hint(msgspec.Struct, frozen=True):
    """There is something new in the store."""

    topic: str


class Presence(msgspec.Struct, frozen=True):
    """The sender has appeared, or is gone: as this member's links see it."""

    is_present: bool


Heard = Message | replay.Message | Hint | Presence
OnMessage = Callable[[str, Heard], None]
"""Called with the sender and its message, on any thread; must not block."""

KINDS: dict[str, type] = {
    "announcement": Announcement,
    "ack": Ack,
    HEARTBEAT: Heartbeat,
    "log": LogGrown,
    SOURCES: SourcesDone,
}
"""The type of a slot's value, by the first part of its key."""


class Links:
    """One member's links to all others. `notify` receives lines of text for the user."""

    def __init__(self, kv: ClusterKv, notify: Callable[[str], None] = lambda line: None) -> None:
        self._kv = kv
        self._rejections = Rejections(notify, ADVICE)
        self._on_message: OnMessage | None = None
        self._kept: dict[type, dict[str, None]] = {Announcement: {}, Ack: {}}
        self._hints = 0

    @property
    def ignored(self) -> int:
        """How many messages it has ignored: those without a valid seal, and those that cannot be decoded."""
        return self._kv.rejected + self._rejections.count

    def start(self, on_message: OnMessage) -> None:
        """Starts to receive: the values that are already in slots, and everything from now on."""
        self._on_message = on_message
        self._kv.subscribe(self._on_change, self._on_mail, self._on_presence)

    def alive(self) -> dict[str, tuple[str, ...]]:
        """The members that are present, including this one, with the `boot` of each of their processes."""
        return self._kv.alive()

    def close(self) -> None:
        self._kv.close()

    # --- sending ----------------------------------------------------------------------------------------

    def send(self, to: str | None, message: Message | replay.Message) -> None:
        """Sends a message to one member, or to all others if `to` is `None`. It may be lost."""
        if to == self._kv.name:
            if self._on_message is not None:
                self._on_message(to, message)
            return
        match message:
            case Announcement():
                self._write_and_prune(announcement_key(message.checkpoint_id), message, to)
            case Ack():
                self._write_and_prune(ack_key(message.checkpoint_id), message, to)
            case Heartbeat():
                self._kv.write(HEARTBEAT, encode_message(message), to)
            case LogGrown():
                self._kv.write(f"log/{message.stage}", encode_message(message), to)
            case SourcesDone():
                self._kv.write(SOURCES, encode_message(message), to)
            case replay.AskRange() | replay.FetchEntries() | replay.HaveRange():
                self._post(to, message)
            case replay.EntriesChunk() | replay.Compacted():
                self._post(to, message)
            case Request() | Reply():
                raise TypeError(f"{type(message).__name__} is not sent between members: use the store")
            case _:
                assert_never(message)

    def hint(self, topic: str) -> None:
        """Tells all others to look in the store now instead of at their next poll: `requests`."""
        self._hints += 1
        self._kv.write(f"hint/{topic}", str(self._hints).encode())

    def show(self, topic: str, value: bytes) -> None:
        """Publishes a value of this member: `status`."""
        self._kv.write(f"{SHOWN}/{topic}", value)

    def scan(self, topic: str) -> dict[str, bytes]:
        """The value that each member has published with `show`, by member."""
        return self._kv.scan(f"{SHOWN}/{topic}")

    def _write_and_prune(self, key: str, message: Announcement | Ack, to: str | None) -> None:
        self._kv.write(key, encode_message(message), to)
        kept = self._kept[type(message)]
        kept[key] = None
        while len(kept) > KEEP[type(message)]:
            oldest = next(iter(kept))
            del kept[oldest]
            self._kv.delete(oldest)

    def _post(self, to: str | None, message: replay.Message) -> None:
        if to is None:
            raise TypeError(f"{type(message).__name__} is for one member")
        self._kv.post(to, replay.encode_replay(message))

    # --- receiving --------------------------------------------------------------------------------------

    def _on_change(self, owner: str, key: str, value: bytes) -> None:
        kind, _, rest = key.partition("/")
        if kind == "hint":
            self._hear(owner, Hint(rest))
            return
        if kind == SHOWN or owner.startswith(COMMAND):  # commands only observe; their messages are ignored
            return
        try:
            message = decode_message(value)
        except PeerError:
            self._rejections.add(owner, f"a value in slot {key[:60]}")
            return
        if type(message) is KINDS.get(kind) and _is_of(owner, message):
            self._hear(owner, message)
        else:
            self._rejections.add(owner, f"a {type(message).__name__} in slot {key[:60]}")

    def _on_mail(self, sender: str, data: bytes) -> None:
        try:
            message = replay.decode_replay(data)
        except PeerError:
            self._rejections.add(sender, "a message")
            return
        self._hear(sender, message)

    def _on_presence(self, member: str, is_present: bool) -> None:
        if not member.startswith(COMMAND):
            self._hear(member, Presence(is_present))

    def _hear(self, sender: str, message: Heard) -> None:
        if self._on_message is not None:
            self._on_message(sender, message)


def _is_of(owner: str, message: Message) -> bool:
    """Whether the message names the owner of its slot, if it names a member at all."""
    return not isinstance(message, Ack | Heartbeat | SourcesDone) or message.member == owner
