"""A follower: delivers the published epochs of a pipeline in the order of its journal, each once.

Theory of operation. The journal says what was decided, the marks of the sinks say what is published. A step of the
journal (a commit, or a restore) is delivered when every sink has a mark of it or of a later entry, and all steps before
it were delivered or skipped. A commit is skipped if a restore has abandoned it before every sink had published it: a
sink that was rolled back never publishes it. Everything that a mark names is a journal entry. So if there are marks
beyond the known end of the journal, read more of it before deciding: one of the entries may be that restore.

A named follower's position is an object per step, created by put-if-absent once the step is acknowledged; the highest
one counts. So a crash repeats at most the last delivered step, and the slower of two processes of one follower notices
the other. A position holds nothing back in the pipeline: epochs expire as they do without followers. A follower that
was away for longer than they are kept learns that there is a gap.

A follower learns the journal as a member does: a large gap from all members at once (`replay/`), then from
announcements, and by reading the store. The caller passes on messages between two effects, and resumes a waiting
procedure when there are any.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import msgspec

from cutwater.protocol.base.effects import Delete, List, Procedure, Read, ReadMany, Wait, insist, put
from cutwater.protocol.base.errors import UserError
from cutwater.protocol.base.log import follow, take_announced
from cutwater.protocol.base.paths import (
    MARK_PREFIX,
    follower_prefix,
    mark_name,
    position_name,
    position_of,
)
from cutwater.protocol.base.records import decode, decode_mark, seal, settled
from cutwater.protocol.base.replay_wire import Message as ReplayMessage
from cutwater.protocol.base.wire import Announcement, Heartbeat
from cutwater.protocol.follower.followed import Followed, Position
from cutwater.protocol.follower.steps import FollowedJournal, Step
from cutwater.protocol.member.catchup import CatchUp
from cutwater.protocol.member.journal import timeline
from cutwater.protocol.replay.messages import ReplayConfig

LATEST = "latest"
"""Start after the newest checkpoint."""

START_AGAIN = "give the follower another name, or say where a new one starts (after=)"


class FollowerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`poll_ms`: how often to read the journal without a notification. `mark_poll_ms`: how often to look for marks while
    something is committed and not published. `small_gap` and `replay`: as those of a member."""

    poll_ms: int
    mark_poll_ms: int
    small_gap: int = 8
    replay: ReplayConfig = ReplayConfig()


class Follower:
    """One process that follows. `name`: under which its position is kept; `None`: nowhere. `peers`: the members. `nonce`
    is unique to this process."""

    def __init__(
        self,
        name: str | None,
        nonce: str,
        peers: Iterable[str],
        config: FollowerConfig,
        now_ms: Callable[[], int],
    ) -> None:
        self.journal = FollowedJournal()
        self.catch_up = CatchUp(self.journal, peers, config.replay, config.small_gap, now_ms)
        self._name = name
        self._nonce = nonce
        self._config = config
        self._now_ms = now_ms
        self._heard = 0
        self._read_ms: int | None = None
        self._marks: frozenset[str] = frozenset()
        self._settled: dict[str, int] = {}
        self._listed_ms: int | None = None
        self._given: Step | None = None
        self._others: set[str] = set()
        """The processes of this follower whose positions this one has met."""
        self._next_epoch = 0
        """This epoch and later ones were not decided yet at the last delivered step."""
        self._is_live = False

    # --- messages ---------------------------------------------------------------------------------------

    def on_announcement(self, sender: str, announcement: Announcement) -> None:
        """The leader announces the newest journal entry. From anyone else it is only a reason to read the store."""
        self.catch_up.on_announcement(sender, announcement)
        if sender == self.journal.state.leader:
            self._take_entry(announcement)
        self._heard = max(self._heard, announcement.index)

    def on_heartbeat(self, heartbeat: Heartbeat) -> None:
        """A member says how far it knows the journal."""
        self.catch_up.on_heartbeat(heartbeat)
        self._heard = max(self._heard, heartbeat.index)

    def on_replay(self, peer: str, message: ReplayMessage) -> None:
        """A member answers a question of this follower's catch-up."""
        self.catch_up.on_message(peer, message)

    def on_presence(self, peer: str, is_present: bool) -> None:
        """The links have lost a member, or found it (again)."""
        self.catch_up.on_presence(peer, is_present)

    def _take_entry(self, announcement: Announcement) -> None:
        if self._is_live:
            take_announced(self.journal.view, announcement.index, bytes(announcement.entry))

    # --- procedures: one after the other ------------------------------------------------------------------

    def begin(self, after: int | str | Followed | None = None) -> Procedure[None]:
        """Catches up, and finds where to start: after the kept position; without one, after `after` (an epoch, a
        savepoint, `latest`, or the last one delivered); else with the oldest kept epoch. Raises `UserError` if that is
        not possible."""
        position = yield from self._read_position()
        if position is None and isinstance(after, Followed):
            position = Position(after.position, after.epoch, after.epoch + 1)
        if position is not None:
            self.journal.begin_after(position)
        yield from self.catch_up.run()
        self._is_live = True
        if position is not None:
            self._check_own(position)
        else:
            position = self._first_position(after)
            self.journal.begin_after(position)
            # After a crash before the first step is acknowledged, the next process must not start elsewhere.
            yield from self._keep(position)
        self._next_epoch = position.next_epoch

    def next(self) -> Procedure[Followed]:
        """The next step; waits until there is one."""
        journal = self.journal
        while True:
            yield from self._learn()
            while (step := journal.first) is not None and (yield from self._is_decided(step)):
                versions = yield from self._versions(step)
                journal.take()
                if versions is None:
                    continue
                after_gap = journal.has_gap(self._next_epoch, step)
                self._given, self._next_epoch = step, step.next_epoch
                return Followed(
                    epoch=step.epoch, generation=step.generation, tables=versions, watermark=step.watermark,
                    position=step.index, rewound=step.rewinds, after_gap=after_gap,
                )  # fmt: skip
            yield Wait(self._config.poll_ms if journal.first is None else self._config.mark_poll_ms)

    def acknowledge(self) -> Procedure[None]:
        """The last delivered step is done: it will not be delivered again. Raises `UserError` if another process of this
        follower is ahead of this one, or keeps writing the same positions."""
        step = self._given
        if step is None or self._name is None:
            return
        name = position_name(step.index, self._name)
        other = yield from self._keep(Position(step.index, step.epoch, step.next_epoch, self._nonce))
        names = yield from self._positions()
        if other in self._others or (names and names[-1] > name):
            raise UserError(
                f"another process follows under the name '{self._name}', and is at least as far: only one may. What this "
                "one was given since then may have been processed twice"
            )
        if other is not None:  # perhaps a process that was killed, whose write has arrived late
            self._others.add(other)
        if len(names) > 1:
            yield from insist(Delete(tuple(names[:-1])))

    def _keep(self, position: Position) -> Procedure[str | None]:
        """Keeps a position; the nonce of another process of this follower that has kept it before, if any."""
        name = position_name(position.index, self._name or "")
        if self._name is None or (yield from put(name, seal(position))):
            return None
        data = yield from insist(Read(name))
        return decode(name, data, Position, START_AGAIN).nonce if data is not None else None

    # --- positions ----------------------------------------------------------------------------------------

    def _positions(self) -> Procedure[list[str]]:
        if self._name is None:
            return []
        names = yield from insist(List(follower_prefix(self._name)))
        return [name for name in names if position_of(name, self._name) is not None]

    def _read_position(self) -> Procedure[Position | None]:
        while True:
            names = yield from self._positions()
            if not names:
                return None
            data = yield from insist(Read(names[-1]))
            if data is not None:  # else another process of this follower has gone on
                return decode(names[-1], data, Position, START_AGAIN)

    def _check_own(self, position: Position) -> None:
        """Raises `UserError` if the journal is not the one that the position belongs to."""
        kept = self.journal.state.committed.get(position.epoch)
        is_ahead = position.index > self.journal.index
        if is_ahead or (kept is not None and kept.index > position.index):
            problem = "ends before it" if is_ahead else "has that epoch elsewhere"
            raise UserError(
                f"the position of this follower is entry {position.index} of the journal, of epoch {position.epoch}, and "
                f"the journal {problem}: the store is another one, or an older copy; {START_AGAIN}"
            )

    def _first_position(self, after: int | str | Followed | None) -> Position:
        """Where a follower without a position starts."""
        state = self.journal.state
        line = timeline(state)
        if after is None:
            return Position(line[0].index - 1, 0, line[0].epoch) if line else Position(0, 0, 1)
        if after == LATEST:
            if not line:
                return Position(0, 0, 1)
            # The journal's end: after a restore, epochs that it has abandoned follow the newest checkpoint.
            return Position(self.journal.index, line[-1].epoch, min(state.open, default=state.next_epoch))
        epoch = state.savepoints.get(after) if isinstance(after, str) else after
        if isinstance(after, str) and epoch is None and re.fullmatch("[0-9]{1,18}", after):
            epoch = int(after)
        found = state.committed.get(epoch) if isinstance(epoch, int) else None
        if found is None:
            kept = ", ".join(str(e) for e in sorted(state.committed)) or "none"
            named = ", ".join(sorted(state.savepoints)) or "none"
            raise UserError(
                f"a follower cannot start after '{after}': there is no such checkpoint. Kept epochs: {kept}; savepoints: "
                f"{named}; or {LATEST}"
            )
        return Position(found.index, found.epoch, found.epoch + 1)

    # --- what is known ------------------------------------------------------------------------------------

    def _learn(self) -> Procedure[None]:
        """Reads new entries of the journal: when a member says that there are some, and from time to time."""
        now_ms = self._now_ms()
        is_due = self._read_ms is None or now_ms - self._read_ms >= self._config.poll_ms
        if is_due or self._heard > self.journal.index:
            yield from follow(self.journal.view, self._heard)
            self._read_ms = self._now_ms()
            self._heard = min(self._heard, self.journal.index)

    def _sinks_of(self, step: Step) -> tuple[str, ...]:
        """The sinks that show a step. One that a restore has dropped since is not waited for."""
        now = self.journal.sinks()
        return now if step.sinks is now else tuple(sink for sink in step.sinks if sink in now)

    def _is_behind(self, step: Step) -> bool:
        return any(self._settled.get(sink, 0) < step.index for sink in self._sinks_of(step))

    def _is_decided(self, step: Step) -> Procedure[bool]:
        """Whether every sink has done what the journal ordered at this step, or has passed it."""
        if self._is_behind(step):
            names = yield from insist(List(MARK_PREFIX))
            self._marks, self._settled = frozenset(names), settled(names)
        if self._is_behind(step):
            return False
        highest = max((self._settled.get(sink, 0) for sink in self._sinks_of(step)), default=0)
        while highest > self.journal.index:
            yield from follow(self.journal.view, highest)
        return True

    def _versions(self, step: Step) -> Procedure[dict[str, int | None] | None]:
        """The version of each table at a step that is decided; `None` if a sink has never published it."""
        sinks = self._sinks_of(step)
        is_kept = step.epoch in self.journal.state.committed
        names = {sink: mark_name(step.index, sink) for sink in sinks}
        # Listing all names takes a while, so the mark of a kept epoch may have been missed.
        readable = [sink for sink in sinks if is_kept or names[sink] in self._marks]
        found = (yield from insist(ReadMany(tuple(names[sink] for sink in readable)))) if readable else []
        versions: dict[str, int | None] = dict.fromkeys(sinks)
        for sink, data in zip(readable, found, strict=True):
            if data is not None:
                versions[sink] = decode_mark(names[sink], data).version
        is_unpublished = any(v is None and names[sink] not in self._marks for sink, v in versions.items())
        return None if step.abandoned and is_unpublished else versions
