"""The modelled network: delay, loss, duplication, reordering, partitions (also one-way), corrupted bytes."""

from __future__ import annotations

import random
from collections.abc import Iterable

import msgspec

from cutwater.protocol.base import paths
from cutwater.protocol.base import records as r
from cutwater.protocol.base.barrier import Barrier
from cutwater.protocol.base.log import LogView
from cutwater.protocol.base.paths import entry_name
from cutwater.protocol.base.replay_wire import Message as ReplayMessage
from cutwater.protocol.base.replay_wire import encode_replay
from cutwater.protocol.base.wire import (
    Ack,
    Announcement,
    Heartbeat,
    LogGrown,
    Phase,
    Reply,
    Request,
    SourcesDone,
    encode_message,
)
from cutwater.protocol.base.wire import Message as WireMessage
from cutwater.sim.oracle import WatchedScene
from cutwater.sim.scene import ProcessView

WIRE = (LogGrown, Announcement, Ack, Heartbeat, SourcesDone, Request, Reply)
"""The messages that are not part of a catch-up, the most frequent first."""


class Network:
    """Delivers messages between processes, by member name; a zombie shares its successor's name."""

    def __init__(self, world: WatchedScene) -> None:
        self.world = world
        self.blocked: set[tuple[str, str]] = set()
        self.old_acks: dict[str, Ack] = {}
        self._delays = random.Random(world.seed)
        self._catch_up_ms = self._delays.choice((0, 0, 30))
        """How much longer the messages of catch-ups take at most: sessions then last while the journal grows."""

    def send(self, sender: ProcessView, to: str | None, message: WireMessage | ReplayMessage) -> None:
        world = self.world
        world.oracle.sending(sender, message)
        if type(message) is Reply:
            world.chaos.askers.on_reply(sender, message)
            return
        if type(message) is Ack:
            message = self._maybe_stray(sender, message)
        data = encode_message(message) if isinstance(message, WIRE) else encode_replay(message)
        for process in list(world.processes):
            if process is sender and to is None:
                continue
            if to is None or process.name == to:
                self._carry(sender.name, process, data)

    def _maybe_stray(self, sender: ProcessView, ack: Ack) -> Ack:
        """Sometimes gives an ack of an earlier checkpoint the current epoch's number."""
        old = self.old_acks.get(sender.name)
        if old is None or old.checkpoint_id != ack.checkpoint_id:
            self.old_acks[sender.name] = ack
            if old is not None and self.world.rng.random() < self.world.faults.stray_ack:
                self.world.fault("stray ack")
                return msgspec.structs.replace(old, epoch=ack.epoch)
        return ack

    def block(self, pairs: Iterable[tuple[str, str]]) -> None:
        """What the first member of each pair sends no longer reaches the second."""
        self.blocked |= set(pairs)
        self._tell_presence(pairs)

    def unblock(self, pairs: Iterable[tuple[str, str]]) -> None:
        self.blocked -= set(pairs)
        self._tell_presence(pairs)

    def tell_presence(self, name: str) -> None:
        """A process has started or ended: the links of the other members notice it, each after a while."""
        self._tell_presence(
            [(name, other) for other in {p.name for p in self.world.processes} if other != name]
        )

    def _tell_presence(self, pairs: Iterable[tuple[str, str]]) -> None:
        for name, other in sorted(pairs):
            for process in self.world.processes:
                if process.name == other:
                    self.world.schedule(self._delays.randint(1, 300), self._notice, name, process)

    def _notice(self, name: str, process: ProcessView) -> None:
        if process.paused:
            self.world.schedule(20, self._notice, name, process)
            return
        is_running = any(p.name == name for p in self.world.processes)
        process.notice(name, is_running and (name, process.name) not in self.blocked)

    def speak_as_stranger(self, to: ProcessView) -> None:
        """A process that was admitted but is not a member claims to lead: in a heartbeat, or in an announcement with an
        entry that would fit after the newest one."""
        world = self.world
        last = world.oracle.ledger.last
        term = world.oracle.ledger.term + world.rng.randint(0, 50)
        message: WireMessage = Heartbeat("stranger", "stranger", term, last)
        if last and world.rng.random() < 0.5:
            newest = r.JOURNAL.open(world.store.objects[entry_name(paths.JOURNAL_PREFIX, last)])
            view: LogView[r.JournalBody] = LogView(
                paths.JOURNAL_PREFIX, r.JOURNAL, r.Snapshot, lambda *_: None
            )
            view.jump(newest)
            forged = view.seal(r.Leader(term + 1, "stranger"), "stranger-1")
            message = Announcement(
                Phase.PREPARE, Barrier(last + 1, 1).pack(), term, 1, last + 1, entry=msgspec.Raw(forged.data)
            )
        world.schedule(world.between(1, 5), to.deliver, "stranger", encode_message(message))

    def _carry(self, sender: str, to: ProcessView, data: bytes) -> None:
        world, faults, rng = self.world, self.world.faults, self.world.rng
        if sender == to.name:
            world.schedule(0, to.deliver, sender, data)
            return
        if (sender, to.name) in self.blocked:
            return
        if rng.random() < faults.message_lost:
            world.fault("message lost")
            return
        for _ in range(2 if rng.random() < faults.message_twice else 1):
            delay = world.between(1, 5)
            if data[:1] != b"{":
                delay += self._delays.randint(0, self._catch_up_ms)
            if rng.random() < faults.message_slow:
                world.fault("slow message")
                delay = world.between(20, 400)
            if rng.random() < faults.message_garbled:
                world.fault("garbled message")
                data = data[: rng.randrange(len(data))] + b"\x00?" + data[rng.randrange(len(data)) :]
            world.schedule(delay, to.deliver, sender, data)
