"""`cutwater verify --tables` detects problems with tables, and reports none for intact tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from deltalake import DeltaTable, write_deltalake
from typer.testing import CliRunner

from cutwater.cli.main import app
from cutwater.protocol.base import records as r
from cutwater.protocol.base.paths import mark_prefix
from cutwater.protocol.member.publish import begin, duties, perform
from cutwater.sinks import Sink, delta, parquet
from cutwater.sinks.footers import check_pages
from cutwater.store.local import LocalStore
from cutwater.store.opening import open_store
from tests.support.delta_helpers import clean_up_log
from tests.support.live_leader import LiveLeader
from tests.support.sink_helpers import ROWS, drive, stage

pytestmark = pytest.mark.slow

ONE = r.Topology({"s": r.StageSpec("s", (), "main", (r.SinkSpec("t"),))})


class Place:
    """A pipeline with one table that commits epoch by epoch."""

    def __init__(
        self, folder: Path, kind: str = "delta", partition_by: str | None = None, existing: str | None = None
    ) -> None:
        self.folder, self.target = folder, folder / "t"
        found = open_store(str(folder / "store"), create=True)
        assert isinstance(found, LocalStore)
        self.store, self.leader = found, LiveLeader(found, ONE)
        kinds: dict[str, Callable[..., Sink]] = {"delta": delta, "parquet": parquet}
        make = kinds[kind]
        self.sink: Sink = make(str(self.target), partition_by, name="t", existing=existing)
        self.sink.bind(self.store, "t", ROWS)

    def commit(self, files: tuple[str, ...], savepoint: str | None = None) -> None:
        self.leader.commit(self.leader.state.next_epoch - 1, {"t": files}, savepoint)

    def publish(self) -> None:
        done = drive(self.store, self.sink, begin("t", self.leader.journal))
        for duty in duties(self.leader.state, done):
            drive(self.store, self.sink, perform("t", duty))

    def epochs(self, count: int) -> None:
        for number in range(count):
            self.commit(stage(self.sink, f"1-1-{number}-a", [number]))
            self.publish()

    def verify(self) -> tuple[list[str], dict[str, list[str]]]:
        """The problems with the table, and by epoch why it cannot be restored."""
        result = CliRunner().invoke(
            app, ["verify", "--tables", "--json", "--store", str(self.folder / "store")]
        )
        assert isinstance(result.exception, SystemExit | None), result.exception
        said = json.loads(result.stdout[result.stdout.index("{") :])
        table = [why for what, why in said["damage"].items() if what.startswith("sink")]
        return table, {epoch: c["problems"] for epoch, c in said["checkpoints"].items() if c["problems"]}


@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_an_intact_table_has_no_problems(kind: str, tmp_path: Path) -> None:
    place = Place(tmp_path, kind)
    place.epochs(3)
    if kind == "delta":
        write_deltalake(place.target, DeltaTable(place.target).to_pyarrow_table(), mode="append")
    assert place.verify() == ([], {})


def test_an_epoch_whose_files_are_gone_from_the_table_cannot_be_restored(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.epochs(2)
    DeltaTable(place.target).optimize.compact()
    next(place.target.rglob("1-1-1-a/*.parquet")).unlink()
    table, epochs = place.verify()
    assert (table, list(epochs)) == ([], ["2"])
    assert "cannot go back to epoch 2: its history or files of it were removed" in epochs["2"][0]


@pytest.mark.parametrize(
    "content", [b"", b'{"commitInfo":{"operation":"WRITE"}}\n'], ids=["empty", "foreign"]
)
def test_an_overwritten_commit_is_detected(content: bytes, tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.epochs(2)
    (place.target / "_delta_log" / f"{1:020d}.json").write_bytes(content)
    table, epochs = place.verify()
    assert ["no longer has what the sink put there" in why for why in table] == [True]
    assert (list(epochs), "overwritten by another writer" in epochs["2"][0]) == (["2"], True)


def test_a_table_whose_log_was_cleaned_up_by_others_is_whole_and_goes_on(tmp_path: Path) -> None:
    """A checkpoint of the log has the sink's transaction; the commit at that version is another writer's."""
    empty = pa.table({"id": pa.array([], pa.int64()), "city": pa.array([], pa.string())})
    write_deltalake(tmp_path / "t", empty)
    place = Place(tmp_path, existing="append")
    place.epochs(2)
    write_deltalake(place.target, DeltaTable(place.target).to_pyarrow_table(), mode="append")
    clean_up_log(str(place.target), before=3)
    table, epochs = place.verify()
    assert (table, list(epochs)) == ([], ["1"])
    assert "its history or files of it were removed" in epochs["1"][0]
    place.sink = delta(str(place.target), name="t")
    place.sink.bind(place.store, "t", ROWS)
    place.commit(stage(place.sink, "1-1-9-a", [9]))
    place.publish()
    assert DeltaTable(place.target).to_pyarrow_table().num_rows == 5


def test_partition_values_are_looked_up_in_their_encoded_form(tmp_path: Path) -> None:
    place = Place(tmp_path, partition_by="city")
    for number, city in enumerate(["a b", "x%3Ay", "ü", "a+b", "p%25q"]):
        folder = Path(place.sink.staging(f"1-1-{number}-a").removeprefix("file://")) / f"city={city}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"id": pa.array([number], pa.int64())}), folder / "part-0.parquet")
        place.commit(tuple(file.name for file in place.sink.staged(f"1-1-{number}-a")))
        place.publish()
    assert place.verify() == ([], {})


@pytest.mark.parametrize(
    ("source", "target"), [(2, 3), (1, 2), (2, 1)], ids=["one too many", "the newest", "an older one"]
)
def test_a_version_of_a_parquet_sink_in_the_place_of_another_is_detected(
    source: int, target: int, tmp_path: Path
) -> None:
    place = Place(tmp_path, "parquet")
    place.epochs(3)
    versions = place.target / "_cutwater" / "versions"
    (versions / f"{target:012d}.json").write_bytes((versions / f"{source:012d}.json").read_bytes())
    (why,) = place.verify()[0]
    assert f"{target:012d}.json in {place.target.as_uri()} is version {source}" in why


def test_other_files_next_to_the_versions_of_a_parquet_sink_are_ignored(tmp_path: Path) -> None:
    place = Place(tmp_path, "parquet")
    place.epochs(2)
    (place.target / "_cutwater" / "versions" / "README.txt").write_text("what is this?")
    assert place.verify() == ([], {})


def test_a_table_whose_newest_version_is_missing_can_be_rewound(tmp_path: Path) -> None:
    place = Place(tmp_path, "parquet")
    place.epochs(3)
    (place.target / "_cutwater" / "versions" / f"{2:012d}.json").unlink()
    table, epochs = place.verify()
    assert (len(table), list(epochs)) == (1, ["3"])
    place.leader.restore(2)
    place.sink = parquet(str(place.target), name="t")
    place.sink.bind(place.store, "t", ROWS)
    place.publish()
    assert (place.verify(), place.sink.head().version) == (([], {"3": epochs["3"]}), 2)


@pytest.mark.parametrize("published", [False, True], ids=["staged", "shown"])
def test_statistics_that_would_hide_rows_are_detected(published: bool, tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.epochs(1)
    place.commit(stage(place.sink, "1-1-1-a", [1000, 1003, 1009]))
    if published:
        place.publish()
    assert place.verify()[0] == []
    file = next(place.target.rglob("1-1-1-a/*.parquet"))
    data = bytearray(file.read_bytes())
    footer = len(data) - int.from_bytes(data[-8:-4], "little") - 8
    highest = (1009).to_bytes(8, "little")
    at = data.find(highest, footer)
    while at >= 0:
        data[at + 1] ^= 2
        at = data.find(highest, at + 1)
    file.write_bytes(data)
    assert ["its statistics do not match the values of id" in why for why in place.verify()[0]] == [True]


def test_matching_statistics_are_accepted_for_all_kinds_of_values(tmp_path: Path) -> None:
    nan = float("nan")
    nested = pa.struct([("x", pa.int64()), ("y", pa.struct([("z", pa.string())]))])
    table = pa.table(
        {
            "text": ["ä", "z" * 9000, None],
            "number": pa.array([nan, -0.0, None]),
            "none": pa.array([nan, nan, nan]),
            "far": pa.array([10**7, -(10**7), None], pa.int32()).cast(pa.date32()),
            "time": pa.array([0, 1, None], pa.timestamp("us", tz="UTC")),
            "flag": [True, None, False],
            "list": [[1, 2], None, []],
            "nested": pa.array([{"x": 1, "y": {"z": "q"}}, None, {"x": None, "y": None}], nested),
            "nulls": pa.nulls(3, pa.int64()),
        }
    )
    pq.write_table(table, tmp_path / "f.parquet")
    assert check_pages(open_store(str(tmp_path)), "f.parquet") == 3


def test_a_damaged_newest_mark_is_reported_and_not_changed(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.epochs(2)
    name = place.store.list(mark_prefix("t"))[-1]
    damaged = (place.store.read(name) or b"").replace(b'"version":1', b'"version":0')
    place.store.put(name, damaged)
    table, epochs = place.verify()
    assert (table, list(epochs)) == ([], ["2"])
    assert place.store.read(name) == damaged
    said = CliRunner().invoke(app, ["verify", "--tables", "--store", str(tmp_path / "store")])
    assert (said.exit_code, name in said.stdout) == (1, True)
