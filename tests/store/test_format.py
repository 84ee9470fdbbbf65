"""A store records the version of its format, and a store with an unknown version is not touched."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import msgspec
import pytest
import typer
from typer.testing import CliRunner

import cutwater as cw
from cutwater.cli.main import app
from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.base.paths import FORMAT_NAME
from cutwater.protocol.base.records import seal
from cutwater.store import format as store_format
from cutwater.store.at_rest import read_journal
from cutwater.store.format import CURRENT, Format, FormatDamaged, check_format
from cutwater.store.opening import open_place, open_store
from tests.support.written import Written

STORES = Path(__file__).parents[1] / "support" / "stores"
PIPELINE = """
import cutwater as cw
pipeline = cw.Pipeline("p")

@pipeline.stage(sinks=[cw.parquet("out")])
def numbers(spark):
    raise AssertionError("must not be called")
"""
COMMANDS = {
    "status": [],
    "checkpoints": [],
    "show": ["latest"],
    "explain": ["1"],
    "tables": [],
    "checkpoint": [],
    "savepoint": ["name"],
    "restore": ["latest"],
    "cancel": [],
    "drain": [],
    "verify": [],
    "gc": [],
    "follow": [],
    "ui": [],
}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def newer(tmp_path: Path) -> Path:
    """A store with a pipeline, a future format version and an unknown field."""
    play = Written()
    play.checkpoint()
    play.write(tmp_path / "state")
    later = msgspec.defstruct("Later", [("version", int), ("since", str)])
    (tmp_path / "state" / FORMAT_NAME).write_bytes(seal(later(CURRENT + 1, "tomorrow")))
    return tmp_path / "state"


def test_a_new_store_records_its_version(tmp_path: Path) -> None:
    open_store(str(tmp_path / "state"), create=True)
    said = json.loads((tmp_path / "state" / FORMAT_NAME).read_bytes())
    assert said["version"] == CURRENT
    assert len(said["sum"]) == 64
    before = contents(tmp_path)
    open_store(str(tmp_path / "state"), create=True)
    open_store(str(tmp_path / "state"))
    assert contents(tmp_path) == before


def test_opening_a_store_for_reading_writes_no_version(tmp_path: Path) -> None:
    open_store(str(tmp_path))
    assert contents(tmp_path) == {}


def test_a_table_is_not_a_store_and_gets_no_version(tmp_path: Path) -> None:
    place = open_place(str(tmp_path), create=True)
    assert place.list("") == []
    place.create(FORMAT_NAME, b"something else")
    open_place(str(tmp_path))


@pytest.mark.parametrize("create", [True, False])
def test_the_check_costs_one_read(create: bool, tmp_path: Path) -> None:
    store = open_store(str(tmp_path), create=True)

    class Counting:
        url = store.url
        calls: list[str] = []  # noqa: RUF012

        def read(self, name: str) -> bytes | None:
            self.calls.append(f"read {name}")
            return store.read(name)

        def create(self, name: str, data: bytes) -> bool:
            self.calls.append(f"create {name}")
            return store.create(name, data)

    check_format(Counting(), create=create)
    assert Counting.calls == [f"read {FORMAT_NAME}"]


def test_if_two_processes_create_a_store_the_second_checks_the_version_of_the_first() -> None:
    class Raced:
        url = "raced"
        found: bytes | None = None

        def read(self, name: str) -> bytes | None:
            return self.found

        def create(self, name: str, data: bytes) -> bool:
            self.found = seal(Format(CURRENT + 1))
            return False

    with pytest.raises(StoreError, match=f"format version {CURRENT + 1}"):
        check_format(Raced(), create=True)


def test_a_failing_store_is_an_error_not_an_old_store() -> None:
    class Failing:
        url = "failing"

        def read(self, name: str) -> bytes | None:
            raise OSError("no route to host")

        def create(self, name: str, data: bytes) -> bool:
            raise AssertionError

    with pytest.raises(StoreError, match="cannot read the format version of failing: no route to host"):
        check_format(Failing(), create=True)


@pytest.mark.parametrize("version", [CURRENT + 1, 0, -1])
def test_an_unknown_version_is_refused_with_advice(version: int, tmp_path: Path) -> None:
    (tmp_path / FORMAT_NAME).write_bytes(seal(Format(version)))
    for create in (False, True):
        with pytest.raises(
            StoreError, match=f"has format version {version}, but this version .* reads only 1"
        ) as refused:
            open_store(str(tmp_path), create=create)
        assert "Use the version of Cutwater that wrote the store" in str(refused.value)
        assert "Nothing was changed" in str(refused.value)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_refuses_an_unknown_version_and_changes_nothing(name: str, newer: Path) -> None:
    before = contents(newer)
    found = CliRunner().invoke(app, [name, *COMMANDS[name], "--store", str(newer), "--json"])
    assert found.exit_code == 1
    assert f"has format version {CURRENT + 1}" in json.loads(found.stdout)["error"]
    assert contents(newer) == before


def test_the_list_has_every_command_with_a_store() -> None:
    group = typer.main.get_command(app)
    with_store = {
        name
        for name, command in group.commands.items()  # type: ignore[attr-defined]
        if any(parameter.name == "store" for parameter in command.params)
    }
    assert with_store - {"run", "doctor", "check"} == set(COMMANDS)


def test_the_doctor_names_an_unknown_version_and_changes_nothing(newer: Path) -> None:
    before = contents(newer)
    found = CliRunner().invoke(app, ["doctor", "--store", str(newer)])
    assert found.exit_code == 1
    assert f"has format version {CURRENT + 1}" in " ".join(found.stdout.split())
    assert contents(newer) == before


def test_a_run_refuses_an_unknown_version_and_changes_nothing(newer: Path, tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(PIPELINE)
    before = contents(newer)
    found = CliRunner().invoke(app, ["run", str(tmp_path / "p.py"), "--store", str(newer)])
    assert found.exit_code == 1
    assert f"has format version {CURRENT + 1}" in found.output
    with pytest.raises(StoreError, match="has format version"):
        cw.Pipeline("p").start(str(newer))
    with pytest.raises(StoreError, match="has format version"):
        cw.tables(str(newer))
    assert contents(newer) == before


@pytest.mark.parametrize("archive", ["before-checksums.tar.gz", "stopped.tar.gz"])
def test_a_store_without_a_version_has_version_1_and_continues(archive: str, tmp_path: Path) -> None:
    with tarfile.open(STORES / archive) as packed:
        packed.extractall(tmp_path, filter="data")
    (folder,) = [path.parent for path in tmp_path.rglob("journal")]
    assert not (folder / FORMAT_NAME).exists()
    assert read_journal(open_store(str(folder))).index > 0
    assert not (folder / FORMAT_NAME).exists()
    opened = open_store(str(folder), create=True)  # as a run that continues it does
    assert read_journal(opened).index > 0
    assert json.loads((folder / FORMAT_NAME).read_bytes())["version"] == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-10],
        lambda data: data.replace(b"1", b"7", 1),
        lambda data: b"\x00" * len(data),
        lambda data: b"[" * 10_000,
        lambda data: b'{"version":"one"}',
        lambda data: b"{}",
    ],
    ids=["empty", "cut off", "another number", "zeros", "deep", "no number", "no version"],
)
def test_a_damaged_version_is_an_error_that_names_it(damage: object, tmp_path: Path) -> None:
    store = tmp_path / "state"
    open_store(str(store), create=True)
    place = store / FORMAT_NAME
    place.write_bytes(damage(place.read_bytes()))  # type: ignore[operator]
    before = contents(store)
    for create in (False, True):
        with pytest.raises(FormatDamaged, match=r"format\.json in .* is damaged"):
            open_store(str(store), create=create)
    found = CliRunner().invoke(app, ["verify", "--store", str(store)])
    assert found.exit_code == 1
    assert "format.json" in found.output
    found = CliRunner().invoke(app, ["verify", "--store", str(store), "--json"])
    assert found.exit_code == 1
    assert json.loads(found.stdout)["damaged"] is True
    assert "format.json" in json.loads(found.stdout)["format"]
    assert contents(store) == before


def test_no_flipped_bit_goes_unnoticed() -> None:
    class Holding:
        url = "held"
        data = b""

        def read(self, name: str) -> bytes | None:
            return self.data

        def create(self, name: str, data: bytes) -> bool:
            raise AssertionError

    store, whole = Holding(), seal(Format(CURRENT))
    for place in range(len(whole)):
        for bit in range(8):
            store.data = whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :]
            with pytest.raises(StoreError):
                check_format(store, create=False)


def test_the_advice_for_a_damaged_version_works(tmp_path: Path) -> None:
    open_store(str(tmp_path), create=True)
    (tmp_path / FORMAT_NAME).write_bytes(b"?")
    (tmp_path / FORMAT_NAME).unlink()
    open_store(str(tmp_path), create=True)
    assert json.loads((tmp_path / FORMAT_NAME).read_bytes())["version"] == CURRENT


def test_the_current_version_is_readable() -> None:
    assert store_format.CURRENT in store_format.READABLE
