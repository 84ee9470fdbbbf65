"""What a follower is given in histories that are written by hand."""

from __future__ import annotations

from typing import Any

import pytest

from cutwater.protocol.base import effects as fx
from cutwater.protocol.base import records as r
from cutwater.protocol.base.chain import digest
from cutwater.protocol.base.errors import UserError
from cutwater.protocol.base.log import LogView
from cutwater.protocol.base.paths import JOURNAL_PREFIX, entry_name, follower_prefix, mark_name
from cutwater.protocol.base.performer import perform
from cutwater.protocol.follower.followed import Followed
from cutwater.protocol.follower.follower import Follower, FollowerConfig
from cutwater.protocol.member.journal import Journal
from cutwater.store.perform import MemberlessPerformer
from tests.support.builders import pipeline, stage
from tests.support.driver import Objects

GRAPH = pipeline(stage("a", sinks=[r.SinkSpec("out"), r.SinkSpec("big")]))
CONFIG = FollowerConfig(poll_ms=10, mark_poll_ms=10)


class History:
    """A store with a journal and marks, which the test writes."""

    def __init__(self) -> None:
        self.store = Objects({})
        self._journal = Journal()
        self.write(r.Leader(1, "m0"))
        self.write(r.TopologySet(1, 1, digest(r.encode(GRAPH)), GRAPH))

    @property
    def state(self) -> r.JournalState:
        return self._journal.state

    def write(self, body: r.JournalBody) -> int:
        view: LogView[r.JournalBody] = self._journal.view
        sealed = view.seal(body, "n", snapshot=isinstance(body, r.Snapshot))
        self.store.objects[entry_name(JOURNAL_PREFIX, sealed.entry.index)] = sealed.data
        view.push(sealed)
        return sealed.entry.index

    def commit(self, *published: str, epoch: int | None = None) -> int:
        """The next epoch, published in these sinks at the version of its number. Returns the index of its commit."""
        number = self.state.next_epoch if epoch is None else epoch
        generation = self.state.generation
        begun = self._journal.index + 1
        self.write(r.Begun(1, generation, number, begun, 0, "h"))
        index = self.write(r.Committed(1, generation, number, begun, "", 100 * number, {"a": 0}))
        self.publish(index, number, *published)
        return index

    def restore(self, epoch: int, *published: str) -> int:
        index = self.write(r.Restored(1, self.state.generation + 1, epoch, {"a": 0}))
        self.publish(index, epoch, *published)
        return index

    def publish(self, index: int, epoch: int, *sinks: str) -> None:
        for sink in sinks:
            mark = r.Published(epoch, sink, index, index, index)
            self.store.objects[mark_name(index, sink)] = r.seal(mark)

    def expire(self, *epochs: int) -> None:
        marks = [mark_name(self.state.committed[e].index, sink) for e in epochs for sink in ("out", "big")]
        self.write(r.Expired(1, self.state.generation, epochs, (), {}, ()))
        for name in marks:
            self.store.objects.pop(name, None)

    def compact(self) -> None:
        index = self.write(r.Snapshot(1, self.state.generation, self.state))
        for before in range(1, index):
            self.store.objects.pop(entry_name(JOURNAL_PREFIX, before), None)

    def follow(self, name: str | None = None, after: Any = None, nonce: str = "n") -> Given:
        return Given(self, name, after, nonce)


BOTH = ("out", "big")


class Given:
    """A process that follows the history."""

    def __init__(self, history: History, name: str | None, after: Any, nonce: str) -> None:
        self._performer = MemberlessPerformer(history.store)
        self._now_ms = 0
        self.follower = Follower(name, nonce, (), CONFIG, lambda: self._now_ms)
        self._run(self.follower.begin(after))

    def next(self) -> Followed | None:
        """The next one; `None` if the follower waits."""
        found: Followed | None = self._run(self.follower.next())
        return found

    def all(self) -> list[Followed]:
        return list(iter(self.next, None))

    def acknowledge(self) -> None:
        self._run(self.follower.acknowledge())

    def _run(self, procedure: fx.Procedure[Any]) -> Any:
        """Returns what the procedure returns, or `None` when it waits without news."""
        answer: Any = None
        waited = False
        while True:
            try:
                effect = procedure.send(answer)
            except StopIteration as end:
                return end.value
            answer = None
            if isinstance(effect, fx.Wait):
                if waited:
                    return None
                waited, self._now_ms = True, self._now_ms + 1_000
            else:
                answer = perform(self._performer, effect)  # type: ignore[arg-type]


def told(found: list[Followed]) -> list[tuple[str, int]]:
    return [("rewound" if one.rewound else "epoch", one.epoch) for one in found]


def test_an_epoch_is_given_with_its_versions_once_all_tables_show_it() -> None:
    history = History()
    index = history.commit("out")
    given = history.follow()
    assert given.all() == []
    history.publish(index, 1, "big")
    assert given.next() == Followed(
        epoch=1, generation=1, tables={"big": index, "out": index}, watermark=100, position=index
    )
    history.commit(*BOTH)
    assert told(given.all()) == [("epoch", 2)]
    assert given.next() is None


def test_an_epoch_that_was_abandoned_before_all_tables_showed_it_is_skipped() -> None:
    history = History()
    history.commit(*BOTH)
    history.commit("out")
    given = history.follow()
    assert told(given.all()) == [("epoch", 1)]
    history.restore(1, *BOTH)
    history.commit(*BOTH)
    assert told(given.all()) == [("rewound", 1), ("epoch", 3)]


def test_an_epoch_that_was_published_and_then_abandoned_is_given_before_the_rewind() -> None:
    history = History()
    history.commit(*BOTH)
    history.commit(*BOTH)
    history.restore(1, *BOTH)
    found = history.follow().all()
    assert told(found) == [("epoch", 1), ("epoch", 2), ("rewound", 1)]
    assert found[-1].generation == 2
    assert found[-1].watermark == 100


def test_a_rewind_is_given_when_all_tables_have_gone_back() -> None:
    history = History()
    history.commit(*BOTH)
    index = history.restore(1, "out")
    given = history.follow()
    assert told(given.all()) == [("epoch", 1)]
    history.publish(index, 1, "big")
    (found,) = given.all()
    assert (found.rewound, found.tables) == (True, {"big": index, "out": index})


def test_marks_that_are_further_than_the_known_journal_are_a_reason_to_read_on() -> None:
    """The last look at the journal was before the restore, the look at the marks after it: the epoch is not published,
    although every sink has a later mark."""
    history = History()
    history.commit(*BOTH)
    history.commit("out")
    given = history.follow()
    assert told(given.all()) == [("epoch", 1)]
    given.follower._read_ms = given._now_ms + 10**9  # the next look is far away
    history.restore(1, *BOTH)
    assert told(given.all()) == [("rewound", 1)]


def test_a_restore_to_an_abandoned_timeline_makes_its_epochs_valid_again() -> None:
    history = History()
    history.commit(*BOTH)  # 1
    history.commit(*BOTH)  # 2
    history.restore(1, *BOTH)
    history.commit(*BOTH)  # 3
    history.restore(2, *BOTH)
    found = history.follow(after=1).all()
    assert told(found) == [("epoch", 2), ("rewound", 1), ("epoch", 3), ("rewound", 2)]


@pytest.mark.parametrize(("after", "first"), [(None, 1), (1, 2), ("2", 3), ("good", 3), ("latest", 4)])
def test_a_new_follower_starts_where_it_is_told(after: Any, first: int) -> None:
    history = History()
    for _ in range(3):
        history.commit(*BOTH)
    history.write(r.Savepoint(1, 1, "good", 2))
    given = history.follow("cache", after)
    history.commit(*BOTH)
    assert told(given.all()) == [("epoch", number) for number in range(first, 5)]


def test_after_latest_gives_nothing_that_a_restore_has_undone() -> None:
    history = History()
    for _ in range(3):
        history.commit(*BOTH)
    history.restore(1, *BOTH)
    given = history.follow("cache", "latest")
    assert given.next() is None
    history.commit(*BOTH)
    assert told(given.all()) == [("epoch", 4)]


def test_after_latest_gives_an_epoch_that_was_open() -> None:
    history = History()
    history.commit(*BOTH)
    begun = history.write(r.Begun(1, 1, 2, history._journal.index + 1, 0, "h"))
    given = history.follow("cache", "latest")
    assert given.next() is None
    index = history.write(r.Committed(1, 1, 2, begun, "", 200, {"a": 0}))
    history.publish(index, 2, *BOTH)
    found = given.all()
    assert [(one.epoch, one.after_gap) for one in found] == [(2, False)]


def test_a_start_that_is_not_kept_is_refused() -> None:
    history = History()
    history.commit(*BOTH)
    with pytest.raises(UserError, match=r"cannot start after '7'.*Kept epochs: 1; savepoints: none"):
        history.follow(after=7)


def test_a_new_process_continues_after_what_was_acknowledged() -> None:
    history = History()
    history.commit(*BOTH)
    history.commit(*BOTH)
    first = history.follow("cache")
    given = first.next()
    first.acknowledge()
    assert first.next() is not None  # and it crashes
    again = history.follow("cache", after="latest", nonce="m")
    assert told(again.all()) == [("epoch", 2)]
    assert given is not None
    assert told(history.follow(after=given).all()) == [("epoch", 2)]


def test_only_the_newest_position_is_kept() -> None:
    history = History()
    for _ in range(3):
        history.commit(*BOTH)
    given = history.follow("cache")
    while given.next() is not None:
        given.acknowledge()
    assert len([n for n in history.store.objects if n.startswith(follower_prefix("cache"))]) == 1


def test_of_two_processes_with_one_name_the_slower_one_ends() -> None:
    history = History()
    for _ in range(3):
        history.commit(*BOTH)
    one, two = history.follow("cache"), history.follow("cache", nonce="m")
    one.next(), two.next()
    two.acknowledge()
    one.acknowledge()  # perhaps `two` was killed, and its write has arrived late
    one.next(), two.next()
    two.acknowledge()
    with pytest.raises(UserError, match="another process follows under the name 'cache'"):
        one.acknowledge()


def test_a_position_beyond_the_journal_is_refused() -> None:
    """The store is an older copy."""
    history = History()
    history.commit(*BOTH)
    copy = dict(history.store.objects)
    history.commit(*BOTH)
    given = history.follow("cache")
    while given.next() is not None:
        given.acknowledge()
    kept = {name: data for name, data in history.store.objects.items() if name.startswith("followers/")}
    history.store.objects.clear()
    history.store.objects.update(copy | kept)
    with pytest.raises(UserError, match="an older copy; give the follower another name"):
        history.follow("cache", nonce="m")


def test_a_follower_that_was_away_is_told_of_the_gap() -> None:
    history = History()
    history.commit(*BOTH)
    given = history.follow("cache")
    given.next()
    given.acknowledge()
    for _ in range(4):
        history.commit(*BOTH)
    history.expire(1, 2, 3)
    history.compact()
    for process in (given, history.follow("cache", nonce="m")):
        found = process.all()
        assert told(found) == [("epoch", 4), ("epoch", 5)]
        assert [one.after_gap for one in found] == [True, False]
        assert found[0].tables == {
            "big": history.state.committed[4].index,
            "out": history.state.committed[4].index,
        }


def test_an_epoch_that_has_expired_and_is_still_in_the_journal_is_given_without_versions() -> None:
    history = History()
    history.commit(*BOTH)
    given = history.follow(after="latest")
    history.commit(*BOTH)
    history.commit(*BOTH)
    history.expire(1, 2)
    found = given.all()
    assert told(found) == [("epoch", 2), ("epoch", 3)]
    assert found[0].tables == {"big": None, "out": None}
    assert not any(one.after_gap for one in found)


def test_aborted_epochs_are_not_a_gap() -> None:
    history = History()
    history.commit(*BOTH)
    given = history.follow()
    given.next()
    begun = history.write(r.Begun(1, 1, 2, history._journal.index + 1, 0, "h"))
    history.write(r.Aborted(1, 1, 2, begun, "deadline"))
    history.commit(*BOTH)
    history.compact()
    assert [(one.epoch, one.after_gap) for one in given.all()] == [(3, False)]


def test_a_sink_that_was_dropped_is_not_waited_for() -> None:
    history = History()
    history.commit("out")
    given = history.follow()
    assert given.next() is None
    small = pipeline(stage("a", sinks=[r.SinkSpec("out")]))
    index = history.write(r.Restored(1, 2, 1, {"a": 0}, topology=small, topology_hash="h2"))
    history.publish(index, 1, "out")
    assert told(given.all()) == [("epoch", 1), ("rewound", 1)]


def test_a_pipeline_without_sinks_is_followed_too() -> None:
    history = History()
    history.write(r.TopologySet(1, 1, "h0", pipeline(stage("a"))))
    history.commit()
    assert [one.tables for one in history.follow().all()] == [{}]
