"""Records of sinks in the store: their ids and where they write to, each under its own name."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from cutwater.cli.main import app
from cutwater.protocol.base import paths
from cutwater.protocol.base import records as r
from cutwater.protocol.base.errors import StoreError, UserError
from cutwater.sinks import Sink, delta, foreach_epoch, parquet
from cutwater.sinks.records import Description, Identity, description, identity, kind_of
from cutwater.sinks.registry import find_version, open_sink, read_history
from cutwater.store.local import LocalStore
from cutwater.store.opening import open_store
from tests.support.live_leader import LiveLeader
from tests.support.sink_helpers import ROWS, publish, schema

KINDS: dict[str, Callable[..., Sink]] = {"delta": delta, "parquet": parquet}
TWO = r.Topology({"s": r.StageSpec("s", (), "main", (r.SinkSpec("t"), r.SinkSpec("u")))})


class Place:
    """A store and the targets of its sinks."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder, self.kind = folder, kind
        found = open_store(str(folder / "store"), create=True)
        assert isinstance(found, LocalStore)
        self.store = found

    def start(self, name: str, at: str | None = None, register: bool = True) -> Sink:
        sink = KINDS[self.kind](str(self.folder / (at or name)), name=name)
        sink.bind(self.store, name, ROWS, register)
        return sink

    def publish(self, name: str) -> None:
        version = publish(self.start(name), 5, [1])
        assert version is not None
        mark = r.Published(1, name, 5, version, 5, 1)
        self.store.create(paths.mark_name(5, name), r.seal(mark))

    def verify(self) -> str:
        result = CliRunner().invoke(app, ["verify", "--store", str(self.folder / "store"), "--json"])
        assert isinstance(result.exception, SystemExit | None), result.exception
        return result.output


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    made = Place(tmp_path, request.param)
    LiveLeader(made.store, TWO)
    for name in ("t", "u"):
        made.publish(name)
    return made


def test_a_lost_id_is_not_replaced_if_the_sink_has_published(place: Place) -> None:
    """With another id it would not know its own transactions, and a restore would not remove its rows."""
    assert "sinks/t.json" not in place.verify()
    place.store.delete(["sinks/t.json"])
    with pytest.raises(StoreError, match=r"sinks/t.json is gone.*--restore latest --drop t"):
        place.start("t")
    with pytest.raises(StoreError, match=r"sink t cannot be opened: sinks/t.json is gone"):
        open_sink(place.store, "t")
    assert "sinks/t.json is gone" in place.verify()
    place.store.delete(["sinks/t/description.json"])
    assert "sinks/t.json is gone" in place.verify()


def test_the_id_of_another_sink_is_not_used(place: Place) -> None:
    t, u = (place.store.read(f"sinks/{name}.json") for name in ("t", "u"))
    assert t is not None
    assert u is not None
    place.store.put("sinks/t.json", u)
    place.store.put("sinks/u.json", t)
    with pytest.raises(StoreError, match=r"sinks/t.json is the id of sink u"):
        place.start("t")
    assert "sinks/u.json is the id of sink t" in place.verify()


def test_the_description_of_another_sink_is_refused_and_can_be_removed(place: Place) -> None:
    t, u = (place.store.read(f"sinks/{name}/description.json") for name in ("t", "u"))
    assert t is not None
    assert u is not None
    place.store.put("sinks/t/description.json", u)
    place.store.put("sinks/u/description.json", t)
    with pytest.raises(StoreError, match=r"t/description.json describes sink u; remove it"):
        place.start("t")
    assert "sinks/u/description.json describes sink t" in place.verify()
    place.store.delete(["sinks/t/description.json", "sinks/u/description.json"])
    assert (place.start("t").head().transaction, place.start("u").head().transaction) == (5, 5)


def test_old_records_without_a_name_are_accepted(place: Place) -> None:
    own, known = identity(place.store, "t"), description(place.store, "t")
    assert own is not None
    assert known is not None
    place.store.put("sinks/t.json", r.seal(Identity(own)))
    place.store.put("sinks/t/description.json", r.seal(msgspec.structs.replace(known, sink="")))
    assert place.start("t").head().transaction == 5


def test_a_sink_that_has_published_cannot_change_its_path(place: Place) -> None:
    before = description(place.store, "t")
    with pytest.raises(UserError, match=r"a sink keeps its path.*a new name.*--restore latest --drop t"):
        place.start("t", "elsewhere")
    assert description(place.store, "t") == before
    assert place.start("t").head().transaction == 5


def test_a_sink_that_has_published_cannot_change_its_kind(place: Place) -> None:
    before = description(place.store, "t")
    with pytest.raises(UserError, match=r"a sink keeps its kind.*a new name.*--restore latest --drop t"):
        foreach_epoch(lambda rows, epoch: None, name="t").bind(
            place.store, "t", schema(id="long", city="string")
        )
    assert description(place.store, "t") == before
    assert place.start("t").head().transaction == 5


def test_a_function_that_has_published_is_not_followed_by_a_table_of_its_name(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "state"), create=True)
    columns = schema(id="long")
    foreach_epoch(lambda rows, epoch: None, name="t").bind(store, "t", columns)
    store.put(paths.mark_name(1, "t"), b"{}")
    with pytest.raises(UserError, match="is now of the kind delta, but has published as foreach_epoch"):
        delta(str(tmp_path / "t"), name="t").bind(store, "t", columns)


def test_a_sink_that_has_published_gets_advice_for_a_new_column_that_works_at_once(place: Place) -> None:
    more = schema(id="long", city="string", more="string")
    make = KINDS[place.kind]
    with pytest.raises(UserError) as refused:
        make(str(place.folder / "t")).bind(place.store, "t", more)
    said = str(refused.value)
    assert "give the sink another name and path and start with `--restore latest --drop t`" in said
    assert ("or the table" in said) == (place.kind == "delta"), "nobody can add a column to Parquet files"
    make(str(place.folder / "t2")).bind(place.store, "t2", more)


def test_a_sink_that_has_published_nothing_may_be_given_another_path(place: Place) -> None:
    place.store.delete([paths.mark_name(5, "t")])
    more = schema(id="long", city="string", more="string")
    make = KINDS[place.kind]
    with pytest.raises(UserError, match=r"give the sink another path$"):
        make(str(place.folder / "t")).bind(place.store, "t", more)
    make(str(place.folder / "elsewhere")).bind(place.store, "t", more)


def test_a_sink_continues_at_the_new_path_of_a_moved_target(place: Place) -> None:
    shutil.move(place.folder / "t", place.folder / "moved")
    assert place.start("t", "moved").head().transaction == 5
    assert open_sink(place.store, "t").head().transaction == 5


def test_a_moved_target_is_known_by_its_transactions_or_by_its_staged_files(place: Place) -> None:
    shutil.move(place.folder / "t", place.folder / "moved")
    own = place.folder / "moved" / "_cutwater" / str(identity(place.store, "t"))
    shutil.copytree(own, place.folder / "staged" / "_cutwater" / own.name)
    assert place.start("t", "staged", register=False).head().transaction == 0
    shutil.rmtree(own)
    assert place.start("t", "moved").head().transaction == 5


def test_a_refused_start_leaves_no_records_of_its_sinks(place: Place) -> None:
    fresh = place.start("fresh", "x", register=False)
    assert (description(place.store, "fresh"), identity(place.store, "fresh")) == (None, None)
    other = place.start("other", "x")
    assert isinstance(description(place.store, "other"), Description)
    assert fresh.head() == other.head()


def test_two_processes_that_register_a_sink_get_the_same_id(place: Place) -> None:
    sinks = [place.start("fresh", "x", register=False) for _ in range(2)]
    for sink in sinks:
        sink.register()
    assert sinks[0].staging("a") == sinks[1].staging("a")


def test_records_of_sinks_are_recognised_by_their_names() -> None:
    assert kind_of("sinks/out.json") is Identity
    assert kind_of("sinks/out/description.json") is Description
    assert kind_of("sinks/out/other.json") is None
    assert kind_of("sinks/notes.txt") is None


def test_a_sink_that_the_store_does_not_know_cannot_be_opened(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"), create=True)
    assert find_version(store, "out", 5) == 0, "old stores do not record sinks"
    assert read_history(store, "out", 5) is None
    with pytest.raises(StoreError, match="does not record where sink out writes to"):
        open_sink(store, "out")
    for what in (Description("iceberg", "/x", sink="out"), Description("delta", None, sink="out")):
        store.put("sinks/out/description.json", r.seal(what))
        with pytest.raises(StoreError, match=f"sink out is a '{what.kind}', which this version"):
            open_sink(store, "out")
    store.put("sinks/out/description.json", b"no")
    with pytest.raises(StoreError, match="remove it: the next run of the pipeline writes it again"):
        open_sink(store, "out")


def test_a_sink_opened_by_name_has_that_name(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"), create=True)
    parquet(str(tmp_path / "rows")).bind(store, "out", ROWS)
    assert open_sink(store, "out").name == "out"
