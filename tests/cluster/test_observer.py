"""A command that is not a member: which messages of members it keeps."""

from __future__ import annotations

from threading import Event

from cutwater.cluster.links import Heard, Hint
from cutwater.cluster.observer import Observer
from cutwater.protocol.base.replay_wire import EntriesChunk, HaveRange
from cutwater.protocol.base.wire import Announcement, Heartbeat, LogGrown, Phase


def test_it_keeps_answers_and_ignores_messages_between_members() -> None:
    """A catch-up handles only answers: an announcement in between used to end it."""
    looking = Observer.__new__(Observer)
    looking._heard, looking._news = [], Event()
    answers: list[Heard] = [HaveRange(1, 1, 9), EntriesChunk(2, 1, [])]
    others: list[Heard] = [
        Announcement(Phase.PREPARE, 1, 2, 1, 1, 0, 2),
        Heartbeat("a", "boot", 1, 2),
        LogGrown("s", 1, 3),
        Hint("requests"),
    ]
    for message in (*answers, *others):
        looking._on_message("a", message)
    assert looking._news.is_set(), "any message wakes the waiting thread"
    assert looking._take() == [("a", answer) for answer in answers]
