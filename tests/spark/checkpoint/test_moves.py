"""Positions and state move with the stages of a query, and nothing else does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from cutwater.protocol.base.errors import UserError
from cutwater.protocol.base.paths import spark_prefix
from cutwater.protocol.base.records import (
    ChainedStage,
    Checkpoint,
    Manifest,
    StageReport,
    StageSpec,
    Topology,
)
from cutwater.protocol.base.watermark import NONE, known
from cutwater.spark.checkpoint.leaves import Leaf, native_leaf
from cutwater.spark.checkpoint.moves import Move, plan_move, write_move
from cutwater.spark.checkpoint.new_folder import make_folder
from cutwater.spark.checkpoint.offsets import parse_offsets
from cutwater.store.local import LocalStore
from cutwater.store.opening import open_store

TARGET = Checkpoint(7, 70, 1, 70, 0, "", None, {}, None)
STATE = "state/0/0/6.delta"


def source(path: str, log: int, stage: str = "") -> Leaf:
    return msgspec.structs.replace(native_leaf("parquet", (("path", path),), [], log), stage=stage)


def at(entry: int) -> str:
    return f'{{"logOffset":{entry}}}'


class Cut:
    """A checkpoint of queries that have run: their folders, and their parts."""

    def __init__(self, folder: Path) -> None:
        store = open_store(str(folder), create=True)
        assert isinstance(store, LocalStore)
        self.store = store
        self.reports: dict[str, StageReport] = {}
        self.chained: dict[str, ChainedStage] = {}

    def query(
        self,
        name: str,
        batch: int,
        leaves: list[Leaf],
        positions: list[str],
        state: bool = False,
        consumed: dict[str, int] | None = None,
        record: bool = True,
    ) -> None:
        """Its sources have read one file per batch, up to their position."""
        prefix = spark_prefix(name, 1, 1)
        files: dict[str, bytes] = {"metadata": msgspec.json.encode({"id": f"of {name}"})}
        files["cutwater/base.json"] = b'{"base":-1}'
        if record:
            files["cutwater/sources.json"] = msgspec.json.encode(leaves)
        for number in (batch - 1, batch):
            meta = f'{{"batchWatermarkMs":{number},"batchTimestampMs":9,"conf":{{"of":"{name}"}}}}'
            files[f"offsets/{number}"] = "\n".join(["v1", meta, *positions]).encode()
        files[f"commits/{batch}"] = b'v1\n{"nextBatchWatermarkMs":0}'
        for leaf, position in zip(leaves, positions, strict=True):
            for entry in range(msgspec.json.decode(position)["logOffset"] + 1 if leaf.log is not None else 0):
                line = {
                    "path": f"file://{leaf.place.removeprefix('path=')}/{entry}",
                    "timestamp": 1,
                    "batchId": entry,
                }
                files[f"sources/{leaf.log}/{entry}"] = b"v1\n" + msgspec.json.encode(line)
        if state:
            files[STATE] = f"state of {name}".encode()
        for file, data in files.items():
            self.store.create(prefix + file, data)
        names = {prefix + file: self.store.checksum(prefix + file) or "" for file in files}
        offsets: dict[str, Any] = {str(n): p for n, p in enumerate(positions) if leaves[n].log is not None}
        self.reports[name] = StageReport(
            name, 1, batch, False, names, consumed=consumed or {}, offsets=offsets,
            watermark=known(batch) if state else NONE,
        )  # fmt: skip

    def chain(self, name: str, reader: str, *inputs: str) -> None:
        self.chained[name] = ChainedStage(name, inputs, reader, "columns")

    @property
    def manifest(self) -> Manifest:
        return Manifest(7, 70, 1, 1, 0, None, "", self.reports, (), {}, {}, None, self.chained)

    def plan(self, graph: Topology, query: str, *leaves: Leaf, reset: tuple[str, ...] = ()) -> Move:
        return plan_move(self.store, self.manifest, graph, query, leaves, reset)

    def files(self, report: StageReport) -> dict[str, bytes]:
        """What a folder is rebuilt from, by name in the folder; checks that it can be."""
        found = {}
        for name, checksum in report.state.items():
            assert self.store.checksum(name) == checksum
            found[name.partition("state/")[2].partition("/")[2]] = self.store.read(name) or b""
        return found


def graph(chained: dict[str, str], **inputs: str) -> Topology:
    """Stages with the channels that their queries read; and those that are chained, with their readers."""
    stages = {n: StageSpec(n, tuple(i.split()), "main") for n, i in inputs.items()}
    return Topology(stages, {n: ChainedStage(n, (), reader) for n, reader in chained.items()})


@pytest.fixture
def cut(tmp_path: Path) -> Cut:
    return Cut(tmp_path / "state")


def together(cut: Cut, state: bool = True) -> None:
    """`raw` and `more` read files inside the query of `total`, which keeps state and has files of its own."""
    leaves = [source("/own", 0), source("/in", 1, "raw"), source("/more", 2, "more")]
    cut.query("total", 5, leaves, [at(0), at(3), at(1)], state=state)
    cut.chain("raw", "total")
    cut.chain("more", "total")


def apart(cut: Cut) -> None:
    """The same, each in a query of its own."""
    cut.query("raw", 8, [source("/in", 0)], [at(3)])
    cut.query("more", 9, [source("/more", 0)], [at(1)])
    channels = [source("/own", 0), Leaf(channel="raw"), Leaf(channel="more")]
    positions = [at(0), '{"channel":"raw","batch":8}', '{"channel":"more","batch":9}']
    cut.query("total", 5, channels, positions, state=True, consumed={"raw": 8, "more": 9})


def test_a_stage_that_is_split_off_begins_where_its_sources_were(cut: Cut) -> None:
    together(cut)
    split = graph({}, raw="", more="", total="raw more")
    move = cut.plan(split, "more", source("/more", 0))
    report = write_move(cut.store, TARGET, move)
    assert move.is_fresh
    assert (report.stage, report.batch, report.consumed) == ("more", 5, {})
    assert (report.offsets, report.watermark) == ({"0": at(1)}, NONE)
    files = cut.files(report)
    assert parse_offsets("", files["offsets/0"]).sources == (at(1),)
    assert sorted(n for n in files if n.startswith("sources/")) == ["sources/0/0", "sources/0/1"]
    assert b"/more/1" in files["sources/0/1"]
    assert msgspec.json.decode(files["metadata"])["id"] != "of total", (
        "of two queries with one id Spark stops one"
    )
    assert STATE not in files


def test_the_query_that_stays_keeps_its_state_and_reads_channels_from_the_cut_on(cut: Cut) -> None:
    together(cut)
    split = graph({}, raw="", more="", total="raw more")
    move = cut.plan(split, "total", source("/own", 0), Leaf(channel="raw"), Leaf(channel="more"))
    report = write_move(cut.store, TARGET, move)
    assert not move.is_fresh
    assert (report.batch, report.consumed, report.watermark) == (5, {"raw": 5, "more": 5}, known(5))
    assert report.offsets == {"0": at(0)}
    files = cut.files(report)
    for number in (4, 5):
        plan = parse_offsets("", files[f"offsets/{number}"])
        assert plan.sources == (at(0), '{"channel":"raw","batch":5}', '{"channel":"more","batch":5}')
        assert (plan.watermark_ms, plan.conf) == (number, {"of": "total"})
    assert sorted(n for n in files if n.startswith("sources/")) == ["sources/0/0"]
    assert files[STATE] == b"state of total"
    assert msgspec.json.decode(files["metadata"])["id"] == "of total"


def test_the_log_of_a_source_gets_the_number_that_the_new_plan_gives_it(cut: Cut) -> None:
    together(cut, state=False)
    leaves = source("/in", 0, "raw"), source("/own", 1), source("/more", 2, "more")
    chained = graph({"raw": "total", "more": "total"}, total="")
    files = cut.files(write_move(cut.store, TARGET, cut.plan(chained, "total", *leaves)))
    assert b"/in/3" in files["sources/0/3"]
    assert b"/own/0" in files["sources/1/0"]


def test_queries_are_merged_into_the_one_with_state(cut: Cut) -> None:
    apart(cut)
    merged = graph({"raw": "total", "more": "total"}, total="")
    leaves = source("/own", 0), source("/in", 1, "raw"), source("/more", 2, "more")
    report = write_move(cut.store, TARGET, cut.plan(merged, "total", *leaves))
    assert (report.batch, report.consumed) == (5, {})
    assert report.offsets == {"0": at(0), "1": at(3), "2": at(1)}
    files = cut.files(report)
    assert parse_offsets("", files["offsets/5"]).sources == (at(0), at(3), at(1))
    assert b"/in/3" in files["sources/1/3"]
    assert b"/more/1" in files["sources/2/1"]
    assert files[STATE] == b"state of total"
    assert msgspec.json.decode(files["cutwater/sources.json"], type=list[Leaf]) == list(leaves)


def test_a_split_and_a_merge_lead_back_to_the_same_folder(cut: Cut) -> None:
    together(cut)
    leaves = source("/own", 0), source("/in", 1, "raw"), source("/more", 2, "more")
    before = {n.partition("/spark/1/")[2]: cut.store.read(n) for n in cut.reports["total"].state}
    split = graph({}, raw="", more="", total="raw more")
    moved = {
        "raw": cut.plan(split, "raw", source("/in", 0)),
        "more": cut.plan(split, "more", source("/more", 0)),
        "total": cut.plan(split, "total", source("/own", 0), Leaf(channel="raw"), Leaf(channel="more")),
    }
    cut.reports = {name: write_move(cut.store, TARGET, move) for name, move in moved.items()}
    cut.chained = {}
    merged = graph({"raw": "total", "more": "total"}, total="")
    after = cut.files(write_move(cut.store, TARGET, cut.plan(merged, "total", *leaves)))
    assert after == before


def test_spark_starts_from_what_was_moved(cut: Cut, tmp_path: Path) -> None:
    apart(cut)
    merged = graph({"raw": "total", "more": "total"}, total="")
    leaves = source("/own", 0), source("/in", 1, "raw"), source("/more", 2, "more")
    report = write_move(cut.store, TARGET, cut.plan(merged, "total", *leaves))
    make_folder(cut.store, "total", 2, 3, None, report)
    names = set(cut.store.list(spark_prefix("total", 2, 3)))
    assert {spark_prefix("total", 2, 3) + n for n in ("offsets/5", "sources/2/1", STATE, "metadata")} <= names
    other = Cut(tmp_path / "other")
    together(other)
    split = graph({}, raw="", more="", total="raw more")
    fresh = write_move(other.store, TARGET, other.plan(split, "raw", source("/in", 0)))
    make_folder(other.store, "raw", 2, 3, None, fresh, reset=True)
    plan = other.store.read(spark_prefix("raw", 2, 3) + "offsets/-1")
    assert parse_offsets("", plan or b"").sources == (at(3),)
    assert other.store.read(spark_prefix("raw", 2, 3) + "cutwater/base.json") is not None


# --- what cannot move -----------------------------------------------------------------------------------


def test_two_queries_with_state_cannot_be_merged(cut: Cut) -> None:
    cut.query("raw", 8, [source("/in", 0)], [at(3)], state=True)
    cut.query(
        "total", 5, [Leaf(channel="raw")], ['{"channel":"raw","batch":8}'], state=True, consumed={"raw": 8}
    )
    with pytest.raises(UserError, match=r"stage 'raw' has state, .* --reset raw"):
        cut.plan(graph({"raw": "total"}, total=""), "total", source("/in", 0, "raw"))


def test_a_new_stage_cannot_begin_inside_a_query_that_has_run(cut: Cut) -> None:
    together(cut)
    with pytest.raises(UserError, match="stage 'new' is new, and has no position in what it reads"):
        cut.plan(graph({"new": "total"}, total=""), "total", source("/new", 0, "new"))


def test_a_source_without_a_position_is_refused(cut: Cut) -> None:
    together(cut)
    split = graph({}, raw="", more="", total="raw more")
    with pytest.raises(
        UserError, match=r"'raw' reads the source parquet \(path=/b\), in which the checkpoint has no"
    ):
        cut.plan(split, "raw", source("/in", 0), source("/b", 1))
    with pytest.raises(
        UserError, match=r"reads the source parquet \(path=/other\), but its position is that of"
    ):
        cut.plan(split, "raw", source("/other", 0))


def test_a_folder_without_a_record_of_its_sources_cannot_be_divided(cut: Cut) -> None:
    cut.query("total", 5, [source("/in", 0, "raw")], [at(3)], record=False)
    cut.chain("raw", "total")
    with pytest.raises(UserError, match="an older version wrote no record of what stage 'total' reads"):
        cut.plan(graph({}, raw="", total="raw"), "raw", source("/in", 0))


def test_a_stage_that_is_split_off_may_not_read_another_stage_than_before(cut: Cut) -> None:
    cut.query("x", 4, [source("/x", 0)], [at(4)])
    cut.query("y", 6, [source("/y", 0)], [at(6)])
    cut.query("out", 5, [Leaf(channel="x")], ['{"channel":"x","batch":4}'], consumed={"x": 4})
    cut.chain("c", "out", "x")
    split = graph({}, x="", y="", c="y", out="c")
    with pytest.raises(UserError, match=r"stage 'c' reads y, and read x at epoch 7.* --reset c"):
        cut.plan(split, "c", Leaf(channel="y"))
    assert cut.plan(split, "c", Leaf(channel="y"), reset=("c",)).report.consumed == {"y": 6}
    assert cut.plan(graph({}, x="", c="x", out="c"), "c", Leaf(channel="x")).report.consumed == {"x": 4}


def test_stages_that_share_a_source_at_different_positions_cannot_be_merged(cut: Cut) -> None:
    cut.query("raw", 8, [source("/in", 0)], [at(6)])
    cut.query("more", 9, [source("/in", 0)], [at(1)])
    positions = ['{"channel":"raw","batch":8}', '{"channel":"more","batch":9}']
    cut.query(
        "total", 5, [Leaf(channel="raw"), Leaf(channel="more")], positions, consumed={"raw": 8, "more": 9}
    )
    merged = graph({"raw": "total", "more": "total"}, total="")
    with pytest.raises(UserError, match=r"'more' and another one share the source parquet \(path=/in\)"):
        cut.plan(merged, "total", source("/in", 0, "raw"), source("/in", 0, "more"))
    apart = source("/in", 0, "raw"), source("/in", 1, "more")
    assert cut.plan(merged, "total", *apart).report.offsets == {"0": at(6), "1": at(1)}


def test_a_kafka_source_without_a_first_record_is_not_merged(cut: Cut) -> None:
    """`startingOffsets=latest` would be resolved again."""
    topic = Leaf(None, "kafka", "subscribe=t", log=1, stage="raw")
    cut.query("total", 5, [source("/own", 0), source("/more", 1, "more")], [at(0), at(1)], state=True)
    cut.chain("more", "total")
    cut.reports["raw"] = StageReport("raw", 0, -1, False, {}, consumed={}, offsets={}, watermark=NONE)
    merged = graph({"raw": "total", "more": "total"}, total="")
    with pytest.raises(UserError, match=r"has read nothing of the source kafka .*after its first records"):
        cut.plan(merged, "total", source("/own", 0), topic, source("/more", 2, "more"), reset=("total",))


def joined(cut: Cut) -> None:
    """`total` joins two stages that run in its query, and keeps both sides as state."""
    cut.query("total", 5, [source("/in", 0, "raw"), source("/more", 1, "more")], [at(3), at(1)], state=True)
    cut.chain("raw", "total")
    cut.chain("more", "total")


def test_the_sides_of_a_join_are_not_swapped_while_a_chain_is_divided(cut: Cut) -> None:
    joined(cut)
    split = graph({}, raw="", more="", total="raw more")
    swapped = Leaf(channel="more"), Leaf(channel="raw")
    with pytest.raises(
        UserError, match="in the order more, raw, and read them in the order raw, more at epoch 7"
    ):
        cut.plan(split, "total", *swapped)
    assert cut.plan(split, "total", *swapped, reset=("total",)).report.consumed == {"raw": 5, "more": 5}
    assert cut.plan(split, "total", *reversed(swapped)).report.consumed == {"raw": 5, "more": 5}


def test_the_sides_of_a_join_are_known_by_its_inputs_and_not_by_what_is_below_them(cut: Cut) -> None:
    """`raw` reads `deep`; when all of them run in one query, the source of `deep` stands where the channel was."""
    cut.query("deep", 8, [source("/in", 0)], [at(3)])
    cut.query("raw", 4, [Leaf(channel="deep")], ['{"channel":"deep","batch":8}'], consumed={"deep": 8})
    cut.query("more", 9, [source("/more", 0)], [at(1)])
    channels = [Leaf(channel="raw"), Leaf(channel="more")]
    positions = ['{"channel":"raw","batch":4}', '{"channel":"more","batch":9}']
    cut.query("total", 5, channels, positions, state=True, consumed={"raw": 4, "more": 9})
    stages = {"total": StageSpec("total", (), "main")}
    inputs = {"deep": ((), "raw"), "raw": (("deep",), "total"), "more": ((), "total")}
    merged = Topology(stages, {n: ChainedStage(n, i, reader) for n, (i, reader) in inputs.items()})
    leaves = source("/in", 0, "deep"), source("/more", 1, "more")
    assert cut.plan(merged, "total", *leaves).report.offsets == {"0": at(3), "1": at(1)}
    with pytest.raises(UserError, match="in the order more, raw, and read them in the order raw, more"):
        cut.plan(merged, "total", source("/more", 0, "more"), source("/in", 1, "deep"))


def test_files_at_another_path_are_refused_before_a_chain_is_divided(cut: Cut) -> None:
    together(cut)
    split = graph({}, raw="", more="", total="raw more")
    elsewhere = msgspec.structs.replace(source("/in", 0), absolute="file:/new/in")
    with pytest.raises(
        UserError, match=r"stage 'raw' cannot start from epoch 7: .*a folder has moved.*Move the files"
    ):
        cut.plan(split, "raw", elsewhere)
    there = msgspec.structs.replace(source("/in", 0), absolute="file:/in")
    assert cut.plan(split, "raw", there).report.offsets == {"0": at(3)}


def within(leaf: Leaf, stage: str) -> Leaf:
    return msgspec.structs.replace(leaf, stage=stage, by_border=True)


def diamond(chained: bool = True) -> Topology:
    """`b` and `c` read `a`, and `d` joins them."""
    if not chained:
        return graph({}, a="", b="a", c="a", d="b c")
    stages = {"a": StageSpec("a", (), "main"), "d": StageSpec("d", ("a",), "main")}
    return Topology(stages, {name: ChainedStage(name, ("a",), "d") for name in "bc"})


A_OF_B, A_OF_C = within(Leaf(channel="a"), "b"), within(Leaf(channel="a"), "c")


def joined_diamond(cut: Cut, leaves: list[Leaf], chained: bool = True) -> None:
    """It has run, and `d` has state. `leaves`: what `d` reads."""
    cut.query("a", 8, [source("/in", 0)], [at(3)])
    position = '{"channel":"a","batch":8}'
    if chained:
        cut.query("d", 5, leaves, [position, position], state=True, consumed={"a": 8})
        for name in "bc":
            cut.chain(name, "d", "a")
        return
    for name, batch in (("b", 6), ("c", 7)):
        cut.query(name, batch, [Leaf(channel="a")], [position], consumed={"a": 8})
    positions = ['{"channel":"b","batch":6}', '{"channel":"c","batch":7}']
    cut.query("d", 5, leaves, positions, state=True, consumed={"b": 6, "c": 7})


def test_a_diamond_with_state_is_divided(cut: Cut) -> None:
    joined_diamond(cut, [A_OF_B, A_OF_C])
    sides = Leaf(channel="b"), Leaf(channel="c")
    assert cut.plan(diamond(False), "d", *sides).report.consumed == {"b": 5, "c": 5}
    assert cut.plan(diamond(False), "b", Leaf(channel="a")).report.consumed == {"a": 8}
    with pytest.raises(UserError, match="in the order c, b, and read them in the order b, c at epoch 7"):
        cut.plan(diamond(False), "d", *reversed(sides))


def test_a_diamond_with_state_is_chained(cut: Cut) -> None:
    joined_diamond(cut, [Leaf(channel="b"), Leaf(channel="c")], chained=False)
    report = write_move(cut.store, TARGET, cut.plan(diamond(), "d", A_OF_B, A_OF_C))
    assert report.consumed == {"a": 8}
    record = cut.files(report)["cutwater/sources.json"]
    assert msgspec.json.decode(record, type=list[Leaf]) == [A_OF_B, A_OF_C]
    with pytest.raises(UserError, match="in the order c, b, and read them in the order b, c at epoch 7"):
        cut.plan(diamond(), "d", A_OF_C, A_OF_B)


def test_a_diamond_of_one_source_is_divided_with_its_sides_where_they_were(cut: Cut) -> None:
    sides = [within(source("/in", 0), "b"), within(source("/in", 0), "c")]
    cut.query("d", 5, sides, [at(3), at(3)], state=True)
    cut.chain("b", "d")
    cut.chain("c", "d")
    split = graph({}, b="", c="", d="b c")
    assert cut.plan(split, "c", source("/in", 0)).report.offsets == {"0": at(3)}
    assert cut.plan(split, "d", Leaf(channel="b"), Leaf(channel="c")).report.consumed == {"b": 5, "c": 5}
    with pytest.raises(UserError, match="in the order c, b, and read them in the order b, c"):
        cut.plan(split, "d", Leaf(channel="c"), Leaf(channel="b"))


def test_other_queries_with_the_same_channel_do_not_matter(cut: Cut) -> None:
    """`b` reads `a` inside another query."""
    cut.query("a", 8, [source("/in", 0)], [at(3)])
    channels = [within(Leaf(channel="a"), "c"), within(Leaf(channel="x"), "y")]
    positions = ['{"channel":"a","batch":8}', '{"channel":"x","batch":2}']
    cut.query("d", 5, channels, positions, state=True, consumed={"a": 8, "x": 2})
    cut.query("x", 2, [source("/x", 0)], [at(2)])
    cut.query("e", 4, [within(Leaf(channel="a"), "b")], positions[:1], consumed={"a": 8})
    for name, reader, read in (("b", "e", "a"), ("c", "d", "a"), ("y", "d", "x")):
        cut.chain(name, reader, read)
    inputs = {"a": "", "x": "", "b": "a", "c": "a", "y": "x", "d": "c y", "e": "b"}
    move = cut.plan(graph({}, **inputs), "d", Leaf(channel="c"), Leaf(channel="y"))
    assert move.report.consumed == {"c": 5, "y": 5}


# --- records of older versions --------------------------------------------------------------------------


def test_an_older_record_says_which_stage_reads_a_channel_if_only_one_does(cut: Cut) -> None:
    cut.query("x", 4, [source("/x", 0)], [at(4)])
    cut.query("a", 8, [source("/in", 0)], [at(3)])
    positions = ['{"channel":"a","batch":8}', '{"channel":"x","batch":4}']
    leaves = [Leaf(channel="a"), Leaf(channel="x")]
    cut.query("d", 5, leaves, positions, state=True, consumed={"a": 8, "x": 4})
    cut.chain("b", "d", "a")
    cut.chain("c", "d", "x")
    split = graph({}, a="", x="", b="a", c="x", d="b c")
    assert cut.plan(split, "d", Leaf(channel="b"), Leaf(channel="c")).report.consumed == {"b": 5, "c": 5}


def test_an_older_record_of_a_diamond_with_state_does_not_say_which_side_is_which(cut: Cut) -> None:
    joined_diamond(cut, [Leaf(channel="a"), Leaf(channel="a")])
    sides = Leaf(channel="b"), Leaf(channel="c")
    with pytest.raises(UserError, match=r"no record of which stage reads the channel 'a' first.*--reset d"):
        cut.plan(diamond(False), "d", *sides)
    assert cut.plan(diamond(False), "d", *sides, reset=("d",)).report.consumed == {"b": 5, "c": 5}
    assert cut.plan(diamond(False), "b", Leaf(channel="a")).report.consumed == {"a": 8}


def test_an_older_record_may_have_an_observation_of_the_users_instead_of_a_stage(cut: Cut) -> None:
    cut.query("raw", 8, [source("/in", 0, "orders")], [at(3)])
    cut.query("total", 5, [Leaf(channel="raw")], ['{"channel":"raw","batch":8}'], consumed={"raw": 8})
    merged = graph({"raw": "total"}, total="")
    assert cut.plan(merged, "total", within(source("/in", 0), "raw")).report.offsets == {"0": at(3)}


def test_an_observation_is_not_taken_for_one_of_several_stages(cut: Cut) -> None:
    cut.query("total", 5, [source("/in", 0, "the day")], [at(3)])
    cut.chain("raw", "total")
    with pytest.raises(
        UserError,
        match=r"recorded 'the day', which the code observes, .* reads the source parquet \(path=/in\)\.",
    ):
        cut.plan(graph({}, raw="", total="raw"), "raw", source("/in", 0))
