"""The history of Delta tables: log cleanup, forgotten transactions, what a restore needs, overwritten commits."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from deltalake import DeltaTable, write_deltalake

from cutwater.protocol.base import paths
from cutwater.protocol.base import records as r
from cutwater.protocol.base.chain import digest
from cutwater.protocol.base.effects import TableHead, TableHistory
from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.member.publish import duties, perform
from cutwater.sinks.cleanup import tidy
from cutwater.sinks.delta.log import FORGETS_AFTER
from cutwater.sinks.delta.making import delta
from cutwater.sinks.delta.sink import MANY, DeltaSink
from cutwater.sinks.registry import open_sink
from cutwater.store.contract import Store
from tests.support.builders import committed, journal_of, manifest
from tests.support.delta_helpers import Make, append, clean_up_log, ids, make, table
from tests.support.sink_helpers import (
    ROWS,
    drive,
    publish,
    stage,
    store,
)

__all__ = ["make", "store", "table"]


def test_history_that_was_cleaned_up_is_not_guessed(make: Make, table: str) -> None:
    sink = make()
    for transaction in range(10, 20):
        publish(sink, transaction, [transaction])
    clean_up_log(table, before=4)  # its transaction is 14
    assert [make().find(t) for t in (12, 13, 14, 15, 30)] == [None, None, 4, 5, 9]
    assert sink.rewind(9, 40, 4) == 10
    assert ids(table) == [10, 11, 12, 13, 14]


def test_a_version_whose_commit_is_gone_is_found_in_the_checkpoint(make: Make, table: str) -> None:
    sink = make()
    publish(sink, 10, [1])
    for number in range(100, 105):
        append(table, number)
    publish(sink, 20, [2])
    clean_up_log(table, before=3)
    assert [sink.find(t) for t in (9, 10, 15, 20)] == [None, 3, 3, 6]


def test_a_transaction_is_found_in_a_checkpoint_that_anothers_commit_has(make: Make, table: str) -> None:
    """Ordinary maintenance of a table that others write to, while this sink had no rows for long."""
    write_deltalake(table, pa.table({"id": pa.array([], pa.int64()), "city": pa.array([], pa.string())}))
    sink = make()
    publish(sink, 10, [1])
    publish(sink, 20, [2])
    append(table, 100)
    clean_up_log(table, before=3)
    assert [make().find(t) for t in (10, 20)] == [None, 3]
    assert make().history(20) == TableHistory(20, MANY, ())
    assert make().history(10) is None


def test_a_sink_that_was_paused_during_log_cleanup_sees_the_newest_version(make: Make, table: str) -> None:
    sleeper, sink = make(), make()
    publish(sink, 10, [1])
    assert sleeper.head() == TableHead(0, 10)
    for transaction in range(11, 18):
        publish(sink, transaction, [transaction])
    files = stage(sink, "late", [99])
    clean_up_log(table, before=5)
    assert sleeper.publish(0, 30, files) is None  # the place behind version 0 is free again
    assert sleeper.head() == TableHead(7, 17)
    assert ids(table) == [1, *range(11, 18)]


@pytest.mark.slow
def test_a_thousand_commits_can_be_published(make: Make, table: str) -> None:
    sink = make()
    files = [stage(sink, f"a{i}", [i]) for i in range(1000)]
    for i, names in enumerate(files):
        assert sink.publish(i - 1, i + 1, names) == i
    assert (ids(table), make().head()) == (list(range(1000)), TableHead(999, 1000))
    log = [file.name for file in Path(table, "_delta_log").iterdir()]
    assert sum(name.endswith(".checkpoint.parquet") for name in log) == 10
    assert sink.find(500) == 499


def forgetful_table(table: str) -> None:
    """Create a table, as somebody else might, that forgets transactions after a second."""
    DeltaTable.create(
        table,
        schema=pa.schema([("id", pa.int64()), ("city", pa.string())]),
        configuration={FORGETS_AFTER: "interval 1 second"},
    )


def forget(table: str) -> None:
    """Compact the table and write checkpoints until one is without old transactions."""
    DeltaTable(table).optimize.compact()
    while any(DeltaTable(table).transaction_version(app) is not None for app in apps(table)):
        DeltaTable(table).create_checkpoint()


def apps(table: str) -> set[str]:
    log = Path(table, "_delta_log").glob("*.json")
    actions = [json.loads(line) for file in log for line in file.read_text().splitlines()]
    return {action["txn"]["appId"] for action in actions if "txn" in action}


def test_a_transaction_that_the_table_forgot_is_found_in_its_log(make: Make, table: str) -> None:
    """A crash between the last commit and its mark: only the log has the transaction."""
    forgetful_table(table)
    sink = make()
    for transaction in (5, 6):
        publish(sink, transaction, [transaction])
    files = stage(sink, "last", [7])
    assert sink.publish(2, 7, files) == 3
    forget(table)
    again = make()
    assert again.head() == TableHead(4, 7)
    assert again.publish(4, 7, files) is None
    assert [again.find(t) for t in (4, 5, 6, 7, 8)] == [0, 1, 2, 3, 3]
    assert ids(table) == [5, 6, 7]


def test_a_running_sink_remembers_what_its_table_forgets(make: Make, table: str) -> None:
    forgetful_table(table)
    sink = make()
    publish(sink, 5, [5])
    append(table, 100)
    assert sink.head() == TableHead(2, 5)
    forget(table)
    clean_up_log(table, before=3)
    assert sink.head() == TableHead(3, 5)
    assert make().head() == TableHead(3, 0, forgetful=True)


def test_a_marked_epoch_is_not_published_again_if_the_table_has_forgotten_it(
    make: Make, table: str, store: Store
) -> None:
    forgetful_table(table)
    sink = make()
    bodies: list[r.JournalBody] = [r.Leader(1, "m0")]
    for epoch in (1, 2, 3):
        release = {"table": stage(sink, f"attempt-{epoch}", [epoch])}
        data = r.encode(manifest(epoch, 2 * epoch, release=release))
        store.create(paths.manifest_name(epoch, 2 * epoch), data)
        bodies += [
            r.Begun(1, 1, epoch, 2 * epoch, 0, "h"),
            committed(epoch, 2 * epoch, manifest=digest(data)),
        ]
    state = journal_of(*bodies)
    for duty in duties(state, 0):
        drive(store, sink, perform("table", duty))
    forget(table)
    clean_up_log(table, before=DeltaTable(table).version())
    again = make()
    assert again.head().forgetful
    for duty in duties(state, again.head().transaction):
        drive(store, again, perform("table", duty))
    assert ids(table) == [1, 2, 3]


def test_a_table_with_a_short_log_has_not_forgotten_a_new_sink(make: Make, table: str) -> None:
    for number in range(6):
        append(table, number)
    clean_up_log(table, before=3)
    sink = make()
    assert sink.head() == TableHead(5, 0)
    assert [sink.find(t) for t in (0, 100)] == [5, 5], "none of these versions is its own"
    publish(sink, 7, [7])
    assert (make().head(), make().find(6)) == (TableHead(6, 7), 5)


def test_a_table_that_forgets_transactions_causes_a_warning(
    make: Make, table: str, caplog: pytest.LogCaptureFixture
) -> None:
    forgetful_table(table)
    make()
    assert FORGETS_AFTER in caplog.text


def age(table: str, days: int) -> None:
    """Make every commit so many days older."""
    for file in Path(table, "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in file.read_text().splitlines()]
        for action in actions:
            if "commitInfo" in action:
                action["commitInfo"]["timestamp"] -= days * 86_400_000
        file.write_text("".join(json.dumps(action) + "\n" for action in actions))
        made = file.stat().st_mtime - days * 86_400
        os.utime(file, (made, made))


def versions_in_log(table: str) -> list[int]:
    return sorted(int(file.stem) for file in Path(table, "_delta_log").glob("*.json") if file.stem.isdigit())


@pytest.mark.parametrize("rewinds", [True, False], ids=["going back", "publishing"])
@pytest.mark.parametrize("whose", ["ours", "others"])
def test_publishing_and_rewinding_remove_no_history_however_old(
    make: Make, table: str, whose: str, rewinds: bool
) -> None:
    if whose == "others":
        append(table, 0)
    sink = make()
    first = publish(sink, 1, [1])
    assert first is not None
    for transaction in range(2, 120):
        publish(sink, transaction, [transaction])
    age(table, days=400)  # including a checkpoint
    for transaction in range(120, 206):
        version = sink.head().version
        if rewinds and transaction > 190:  # one of them is the two hundredth commit
            assert sink.rewind(version, transaction, version - 1) == version + 1
        else:
            publish(sink, transaction, [transaction])
    assert versions_in_log(table) == list(range(make().head().version + 1))
    assert make().find(1) == first
    assert sink.rewind(sink.head().version, 300, first) is not None
    assert ids(table) == ([0, 1] if whose == "others" else [1])


def test_old_history_that_no_checkpoint_needs_is_trimmed(make: Make, table: str) -> None:
    sink = make()
    for transaction in range(1, 351):
        publish(sink, transaction, [transaction])
    sink.trim(300)
    assert versions_in_log(table) == list(range(350)), "it is not old"
    age(table, days=31)
    sink.trim(1)
    assert versions_in_log(table) == list(range(350)), "it is needed"
    sink.trim(260)  # the last checkpoint of the log before that is version 199
    assert versions_in_log(table) == list(range(199, 350))
    assert not Path(table, "_delta_log", f"{99:020d}.checkpoint.parquet").exists()
    again = make()
    assert [again.find(t) for t in (199, 200, 260, 350)] == [None, 199, 259, 349]
    assert again.rewind(349, 400, 259) == 350
    assert ids(table) == list(range(1, 261))


def test_cleanup_keeps_the_history_that_the_oldest_kept_checkpoint_needs(make: Make, table: str) -> None:
    sink = make()
    for transaction in range(1, 206):
        publish(sink, transaction, [transaction])
    age(table, days=31)
    kept: list[r.JournalBody] = [
        r.Begun(1, 1, 1, 102, 0, "h"),
        committed(1, 102, cut=200),
    ]  # at 103: version 102
    state = journal_of(r.Leader(1, "m0"), *[None] * 100, *kept)
    tidy(sink, "a", state, [manifest(1, 102)])
    assert versions_in_log(table) == list(range(99, 205))
    assert sink.find(103) == 102


def test_the_history_of_tables_that_others_created_is_not_trimmed(make: Make, table: str) -> None:
    append(table, 0)
    sink = make()
    for transaction in range(1, 150):
        publish(sink, transaction, [transaction])
    age(table, days=400)
    sink.trim(149)
    assert versions_in_log(table) == list(range(150))


def test_tables_that_we_create_turn_off_log_cleanup(make: Make, table: str) -> None:
    publish(make(), 1, [1])
    assert DeltaTable(table).metadata().configuration["delta.enableExpiredLogCleanup"] == "false"


def test_files_with_special_characters_in_their_names_are_found(make: Make, table: str) -> None:
    write_deltalake(
        table, pa.table({"id": [1, 2], "city": ["a b/c%d=e:f", "ü"]}), partition_by=["city"], mode="append"
    )
    sink = make(partition_by="city")
    publish(sink, 5, [3])
    DeltaTable(table).delete("id < 3")
    publish(sink, 6, [4])
    assert [sink.find(t) for t in (4, 5)] == [0, 1]
    DeltaTable(table).vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert [sink.find(t) for t in (4, 5, 6)] == [None, None, 3]


def test_a_sink_that_cannot_go_back_can_continue_with_another_name_and_path(
    make: Make, table: str, store: Store, tmp_path: Path
) -> None:
    """The advice in the error works: the new table begins at the checkpoint."""
    sink = make()
    bodies: list[r.JournalBody] = [r.Leader(1, "m0")]

    def epoch(number: int, generation: int, **release: tuple[str, ...]) -> None:
        place = len(bodies) + 1
        data = r.encode(manifest(number, place, release=release))
        store.create(paths.manifest_name(number, place), data)
        begun = r.Begun(1, generation, number, place, 0, "h")
        bodies.extend([begun, committed(number, place, generation, manifest=digest(data))])

    def settle(sink: DeltaSink) -> None:
        for duty in duties(journal_of(*bodies), sink.head().transaction):
            drive(store, sink, perform(sink.name, duty))

    for number in (1, 2, 3):
        epoch(number, 1, table=stage(sink, f"{number}", [number]))
    settle(sink)
    clean_up_log(table, before=2)
    bodies.append(r.Restored(1, 2, 1, {"a": 0}))
    with pytest.raises(StoreError, match=r"cannot go back to epoch 1.*another name and path.*--drop table"):
        settle(make())
    other = delta(str(tmp_path / "other"))
    other.bind(store, "other", ROWS)
    settle(other)
    epoch(4, 2, other=stage(other, "4", [4]))
    settle(other)
    assert ids(str(tmp_path / "other")) == [4]
    assert ids(table) == [1, 2, 3]


@pytest.mark.parametrize("behind", [False, True], ids=["newest commit", "older commit"])
def test_an_overwritten_commit_is_detected_and_its_rows_can_be_published_again(
    make: Make, table: str, behind: bool
) -> None:
    """A log store without conditional puts saw no version 2, and writes its commit over ours."""
    sink = make()
    for transaction in (5, 6):
        publish(sink, transaction, [transaction])
    theirs = f"{table}-theirs"
    shutil.copytree(table, theirs)
    append(theirs, 100)
    publish(sink, 7, [7])
    assert sink.head() == TableHead(2, 7)
    if behind:
        append(table, 101)
        assert sink.head() == TableHead(3, 7)
    shutil.copy(Path(theirs, "_delta_log", f"{2:020d}.json"), Path(table, "_delta_log"))
    for data in Path(theirs).glob("*.parquet"):
        shutil.copy(data, table)
    with pytest.raises(StoreError, match=r"version 2 of .* overwritten by another writer \(WRITE\).*--force"):
        sink.publish(sink.head().version, 8, stage(sink, "next", [8]))
    assert 7 not in ids(table)

    again = make()  # follow the advice in the error: go back to before it
    version = again.head().version
    assert again.find(6) == 1
    assert again.rewind(version, 9, 1, force=True) == version + 1
    publish(again, 10, [7])
    assert ids(table) == [5, 6, 7]


def test_an_append_only_table_cannot_go_back_to_before_its_first_version(make: Make, table: str) -> None:
    sink = make()
    publish(sink, 5, [1])
    DeltaTable(table).alter.set_table_properties({"delta.appendOnly": "true"})
    assert sink.head().version == 1
    assert [sink.find(t) for t in (4, 5)] == [None, 0]


def test_a_table_with_a_gap_in_its_log_is_not_rewound(make: Make, table: str) -> None:
    """Others may have written the missing versions."""
    sink = make()
    for transaction in (5, 6, 7):
        publish(sink, transaction, [transaction])
    DeltaTable(table).create_checkpoint()
    for version in (0, 1):
        Path(table, "_delta_log", f"{version:020}.json").unlink()
    with pytest.raises(StoreError, match="log no longer goes back that far"):
        make().rewind(2, 9, 0)


def test_a_sink_opened_for_reading_knows_its_first_version(make: Make, table: str, store: Store) -> None:
    append(table, 1)
    append(table, 2)
    sink = make()
    publish(sink, 5, [3])
    opened = open_sink(store, "table")
    assert opened._since == sink._since == 1
    assert opened.head() == TableHead(2, 5)
