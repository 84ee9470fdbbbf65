"""Following many logs at once: equivalent to following each, with fewer requests to the store."""

from __future__ import annotations

import pytest

from cutwater.protocol.base.chain import Codec, Sealed
from cutwater.protocol.base.effects import ListMany, Procedure, ReadMany
from cutwater.protocol.base.log import AppendPhase, LogView, append, compact, follow
from cutwater.protocol.base.logs import follow_all
from tests.support.driver import Fault, Interrupt, Store, drive, every_moment
from tests.support.text_log import Body, Everything, Said

CODEC: Codec[Body] = Codec(Body)
LOGS = ("one/", "two/", "three/")


class Log:
    """One process's view of one log, and the texts in it."""

    def __init__(self, prefix: str) -> None:
        self.texts: list[str] = []
        self.view: LogView[Body] = LogView(prefix, CODEC, Everything, self._on_entry)

    def _on_entry(self, sealed: Sealed[Body], jumped: bool) -> None:
        body = sealed.entry.body
        self.texts = list(body.texts) if isinstance(body, Everything) else [*self.texts, body.text]

    def say(self, *texts: str) -> Procedure[None]:
        yield from follow(self.view)
        for text in texts:
            assert (yield from append(self.view, self.view.seal(Said(text), text))) is AppendPhase.MINE

    def compact(self) -> Procedure[None]:
        yield from follow(self.view)
        yield from compact(self.view, Everything(tuple(self.texts)), "compaction")


def logs() -> list[Log]:
    return [Log(prefix) for prefix in LOGS]


def views(readers: list[Log]) -> list[LogView[Body]]:
    return [log.view for log in readers]


def texts(store: Store) -> list[list[str]]:
    """The texts of each log for a new reader that follows them one by one."""
    readers = logs()
    for log in readers:
        drive(follow(log.view), store)
    return [log.texts for log in readers]


@pytest.fixture
def store() -> Store:
    made = Store()
    for writer, said in zip(logs(), (("a", "b"), (), ("c",)), strict=True):
        drive(writer.say(*said), made)
    made.seen.clear()
    return made


def test_many_logs_are_followed_with_three_requests(store: Store) -> None:
    readers = logs()
    drive(follow_all(views(readers)), store)
    assert [log.texts for log in readers] == [["a", "b"], [], ["c"]]
    assert [type(e) for e in store.seen if isinstance(e, ListMany | ReadMany)] == [
        ListMany,
        ReadMany,
        ListMany,
    ]


def test_one_request_is_enough_when_nothing_is_new(store: Store) -> None:
    readers = logs()
    drive(follow_all(views(readers)), store)
    store.seen.clear()
    drive(follow_all(views(readers)), store)
    assert [type(e) for e in store.seen if isinstance(e, ListMany | ReadMany)] == [ListMany]


def test_writes_and_compactions_at_any_moment_are_read_as_by_following_each(store: Store) -> None:
    def play(moment: int) -> bool:
        mine = Store(dict(store.objects))
        readers = logs()

        def meanwhile() -> None:
            drive(Log("one/").say("d"), mine)
            drive(Log("three/").say("e"), mine)
            drive(Log("three/").compact(), mine)

        interrupt = Interrupt(moment, meanwhile)
        drive(follow_all(views(readers)), mine, before=interrupt)
        for log, said, before in zip(readers, texts(mine), texts(store), strict=True):
            assert log.texts in (said, before)
        drive(follow_all(views(readers)), mine)
        assert [log.texts for log in readers] == texts(mine)
        return interrupt.done

    assert every_moment(play) == 3


def test_a_compacted_log_is_followed_from_its_snapshot(store: Store) -> None:
    readers = logs()
    drive(follow_all(views(readers)), store)
    writer = Log("one/")
    drive(writer.say("d"), store)
    drive(writer.compact(), store)
    drive(writer.say("e"), store)
    drive(follow_all(views(readers)), store)
    assert [log.texts for log in readers] == [["a", "b", "d", "e"], [], ["c"]]


def test_failed_requests_are_repeated(store: Store) -> None:
    readers = logs()
    faults = [Fault(kind, nth=n) for kind in (ListMany, ReadMany) for n in (1, 2)]
    drive(follow_all(views(readers)), store, faults=faults)
    assert [log.texts for log in readers] == texts(store)


def test_another_procedure_may_advance_a_view_meanwhile(store: Store) -> None:
    def play(moment: int) -> bool:
        readers = logs()
        interrupt = Interrupt(moment, lambda: drive(follow(readers[0].view), store))
        drive(follow_all(views(readers)), store, before=interrupt)
        assert [log.texts for log in readers] == texts(store)
        return interrupt.done

    assert every_moment(play) >= 3
