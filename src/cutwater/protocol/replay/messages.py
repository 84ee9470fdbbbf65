"""What a session of catching up asks of its caller. What members say to each other is in `base/replay_wire.py`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

import msgspec

from cutwater.protocol.base.chain import Sealed
from cutwater.protocol.base.errors import CutwaterError, UserError
from cutwater.protocol.base.transitions import Table

B = TypeVar("B")


class Anchor(msgspec.Struct, frozen=True):
    """What the store says stands at a place. Nothing else is believed."""

    index: int
    hash: str


class Ask(msgspec.Struct, frozen=True):
    """Send `AskRange`; answer with `on_available`."""

    peer: str
    request_id: int


class Fetch(msgspec.Struct, frozen=True):
    """Send `FetchEntries`; answer with `on_chunk` or `on_compacted`."""

    peer: str
    request_id: int
    first: int
    last: int
    max_bytes: int


class FetchFromStore(msgspec.Struct, frozen=True):
    """Read entries from the store; answer with `on_store_chunk`, `on_snapshot` or `on_store_failed`."""

    request_id: int
    first: int
    last: int
    max_bytes: int


class AnchorAt(msgspec.Struct, frozen=True):
    """Read that one entry's hash from the store; answer with `on_anchor`, `on_snapshot` or
    `on_store_failed`."""

    request_id: int
    index: int


class Deliver(msgspec.Struct, Generic[B], frozen=True):
    """Apply these entries: they are the journal's, and follow what was delivered before. Only a SNAPSHOT
    may stand at a later place than the next; it replaces everything before it."""

    entries: list[Sealed[B]]


class Done(msgspec.Struct, frozen=True):
    """Everything up to `index` has been delivered."""

    index: int


class Failed(msgspec.Struct, frozen=True):
    """It cannot be done; what was delivered stays right."""

    error: CutwaterError


Action = Ask | Fetch | FetchFromStore | AnchorAt | Deliver[Any] | Done | Failed


class ReplayPhase(Enum):
    """Where a session is. Only one that has failed is over for good."""

    ASKING = "asking"
    FETCHING = "fetching"
    DONE = "done"
    FAILED = "failed"


REPLAY = Table(
    "replay",
    "The catch-up of a member that was away",
    ReplayPhase.ASKING,
    {
        (ReplayPhase.ASKING, "fetch"): ReplayPhase.FETCHING,
        (ReplayPhase.FETCHING, "fetch"): ReplayPhase.FETCHING,
        (ReplayPhase.ASKING, "reached"): ReplayPhase.DONE,
        (ReplayPhase.FETCHING, "reached"): ReplayPhase.DONE,
        (ReplayPhase.ASKING, "give_up"): ReplayPhase.FAILED,
        (ReplayPhase.FETCHING, "give_up"): ReplayPhase.FAILED,
        (ReplayPhase.ASKING, "target_moved"): ReplayPhase.ASKING,
        (ReplayPhase.FETCHING, "target_moved"): ReplayPhase.FETCHING,
        (ReplayPhase.DONE, "target_moved"): ReplayPhase.ASKING,
    },
)


@dataclass(frozen=True, slots=True)
class ReplayConfig:
    """The bounds of a catch-up. Raises `UserError` if they cannot work together.

    A fetch asks for at most `chunk_entries` and `chunk_bytes`. No more than `buffer_bytes` are kept while
    they cannot be delivered yet. The store is asked for a hash once per `anchor_bytes`. A request that is
    not answered within `timeout_ms` failed; whoever failed n times in a row is left alone for
    `backoff_ms` * 2^(n-1), at most `backoff_max_ms`, and is hopeless after `max_attempts`. A peer that
    does not reach the target is asked again what it holds after `ask_again_ms`.
    """

    chunk_entries: int = 1_000
    chunk_bytes: int = 1 << 20
    anchor_bytes: int = 4 << 20
    buffer_bytes: int = 16 << 20
    timeout_ms: int = 2_000
    backoff_ms: int = 100
    backoff_max_ms: int = 5_000
    max_attempts: int = 5
    ask_again_ms: int = 1_000

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise UserError(f"replay: {name} is {getattr(self, name)}; it must be at least 1")
        if self.anchor_bytes + self.chunk_bytes > self.buffer_bytes:
            raise UserError(
                f"replay: buffer_bytes ({self.buffer_bytes}) cannot hold anchor_bytes ({self.anchor_bytes}) "
                f"and one more chunk ({self.chunk_bytes}); raise it or lower them"
            )


class Progress(msgspec.Struct, frozen=True):
    """How far a catch-up is: entries done of all that were missing, usable peers, bytes delivered."""

    done: int
    total: int
    peers: int
    bytes: int

    def __str__(self) -> str:
        percent = 100 * self.done // self.total if self.total else 100
        peers = "1 peer" if self.peers == 1 else f"{self.peers} peers"
        return f"catching up {percent} % · {self.done:,} of {self.total:,} · {peers}"
