"""A source is the same one however its place is spelled and at whatever pace it is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from cutwater.spark.checkpoint.leaves import Leaf, native_leaf
from cutwater.spark.checkpoint.same_source import (
    may_share_rows,
    normal_place,
    reads_table,
    share_place,
    share_rows,
)


def files(path: str, **options: str) -> Leaf:
    return native_leaf("parquet", [("path", path), *sorted(options.items())], [], 0)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    real = tmp_path.resolve() / "in"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    monkeypatch.chdir(tmp_path)
    return real


@pytest.mark.parametrize(
    "spelled",
    [
        "{0}", "{0}/", "{1}/./in", "{1}//in", "{1}/x/../in", "file:{0}", "file://{0}", "file:///{0}", "in", "./in",
        "{1}/link", "link/", "file:{1}/link",
    ],
)  # fmt: skip
def test_every_spelling_of_a_folder_is_the_same_place(folder: Path, spelled: str) -> None:
    path = spelled.format(folder, folder.parent)
    assert normal_place(f"path={path}") == f"path={folder}"
    assert share_rows(files(path), files(str(folder)))


@pytest.mark.parametrize(
    "path", ["{0}/*", "{0}/*.parquet", "{0}/day=*/x", "{1}/{{in,other}}", "{1}/*", "link/*", "{1}/i?"]
)
def test_a_pattern_reads_what_a_folder_that_it_meets_has(folder: Path, path: str) -> None:
    assert share_rows(files(path.format(folder, folder.parent)), files(str(folder)))


@pytest.mark.parametrize(
    "path", ["{1}/other", "{1}/inside", "{1}/other/*", "{1}/o*", "{1}/[a-h]*", "{1}/[^i]*"]
)
def test_other_folders_are_other_sources(folder: Path, path: str) -> None:
    assert not share_rows(files(path.format(folder, folder.parent)), files(str(folder)))


@pytest.mark.parametrize("format", ["text", "csv", "binaryfile", "delta", "a.connector.of.others"])
def test_the_files_of_a_folder_are_the_same_rows_in_every_format(folder: Path, format: str) -> None:
    read_otherwise = Leaf(None, format, f"path={folder}/")
    assert share_rows(files(str(folder)), read_otherwise)
    assert may_share_rows(read_otherwise, files(f"{folder}/*"))
    elsewhere = Leaf(None, format, f"path={folder.parent}/other")
    assert not share_rows(files(str(folder)), elsewhere)
    assert not may_share_rows(files(str(folder)), elsewhere)


def test_objects_are_the_same_under_the_schemes_of_one_store() -> None:
    assert share_rows(files("s3a://b/in/"), files("s3://b//in"))
    assert not share_rows(files("s3://b/in"), files("s3://c/in"))
    assert not share_rows(files("s3://b/in"), files("/b/in"))


def test_pace_does_not_tell_sources_apart_but_a_choice_of_files_does() -> None:
    slow = files("/in", maxfilespertrigger="1", latestfirst="true", maxfileage="1d", cleansource="off")
    assert share_rows(slow, files("/in", maxfilespertrigger="2", mergeschema="true"))
    assert not share_rows(files("/in", pathglobfilter="a*"), files("/in", pathglobfilter="b*"))


def kafka(subscribe: str, kind: str = "subscribe", **options: str) -> Leaf:
    named = {name.replace("__", "."): value for name, value in options.items()}
    return native_leaf("kafka", [(kind, subscribe), *named.items()], [], 0)


def pattern(text: str) -> Leaf:
    return kafka(text, "subscribepattern")


def assign(text: str) -> Leaf:
    return kafka(text, "assign")


def test_kafka_sources_are_the_same_at_every_pace_and_with_every_column() -> None:
    assert share_rows(kafka("t", startingoffsets="earliest"), kafka("t", startingoffsets="latest"))
    assert share_rows(kafka("t", includeheaders="true"), kafka("t"))
    assert not share_place("kafka", "subscribe=t", "parquet", "path=t")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (kafka("t1,t2"), kafka("t2,t1")),
        (kafka("t1,t2"), kafka(" t2 , t1 ,")),
        (kafka("t1"), kafka("t1,t2")),
        (kafka("t1,t2"), kafka("t2,t3")),
        (kafka("t1", topic="x"), kafka("t1,t2")),
        (kafka("t1,t2"), assign('{"t2":[3]}')),
        (assign('{"t1":[0,1]}'), assign('{ "t1": [1, 2] }')),
        (pattern("t.*"), kafka("a,t2")),
        (pattern("t[0-9]+"), assign('{"t2":[0]}')),
        (pattern("t.*"), pattern("t.*")),
        (pattern("t.*"), pattern("t1.*")),
        (pattern(".*-eu"), pattern("orders-.*")),
        (pattern("a|orders"), pattern("orders.*")),
        (pattern("tx*"), pattern("t1")),
        (pattern("t(1|2)"), pattern("t2|x")),
        (pattern("a[(]|x"), pattern("x")),
        (pattern("a[](]|x"), pattern("x")),
        (pattern(r"a\Q(\E|x"), pattern("x")),
        (pattern(r"a\.?x"), pattern("ax")),
    ],
)
def test_kafka_sources_with_a_topic_in_common_share_rows(one: Leaf, other: Leaf) -> None:
    assert share_rows(one, other)
    assert share_rows(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (kafka("t1"), kafka("t2")),
        (kafka("t1,t2"), kafka("t3,t4")),
        (kafka("t1"), kafka("t11")),
        (kafka("t1"), assign('{"t2":[0]}')),
        (assign('{"t1":[0]}'), assign('{"t1":[1]}')),
        (pattern("t[0-9]"), kafka("t10,xt1")),
        (pattern("orders-.*"), pattern("clicks-.*")),
        (pattern(r"shop\.eu\..*"), pattern(r"shop\.us\..*")),
        (pattern("a-(x|y)"), pattern("b-(x|y)")),
    ],
)
def test_kafka_sources_without_a_topic_in_common_are_others(one: Leaf, other: Leaf) -> None:
    assert not share_rows(one, other)
    assert not share_rows(other, one)


@pytest.mark.parametrize("text", [r"\p{Alpha}+", "[a-z&&[^t]]+", "[a[b]]", "(?<name>x)", r"\Qx\E", "x++(?i)"])
def test_a_pattern_that_only_java_understands_may_match_every_topic(text: str) -> None:
    assert share_rows(pattern(text), kafka("t"))


def test_the_topics_of_one_cluster_are_not_those_of_another() -> None:
    def at(servers: str) -> Leaf:
        return kafka("t", kafka__bootstrap__servers=servers)

    assert share_rows(at("a:9092,b:9092"), at("b:9092 , A:9092"))
    assert share_rows(at("a:9092,b:9092"), at("c:9092,b:9092"))
    assert not share_rows(at("a:9092"), at("b:9092"))
    old = native_leaf("kafka", [("subscribe", "t"), ("kafka.bootstrap.servers", "a:9092")], [], 0)
    old = Leaf(None, old.format, old.place, old.digests, 0)
    assert share_rows(old, at("a:9092"))
    assert not share_rows(old, at("b:9092"))
    assert share_place("kafka", at("a:9092").place, "kafka", at("b:9092").place), "servers move"


def test_every_spelling_of_a_list_of_topics_is_the_same_place() -> None:
    assert normal_place("subscribe=t2, t1,,t1") == normal_place("subscribe=t1,t2") == "subscribe=t1,t2"
    assert normal_place('assign={"b":[1, 0], "a":[2]}') == 'assign={"a":[2],"b":[0,1]}'
    assert normal_place("assign=?") == "assign=?"
    assert normal_place("subscribepattern=b|a,b") == "subscribepattern=b|a,b"


def test_a_path_with_a_comma_is_one_path() -> None:
    assert normal_place("path=/a, b/./c, table=t") == "path=/a, b/c, table=t"


@pytest.mark.parametrize(
    ("path", "is_read"),
    [
        ("{0}", True), ("link/", True), ("file:{0}/", True), ("{0}/*.parquet", True), ("{0}/day=1/city=*", True),
        ("{1}", False), ("{1}/*", False), ("{1}/{{in,other}}", False), ("{0}/raw", False), ("{0}2", False),
    ],
)  # fmt: skip
def test_the_folder_of_a_table_is_recognised_among_sources(folder: Path, path: str, is_read: bool) -> None:
    source = path.format(folder, folder.parent)
    for table in (str(folder), "in", "x/../in/", f"file://{folder}"):
        assert reads_table(files(source), table) is is_read
    assert reads_table(native_leaf("delta", [("path", source)], [], 0), "in") is is_read


def test_only_sources_with_a_path_read_the_folder_of_a_table() -> None:
    assert reads_table(files("s3a://b/t/"), "s3://b/t")
    assert not reads_table(native_leaf("kafka", [("subscribe", "in")], [], 0), "in")
    assert not reads_table(Leaf(channel="in"), "in")
