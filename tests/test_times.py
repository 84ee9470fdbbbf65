"""The notes for `explain`: how many are kept, and whose."""

from __future__ import annotations

from pathlib import Path

from cutwater.stores import LocalStore, open_store
from cutwater.times import KEPT, SURPLUS, EpochTimes, Times, explain_name, read_times


def note(times: Times, epoch: int) -> None:
    times._save(EpochTimes(epoch, epoch, 0.0, 0))


def kept(store: LocalStore) -> set[int]:
    return {int(name.removeprefix("explain/")[:12]) for name in store.list("explain/")}


def test_notes_of_the_latest_epochs_are_kept(tmp_path: Path) -> None:
    store = open_store(str(tmp_path), create=True)
    assert isinstance(store, LocalStore)
    times = Times(store, "a")
    for epoch in range(1, 131):
        note(times, epoch)
        assert len(store.list("explain/")) <= KEPT + SURPLUS + 1
    assert kept(store) >= set(range(130 - KEPT, 131))
    assert read_times(store, 130) is not None


def test_a_member_that_starts_again_deletes_nothing_that_others_still_keep(tmp_path: Path) -> None:
    store = open_store(str(tmp_path), create=True)
    assert isinstance(store, LocalStore)
    for epoch in range(400, 451):
        for member in (None, "b", "c"):
            store.put(explain_name(epoch, member), b"{}")
    note(Times(store, "a"), 450)
    assert len(store.list("explain/")) == 3 * 51
    note(Times(store, "a"), 460)
    assert len(store.list("explain/")) == 3 * 41 + 1, "and what is too old goes, whoever wrote it"
