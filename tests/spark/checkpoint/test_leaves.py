"""A position is used only for the source or the channel that it belongs to."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession

import cutwater as cw
from cutwater.protocol.base.errors import StoreError, UserError
from cutwater.protocol.base.paths import SOURCES
from cutwater.protocol.base.records import StageReport
from cutwater.protocol.base.watermark import NONE
from cutwater.spark.checkpoint.folder import Cache
from cutwater.spark.checkpoint.leaves import Leaf, SourcesChanged, native_leaf, parse_leaves, refuse_changed
from cutwater.spark.checkpoint.new_folder import claim_sources, make_folder, newly_read, refuse_other_sources
from cutwater.spark.checkpoint.stage_files import find_state
from cutwater.spark.plan import read_plan
from cutwater.store.opening import open_store
from tests.support.modelled_folder import STAGE, Query
from tests.support.spark_helpers import NUMBERS, deliver, numbers, rows_of

LEFT, RIGHT = Leaf(None, "parquet", "path=/left", log=0), Leaf(None, "parquet", "path=/right", log=1)
A, B = Leaf(channel="a"), Leaf(channel="b")
FILES = '{"logOffset":4}'


def at(channel: str) -> str:
    return json.dumps({"channel": channel, "batch": 3, "incarnation": 2})


def swapped(first: Leaf, second: Leaf) -> list[Leaf]:
    """The plan with its sides swapped; logs are numbered in plan order."""
    return [
        Leaf(leaf.channel, leaf.format, leaf.place, leaf.digests, log)
        for log, leaf in enumerate((second, first))
    ]


def test_unchanged_sources_are_accepted() -> None:
    refuse_changed([LEFT, RIGHT, A], [FILES, None, at("a")], [LEFT, RIGHT, A])
    refuse_changed(None, [FILES, at("a")], [LEFT, A])


def test_swapped_sides_are_refused() -> None:
    with pytest.raises(
        SourcesChanged, match=r"reads .*path=/right.*, but its position is that of .*path=/left"
    ):
        refuse_changed([LEFT, RIGHT], [FILES, FILES], swapped(LEFT, RIGHT))
    with pytest.raises(
        SourcesChanged, match="reads the channel 'b', but its position is that of the channel 'a'"
    ):
        refuse_changed([A, B], [at("a"), at("b")], [B, A])


def chained(leaf: Leaf, stage: str) -> Leaf:
    """A leaf below the border of a stage, as a plan has it."""
    return msgspec.structs.replace(leaf, stage=stage, by_border=True)


@pytest.mark.parametrize(
    ("leaf", "position", "says"),
    [
        (A, at("a"), r"reads the channel 'a' in stage 'c'.* that of the channel 'a' in stage 'b'"),
        (LEFT, FILES, r"the source parquet \(path=/left\) of stage 'c'.* of stage 'b'"),
        (Leaf(None, "kafka", "subscribe=t", log=0), "{}", r"\(subscribe=t\) of stage 'c'.* of stage 'b'"),
    ],
    ids=["channel", "files", "kafka"],
)
def test_swapped_sides_are_refused_if_two_chained_stages_read_the_same(
    leaf: Leaf, position: str, says: str
) -> None:
    b, c = chained(leaf, "b"), chained(leaf, "c")
    refuse_changed([b, c], [position, position], [b, c])
    with pytest.raises(SourcesChanged, match=f"{says} .number 1 of 2.*: state of the one would be used"):
        refuse_changed([b, c], [position, position], [c, b])
    with pytest.raises(SourcesChanged, match=says):
        refuse_changed([chained(leaf, "b")], [position], [chained(leaf, "c")])


def test_an_older_record_does_not_say_which_chained_stage_reads_a_channel() -> None:
    refuse_changed([A, A], [at("a")] * 2, [chained(A, "b"), chained(A, "c")])
    with pytest.raises(SourcesChanged, match=r"the channel 'b' in stage 'y', but .* of the channel 'a'"):
        refuse_changed([A, B], [at("a"), at("b")], [chained(B, "y"), chained(A, "x")])
    with pytest.raises(SourcesChanged, match="that of the channel 'a' in stage 'b'"):
        refuse_changed([chained(A, "b")], [at("a")], [chained(A, "")])


@pytest.mark.parametrize("observed", ["orders", "the day"])
@pytest.mark.parametrize("stage", ["", "raw"])
def test_an_older_record_may_have_taken_an_observation_for_a_stage(observed: str, stage: str) -> None:
    """Its place in the plan was what counted, and counts on."""
    older = msgspec.structs.replace(LEFT, stage=observed)
    other = chained(RIGHT, "more" if stage else "")
    refuse_changed([older, other], [FILES, FILES], [chained(LEFT, stage), other])
    with pytest.raises(SourcesChanged, match="path=/right"):
        refuse_changed([older, other], [FILES, FILES], [other, chained(LEFT, stage)])
    with pytest.raises(SourcesChanged, match=f"is that of .* of stage '{observed}'"):
        refuse_changed([chained(LEFT, observed), other], [FILES, FILES], [chained(LEFT, stage), other])


def test_an_older_record_of_two_chained_stages_still_tells_them_apart() -> None:
    older = [msgspec.structs.replace(LEFT, stage=stage) for stage in ("b", "c")]
    b, c = chained(LEFT, "b"), chained(LEFT, "c")
    refuse_changed(older, [FILES, FILES], [b, c])
    with pytest.raises(SourcesChanged, match=r"of stage 'c'.* of stage 'b'"):
        refuse_changed(older, [FILES, FILES], [c, b])


@pytest.mark.parametrize("path", ["/x/../left", "/left/*", "left"])
def test_another_spelling_of_a_path_is_refused(path: str) -> None:
    """To Spark's file source, a file under another path is a new file, which it would read again."""
    spelled = native_leaf("parquet", [("path", path)], [], 0)
    with pytest.raises(SourcesChanged, match="its position is that of the source parquet"):
        refuse_changed([LEFT], [FILES], [spelled])
    for same in ("/left/", "file:/left", "file:///left"):
        refuse_changed([LEFT], [FILES], [native_leaf("parquet", [("path", same)], [], 0)])


def test_channels_can_be_distinguished_without_a_record() -> None:
    with pytest.raises(SourcesChanged, match="the channel 'b', but its position is that of the channel 'a'"):
        refuse_changed(None, [at("a"), at("b")], [B, A])
    with pytest.raises(
        SourcesChanged, match="the channel 'a', but its position is that of a source that is not"
    ):
        refuse_changed(None, [FILES, at("a")], [A, LEFT])
    with pytest.raises(SourcesChanged, match=r"/left\), but its position is that of the channel 'a'"):
        refuse_changed(None, [at("a"), FILES], [LEFT, A])


def test_added_and_removed_sources_are_refused() -> None:
    with pytest.raises(
        SourcesChanged, match=r"positions for .*left.* but now reads .*left.*right.* cannot be added"
    ):
        refuse_changed([LEFT], [FILES], [LEFT, RIGHT])
    with pytest.raises(SourcesChanged, match="positions for 2 sources, but now reads the channel 'a'"):
        refuse_changed(None, [at("a"), FILES], [A])
    with pytest.raises(SourcesChanged, match="path=/elsewhere"):
        refuse_changed([LEFT], [FILES], [Leaf(None, "parquet", "path=/elsewhere", log=0)])
    with pytest.raises(SourcesChanged):
        refuse_changed([LEFT, LEFT], [FILES, FILES], [LEFT, Leaf(None, "parquet", "path=/left", log=1)])


def native(format: str, log: int = 0, **options: str) -> Leaf:
    named = {name.replace("__", ".").lower(): value for name, value in options.items()}
    return native_leaf(format, sorted(named.items()), [], log)


def kafka(servers: str, log: int = 0, **options: str) -> Leaf:
    return native("kafka", log, kafka__bootstrap__servers=servers, subscribe="orders", **options)


def test_a_source_without_a_place_is_identified_by_its_options() -> None:
    one = native("mysource", url="one", numPartitions="2", password="x")
    refuse_changed([one], ["3"], [native("mysource", url="one", maxFilesPerTrigger="7", password="y")])
    with pytest.raises(
        SourcesChanged, match="the source mysource with another url than its position belongs to"
    ):
        refuse_changed([one], ["3"], [native("mysource", url="two")])
    slow, fast = native("rate", rowsPerSecond="1"), native("rate", 1, rowsPerSecond="9")
    refuse_changed([slow, fast], ["3", "4"], [slow, fast])
    with pytest.raises(SourcesChanged, match="with another rowspersecond"):
        refuse_changed([slow, fast], ["3", "4"], swapped(slow, fast))


def test_two_sources_in_one_place_are_distinguished_by_their_other_options() -> None:
    a, b = native("json", path="/in", pathGlobFilter="a*"), native("json", 1, path="/in", pathGlobFilter="b*")
    refuse_changed([a, b], [FILES, FILES], [a, b])
    with pytest.raises(
        SourcesChanged, match=r"path=/in\) with another pathglobfilter than its position belongs to"
    ):
        refuse_changed([a, b], [FILES, FILES], swapped(a, b))
    here, there = kafka("eu:9092"), kafka("us:9092", 1)
    refuse_changed([here, there], ["{}", "{}"], [here, there])
    with pytest.raises(SourcesChanged, match=r"another kafka\.bootstrap\.servers"):
        refuse_changed([here, there], ["{}", "{}"], swapped(here, there))


def test_pace_options_matter_only_if_nothing_else_distinguishes_two_sources() -> None:
    a, b = native("json", path="/in", pathGlobFilter="a*"), native("json", 1, path="/in", pathGlobFilter="b*")
    faster = native("json", path="/in", pathGlobFilter="a*", maxFilesPerTrigger="9")
    refuse_changed([a, b], [FILES, FILES], [faster, b])
    slow = native("json", path="/in", maxFilesPerTrigger="1")
    fast = native("json", 1, path="/in", maxFilesPerTrigger="9")
    with pytest.raises(SourcesChanged, match="another maxfilespertrigger"):
        refuse_changed([slow, fast], [FILES, FILES], swapped(slow, fast))


def test_the_options_of_a_single_source_in_its_place_may_change() -> None:
    refuse_changed([kafka("b1:9092,b2:9092")], ["{}"], [kafka("b3:9092", maxOffsetsPerTrigger="5")])
    twice = [kafka("b1:9092"), kafka("b1:9092")]
    refuse_changed(twice, ["{}", "{}"], [kafka("b2:9092"), kafka("b2:9092")])
    files = native("json", path="file:///in", pathGlobFilter="a*")
    refuse_changed([files], [FILES], [native("json", path="/in/", pathGlobFilter="*")])
    with pytest.raises(SourcesChanged, match=r"streamname=s\) with another region"):
        refuse_changed(
            [native("kinesis", streamName="s", region="a")],
            ["{}"],
            [native("kinesis", streamName="s", region="b")],
        )
    for name in ("catalog", "project", "namespace"):
        with pytest.raises(SourcesChanged, match=rf"table=t\) with another {name}"):
            refuse_changed(
                [native("mysource", 0, table="t", **{name: "a"})],
                ["3"],
                [native("mysource", 0, table="t", **{name: "b"})],
            )


def topics(value: str, log: int = 0, kind: str = "subscribe") -> Leaf:
    return native("kafka", log, kafka__bootstrap__servers="b1:9092", **{kind: value})


T1, T12 = '{"t1":{"0":5}}', '{"t1":{"0":5},"t2":{"0":7}}'


def test_a_list_of_topics_continues_in_every_spelling_and_with_more_topics() -> None:
    for now in ("t1,t2", "t2,t1", " t2 , t1", "t2,t3,t1"):
        refuse_changed([topics("t1,t2")], [T12], [topics(now)])
    refuse_changed([topics("t1")], [T1], [topics("t1,t3")])
    refuse_changed([topics('{"t1":[0]}', kind="assign")], [T1], [topics('{"t1": [1, 0]}', kind="assign")])


@pytest.mark.parametrize(
    ("before", "position", "now", "lost"),
    [
        (topics("t1,t2"), T12, topics("t1"), "'t2'"),
        (topics("t1,t2"), T12, topics("t1,t3"), "'t2'"),
        (topics("t1"), T12, topics("t1"), "'t2'"),  # t2 was added later
        (topics("t1,t2"), None, topics("t2"), "'t1'"),
        (
            topics('{"t1":[0,1]}', kind="assign"),
            T1,
            topics('{"t1":[0]}', kind="assign"),
            r"'t1' \(partition 1\)",
        ),
    ],
)
def test_a_list_that_loses_a_topic_is_refused(before: Leaf, position: str, now: Leaf, lost: str) -> None:
    with pytest.raises(SourcesChanged, match=rf"it has read {lost} in Kafka, .*can be added .* not removed"):
        refuse_changed([before], [position], [now])


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (topics("t1"), topics("t.*", kind="subscribepattern")),
        (topics("t.*", kind="subscribepattern"), topics("t1")),
        (topics("t.*", kind="subscribepattern"), topics("t1|t.*", kind="subscribepattern")),
        (topics("t1"), topics('{"t1":[0]}', kind="assign")),
        (topics("t1"), native("json", path="/in")),
    ],
)
def test_another_way_to_choose_topics_is_another_source(before: Leaf, now: Leaf) -> None:
    refuse_changed([before], [T1], [before])
    with pytest.raises(SourcesChanged, match="its position is that of the source kafka"):
        refuse_changed([before], [T1], [now])


def test_swapped_lists_of_topics_are_refused() -> None:
    positions = [T1, '{"t2":{"0":7}}']
    with pytest.raises(SourcesChanged, match="it has read 't1' in Kafka"):
        refuse_changed([topics("t1"), topics("t2", 1)], positions, [topics("t2"), topics("t1", 1)])


def test_an_old_record_is_accepted_if_it_is_unambiguous() -> None:
    placeless, file = (
        '{"format":"mysource","options":"3fa1","log":0}',
        '{"format":"json","place":"path=/in","log":1}',
    )
    old = parse_leaves("x", f"[{placeless},{file}]".encode())
    refuse_changed(old, ["1", FILES], [native("mysource", url="one"), native("json", 1, path="/in")])
    two = parse_leaves("x", f"[{file.replace('1', '0')},{file}]".encode())
    with pytest.raises(SourcesChanged, match=r"more than once.* does not say which"):
        refuse_changed(
            two,
            [FILES, FILES],
            [native("json", path="/in"), native("json", 1, path="/in", pathGlobFilter="b")],
        )


def test_secrets_are_not_recorded() -> None:
    leaf = native("mysource", token="t", kafka__sasl__jaas__config="j", url="https://me:pw@there")
    assert list(leaf.digests or ()) == ["url"]
    assert "pw" not in str(leaf)


def test_an_unreadable_record_is_named() -> None:
    with pytest.raises(StoreError, match=r"x/cutwater/sources\.json cannot be read"):
        parse_leaves("x/cutwater/sources.json", b'[{"log":')


def test_the_record_is_copied_with_the_state() -> None:
    store = open_store("memory://")
    make_folder(store, STAGE, 1, 1, None, None)
    claim_sources(store, STAGE, 1, 1, [LEFT])
    query = Query(store, 1).run(4)
    assert SOURCES in query.named(3)
    make_folder(store, STAGE, 1, 2, 1, None, 3)
    claim_sources(store, STAGE, 1, 2, [LEFT])
    with pytest.raises(SourcesChanged, match="path=/right"):
        claim_sources(store, STAGE, 1, 2, [Leaf(None, "parquet", "path=/right", log=0)])


def test_a_folder_without_positions_accepts_any_sources() -> None:
    store = open_store("memory://")
    make_folder(store, STAGE, 1, 1, None, None)
    claim_sources(store, STAGE, 1, 1, [LEFT])
    make_folder(store, STAGE, 1, 2, 1, None, -1)
    claim_sources(store, STAGE, 1, 2, [RIGHT])


def test_a_source_that_is_read_twice_has_one_log() -> None:
    store = open_store("memory://")
    make_folder(store, STAGE, 1, 1, None, None)
    claim_sources(store, STAGE, 1, 1, [LEFT, LEFT])
    query = Query(store, 1).run(4)
    for batch in range(4):
        query.put(f"offsets/{batch}", f'v1\n{{}}\n{{"logOffset":{batch}}}\n{{"logOffset":{batch}}}'.encode())
    assert find_state(store, STAGE, 1, 1, 3, None, Cache()) is not None
    make_folder(store, STAGE, 1, 2, 1, None, 3)
    assert Query(store, 2, batch=3).files() == [0, 1, 2, 3]


NATIVE, CHANNELS, MIXED = (LEFT,), (A, B), (LEFT, A)
DIAMOND = chained(A, "b"), chained(A, "c")
PLANS = [
    NATIVE, CHANNELS, MIXED, (A,), (B, A), (Leaf(None, "parquet", "path=/right", log=0),), DIAMOND, DIAMOND[::-1]
]  # fmt: skip


def refusal(ask: Callable[[], None]) -> SourcesChanged | None:
    try:
        ask()
    except SourcesChanged as error:
        return error
    return None


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("present", PLANS)
@pytest.mark.parametrize("recorded", [NATIVE, CHANNELS, MIXED, DIAMOND])
def test_a_checkpoint_refuses_the_sources_that_a_start_from_it_would_refuse(
    recorded: tuple[Leaf, ...], present: tuple[Leaf, ...], reset: bool
) -> None:
    store = open_store("memory://")
    make_folder(store, STAGE, 1, 1, None, None)
    claim_sources(store, STAGE, 1, 1, recorded)
    query = Query(store, 1).run(3)
    for batch in range(3):
        positions = [
            f'{{"logOffset":{batch}}}' if leaf.channel is None else at(leaf.channel) for leaf in recorded
        ]
        query.put(f"offsets/{batch}", "\n".join(["v1", "{}", *positions]).encode())
    state = find_state(store, STAGE, 1, 1, 2, None, Cache())
    assert state is not None
    consumed = {leaf.channel: 3 for leaf in recorded if leaf.channel is not None}
    offsets: dict[str, int | str] = {"0": FILES} if LEFT in recorded else {}
    report = StageReport(STAGE, 1, 2, False, consumed=consumed, offsets=offsets, watermark=NONE, state=state)
    before = store.list("")
    expected = refusal(lambda: refuse_other_sources(store, report, present, reset))
    assert store.list("") == before
    make_folder(store, STAGE, 2, 1, None, report, reset=reset)
    found = refusal(lambda: claim_sources(store, STAGE, 2, 1, present))
    keeps_positions = not reset or LEFT in recorded
    if present == recorded or not keeps_positions:
        assert expected is found is None
        return
    assert expected is not None
    assert found is not None
    assert str(expected) == str(found)
    reads_only_channels = all(leaf.channel for leaf in (*recorded, *present))
    assert expected.reset_helps == found.reset_helps == reads_only_channels


@pytest.mark.parametrize(
    ("recorded", "present", "unread"),
    [
        ((A,), (LEFT,), [LEFT]),
        ((A,), (LEFT, A), [LEFT]),
        ((A,), (B,), []),
        ((LEFT, A), (A, LEFT), []),
        (None, (A, LEFT), [LEFT]),
    ],
    ids=["instead of a channel", "beside it", "another channel", "as before", "old record"],
)
def test_a_reset_stage_reads_a_new_source_from_its_beginning(
    recorded: tuple[Leaf, ...] | None, present: tuple[Leaf, ...], unread: list[Leaf]
) -> None:
    """Without positions in sources of its own: a source that it read before has given nothing yet."""
    store = open_store("memory://")
    make_folder(store, STAGE, 1, 1, None, None)
    if recorded is not None:
        claim_sources(store, STAGE, 1, 1, recorded)
    query = Query(store, 1).run(1)
    query.put("offsets/0", "\n".join(["v1", "{}", *("-" for _ in recorded or present)]).encode())
    state = find_state(store, STAGE, 1, 1, 0, None, Cache())
    assert state is not None
    report = StageReport(STAGE, 1, 0, False, consumed={"a": 3}, offsets={}, watermark=NONE, state=state)
    assert newly_read(store, report, present) == unread
    with_positions = msgspec.structs.replace(report, offsets={"0": FILES})
    assert newly_read(store, with_positions, present) == []
    assert newly_read(store, msgspec.structs.replace(report, batch=-1), present) == []


def test_a_checkpoint_without_positions_accepts_any_sources() -> None:
    refuse_other_sources(
        open_store("memory://"),
        StageReport(STAGE, 1, -1, False, consumed={}, offsets={}, watermark=NONE, state={}),
        [LEFT],
        False,
    )


# --- with Spark -------------------------------------------------------------------------------------------


def read(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema(NUMBERS).option("maxFilesPerTrigger", 1).parquet(str(folder))


def test_logs_are_numbered_as_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("left", "right"):
        deliver(tmp_path / name, "0", numbers(range(5)))
    left, right = read(spark, tmp_path / "left"), read(spark, tmp_path / "right")
    again = read(spark, tmp_path / "left")
    other = left.alias("x").join(left.alias("y"), "id").select("id")
    rate = spark.readStream.format("rate").load().selectExpr("value id")
    plans = {
        "itself": left.union(left),
        "thrice": left.union(right).union(left),
        "again": left.union(again),
        "join": other,
        "kinds": rate.union(left.select("id")).union(right.select("id")),
    }

    def compute(rows: DataFrame, batch: int) -> None:
        rows.collect()

    for name, frame in plans.items():
        where = tmp_path / "checkpoints" / name
        query: Any = frame.writeStream.foreachBatch(compute).option("checkpointLocation", str(where))
        query.trigger(availableNow=True).start().awaitTermination()
        leaves = read_plan(frame).leaves
        lines = (where / "offsets/0").read_text().split("\n")[2:]
        assert len(lines) == len(leaves), name
        logs = {int(path.name): path for path in (where / "sources").iterdir()}
        assert set(logs) == {leaf.log for leaf in leaves}, name
        for leaf in leaves:
            if leaf.format == "parquet":
                assert leaf.log is not None
                folder = leaf.place.removeprefix("path=")
                assert f"file://{folder}/" in (logs[leaf.log] / "0").read_text(), (name, leaf)


def pipeline(tmp_path: Path, both: Any) -> cw.Pipeline:
    found = cw.Pipeline("positions")
    found.stage(name="both", sinks=[cw.delta(str(tmp_path / "out"))])(both)
    return found


def once(found: cw.Pipeline, tmp_path: Path, spark: SparkSession, **more: Any) -> None:
    found.run(str(tmp_path / "state"), every="300ms", once=True, spark=spark, **more)


def test_a_union_with_swapped_sides_is_refused_and_continues_as_it_was(
    spark: SparkSession, tmp_path: Path
) -> None:
    left, right = tmp_path / "left", tmp_path / "right"
    for part in range(4):
        deliver(left, f"{part}", numbers(range(part * 5, part * 5 + 5)))
    deliver(right, "0", numbers(range(1000, 1005)))

    def as_it_was(spark: SparkSession) -> DataFrame:
        return read(spark, left).union(read(spark, right)).select("id")

    def exchanged(spark: SparkSession) -> DataFrame:
        return read(spark, right).union(read(spark, left)).select("id")

    once(pipeline(tmp_path, as_it_was), tmp_path, spark)
    deliver(left, "9", numbers(range(20, 25)))
    for part in range(3):
        deliver(right, f"1{part}", numbers(range(1005 + part * 5, 1010 + part * 5)))
    refused = r"right\), but its position is that of .*left.*new names and paths.* --restore (REF|latest) --drop both"
    with pytest.raises(UserError, match=refused):
        once(pipeline(tmp_path, exchanged), tmp_path, spark)
    once(pipeline(tmp_path, as_it_was), tmp_path, spark)
    expected = [(i,) for i in [*range(25), *range(1000, 1020)]]
    assert rows_of(tmp_path / "out", "id") == expected
    with pytest.raises(UserError, match=refused):  # a reset keeps the positions
        once(pipeline(tmp_path, exchanged), tmp_path, spark, restore="latest", reset=["both"])
    # The advice in the message works.
    new = cw.Pipeline("positions")
    new.stage(name="turned", sinks=[cw.delta(str(tmp_path / "new"))])(exchanged)
    once(new, tmp_path, spark, restore="latest", drop=["both"])
    assert rows_of(tmp_path / "out", "id") == rows_of(tmp_path / "new", "id") == expected


def test_swapped_channels_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    def make(turned: bool) -> cw.Pipeline:
        found = cw.Pipeline("positions", chain=False)

        @found.stage
        def first(spark: SparkSession) -> DataFrame:
            return read(spark, tmp_path / "left")

        @found.stage
        def second(spark: SparkSession) -> DataFrame:
            return read(spark, tmp_path / "right")

        @found.stage(sinks=[cw.delta(str(tmp_path / "out"))])
        def both(first: DataFrame, second: DataFrame) -> DataFrame:
            return second.union(first) if turned else first.union(second)

        return found

    for part in range(3):
        deliver(tmp_path / "left", f"{part}", numbers([part]))
    deliver(tmp_path / "right", "0", numbers([1000]))
    once(make(False), tmp_path, spark)
    deliver(tmp_path / "right", "1", numbers([1001]))
    with pytest.raises(
        UserError, match="the channel 'second', but its position is that of the channel 'first'"
    ):
        once(make(True), tmp_path, spark)
    once(make(False), tmp_path, spark)
    with pytest.raises(
        UserError, match=r"Nothing was changed.* start with --restore latest --reset both, which"
    ):
        once(make(True), tmp_path, spark, restore="latest")
    deliver(tmp_path / "left", "3", numbers([3]))
    once(make(True), tmp_path, spark, restore="latest", reset=["both"])  # the advice in the message works
    assert rows_of(tmp_path / "out", "id") == [(0,), (1,), (2,), (3,), (1000,), (1001,)]


def test_a_source_that_is_read_twice_is_checkpointed_and_restored(
    spark: SparkSession, tmp_path: Path
) -> None:
    def twice(spark: SparkSession) -> DataFrame:
        rows = read(spark, tmp_path / "in").select("id")
        return rows.union(rows.selectExpr("id + 1000 id"))

    def expected(count: int) -> list[tuple[int]]:
        return [(i,) for i in [*range(count), *range(1000, 1000 + count)]]

    for part in range(13):  # beyond a compacted log
        deliver(tmp_path / "in", f"{part:02}", numbers([part]))
    once(pipeline(tmp_path, twice), tmp_path, spark)
    assert rows_of(tmp_path / "out", "id") == expected(13)
    for part in range(13, 16):
        deliver(tmp_path / "in", f"{part:02}", numbers([part]))
    once(pipeline(tmp_path, twice), tmp_path, spark)
    assert rows_of(tmp_path / "out", "id") == expected(16)
    once(pipeline(tmp_path, twice), tmp_path, spark, restore="latest")
    assert rows_of(tmp_path / "out", "id") == expected(16)
