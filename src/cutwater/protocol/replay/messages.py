"""The actions that a catch-up session asks of its caller. Messages between members are in `base/replay_wire.py`."""

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
    """The hash of an entry, read from the store. Only anchors are trusted."""

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
    """Apply these entries of the journal, which follow the last delivered one. Only a SNAPSHOT may skip
    indexes; it replaces all entries before it."""

    entries: list[Sealed[B]]


class ReplayDone(msgspec.Struct, frozen=True):
    """Everything up to `index` has been delivered."""

    index: int


class ReplayFailed(msgspec.Struct, frozen=True):
    """The catch-up failed; delivered entries stay valid."""

    error: CutwaterError


Action = Ask | Fetch | FetchFromStore | AnchorAt | Deliver[Any] | ReplayDone | ReplayFailed


class ReplayPhase(Enum):
    """The phase of a session. Only FAILED is final."""

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

    A fetch requests at most `chunk_entries` and `chunk_bytes`. At most `buffer_bytes` of undelivered entries
    are kept. The store is asked for a hash once per `anchor_bytes`. A request without an answer within
    `timeout_ms` has failed; after n failures in a row a source is not used for `backoff_ms` * 2^(n-1), at
    most `backoff_max_ms`, and after `max_attempts` it counts as unavailable. A peer whose range ends before
    the target is asked for its range again after `ask_again_ms`.
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


class CatchUpProgress(msgspec.Struct, frozen=True):
    """Progress of a catch-up: entries delivered, entries missing at first, usable peers, bytes delivered."""

    done: int
    total: int
    peers: int
    bytes: int

    def __str__(self) -> str:
        percent = 100 * self.done // self.total if self.total else 100
        peers = "1 peer" if self.peers == 1 else f"{self.peers} peers"
        return f"catching up {percent} % · {self.done:,} of {self.total:,} · {peers}"
