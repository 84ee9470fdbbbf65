"""Which sources a pipeline has read before."""

from __future__ import annotations

from pathlib import Path

import pytest

from cutwater.plan.known_sources import (
    KnownSource,
    adds_topics,
    known_before,
    refuse_known_topics,
    register_sources,
    source_problems,
)
from cutwater.protocol.base.chain import digest
from cutwater.protocol.base.errors import StoreError, UserError
from cutwater.protocol.base.paths import SOURCE_PREFIX, source_name
from cutwater.protocol.base.records import StageReport, seal
from cutwater.protocol.base.watermark import NONE
from cutwater.spark.checkpoint.leaves import Leaf, native_leaf
from cutwater.store.contract import Store
from cutwater.store.opening import open_store
from tests.support.builders import pipeline, stage
from tests.support.live_leader import LiveLeader

FILES = Leaf(None, "parquet", "path=/in", {}, 0)
TOPIC = Leaf(None, "kafka", "subscribe=t", {}, 0)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path), create=True)


def leaves_of(**leaves: tuple[Leaf, ...]) -> dict[str, tuple[Leaf, ...]]:
    """What the plans of stages read."""
    return leaves


def test_a_source_is_known_by_its_place_whatever_its_stage_is_called(store: Store) -> None:
    register_sources(leaves_of(a=(FILES,), b=(Leaf(channel="a"),)), store)
    stages = {"new": (FILES,), "other": (TOPIC,), "reader": (Leaf(channel="a"),)}
    assert tuple(known_before(store, stages, 1)) == ("new",)


def test_a_source_is_known_under_every_spelling_and_pace(store: Store, tmp_path: Path) -> None:
    folder = tmp_path.resolve() / "in"
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder)
    register_sources(
        leaves_of(a=(Leaf(None, "parquet", f"path={tmp_path}/./in", {"maxfilespertrigger": "1"}, 0),)), store
    )
    spellings = (f"{tmp_path}//in", f"{tmp_path}/link", f"{folder}/*", f"{tmp_path}/other")
    stages = {path: (Leaf(None, "parquet", f"path={path}", {}, 0),) for path in spellings}
    assert tuple(known_before(store, stages, 1)) == spellings[:-1]
    assert source_problems(store) == {}


def test_a_record_with_the_spelling_of_an_older_version_still_matches(store: Store) -> None:
    place = "path=/x/../in"
    name = source_name(digest(f"parquet {place}".encode())[:32])
    store.create(name, seal(KnownSource("parquet", place, "a", 0)))
    assert tuple(known_before(store, {"new": (FILES,)}, 1)) == ("new",)
    assert source_problems(store) == {}


def topics(value: str, kind: str = "subscribe") -> Leaf:
    return Leaf(None, "kafka", f"{kind}={value}", {}, 0)


def test_a_topic_is_known_in_every_list_that_has_it(store: Store) -> None:
    register_sources(leaves_of(a=(topics("t1,t2"),)), store)
    stages = {
        "order": (topics("t2, t1"),),
        "part": (topics("t2"),),
        "more": (topics("t3,t2"),),
        "pattern": (topics("t.*", "subscribepattern"),),
        "assigned": (topics('{"t1":[4]}', "assign"),),
        "other": (topics("t3"),),
        "other pattern": (topics("x.*", "subscribepattern"),),
    }
    assert tuple(known_before(store, stages, 1)) == ("order", "part", "more", "pattern", "assigned")


def test_the_record_of_a_list_of_topics_is_one_whatever_their_order(store: Store) -> None:
    register_sources(leaves_of(a=(topics("t1,t2"),)), store)
    register_sources(leaves_of(a=(topics("t2, t1"),)), store)
    assert len(store.list(SOURCE_PREFIX)) == 1
    assert source_problems(store) == {}


def test_a_list_of_an_older_version_still_matches(store: Store) -> None:
    place = "subscribe=t2, t1"
    name = source_name(digest(f"kafka {place}".encode())[:32])
    store.create(name, seal(KnownSource("kafka", place, "a", 0)))
    assert tuple(known_before(store, {"new": (topics("t1"),)}, 1)) == ("new",)
    assert source_problems(store) == {}


def report(position: str) -> StageReport:
    return StageReport(
        stage="a",
        incarnation=1,
        batch=3,
        unaligned=False,
        state={},
        consumed={},
        offsets={"0": position},
        watermark=NONE,
    )


AT_T1 = {"a": report('{"t1":{"0":5}}')}


def test_a_stage_does_not_add_a_topic_that_another_stage_has_read(store: Store) -> None:
    register_sources(leaves_of(a=(topics("t1"),), gone=(topics("t3,t4"),)), store)
    refuse_known_topics(store, AT_T1, {"a": (topics("t1"),)}, 1)
    refuse_known_topics(store, AT_T1, {"a": (topics("t1,t2"),), "new": (topics("t3"),)}, 1)
    with pytest.raises(
        UserError, match=r"no position in subscribe=t3, .*'gone' has already read subscribe=t3,t4"
    ):
        refuse_known_topics(store, AT_T1, {"a": (topics("t1,t3"),)}, 1)
    refuse_known_topics(store, AT_T1, {"a": (topics("t1,t3"),)}, 0)
    both = {"a": report('{"t1":{"0":5},"t3":{"0":0}}')}
    refuse_known_topics(store, both, {"a": (topics("t1,t3"),)}, 1)


def test_a_stage_adds_the_topics_of_its_list_in_which_it_has_no_position() -> None:
    assert adds_topics(AT_T1["a"], (topics("t2,t1"),))
    assert adds_topics(AT_T1["a"], (topics('{"t1":[0,1]}', "assign"),))
    assert not adds_topics(AT_T1["a"], (topics(" t1"),))
    assert not adds_topics(AT_T1["a"], (topics("t.*", "subscribepattern"), FILES))
    assert not adds_topics(None, (topics("t1"),))


def test_a_stage_that_added_a_topic_and_has_not_read_it_yet_can_start_again(store: Store) -> None:
    register_sources(leaves_of(a=(topics("t1"),)), store)
    register_sources(leaves_of(a=(topics("t1,t3"),)), store)
    refuse_known_topics(store, AT_T1, {"a": (topics("t1,t3"),)}, 1)
    refuse_known_topics(store, AT_T1, {"a": (topics("t4,t1,t3"),)}, 1)


def test_a_stage_under_the_name_of_another_does_not_add_its_topic(store: Store) -> None:
    register_sources(leaves_of(a=(topics("t3"),)), store)
    with pytest.raises(UserError, match="stage 'a' has already read subscribe=t3"):
        refuse_known_topics(store, AT_T1, {"a": (topics("t1,t3"),)}, 1)


def test_added_partitions_are_known_one_by_one(store: Store) -> None:
    register_sources(leaves_of(b=(topics('{"t1":[1]}', "assign"),)), store)
    refuse_known_topics(store, AT_T1, {"a": (topics('{"t1":[0,2]}', "assign"),)}, 1)
    with pytest.raises(UserError, match="no position in assign="):
        refuse_known_topics(store, AT_T1, {"a": (topics('{"t1":[0,1]}', "assign"),)}, 1)


def test_a_source_that_was_first_read_after_a_checkpoint_is_not_known_there(store: Store) -> None:
    leader = LiveLeader(store, pipeline(stage("a")))
    leader.commit(0)
    first = leader.state.committed[1].index
    register_sources(leaves_of(late=(FILES,)), store)
    leader.commit(1)
    assert tuple(known_before(store, {"x": (FILES,)}, first)) == ()
    assert tuple(known_before(store, {"x": (FILES,)}, leader.state.committed[2].index)) == ("x",)


def test_a_source_keeps_the_moment_when_it_was_first_read(store: Store) -> None:
    register_sources(leaves_of(a=(FILES,)), store)
    before = {name: store.read(name) for name in store.list(SOURCE_PREFIX)}
    register_sources(leaves_of(z=(FILES,)), store)
    assert {name: store.read(name) for name in store.list(SOURCE_PREFIX)} == before
    assert len(before) == 1


def test_sources_with_rows_of_their_own_are_not_kept(store: Store) -> None:
    generated = tuple(
        Leaf(None, format, "", {}, 0) for format in ("rate", "rate-micro-batch", "socket", "memory")
    )
    register_sources(leaves_of(a=(*generated, Leaf(None, "rate", "path=x", {}, 0))), store)
    assert store.list(SOURCE_PREFIX) == []
    assert known_before(store, {"new": generated}, 1, {"a": generated}) == {}


def unknown(format: str = "pubsub", **options: str) -> Leaf:
    """A source of a format of which Cutwater knows nothing."""
    return native_leaf(
        format, sorted((name.replace("__", "."), value) for name, value in options.items()), [], 0
    )


def test_a_source_without_a_place_is_known_by_its_other_options(store: Store) -> None:
    register_sources(leaves_of(root=(unknown(subscription="orders", numpartitions="3"),)), store)
    stages = {
        "same": (unknown(subscription="orders"),),
        "pace": (unknown(subscription="orders", maxfilespertrigger="9", numpartitions="4"),),
        "start": (unknown(subscription="orders", pubsub__startingposition="x"),),
        "more": (unknown(subscription="orders", project="p"),),
        "with a place": (unknown(subscription="orders", topic="t"),),
        "other": (unknown(subscription="returns"),),
        "other format": (unknown("queue", subscription="orders"),),
    }
    assert tuple(known_before(store, stages, 1)) == ("same", "pace", "start", "more", "with a place")
    assert known_before(store, stages, 0) == {}
    assert source_problems(store) == {}


def test_a_source_that_nothing_identifies_may_be_every_other_of_its_format(store: Store) -> None:
    register_sources(leaves_of(root=(unknown(token="x"),)), store)
    stages = {"same": (unknown(),), "more": (unknown(subscription="orders"),), "other": (unknown("queue"),)}
    found = known_before(store, stages, 1)
    assert tuple(found) == ("same", "more")
    assert "nothing tells that apart from what stage 'root' has read before" in found["more"]
    assert len(store.list(SOURCE_PREFIX)) == 1


def test_sources_without_a_place_are_kept_one_by_one(store: Store) -> None:
    for subscription in ("a", "b", "a"):
        register_sources(leaves_of(root=(unknown(subscription=subscription),)), store)
    assert len(store.list(SOURCE_PREFIX)) == 2
    assert source_problems(store) == {}
    stages = {name: (unknown(subscription=name),) for name in ("a", "b", "c")}
    assert tuple(known_before(store, stages, 1)) == ("a", "b")


def test_what_a_checkpoint_records_is_known_without_a_registration(store: Store) -> None:
    """Older versions did not register sources without a place."""
    read = (unknown(subscription="orders"), Leaf(channel="x"))
    stages = {"new": (unknown(subscription="orders"),), "other": (unknown(subscription="returns"),)}
    assert known_before(store, stages, 1) == {}
    found = known_before(store, stages, 1, {"root": read})
    assert tuple(found) == ("new",)
    assert "'root'" in found["new"]


def test_a_damaged_record_is_an_error(store: Store) -> None:
    register_sources(leaves_of(a=(FILES,)), store)
    (name,) = store.list(SOURCE_PREFIX)
    store.put(name, (store.read(name) or b"").replace(b"parquet", b"parquex"))
    with pytest.raises(StoreError, match=r"sources/.* remove it"):
        known_before(store, {"x": (FILES,)}, 1)
    assert source_problems(store).keys() == {name}


def test_a_record_under_the_name_of_another_source_is_an_error(store: Store) -> None:
    register_sources(leaves_of(a=(FILES,), b=(TOPIC,)), store)
    assert source_problems(store) == {}
    one, other = store.list(SOURCE_PREFIX)
    store.put(one, store.read(other) or b"")
    assert "describes the source" in source_problems(store)[one]
