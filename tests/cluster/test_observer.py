"""A command that is not a member: which messages of members it keeps."""

from __future__ import annotations

from collections import deque
from threading import Event

from cutwater.cluster.links import Heard, Hint, Presence
from cutwater.cluster.observer import Observer
from cutwater.protocol.base.barrier import Barrier
from cutwater.protocol.base.replay_wire import EntriesChunk, HaveRange
from cutwater.protocol.base.wire import Announcement, Heartbeat, LogGrown, Phase


def test_it_keeps_what_a_catch_up_needs_and_ignores_the_rest() -> None:
    looking = Observer.__new__(Observer)
    looking._heard, looking._news = deque(), Event()
    needed: list[Heard] = [
        HaveRange(1, 1, 9),
        EntriesChunk(2, 1, []),
        Announcement(Phase.PREPARE, Barrier(2, 1).pack(), 1, 1, 2),
        Heartbeat("a", "boot", 1, 2),
        Presence(False),
    ]
    others: list[Heard] = [LogGrown("s", 1, 3), Hint("requests")]
    for message in (*needed, *others):
        looking._on_message("a", message)
    assert looking._news.is_set(), "any message wakes the waiting thread"
    assert looking._take() == [("a", answer) for answer in needed]
