"""The timings for `explain`: how many are kept, and whose."""

from __future__ import annotations

from pathlib import Path
from threading import Event, Thread

from cutwater.protocol.base import paths
from cutwater.protocol.base import records as r
from cutwater.protocol.base.chain import Entry
from cutwater.protocol.base.paths import entry_name, notes_name
from cutwater.runtime.timings import KEPT, SURPLUS, EpochTimes, Times, read_times
from cutwater.store.local import LocalStore
from cutwater.store.opening import open_store


def note(times: Times, epoch: int) -> None:
    times._save(EpochTimes(epoch, epoch, 0.0, 0))
    assert times.must_save()
    times.save()
    assert not times.must_save()


def kept(store: LocalStore) -> set[int]:
    return {int(name.removeprefix("explain/")[:12]) for name in store.list("explain/")}


def test_timings_of_the_latest_epochs_are_kept(tmp_path: Path) -> None:
    store = open_store(str(tmp_path), create=True)
    assert isinstance(store, LocalStore)
    times = Times(store, "a")
    for epoch in range(1, 131):
        note(times, epoch)
        assert len(store.list("explain/")) <= KEPT + SURPLUS + 1
    assert kept(store) >= set(range(130 - KEPT, 131))
    assert read_times(store, 130) is not None


def test_a_restarted_member_deletes_nothing_that_others_still_keep(tmp_path: Path) -> None:
    store = open_store(str(tmp_path), create=True)
    assert isinstance(store, LocalStore)
    for epoch in range(400, 451):
        for member in (None, "b", "c"):
            store.put(notes_name(epoch, member), b"{}")
    note(Times(store, "a"), 450)
    assert len(store.list("explain/")) == 3 * 51
    note(Times(store, "a"), 460)
    assert len(store.list("explain/")) == 3 * 41 + 1, (
        "timings that are too old are deleted, whoever wrote them"
    )


class SlowStore(LocalStore):
    """A store whose writes block until they are released."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.asked, self.go_on = Event(), Event()

    def put(self, name: str, data: bytes) -> None:
        self.asked.set()
        assert self.go_on.wait(10)
        super().put(name, data)


def test_only_the_thread_that_writes_the_timings_waits_for_a_slow_store(tmp_path: Path) -> None:
    """`must_save` is called within a turn; if it waited for the store, the leader would seem dead."""
    store = SlowStore(tmp_path)
    times = Times(store, "a")
    entries: list[r.JournalBody] = [r.Begun(1, 1, 1, 1, 0, "t"), r.Committed(1, 1, 1, 1, "m", None, {})]
    for index, body in enumerate(entries, 1):
        sealed = r.JOURNAL.seal(Entry(index, "", 0, "n", body))
        times.created(entry_name(paths.JOURNAL_PREFIX, index), sealed.data)
    assert times.must_save()
    writer = Thread(target=times.save)
    writer.start()
    assert store.asked.wait(10)
    assert not times.must_save(), "a save is in progress"
    assert len(times.news()) == 1
    times.created(paths.mark_name(2, "out"), r.encode(r.Published(1, "out", 2, 7)))
    store.go_on.set()
    writer.join(10)
    found = read_times(store, 1)
    assert found is not None
    assert found.published_s.keys() == {"out"}, "also what came meanwhile"
