"""Catching up: a member learns the entries of a log that it missed, from many peers at once.

What is believed
- The store's word, and nothing else. It is a hash at a place: the target, hashes read on the way
  (`AnchorAt`), and entries read from the store itself.
- An entry whose hash is vouched for vouches, by its `prev`, for the entry before it. So pieces are proven
  *backwards*, from a place that the store vouches for; a piece that does not end in the hash that must
  stand there was made up by whoever sent it: blame is certain and never falls on a neighbour.
- Only proven entries are delivered. The first proven one must follow this member's own last entry.

How it goes on
- Each peer has at most one request in flight, and all pieces in flight or kept are disjoint. The lowest
  missing piece has precedence over room: higher pieces are let go for it. The leader is asked last.
- When `anchor_bytes` stand in a row behind what was delivered, or there is no room, the store is asked
  for the hash of the last of them. So memory is bounded by the configuration and not by the log.
- The store serves the lowest missing piece when no peer that is in good standing does.
- Whoever fails (silent, empty, wrong) is left alone for a time that doubles; whoever made something up is
  not asked again. When the store and every peer have failed too often, so has the session.

The caller's duties
1. Read the target from the store *after* the own last entry was taken. Call `tick` to begin, and again at
   `next_tick_ms` at the latest; perform the actions of every call in order.
2. Answer a request of the store from what stands at or above the newest SNAPSHOT. If the place lies below
   it, answer with that SNAPSHOT (`on_snapshot`): what stands below it means nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

from cutwater.protocol.chain import GENESIS, Codec, Sealed
from cutwater.protocol.errors import CutwaterError, PeerError, StoreError
from cutwater.protocol.replay_messages import (
    Anchor,
    AnchorAt,
    Ask,
    Deliver,
    Done,
    Failed,
    Fetch,
    FetchFromStore,
    Progress,
    ReplayConfig,
)
from cutwater.protocol.tables import Table

B = TypeVar("B")
Action = Ask | Fetch | FetchFromStore | AnchorAt | Deliver[Any] | Done | Failed

LIVE = ""
"""The sender of pieces that nobody is blamed for: they arrived live, or came from the store."""


class ReplayPhase(Enum):
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


class _Piece(Generic[B]):
    """Entries in a row from one sender, whose chain holds within; `proven` if the store vouches for it."""

    __slots__ = ("entries", "first", "last", "proven", "sender", "size")

    def __init__(self, sender: str, entries: list[Sealed[B]]) -> None:
        self.sender = sender
        self.entries = entries
        self.first = entries[0].entry.index
        self.last = entries[-1].entry.index
        self.size = sum([len(e.data) for e in entries])
        self.proven = False

    def takes(self, other: _Piece[B]) -> bool:
        """Whether the next piece may become one with this."""
        same = self.sender == other.sender and not self.proven
        return same and self.entries[-1].hash == other.entries[0].entry.prev


class _Pieces(Generic[B]):
    """What has arrived and cannot be delivered yet: disjoint pieces in order, and what is known of them.

    `known` is what the store vouches for, directly or by a chain that ends there: a hash for a place.
    """

    def __init__(self, target: Anchor, piece_bytes: int) -> None:
        self.items: list[_Piece[B]] = []
        self._piece_bytes = piece_bytes
        self.known: dict[int, str] = {target.index: target.hash}
        self.size = 0

    def add(self, piece: _Piece[B]) -> str | None:
        """Takes a piece where nothing is held. Returns whom it convicts, as `learn` does."""
        left = self._at(piece.first - 1)
        if left is not None and left.takes(piece) and left.size + piece.size <= self._piece_bytes:
            self.remove([left])  # many short answers, or live entries one by one, are not many pieces
            piece = _Piece(piece.sender, left.entries + piece.entries)
        self._insert(piece)
        for index in sorted((i for i in self.known if piece.first <= i <= piece.last), reverse=True):
            if (forger := self.learn(index, self.known[index])) is not None:
                return forger
        return None

    def learn(self, index: int, hash: str) -> str | None:
        """Takes the store's word on a place, and all that follows from it. Returns the sender of a piece
        that was found to be made up and was thrown away. Raises `StoreError` on a contradiction."""
        while True:
            at = self._at(index)
            proven = at.entries[index - at.first].hash if at is not None and at.proven else hash
            if self.known.setdefault(index, proven) != hash:
                raise StoreError(
                    f"the store vouches for two different entries at {index} ({self.known[index][:12]} and "
                    f"{hash[:12]}): the log is damaged there; restore it from a copy"
                )
            if at is None or at.proven:
                return None
            if at.last > index:
                self._cut(at, index)
            elif at.entries[-1].hash != hash:
                self.remove([at])
                return at.sender
            else:
                at.proven = True
                index, hash = at.first - 1, at.entries[0].entry.prev

    def take(self, index: int) -> list[Sealed[B]]:
        """Removes and returns the proven entries that stand in a row from `index` on."""
        taken: list[Sealed[B]] = []
        count = 0
        for piece in self.items:
            if not piece.proven or piece.first != index + len(taken):
                break
            taken += piece.entries
            self.size -= piece.size
            count += 1
        del self.items[:count]
        return taken

    def forget_below(self, index: int) -> None:
        """Lets go of everything below `index`; that is settled."""
        at = self._at(index - 1)
        if at is not None and at.last >= index:
            self._cut(at, index - 1)
        self.remove([p for p in self.items if p.last < index])
        self.known = {i: h for i, h in self.known.items() if i >= index - 1}

    def remove(self, pieces: list[_Piece[B]]) -> None:
        for piece in pieces:
            self.items.remove(piece)
            self.size -= piece.size

    def run(self, index: int) -> tuple[int, int]:
        """The last place up to which pieces stand in a row from `index` on, and their size."""
        size = 0
        for piece in self.items:
            if piece.first != index:
                break
            index = piece.last + 1
            size += piece.size
        return index - 1, size

    def gaps(self, first: int, last: int, busy: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """What is missing from `first` to `last`, in order, if `busy` counts as here."""
        gaps = []
        for a, b in sorted([(p.first, p.last) for p in self.items] + busy):
            if a > last:
                break
            if a > first:
                gaps.append((first, a - 1))
            first = max(first, b + 1)
        return [*gaps, (first, last)] if first <= last else gaps

    def _at(self, index: int) -> _Piece[B] | None:
        place = bisect_left(self.items, index, key=lambda p: p.last)
        found = self.items[place] if place < len(self.items) else None
        return found if found is not None and found.first <= index else None

    def _insert(self, piece: _Piece[B]) -> None:
        self.items.insert(bisect_left(self.items, piece.first, key=lambda p: p.first), piece)
        self.size += piece.size

    def _cut(self, piece: _Piece[B], index: int) -> None:
        """Cuts a piece in two, so that one ends at `index`."""
        self.remove([piece])
        middle = index - piece.first + 1
        for part in (piece.entries[:middle], piece.entries[middle:]):
            half = _Piece(piece.sender, part)
            half.proven = piece.proven
            self._insert(half)


_Kind = type[Ask] | type[Fetch] | type[FetchFromStore] | type[AnchorAt]


@dataclass(slots=True)
class _Request:
    id: int
    kind: _Kind
    first: int
    last: int
    reserved: int
    deadline_ms: int


@dataclass(slots=True)
class _Source:
    """A peer, or the store: what it says it holds, what it was asked, how it has behaved."""

    name: str
    present: bool = True
    forged: bool = False
    held: tuple[int, int] | None = None
    asked_ms: int = 0
    asked_target: int = 0
    request: _Request | None = None
    failures: int = 0
    not_before_ms: int = 0
    reason: str = "was not asked yet"

    def usable(self) -> bool:
        return self.present and not self.forged

    def ready(self, now_ms: int) -> bool:
        return self.usable() and self.request is None and self.not_before_ms <= now_ms

    def holds(self, index: int) -> bool:
        return self.held is not None and self.held[0] <= index <= self.held[1]


class ReplaySession(Generic[B]):
    """One member's catch-up from its `own` last entry (`None`: it has none) to `target`.

    Every method takes an event and returns what to do, in order. No event raises, whatever a peer sends,
    but `retarget` after a failure (`IllegalStep`). Answers to requests that are no longer in flight are
    dropped. `first_request_id` must be beyond every id that an earlier session of this member used.
    """

    def __init__(
        self,
        codec: Codec[B],
        own: Sealed[B] | None,
        target: Anchor,
        leader: str | None = None,
        config: ReplayConfig | None = None,
        first_request_id: int = 1,
    ) -> None:
        self.phase = REPLAY.start
        self.config = config or ReplayConfig()
        self.target = target
        self.next_request_id = first_request_id
        self.peak_buffered_bytes = 0
        self._codec = codec
        self._leader = leader
        self._head = Anchor(0, GENESIS) if own is None else Anchor(own.entry.index, own.hash)
        self._start = self._head.index
        self._delivered_bytes = 0
        self._pieces: _Pieces[B] = _Pieces(target, self.config.chunk_bytes)
        self._peers: dict[str, _Source] = {}
        self._store = _Source("the store")
        self._oversize: dict[int, int] = {}  # what is known of entries that did not fit, by place
        self._tail_tried = False
        self._out: list[Action] = []
        self._error: CutwaterError | None = None
        if self._start > target.index:
            self._error = StoreError(
                f"this member's log ends at {self._start}, but the journal in the store at {target.index}: "
                "it is not a copy of this journal; remove the local copy and catch up from the start"
            )

    # --- events: peers ----------------------------------------------------------------------------------

    def peer_joined(self, name: str, now_ms: int) -> list[Action]:
        """A peer is there (again). How it behaved before is not forgotten."""
        peer = self._peers.setdefault(name, _Source(name))
        peer.present, peer.held, peer.request = True, None, None
        return self._settle(now_ms)

    def peer_left(self, name: str, now_ms: int) -> list[Action]:
        """A peer is gone; what it was asked for is asked of others, what it sent is kept."""
        if (peer := self._peers.get(name)) is not None:
            peer.present, peer.held, peer.request, peer.reason = False, None, None, "has left"
        return self._settle(now_ms)

    def leader_changed(self, name: str | None, now_ms: int) -> list[Action]:
        """Another peer is the one to ask last. Nothing else changes: the store decides what is believed."""
        self._leader = name
        return self._settle(now_ms)

    def on_available(self, peer: str, first: int, last: int, request_id: int, now_ms: int) -> list[Action]:
        """A peer says what it holds."""
        source = self._peers.get(peer)
        if source is not None and self._answered(source, request_id, Ask):
            source.held = (first, last)
            source.reason = f"holds {first}-{last}" if first <= last else "holds nothing"
        return self._settle(now_ms)

    def on_chunk(
        self, peer: str, request_id: int, first: int, entries: Sequence[bytes], now_ms: int
    ) -> list[Action]:
        """A peer sends entries. They are kept if their chain holds, and believed when proven."""
        source = self._peers.get(peer)
        if source is not None and (request := self._answered(source, request_id, Fetch)):
            self._receive(source, request, first, entries, now_ms)
        return self._settle(now_ms)

    def on_compacted(self, peer: str, request_id: int, first: int, now_ms: int) -> list[Action]:
        """A peer no longer holds what it said it did; it holds entries from `first` on."""
        source = self._peers.get(peer)
        if source is not None and (request := self._answered(source, request_id, Fetch)):
            held = source.held
            self._score(source, f"holds nothing before {first}", now_ms)
            if held is not None and first > request.first:
                source.held = (first, held[1])
        return self._settle(now_ms)

    def on_live(self, entries: Sequence[bytes], now_ms: int) -> list[Action]:
        """Entries that arrive live meanwhile. They are kept if there is room, and believed when proven;
        what is missing between them is fetched when the target moves beyond it."""
        runs: list[list[Sealed[B]]] = []
        room = self.config.buffer_bytes - self.config.chunk_bytes - self._pieces.size - self._reserved()
        top = max(
            [self._head.index] + [p.last for p in self._pieces.items[-1:]] + [b for _, b in self._busy()]
        )
        for data in entries if not self._over() else ():
            try:
                [sealed] = self._opened(None, [data])
            except PeerError:
                break
            room -= len(data)
            if room < 0:
                break
            if sealed.entry.index == top + 1 and runs and runs[-1][-1].hash == sealed.entry.prev:
                runs[-1].append(sealed)
            elif sealed.entry.index > top:
                runs.append([sealed])
            top = max(top, sealed.entry.index)
        for run in runs:
            self._keep(_Piece(LIVE, run))
        return self._settle(now_ms)

    # --- events: the store and time ---------------------------------------------------------------------

    def on_store_chunk(
        self, request_id: int, first: int, entries: Sequence[bytes], now_ms: int
    ) -> list[Action]:
        """The store's own entries: they are believed, and so is what leads to them."""
        if request := self._answered(self._store, request_id, FetchFromStore):
            last = self._receive(self._store, request, first, entries, now_ms)
            if last is not None:
                self._believe(last.entry.index, last.hash)
        return self._settle(now_ms)

    def on_anchor(self, request_id: int, hash: str, now_ms: int) -> list[Action]:
        """The hash of the one entry that `AnchorAt` named."""
        if request := self._answered(self._store, request_id, AnchorAt):
            self._store.failures = 0
            self._believe(request.first, hash)
            if request.first > self.target.index:
                self.target = Anchor(request.first, hash)
        return self._settle(now_ms)

    def on_snapshot(self, request_id: int, data: bytes, now_ms: int) -> list[Action]:
        """The place that the store was asked for was compacted away; this is the newest SNAPSHOT. It
        replaces everything before it."""
        if request := self._answered(self._store, request_id, FetchFromStore, AnchorAt):
            try:
                [sealed] = self._opened(None, [data])
                index = sealed.entry.index
                if sealed.entry.snapshot != index or index < request.first:
                    raise PeerError(f"its entry {index} is no SNAPSHOT that covers {request.first}")
            except PeerError as error:
                self._score(self._store, str(error), now_ms)
                return self._settle(now_ms)
            self._store.failures = 0
            self._believe(index, sealed.hash)
            if self._error is None:
                self._deliver([sealed])
                self.target = max(self.target, self._head, key=lambda a: a.index)
        return self._settle(now_ms)

    def on_store_failed(self, request_id: int, reason: str, now_ms: int) -> list[Action]:
        """The store could not answer."""
        if self._answered(self._store, request_id, FetchFromStore, AnchorAt):
            self._score(self._store, reason, now_ms)
        return self._settle(now_ms)

    def retarget(self, target: Anchor, now_ms: int) -> list[Action]:
        """The journal's head, read from the store again. A session that was done goes on."""
        moved = REPLAY.next(self.phase, "target_moved")
        if target.index >= self._head.index:
            self._believe(target.index, target.hash)
        if target.index > self.target.index:
            self.phase = moved
            self.target = target
            self._tail_tried = False
        return self._settle(now_ms)

    def tick(self, now_ms: int) -> list[Action]:
        """Time has passed: whoever did not answer in time has failed."""
        for source in self._sources():
            if source.request is not None and source.request.deadline_ms <= now_ms:
                source.request = None
                self._score(source, f"did not answer within {self.config.timeout_ms} ms", now_ms)
        return self._settle(now_ms)

    # --- what can be asked at any time ------------------------------------------------------------------

    @property
    def buffered_bytes(self) -> int:
        """The size of what is kept and not delivered yet; never more than `buffer_bytes`."""
        return self._pieces.size

    def progress(self) -> Progress:
        """How far it is."""
        peers = sum(p.usable() and p.held is not None for p in self._peers.values())
        total = self.target.index - self._start
        return Progress(self._head.index - self._start, total, peers, self._delivered_bytes)

    def next_tick_ms(self, now_ms: int) -> int | None:
        """When `tick` is needed at the latest; `None`: not before another event."""
        if self._over():
            return None
        deadlines = [s.request.deadline_ms for s in self._sources() if s.request is not None]
        idle = [s for s in self._sources() if s.usable() and s.request is None]
        again = [s.asked_ms + self.config.ask_again_ms for s in idle if s.held is not None]
        waits = [s.not_before_ms for s in idle]
        return min([*deadlines, *[ms for ms in waits + again if ms > now_ms]], default=None)

    # --- what arrives -----------------------------------------------------------------------------------

    def _receive(
        self, source: _Source, request: _Request, first: int, entries: Sequence[bytes], now_ms: int
    ) -> Sealed[B] | None:
        """Keeps what was sent and returns its last entry, or scores against the sender."""
        try:
            if not entries:
                raise PeerError(f"sent nothing for {request.first}-{request.last}")
            if first != request.first or first + len(entries) - 1 > request.last:
                claimed = f"{first}-{first + len(entries) - 1}"
                raise PeerError(f"sent {claimed}, but was asked for {request.first}-{request.last}")
            piece = _Piece(source.name if source is not self._store else LIVE, self._opened(first, entries))
            if len(entries) > 1 and piece.size > self.config.chunk_bytes:
                raise PeerError(f"sent {piece.size} bytes, but was asked for {self.config.chunk_bytes}")
        except PeerError as error:
            self._score(source, str(error), now_ms)
            return None
        source.failures = 0
        source.reason = f"sent {first}-{piece.last}"
        if piece.last > self._head.index:  # else a SNAPSHOT has replaced it meanwhile
            self._keep(piece)
            self._pieces.forget_below(self._head.index + 1)
        return piece.entries[-1] if piece.last > self._head.index else None

    def _opened(self, first: int | None, entries: Sequence[bytes]) -> list[Sealed[B]]:
        """The entries that these bytes are, from `first` on and each following the one before."""
        opened: list[Sealed[B]] = []
        index, prev = first, None
        try:
            for data in entries:
                sealed = self._codec.open(data)
                entry = sealed.entry
                if entry.index != index and index is not None:
                    raise PeerError(f"sent entry {entry.index} as entry {index}")
                if entry.prev != prev and prev is not None:
                    raise PeerError(f"sent entries that do not follow each other at {entry.index}")
                index, prev = entry.index + 1, sealed.hash
                opened.append(sealed)
        except (ValueError, RecursionError) as error:
            raise PeerError(f"sent something that is no entry ({error})") from error
        return opened

    def _answered(self, source: _Source, request_id: int, *kinds: type) -> _Request | None:
        """The request that this answers, now no longer in flight; `None` if it is not the one in flight."""
        request = source.request
        if request is None or request.id != request_id or request.kind not in kinds:
            return None
        source.request = None
        return request

    def _score(self, source: _Source, reason: str, now_ms: int) -> None:
        """Somebody failed: it is left alone for a time that doubles, and then asked anew what it holds."""
        source.failures += 1
        wait_ms = self.config.backoff_ms << min(source.failures - 1, 32)
        source.not_before_ms = now_ms + min(wait_ms, self.config.backoff_max_ms)
        source.reason = reason
        source.held = None

    def _keep(self, piece: _Piece[B]) -> None:
        try:
            self._convict(self._pieces.add(piece))
        except StoreError as error:
            self._error = error

    def _believe(self, index: int, hash: str) -> None:
        try:
            self._convict(self._pieces.learn(index, hash))
        except StoreError as error:
            self._error = error

    def _convict(self, forger: str | None) -> None:
        """Throws away what a forger sent, as far as it is not proven, and asks it no more."""
        if forger is None:
            return
        self._pieces.remove([p for p in self._pieces.items if p.sender == forger and not p.proven])
        if (peer := self._peers.get(forger)) is not None:
            peer.forged, peer.request = True, None
            peer.reason = "sent entries that the journal does not have"

    # --- what follows from it ---------------------------------------------------------------------------

    def _settle(self, now_ms: int) -> list[Action]:
        """What every event ends with: deliver what is proven, then be done, give up, or ask for more."""
        if self._over():
            return []
        self._error = self._error or self._foreign_prefix()
        if self._error is None:
            self._deliver(self._pieces.take(self._head.index + 1))
        self._trim()
        actions, self._out = self._out, []
        if self._error is None and self._head.index >= self.target.index:
            tail = self._confirm_tail(now_ms)
            if tail or self._confirming_tail():
                return actions + tail
            return [*actions, self._end("reached", Done(self._head.index))]
        if self._error is None:
            actions += self._schedule(now_ms)
        if self._error is not None:
            actions.append(self._end("give_up", Failed(self._error)))
        return actions

    def _over(self) -> bool:
        return self.phase in (ReplayPhase.DONE, ReplayPhase.FAILED)

    def _end(self, event: str, action: Action) -> Action:
        self.phase = REPLAY.next(self.phase, event)
        self._pieces.remove(list(self._pieces.items))
        for source in self._sources():
            source.request = None
        return action

    def _foreign_prefix(self) -> StoreError | None:
        """The error if the journal does not go on from what this member has. (What was delivered always
        fits: it was proven.)"""
        known = self._pieces.known.get(self._head.index, self._head.hash)
        if known == self._head.hash:
            return None
        return StoreError(
            f"this member's log is not the journal's: at {self._head.index} it has {self._head.hash[:12]}, "
            f"the journal has {known[:12]}; remove the local copy and catch up from the start"
        )

    def _deliver(self, entries: list[Sealed[B]]) -> None:
        if not entries:
            return
        self._out.append(Deliver(entries))
        self._head = Anchor(entries[-1].entry.index, entries[-1].hash)
        self._delivered_bytes += sum([len(e.data) for e in entries])
        self._pieces.forget_below(self._head.index + 1)
        self._oversize = {i: n for i, n in self._oversize.items() if i > self._head.index}

    def _trim(self) -> None:
        """Lets the highest pieces go until the rest is within the bound. An entry that is larger than a
        chunk is remembered by its size, so that it is fetched again only when there is room for it."""
        while self._pieces.size > self.config.buffer_bytes:
            piece = self._pieces.items[-1]
            self._pieces.remove([piece])
            if piece.size > self.config.chunk_bytes:
                self._oversize[piece.first] = piece.size
        self.peak_buffered_bytes = max(self.peak_buffered_bytes, self._pieces.size)

    def _confirm_tail(self, now_ms: int) -> list[Action]:
        """At the target, asks the store once whether it has the live entries that follow."""
        last, size = self._pieces.run(self._head.index + 1)
        if not size or self._tail_tried:
            return []
        self._tail_tried = True
        self._store.request = None  # whatever it was, it is not needed any more
        return [self._anchor_at(last, now_ms)] if self._store.ready(now_ms) else []

    def _confirming_tail(self) -> bool:
        return self._store.request is not None and self._store.request.first > self.target.index

    # --- asking for more --------------------------------------------------------------------------------

    def _schedule(self, now_ms: int) -> list[Action]:
        """Asks for what is missing, as far as there is room; sets the error if nobody can serve it."""
        config, store = self.config, self._store
        gaps = self._pieces.gaps(self._head.index + 1, self.target.index, self._busy())
        need, need_last = gaps[0] if gaps else (0, 0)
        run_last, run_size = self._pieces.run(self._head.index + 1)
        tight = bool(gaps) and run_size + self._room_for(need) > config.buffer_bytes
        actions: list[Action] = []
        if run_size and (tight or run_size >= config.anchor_bytes) and store.ready(now_ms):
            actions.append(self._anchor_at(run_last, now_ms))
        if gaps and self._hopeless(need, tight, now_ms):
            if not self._busy():
                self._error = self._nobody_serves(need, need_last)
            return actions
        if gaps and not tight:
            actions += self._fetch(gaps, now_ms)
        actions += [self._ask(p, now_ms) for p in self._ranked() if self._should_ask(p, now_ms)]
        unserved = gaps and all(not a <= need <= b for a, b in self._busy())
        if (
            unserved
            and not (tight and run_size)
            and store.ready(now_ms)
            and not self._promising(need, now_ms)
        ):
            last = min(need_last, need + config.chunk_entries - 1)
            request = self._send(store, FetchFromStore, need, last, 0, now_ms)
            actions.append(FetchFromStore(request, need, last, config.chunk_bytes))
        if any(isinstance(a, Fetch | FetchFromStore) for a in actions):
            self.phase = REPLAY.next(self.phase, "fetch")
        return actions

    def _fetch(self, gaps: list[tuple[int, int]], now_ms: int) -> list[Action]:
        """Gives each idle peer a piece, lowest first: a place that nobody holds does not stop the rest."""
        actions: list[Action] = []
        limit, need = self.config.buffer_bytes, gaps[0][0]
        idle = [p for p in self._ranked() if p.ready(now_ms) and p.held is not None]
        for first, last in gaps:
            while found := _lowest(idle, first, last):
                place, peer, held_last = found
                room = self._room_for(place) + self._reserved()
                if place == need:
                    if not self._make_room(need, room):
                        return actions
                elif self._pieces.size + room + self._room_for(need) > limit:
                    return actions
                end = min(last, held_last, place + self.config.chunk_entries - 1)
                request = self._send(peer, Fetch, place, end, self._room_for(place), now_ms)
                actions.append(Fetch(peer.name, request, place, end, self.config.chunk_bytes))
                idle.remove(peer)
                first = end + 1
        return actions

    def _make_room(self, index: int, size: int) -> bool:
        """Lets higher pieces go for the lowest missing one, if that makes enough room."""
        limit = self.config.buffer_bytes
        if sum(p.size for p in self._pieces.items if p.last < index) + size > limit:
            return False
        while self._pieces.size + size > limit:
            self._pieces.remove(self._pieces.items[-1:])
        return True

    def _room_for(self, index: int) -> int:
        return max(self.config.chunk_bytes, self._oversize.get(index, 0))

    def _should_ask(self, peer: _Source, now_ms: int) -> bool:
        if not peer.ready(now_ms):
            return False
        if peer.held is None or self._outdated(peer):
            return True
        return peer.held[1] < self.target.index and peer.asked_ms + self.config.ask_again_ms <= now_ms

    def _outdated(self, peer: _Source) -> bool:
        """Whether the target has moved beyond what a peer held when it was asked."""
        return peer.held is not None and max(peer.held[1], peer.asked_target) < self.target.index

    def _promising(self, index: int, now_ms: int) -> bool:
        """Whether a peer is likely to serve that place soon: it holds it, or never failed and may yet say
        that it does."""
        if self._room_for(index) > self.config.buffer_bytes:
            return False  # no peer is trusted with that much memory; the store's entries need not wait here
        for peer in self._peers.values():
            if not peer.usable() or peer.not_before_ms > now_ms:
                continue
            asked = peer.request is not None and peer.request.kind is Ask
            if peer.holds(index) or (not peer.failures and (asked or self._outdated(peer))):
                return True
        return False

    def _hopeless(self, index: int, tight: bool, now_ms: int) -> bool:
        """Whether the store has failed too often and no peer can help."""
        attempts, store = self.config.max_attempts, self._store
        if store.failures < attempts or store.request is not None or store.ready(now_ms):
            return False
        return tight or not any(
            p.usable() and p.failures < attempts and (p.held is None or p.holds(index))
            for p in self._peers.values()
        )

    def _nobody_serves(self, first: int, last: int) -> StoreError:
        stories = [f"{s.name}: {s.reason}" for s in [self._store, *self._ranked()]]
        return StoreError(
            f"cannot catch up: nobody can serve or vouch for entries {first}-{last}; {'; '.join(stories)}; "
            "make the store reachable and start again"
        )

    def _anchor_at(self, index: int, now_ms: int) -> AnchorAt:
        return AnchorAt(self._send(self._store, AnchorAt, index, index, 0, now_ms), index)

    def _ask(self, peer: _Source, now_ms: int) -> Ask:
        peer.asked_ms, peer.asked_target = now_ms, self.target.index
        return Ask(peer.name, self._send(peer, Ask, 0, 0, 0, now_ms))

    def _send(self, source: _Source, kind: _Kind, first: int, last: int, reserved: int, now_ms: int) -> int:
        request_id, self.next_request_id = self.next_request_id, self.next_request_id + 1
        deadline_ms = now_ms + self.config.timeout_ms
        source.request = _Request(request_id, kind, first, last, reserved, deadline_ms)
        return request_id

    def _sources(self) -> list[_Source]:
        return [*self._peers.values(), self._store]

    def _ranked(self) -> list[_Source]:
        """The peers in the order in which to ask them: the leader last, those that failed late."""
        return sorted(self._peers.values(), key=lambda p: (p.name == self._leader, p.failures, p.name))

    def _busy(self) -> list[tuple[int, int]]:
        requests = [s.request for s in self._sources() if s.request is not None]
        return [(r.first, r.last) for r in requests if r.kind in (Fetch, FetchFromStore)]

    def _reserved(self) -> int:
        return sum(s.request.reserved for s in self._sources() if s.request is not None)


def _lowest(peers: list[_Source], first: int, last: int) -> tuple[int, _Source, int] | None:
    """The lowest place from `first` to `last` that one of the peers holds, the best of those that hold it,
    and how far it does."""
    best: tuple[int, _Source, int] | None = None
    for peer in peers:
        assert peer.held is not None
        place = max(first, peer.held[0])
        if place <= min(last, peer.held[1]) and (best is None or place < best[0]):
            best = (place, peer, peer.held[1])
    return best
