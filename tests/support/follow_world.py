"""Followers in the simulator: killed, restarted and cut off while the cluster that they follow goes through a schedule.

The cluster's own schedule does not change by being followed: a follower has random numbers of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec

from cutwater.protocol.base import effects as fx
from cutwater.protocol.base.effects import Procedure
from cutwater.protocol.base.paths import journal_entry_of, mark_of
from cutwater.protocol.base.performer import Checksums, Contents, NameLists, Names, perform
from cutwater.protocol.base.records import JOURNAL, Committed, JournalState, Published, Restored, decode
from cutwater.protocol.base.replay_wire import (
    Compacted,
    EntriesChunk,
    HaveRange,
    decode_replay,
    encode_replay,
)
from cutwater.protocol.base.wire import Announcement, Heartbeat, LogGrown, decode_message, encode_message
from cutwater.protocol.follower.followed import Followed
from cutwater.protocol.follower.follower import Follower, FollowerConfig
from cutwater.protocol.member.journal import KEPT_ABORTED, apply
from cutwater.sim.network import WIRE
from cutwater.sim.store import SimStore
from cutwater.sim.world import World
from cutwater.store.perform import MemberlessPerformer

NAME = "cache"
FAULTS = 0.04
"""How likely an operation of a follower fails, before or after it took effect."""


class RecordingStore(SimStore):
    """Keeps everything that was ever written to the journal, and every mark."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: dict[int, bytes] = {}
        self.marks: dict[tuple[str, int], tuple[int, int]] = {}
        """Per sink and journal index: the version, and how far the journal had come when the mark was written."""

    def create(self, name: str, content: Any, synced: bool = True) -> bool:
        created = super().create(name, content, synced)
        if created and (index := journal_entry_of(name)) is not None:
            self.entries.setdefault(index, content)
        if created and (mark := mark_of(name)) is not None:
            version = decode(name, content, Published).version
            self.marks.setdefault((mark.sink, mark.index), (version, max(self.entries, default=0)))
        return created


class PlainObjects:
    """The store as a follower sees it: the oracle of the cluster does not know of it."""

    def __init__(self, store: SimStore) -> None:
        self._store = store

    def create(self, name: str, data: bytes) -> bool:
        return self._store.create(name, data)

    def read(self, name: str) -> bytes | None:
        found: bytes | None = self._store.objects.get(name)
        return found

    def read_many(self, names: Sequence[str]) -> Contents:
        return [self.read(name) for name in names]

    def list(self, prefix: str, after: str = "") -> Names:
        return self._store.list(prefix, after)

    def list_many(self, places: Sequence[tuple[str, str]]) -> NameLists:
        return [self._store.list(*place) for place in places]

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            self._store.delete(name)

    def copy(self, source: str, target: str) -> None:
        raise AssertionError("a follower copies nothing")

    def checksum_many(self, names: Sequence[str]) -> Checksums:
        raise AssertionError("a follower checks nothing")


class Consumer:
    """What somebody makes of the epochs: durable, and not told apart from the follower's process when it is killed."""

    def __init__(self) -> None:
        self.taken: list[Followed] = []
        self.acknowledged: set[int] = set()
        """The positions that a process has acknowledged before it was killed."""


class FollowerProcess:
    """One process of the follower, and its consumer."""

    def __init__(self, world: FollowedWorld, boot: int, consumer: Consumer) -> None:
        self.world = world
        self.name = f"command-follow{boot}"
        self.alive = True
        self.failure: Exception | None = None
        self._rng = world.follow_rng
        self._consumer = consumer
        self._performer = MemberlessPerformer(PlainObjects(world.store))
        skew_ms = self._rng.randint(0, 10_000)
        world_config = world.member_config
        config = FollowerConfig(poll_ms=250, mark_poll_ms=20, small_gap=2, replay=world_config.replay)
        peers = world.graph.members()
        self.follower = world.make_follower(
            NAME, f"boot{boot}", peers, config, lambda: world.now_ms + skew_ms
        )
        self._procedure = self._run()
        self._token = 0
        self._waiting = False
        world.schedule(1, self._resume, self._token, None)

    def _run(self) -> Procedure[None]:
        yield from self.follower.begin()
        while True:
            found = yield from self.follower.next()
            self._consumer.taken.append(found)
            yield fx.Sleep(self._rng.choice((0, 0, 5, 40)))
            yield from self.follower.acknowledge()
            self._consumer.acknowledged.add(found.position)

    def kill(self) -> None:
        self.alive = False

    def _resume(self, token: int, answer: Any) -> None:
        if not self.alive or token != self._token:
            return
        self._waiting = False
        self._token += 1
        try:
            effect = self._procedure.send(answer)
            while isinstance(effect, fx.Send):
                self._send(effect)
                effect = self._procedure.send(None)
        except Exception as error:
            self.alive, self.failure = False, error
            return
        self._perform(effect)

    def _send(self, effect: fx.Send) -> None:
        data = encode_replay(effect.message)  # type: ignore[arg-type]
        for process in list(self.world.processes):
            if process.name == effect.to and self._rng.random() > FAULTS:
                self.world.schedule(self._rng.randint(1, 5), process.deliver, self.name, data)

    def _perform(self, effect: fx.Effect) -> None:
        rng, world = self._rng, self.world
        if isinstance(effect, fx.Wait | fx.Sleep):
            self._waiting = isinstance(effect, fx.Wait)
            world.schedule(effect.ms, self._resume, self._token, None)
            return
        draw, delay = rng.random(), rng.choice((1, 2, 3, 5, 60))
        if draw < FAULTS / 2:
            world.schedule(delay, self._resume, self._token, fx.FAILED)
        elif draw < FAULTS:
            world.schedule(delay, self._act, effect)
            world.schedule(delay, self._resume, self._token, fx.FAILED)
        else:
            world.schedule(delay, self._act_and_answer, self._token, effect)

    def _act(self, effect: fx.Effect) -> Any:
        return perform(self._performer, effect)  # type: ignore[arg-type]

    def _act_and_answer(self, token: int, effect: fx.Effect) -> None:
        answer = self._act(effect)
        if self.alive:
            self._resume(token, answer)

    def deliver(self, sender: str, data: bytes) -> None:
        if not self.alive:
            return
        message = decode_message(data) if data[:1] == b"{" else decode_replay(data)
        match message:
            case Announcement():
                self.follower.on_announcement(sender, message)
            case Heartbeat():
                self.follower.on_heartbeat(message)
            case HaveRange() | EntriesChunk() | Compacted():
                self.follower.on_replay(sender, message)
            case _:
                pass
        if self._waiting:
            self._resume(self._token, None)


class FollowedWorld(World):
    """A cluster that is followed. Followers are killed while faults are on, and some afterwards."""

    store: RecordingStore

    def __init__(self, seed: int, make_follower: Callable[..., Follower] = Follower) -> None:
        super().__init__(seed)
        self.follow_rng = Random(seed ^ 0x5EED)
        self.make_follower = make_follower
        self.store = RecordingStore()
        self.io.__init__(self)  # type: ignore[misc]
        self.consumer = Consumer()
        self.kills = 0
        self.failures: list[Exception] = []
        self._followers = 0
        self.following: FollowerProcess | None = None
        real = self.network.send

        def send(sender: Any, to: str | None, message: Any) -> None:
            real(sender, to, message)
            self._overhear(sender.name, to, message)

        self.network.send = send  # type: ignore[method-assign]
        self.schedule(self.follow_rng.randint(0, 900), self._start_following)

    def _overhear(self, sender: str, to: str | None, message: Any) -> None:
        """A follower hears what is said to all, and what is said to it; not all of it."""
        following, rng = self.following, self.follow_rng
        if following is None or to not in (None, following.name) or isinstance(message, LogGrown):
            return
        if rng.random() > FAULTS:
            data = encode_message(message) if isinstance(message, WIRE) else encode_replay(message)
            self.schedule(rng.randint(1, 8), following.deliver, sender, data)

    def _start_following(self) -> None:
        self._followers += 1
        self.following = FollowerProcess(self, self._followers, self.consumer)
        if self.healed_ms == 0 or self.follow_rng.random() < 0.5:
            self.schedule(self.follow_rng.choice((3, 20, 100, 300, 900)), self._kill)

    def _kill(self) -> None:
        """Kills the follower; the next process starts after a while."""
        assert self.following is not None
        self.following.kill()
        if self.following.failure is not None:
            self.failures.append(self.following.failure)
        self.kills += 1
        away_ms = self.follow_rng.choice((1, 1, 50, 400, 2_500))
        self.schedule(away_ms, self._start_following)

    def follow_to_the_end(self) -> None:
        """After the schedule: the follower has time to be given the rest."""
        if self.following is None:
            self.run_until(self.now_ms + 1_000)
        truth = Truth(self.store)
        last = truth.steps[-1].index if truth.steps else 0
        taken = self.consumer.taken
        self.run_until(self.now_ms + 30_000, lambda: bool(taken) and taken[-1].position >= last)
        if self.following is not None and self.following.failure is not None:
            self.failures.append(self.following.failure)


@dataclass
class TrueStep:
    """A commit or restore that really took effect. `versions`: those of the marks that were ever written for it."""

    index: int
    epoch: int
    generation: int
    rewinds: bool
    sinks: frozenset[str]
    watermark: int | None
    abandoned_at: int | None = None
    versions: dict[str, int] = field(default_factory=dict)
    published_at: int | None = None
    """How far the journal had come when the last sink had published it."""
    expired_at: int | None = None


class Truth:
    """What a follower should be given, derived from everything that was ever written."""

    def __init__(self, store: RecordingStore) -> None:
        self.steps: list[TrueStep] = []
        self.last_sinks: frozenset[str] = frozenset()
        self.all_sinks: frozenset[str] = frozenset()
        self.aborted = 0
        state = JournalState()
        for index in sorted(store.entries):
            body = JOURNAL.open(store.entries[index]).entry.body
            before = msgspec.json.decode(msgspec.json.encode(state), type=JournalState)
            apply(state, body, index)
            graph = state.topology
            sinks = frozenset(graph.sinks()) if graph is not None else frozenset()
            self.last_sinks = sinks
            self.aborted += len(before.open.keys() - state.open.keys() - state.committed.keys())
            self.all_sinks |= sinks  # one that was added later marks kept epochs, too
            if isinstance(body, Committed) and state.head == body.epoch and before.head != body.epoch:
                self.steps.append(TrueStep(index, body.epoch, body.generation, False, sinks, body.watermark))
            elif isinstance(body, Restored) and state.generation != before.generation:
                line = set()
                epoch: int | None = body.epoch
                parents = {e: c.parent for e, c in before.committed.items()}
                while epoch is not None:
                    line.add(epoch)
                    epoch = parents.get(epoch)
                for step in self.steps:
                    if not step.rewinds and step.epoch in before.committed and step.epoch not in line:
                        step.abandoned_at = step.abandoned_at or index
                self.steps.append(TrueStep(index, body.epoch, body.generation, True, sinks, state.watermark))
            for step in self.steps:
                if not step.rewinds and step.expired_at is None and step.epoch not in state.committed:
                    step.expired_at = index
        for step in self.steps:
            found = {sink: mark for (sink, index), mark in store.marks.items() if index == step.index}
            step.versions = {sink: version for sink, (version, _) in found.items()}
            if found.keys() >= step.sinks & self.last_sinks:
                step.published_at = max((at for _, at in found.values()), default=step.index)

    def problems(self, consumer: Consumer) -> list[str]:
        """What a follower was given that it should not have been, and the reverse."""
        found = []
        taken, self._acknowledged = consumer.taken, consumer.acknowledged
        by_index = {step.index: step for step in self.steps}
        given: dict[int, Followed] = {}
        last = 0
        for one in taken:
            if one.position < last:
                found.append(f"{one} was given after entry {last}")
            if one.position in given and one.position != last:
                found.append(f"{one} was given twice")
            step = by_index.get(one.position)
            if step is None:
                found.append(f"{one} was never decided")
            elif one.position not in given:
                found += self._compare(one, step)
            given.setdefault(one.position, one)
            last = max(last, one.position)
        return found + self._missing(given, last)

    def _compare(self, one: Followed, step: TrueStep) -> list[str]:
        told = one.epoch, one.generation, one.rewound
        if told != (step.epoch, step.generation, step.rewinds) or (
            not step.rewinds and one.watermark != step.watermark
        ):
            return [f"{one} is really {step}"]
        wrong = {s: v for s, v in one.tables.items() if v is not None and step.versions.get(s) != v}
        if wrong:
            return [f"{one} has versions that were never published: {wrong}, not {step.versions}"]
        unknown = [s for s, v in one.tables.items() if v is None]
        if unknown and not step.rewinds and step.expired_at is None:
            return [f"{one} does not say the versions of {unknown}, which are kept"]
        if (
            not one.tables.keys() <= step.sinks | self.all_sinks
            or one.tables.keys() < step.sinks & self.last_sinks
        ):
            return [f"{one} has other tables than {sorted(step.sinks)}"]
        if step.abandoned_at is not None and step.published_at is None:
            return [f"{one} was abandoned before it was published"]
        return []

    def _missing(self, given: dict[int, Followed], last: int) -> list[str]:
        """What lies between the first and the last that was given, and was not, although there was no gap."""
        found = []
        first = min(given, default=0)
        for step in self.steps:
            must = step.abandoned_at is None or (
                step.published_at is not None
                and step.published_at < step.abandoned_at
                and step.expired_at is None
            )
            if not must or not first <= step.index <= last or step.index in given:
                continue
            if step.rewinds and not any(one.generation == step.generation for one in given.values()):
                continue  # nothing of its generation is left; a later one undoes it
            if not self._has_gap_after(step.index, given):
                found.append(f"{step} was not given")
        for index, one in given.items():
            before = max((i for i in given if i < index and not given[i].rewound), default=0)
            # One that was given and not acknowledged may have expired by the time of the next process.
            dealt_with = given.keys() & self._acknowledged
            is_real = any(before <= s.index < index and s.index not in dealt_with for s in self.steps)
            if (
                one.after_gap and not is_real and self.aborted <= KEPT_ABORTED
            ):  # else nobody knows what was aborted
                found.append(f"{one} has no gap before it")
        return found

    @staticmethod
    def _has_gap_after(index: int, given: dict[int, Followed]) -> bool:
        """Whether a gap was told before the next commit: where exactly it is among restores may be unknown."""
        for later in sorted(i for i in given if i > index):
            if given[later].after_gap:
                return True
            if not given[later].rewound:
                return False
        return False


def play(seed: int, make_follower: Callable[..., Follower] = Follower) -> tuple[FollowedWorld, list[str]]:
    """One schedule; the problems of the follower."""
    world = FollowedWorld(seed, make_follower)
    result = world.run()
    world.follow_to_the_end()
    problems = Truth(world.store).problems(world.consumer)
    problems += [f"the follower failed: {error!r}" for error in world.failures]
    if result.violation is not None:
        problems.append(f"the cluster: {result.violation}")
    truth = Truth(world.store)
    taken = world.consumer.taken
    if truth.steps and (not taken or taken[-1].position < truth.steps[-1].index):
        problems.append(
            f"the last one given is {taken[-1] if taken else None}, and {truth.steps[-1]} is published"
        )
    return world, problems
