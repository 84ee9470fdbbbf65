"""A follower that was away gets the journal from all members at once: with members and a network that are modelled, in
virtual time, so that only the waiting counts."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from typing import Any

import pytest
from bench.follow import Journal, JournalStore

from cutwater.protocol.base import effects as fx
from cutwater.protocol.base.performer import perform
from cutwater.protocol.base.replay_wire import AskRange, FetchEntries
from cutwater.protocol.follower.followed import Followed
from cutwater.protocol.follower.follower import Follower, FollowerConfig
from cutwater.protocol.replay.provider import Provider
from cutwater.store.perform import MemberlessPerformer

EPOCHS = 100_000
DELAY_MS = 5
BYTES_PER_MS = 12_500
"""A hundred megabits per second."""


class Network:
    """Members that answer one after the other, each as fast as its line."""

    def __init__(self, journal: Journal, members: int) -> None:
        self.now_ms = 0
        self._peers = {f"m{i}": Provider(1, journal.log, keep_bytes=1 << 40) for i in range(members)}
        self._free_ms = dict.fromkeys(self._peers, 0)
        self._mail: list[tuple[int, int, str, Any]] = []
        self._order = count()
        self._performer = MemberlessPerformer(JournalStore(journal))
        config = FollowerConfig(poll_ms=10_000, mark_poll_ms=50)
        self.follower = Follower(None, "n", self._peers, config, lambda: self.now_ms)

    def run(self, procedure: fx.Procedure[Any]) -> Any:
        answer: Any = None
        while True:
            try:
                effect = procedure.send(answer)
            except StopIteration as end:
                return end.value
            answer = None
            match effect:
                case fx.Send():
                    assert isinstance(effect.message, AskRange | FetchEntries)
                    assert effect.to is not None
                    self._ask(effect.to, effect.message)
                case fx.Wait():
                    self._wait(self.now_ms + effect.ms)
                case fx.Sleep():
                    self.now_ms += effect.ms
                case _:
                    answer = perform(self._performer, effect)

    def _ask(self, peer: str, message: AskRange | FetchEntries) -> None:
        found = self._peers[peer].answer(message)
        size = sum(map(len, getattr(found, "entries", ())))
        at_ms = max(self.now_ms, self._free_ms[peer]) + DELAY_MS + size // BYTES_PER_MS
        self._free_ms[peer] = at_ms
        heappush(self._mail, (at_ms, next(self._order), peer, found))

    def _wait(self, until_ms: int) -> None:
        if not self._mail or self._mail[0][0] > until_ms:
            self.now_ms = until_ms
            return
        at_ms, _, peer, message = heappop(self._mail)
        self.now_ms = max(self.now_ms, at_ms)
        self.follower.on_replay(peer, message)


def took_ms(journal: Journal, members: int) -> int:
    """How long it takes until a follower that knows the first epoch was given all others, each once and in order."""
    network = Network(journal, members)
    first = Followed(epoch=1, generation=1, tables={}, watermark=1, position=journal.commits[0])
    network.run(network.follower.begin(first))
    for epoch, index in enumerate(journal.commits[1:], 2):
        found = network.run(network.follower.next())
        assert (found.epoch, found.position, found.after_gap) == (epoch, index, False)
    return network.now_ms


@pytest.mark.slow
def test_three_members_are_at_least_twice_as_fast_as_one_after_a_hundred_thousand_missed_epochs() -> None:
    journal = Journal(EPOCHS)
    one, three = took_ms(journal, 1), took_ms(journal, 3)
    assert one > 5_000
    assert three <= one / 2, f"{one} ms with one member, {three} ms with three"
