"""A file source's log is copied from folder to folder, and Spark can always start with it. (Spark: test_folder_kit.)"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.base.paths import source_log_name
from cutwater.protocol.base.records import StageReport
from cutwater.protocol.base.watermark import NONE
from cutwater.spark.checkpoint.folder import Cache, SparkFolder
from cutwater.spark.checkpoint.new_folder import make_folder
from cutwater.spark.checkpoint.source_logs import can_start
from cutwater.store.opening import open_store
from tests.support.examples import examples
from tests.support.folder_kit import Life, modelled
from tests.support.modelled_folder import STAGE, CannotStart, Query, SourceLog


def life(setting: int = 10, vouches: bool = True) -> Life:
    begin = modelled(STAGE, stateful=False, rocksdb=False, vouches=vouches)
    return Life(open_store("memory://"), STAGE, begin, setting)


def log_of(it: Life) -> SourceLog:
    """The log as Spark reads it when it starts."""
    return SourceLog(it.store, f"{it.prefix}sources/0/", it.setting)


Step = Callable[[Life], None]
STEPS: st.SearchStrategy[Step] = st.one_of(
    st.integers(1, 40).map(lambda n: lambda it: it.run(n)),
    st.sampled_from([1, 2, 3, 4, 7, 10, 25]).map(lambda n: lambda it: it.setting_is(n)),
    st.just(Life.restart),
    st.just(Life.keep),
    st.integers(0, 5).map(lambda n: lambda it: it.restore(n)),
    st.just(Life.collect),
    st.just(Life.forget_the_compact_file_before_the_last),
)


@examples(150)
@given(st.lists(STEPS, min_size=3, max_size=25))
def test_spark_can_start_with_a_log_after_any_history(steps: list[Step]) -> None:
    it = life()
    for step in steps:
        step(it)
    it.run(1)
    it.restart()
    it.check()


def test_three_clean_restarts_leave_a_log_that_spark_can_read() -> None:
    it = life()
    it.run(25)
    it.restart()
    it.run(30)
    it.restart()
    it.run(1)
    it.check()
    assert log_of(it).interval == 10


def test_a_store_with_logs_that_were_truncated_too_far_can_start() -> None:
    """19.compact with an interval of ten is taken for one of twenty; 39.compact then for one of ten again."""
    it = life(setting=20)
    it.run(55)
    it.forget_the_compact_file_before_the_last()
    it.setting_is(10)
    with pytest.raises(CannotStart, match=r"49\.compact"):
        log_of(it)
    it.keep()
    it.restart()
    assert log_of(it).interval == 10
    it.restore(0)
    it.run(40)
    it.restart()


def test_a_rewritten_log_can_be_cut_at_a_batch_that_is_not_logged_yet() -> None:
    it = life(setting=50)
    it.run(45)
    make_folder(it.store, STAGE, 1, 2, 1, None, 12, 4)
    query = Query(it.store, 2, batch=44, setting=4, stateful=False)
    assert query.log.interval == 4
    for batch in range(12, 45):
        state = query.state(batch)
        assert state is not None
        report = StageReport(STAGE, 1, batch, False, consumed={}, offsets={}, watermark=NONE, state=state)
        make_folder(it.store, STAGE, 2, batch, None, report, batch, 4)
        assert len(Query(it.store, batch, generation=2, batch=batch, setting=4).log.files()) == batch + 1


def test_a_log_that_cannot_be_rewritten_is_named() -> None:
    it = life(setting=50, vouches=False)
    it.run(12)
    it.store.put(f"{it.prefix}sources/0/3", b"v1\nnonsense")
    with pytest.raises(
        StoreError, match=r"source log .*spark/1/sources/0/3 cannot be read .* restore another"
    ):
        make_folder(it.store, STAGE, 1, 2, 1, None, 11, 4)
    it.store.put(f"{it.prefix}sources/0/3", b"v1")
    with pytest.raises(StoreError, match="does not have all entries up to 11"):
        make_folder(it.store, STAGE, 1, 2, 1, None, 11, 4)


def test_logs_of_other_sources_are_not_changed() -> None:
    """Kafka and the rate source write a single entry."""
    it = life(setting=50, vouches=False)
    it.run(12)
    it.store.put(f"{it.prefix}sources/0/0", b"v1\nwhatever")
    for batch in range(12):
        it.store.put(f"{it.prefix}offsets/{batch}", b'v1\n{}\n{"topic":{"0":4}}')
    make_folder(it.store, STAGE, 1, 2, 1, None, 11, 1)
    assert it.store.read(f"stages/{STAGE}/1/spark/2/sources/0/0") == b"v1\nwhatever"


def test_the_interval_that_spark_derives_from_one_compact_file() -> None:
    """The cases in Spark's own comments."""
    log = {11: source_log_name(0, 11, compact=True), 12: source_log_name(0, 12), 13: source_log_name(0, 13)}
    longer = {**log, **{entry: source_log_name(0, entry) for entry in range(14, 18)}}
    assert can_start(log, 5)  # 6
    assert not can_start(longer, 5)
    assert can_start(longer, 12)
    assert can_start(longer, 6)  # 12


def test_a_log_of_another_version_is_not_rewritten() -> None:
    it = life(setting=50)
    it.run(12)
    data = it.store.read(f"{it.prefix}sources/0/3")
    assert data is not None
    it.store.put(f"{it.prefix}sources/0/3", data.replace(b"v1", b"v9", 1))
    with pytest.raises(StoreError, match=r"sources/0/3 is damaged"):
        make_folder(it.store, STAGE, 1, 2, 1, None, 11, 4)


@pytest.mark.parametrize(
    ("last", "entries"),
    [
        (11, ["3.compact", "7.compact", "8", "9", "10", "11.compact"]),
        (1, ["0", "1", "2", "3.compact", "4", "5", "6", "7.compact", "8", "9", "10", "11.compact"]),
    ],
)
def test_a_log_is_rewritten_only_as_far_back_as_needed(last: int, entries: list[str]) -> None:
    it = life(setting=50)
    it.run(12)
    make_folder(it.store, STAGE, 1, 2, 1, None, last, 4)
    prefix = f"stages/{STAGE}/1/spark/2/sources/0/"
    assert {name.removeprefix(prefix) for name in it.store.list(prefix)} == set(entries)


FILE_LOG = b'v1\n{"path":"file:///in/0","timestamp":1,"batchId":0}'
KAFKA_LOG = b'v1\n{"topic":{"0":17}}'


@pytest.mark.parametrize("setting", [1, 10])
@pytest.mark.parametrize(
    ("entry", "dropped"), [(FILE_LOG, {"sources/1/0"}), (KAFKA_LOG, set())], ids=["files", "kafka"]
)
def test_a_file_source_that_has_read_nothing_starts_without_a_log(
    entry: bytes, dropped: set[str], setting: int
) -> None:
    """Spark lists the first files of a source before it plans the batch that reads them, and may fail in between. With
    such an entry, if its setting is 1 by now, Spark would look for 0.compact and never start."""
    store = open_store("memory://")
    store.put("f/offsets/0", b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}\n{"logOffset":0}\n-')
    store.put("f/commits/0", b'v1\n{"nextBatchWatermarkMs":0}')
    store.put("f/sources/0/0.compact", FILE_LOG)
    store.put("f/sources/1/0", entry)
    assert SparkFolder(store, "f/", Cache()).rewritten_logs(setting) == (dropped, {})


def test_spark_can_start_with_an_empty_log() -> None:
    assert can_start({}, 3) is True
