"""`cutwater verify`, without Spark, on a store that a real run left: any damage to what a run or a restore would read is
detected. (`tests/support/stores/stopped.tar.gz` was stopped with rows in flight and batches after its checkpoint.)"""

from __future__ import annotations

import re
import shutil
import tarfile
from pathlib import Path
from random import Random

import msgspec
import pytest
from typer.testing import CliRunner

from cutwater.cli.main import app
from cutwater.inspection.integrity import (
    NextRun,
    _crc32c_of,
    check_rows,
    check_state,
    crc32c,
    graph_problems,
    journal_problems,
    mark_problems,
)
from cutwater.protocol.base import paths
from cutwater.protocol.base import records as r
from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.base.log import AppendPhase, append, follow
from cutwater.protocol.base.records import Open, seal
from cutwater.protocol.base.watermark import UNKNOWN
from cutwater.protocol.member.stage_log import StageLog
from cutwater.sinks import parquet
from cutwater.sinks.records import Description, Identity, kind_of
from cutwater.spark.checkpoint.folder import Cache
from cutwater.spark.checkpoint.incarnations import list_folders
from cutwater.spark.checkpoint.new_folder import make_folder
from cutwater.spark.checkpoint.stage_files import find_stored
from cutwater.store.at_rest import drive, load_manifest, read_journal
from cutwater.store.contract import Store
from cutwater.store.opening import open_store
from tests.support.damages import DAMAGES, KINDS, MIX_UPS, Damage, apply_damage, damaged
from tests.support.sink_helpers import ROWS, stage
from tests.support.written import Written

SEED = 7
TIMES = 3
"""How many objects of each kind are damaged in each way."""


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stopped")
    with tarfile.open(Path(__file__).parents[1] / "support" / "stores" / "stopped.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder / "state"


def verify(store: Path) -> tuple[bool, str]:
    shown = CliRunner().invoke(app, ["verify", "--store", str(store), "--json"])
    assert shown.exception is None or isinstance(shown.exception, SystemExit), repr(shown.exception)
    return shown.exit_code == 0, shown.output


def read_by_a_run(store: Path) -> dict[str, list[str]]:
    """The objects, by kind, that a run, or a restore of the newest checkpoint, reads."""
    opened = open_store(str(store))
    state = read_journal(opened).state
    named = set[str]()
    for checkpoint in state.committed.values():
        named |= load_manifest(opened, checkpoint).objects().keys()
    newest = [
        f"stages/{s}/{state.generation}/spark/{max(list_folders(opened, s, state.generation))}/"
        for s in (state.topology.stages if state.topology is not None else ())
    ]
    always = ("journal", "stage log", "manifest", "sink id", "graph", "mark")
    found: dict[str, list[str]] = {}
    for name in opened.list(""):
        kind = next((kind for kind, form in KINDS.items() if re.fullmatch(form, name)), "other")
        in_newest = any(name.startswith(prefix + "cutwater/") for prefix in newest)
        if kind in always or name in named or in_newest:
            found.setdefault(kind, []).append(name)
    return found


@pytest.fixture(scope="module")
def started_again(kept: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same store, after a run that was stopped before its first checkpoint."""
    folder = tmp_path_factory.mktemp("again") / "state"
    shutil.copytree(kept, folder)
    store = open_store(str(folder))
    state = read_journal(store).state
    assert state.head is not None
    reports = load_manifest(store, state.committed[state.head]).stages
    for reported in reports:
        log = StageLog(reported, state.generation)
        drive(store, follow(log.view))
        before, place = max(list_folders(store, reported, state.generation)), log.view.last + 1
        opened = log.view.seal(Open(place, -1, consumed={}, offsets={}, watermark=UNKNOWN), "again")
        assert drive(store, append(log.view, opened)) is AppendPhase.MINE
        make_folder(
            store,
            reported,
            state.generation,
            place,
            before,
            reports[reported],
            log.state.last,
            commit=log.state.commit,
        )
    return folder


def test_the_store_has_no_problems(kept: Path, started_again: Path) -> None:
    for store in (kept, started_again):
        well, output = verify(store)
        assert well, output


def test_unknown_objects_are_ignored(kept: Path, tmp_path: Path) -> None:
    store = tmp_path / "state"
    shutil.copytree(kept, store)
    newest = f"stages/first/1/spark/{max(list_folders(open_store(str(kept)), 'first', 1))}"
    for folder in (
        "stages", "stages/first", "stages/first/x/y", "stages/first/1", "stages/first/1/log", "stages/first/1/spark",
        newest, "stages/first/1/spark/x/cutwater", "stages/first/1/data", "published", "published/first", "journal",
        "sinks", "sinks/first", "graph", "checkpoints", "requests", "replies", "status", "explain",
    ):  # fmt: skip
        (store / folder).mkdir(parents=True, exist_ok=True)
        (store / folder / "README").write_text("hello")
    well, output = verify(store)
    assert well, output
    opened = open_store(str(store))
    find_stored(opened, "first", 1, 100, Cache())
    for args in (["tables"], ["status"], ["checkpoints"], ["gc", "--dry-run"], ["explain", "1"]):
        shown = CliRunner().invoke(app, [*args, "--store", str(store)])
        assert shown.exception is None or isinstance(shown.exception, SystemExit), (args, shown.exception)


@pytest.mark.slow
def test_damage_to_a_new_incarnation_is_detected_before_its_first_checkpoint(
    started_again: Path,
) -> None:
    rng = Random(SEED)
    store = open_store(str(started_again))
    unseen = []
    for name in ("first", "second"):
        newest = started_again / f"stages/{name}/1/spark/{max(list_folders(store, name, 1))}"
        for path in sorted(path for path in newest.rglob("*") if path.is_file()):
            before = path.read_bytes()
            for how in DAMAGES:
                after = damaged(before, how, rng)
                path.unlink()
                if after is not None:
                    path.write_bytes(after)
                if after != before and verify(started_again)[0]:
                    unseen.append(f"{how} {path.relative_to(started_again)}")
                path.write_bytes(before)
    # Without its mark the run falls back to the folder before it, which has the same batches.
    assert [line for line in unseen if not re.fullmatch(r"delete .*/cutwater/complete", line)] == []


@pytest.mark.slow
def test_damage_to_anything_that_a_run_or_a_restore_reads_is_detected(kept: Path, tmp_path: Path) -> None:
    rng = Random(SEED)
    unseen = []
    kinds = read_by_a_run(kept)
    needed = {
        "journal",
        "stage log",
        "manifest",
        "mark",
        "copied state",
        "rows in flight",
        "state",
        "offsets",
    }
    assert needed <= kinds.keys()
    for kind, names in kinds.items():
        for how in DAMAGES + MIX_UPS:
            for name in rng.sample(names, min(TIMES, len(names))):
                if how == "delete" and kind in ("mark", "graph", "sink id", "stage log", "journal"):
                    continue  # the loss of a log's newest entry cannot be detected; for other entries see below
                damage = Damage(kind, name, how, rng.randrange(1 << 30))
                store = tmp_path / "state"
                shutil.rmtree(store, ignore_errors=True)
                shutil.copytree(kept, store)
                if kind in ("folder", "sink id") and how in MIX_UPS:
                    continue  # the archive is older than the names in the marks of folders and sinks
                if apply_damage(store, damage, names) and verify(store)[0]:
                    unseen.append(str(damage))
    assert unseen == []


def test_a_missing_mark_of_a_folder_that_checkpoints_need_is_detected(kept: Path, tmp_path: Path) -> None:
    store = tmp_path / "state"
    shutil.copytree(kept, store)
    opened = open_store(str(store))
    state = read_journal(opened).state
    epoch = min(state.committed)
    named = load_manifest(opened, state.committed[epoch]).stages["first"].state
    mark = f"{min(named).split('spark/')[0]}spark/{min(named).split('spark/')[1].split('/')[0]}/cutwater/complete"
    (store / mark).unlink()
    well, output = verify(store)
    assert not well
    assert mark in output


@pytest.mark.parametrize("kind", ["journal", "stages/first/1/log", "stages/second/1/log"])
def test_a_missing_log_entry_is_detected_unless_it_had_no_consequences(
    kept: Path, tmp_path: Path, kind: str
) -> None:
    names = sorted(path.name for path in (kept / kind).iterdir())
    for name in names[:-1]:
        store = tmp_path / name
        shutil.copytree(kept, store)
        (store / kind / name).unlink()
        assert not verify(store)[0], f"{kind}/{name} is not missed"
    store = tmp_path / "cut"
    shutil.copytree(kept, store)
    for name in names[len(names) // 2 :]:
        (store / kind / name).unlink()
    assert not verify(store)[0]


def test_an_edited_mark_is_detected_where_it_would_show_a_wrong_table_version(
    kept: Path, tmp_path: Path
) -> None:
    shutil.copytree(kept, tmp_path / "state")
    mark = max((tmp_path / "state/published/first").iterdir())
    mark.write_bytes(mark.read_bytes().replace(b'"version":', b'"version":1'))
    well, output = verify(tmp_path / "state")
    assert not well
    assert str(mark.relative_to(tmp_path / "state")) in output
    shown = CliRunner().invoke(app, ["tables", "--store", str(tmp_path / "state")])
    assert shown.exit_code == 1
    assert "its checksum differs" in shown.stderr


def test_the_checksum_is_the_one_that_spark_uses() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"") == 0
    assert (_crc32c_of(0), _crc32c_of(1)) == (0, 0xF26B8303)


def test_a_state_file_is_compared_with_its_checksum_file(tmp_path: Path) -> None:
    store = open_store(str(tmp_path), create=True)
    said = {"algorithm": "CRC32C", "value": crc32c(b"rows") - 2**32, "mainFileSize": 4}
    store.put("a.changelog", b"rows")
    store.put("a.changelog.crc", msgspec.json.encode(said))
    check_state(store, ["a.changelog", "a.changelog.crc"])
    store.put("a.changelog", b"sows")
    with pytest.raises(StoreError, match=r"a\.changelog is damaged"):
        check_state(store, ["a.changelog", "a.changelog.crc"])


# --- marks, names and tables ----------------------------------------------------------------------------------


@pytest.fixture
def written(tmp_path: Path) -> Store:
    """Three checkpoints, published everywhere."""
    play = Written()
    for _ in range(3):
        play.checkpoint()
    return play.write(tmp_path / "state")


def test_a_mark_under_the_wrong_name_is_detected(written: Store) -> None:
    state = read_journal(written).state
    first, second, _ = sorted(written.list(paths.MARK_PREFIX))
    assert mark_problems(written, state) == {}
    data = written.read(second)
    assert data is not None
    written.put(first, data)
    (problem,) = mark_problems(written, state).values()
    assert f"it says that it is {second}" in problem
    written.put(first, b"x")
    assert list(mark_problems(written, state)) == [first]


def test_a_mark_missing_between_others_is_detected_and_one_at_the_end_is_not_due_yet(
    written: Store,
) -> None:
    state = read_journal(written).state
    first, second, third = sorted(written.list(paths.MARK_PREFIX))
    written.delete([third])
    assert mark_problems(written, state) == {}
    written.put(third, b"x")
    written.delete([second])
    assert "is missing: sink 'out' has moved past epoch 2" in mark_problems(written, state)[second]
    written.delete([first])
    assert first not in mark_problems(written, state), "nothing shows that it ever existed"


def test_a_damaged_description_of_a_sink_is_detected(written: Store) -> None:
    name = "sinks/out/description.json"
    kinds = {"sinks/": kind_of}
    written.put(name, seal(Description("delta", None, (), None, -1)))
    written.put("sinks/out.json", seal(Identity("abc")))
    assert graph_problems(written, kinds) == {}
    written.put(name, b"{}")
    assert list(graph_problems(written, kinds)) == [name]


def test_tables_are_checked_only_on_request(tmp_path: Path) -> None:
    play = Written()
    play.checkpoint()
    sink = parquet(str(tmp_path / "out"))
    store, index = play.write(tmp_path / "state", unmarked=(1,)), play.state.committed[1].index
    sink.bind(store, "out", ROWS)
    sink.register()
    files = stage(sink, "1-1-0-a", [1, 2, 3])
    assert sink.publish(-1, index, files) == 0
    store.create(paths.mark_name(index, "out"), seal(r.Published(1, "out", index, 0)))
    words = ["verify", "--store", str(tmp_path / "state"), "--json"]
    plain, thorough = (CliRunner().invoke(app, [*words, *more]) for more in ([], ["--tables"]))
    assert (plain.exit_code, thorough.exit_code) == (0, 0), thorough.output
    shown = tmp_path / "out" / files[0]
    shown.write_bytes(shown.read_bytes()[:-20])
    assert CliRunner().invoke(app, words).exit_code == 0
    found = CliRunner().invoke(app, [*words, "--tables"])
    assert found.exit_code == 1
    assert f"{files[0]} is damaged" in found.output
    shown.unlink()
    assert (
        f"{files[0]}, which the target shows, is missing"
        in CliRunner().invoke(app, [*words, "--tables"]).output
    )


def test_objects_newer_than_the_journals_end_are_detected(written: Store) -> None:
    journal = read_journal(written)
    assert journal.state.committed[3].index == journal.index
    assert journal_problems(written, journal) == {}
    written.put(f"{paths.CHECKPOINT_PREFIX}notes", b"")
    assert journal_problems(written, journal) == {}
    last = max(written.list("journal/"))
    written.delete([last])
    (why,) = journal_problems(written, read_journal(written)).values()
    assert f"belongs to entry {journal.index}, but the journal ends at {journal.index - 1}" in why


def test_a_generation_that_the_journal_does_not_know_is_detected(written: Store) -> None:
    journal = read_journal(written)
    written.put(f"stages/a/{journal.state.generation}/log/extra", b"")
    assert journal_problems(written, journal) == {}
    later = f"stages/a/{journal.state.generation + 1}/log/extra"
    written.put(later, b"")
    (why,) = journal_problems(written, journal).values()
    assert why == f"{later} has a generation that the journal does not know: its newest entries were lost"


def test_a_checksum_file_without_its_state_file_is_detected(written: Store) -> None:
    said = {"algorithm": "CRC32C", "value": crc32c(b"rows"), "mainFileSize": 4}
    written.put("x/1.changelog.crc", msgspec.json.encode(said))
    with pytest.raises(StoreError, match=r"x/1\.changelog is missing; restore"):
        check_state(written, ["x/1.changelog", "x/1.changelog.crc"])
    written.put("x/1.changelog", b"rows")
    check_state(written, ["x/1.changelog", "x/1.changelog.crc"])


# --- what the next run would read, one by one -----------------------------------------------------------------------


def problems_of(store: Path) -> dict[str, str]:
    opened = open_store(str(store))
    state = read_journal(opened).state
    newest = load_manifest(opened, state.committed[state.head]) if state.head is not None else None
    return NextRun(opened, state, newest).check(lambda line: None)


@pytest.fixture
def stopped(kept: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(kept, tmp_path / "state"))


def newest_folder(store: Path, name: str) -> Path:
    return max((store / f"stages/{name}/1/spark").iterdir(), key=lambda path: int(path.name))


def test_a_stopped_store_has_no_problems(stopped: Path) -> None:
    assert problems_of(stopped) == {}


def test_missing_spark_folders_are_detected_if_they_had_more_than_the_checkpoint(stopped: Path) -> None:
    for name in ("first", "second"):
        shutil.rmtree(stopped / f"stages/{name}/1/spark")
    found = problems_of(stopped)
    assert (
        found["stage 'first'"] == "the Spark folders of stage first are gone; restore the newest checkpoint"
    )
    assert "stage 'second'" not in found, "it continues from the checkpoint"


def test_a_folder_that_the_log_does_not_know_is_detected(stopped: Path) -> None:
    newest = newest_folder(stopped, "first")
    shutil.copytree(newest, newest.with_name(str(int(newest.name) + 7)))
    why = problems_of(stopped)["stage 'first'"]
    assert why.startswith(
        f"it has a Spark folder of incarnation {int(newest.name) + 7}, but its log ends at incarnation {newest.name}"
    )


def test_a_lost_log_is_detected(stopped: Path) -> None:
    shutil.rmtree(stopped / "stages/first/1/log")
    found = problems_of(stopped)
    assert (
        found["stage 'first'"]
        == "the log of stage first is empty although the stage has run: its entries were lost"
    )
    assert "channel 'first' → 'second'" in found


def test_lost_spark_offsets_are_detected(stopped: Path) -> None:
    newest = newest_folder(stopped, "second")
    last = max((newest / "offsets").iterdir(), key=lambda path: int(path.name) if path.name.isdigit() else -1)
    last.unlink()
    assert "end at batch 1, but the stage's log has batch 2" in problems_of(stopped)["stage 'second'"]


def test_missing_unread_rows_are_detected_and_counted(stopped: Path) -> None:
    opened = open_store(str(stopped))
    log = StageLog("first", 1)
    drive(opened, follow(log.view))
    batch = log.state.batches[log.state.last]
    check_rows(opened, batch.files, batch)
    for change in ({"rows": batch.rows + 1}, {"size": batch.size - 1}):
        with pytest.raises(StoreError, match="but the log says"):
            check_rows(opened, batch.files, msgspec.structs.replace(batch, **change))
    check_rows(opened, batch.files, None)
    (stopped / batch.files[0]).unlink()
    assert "is gone" in problems_of(stopped)["channel 'first' → 'second'"]
