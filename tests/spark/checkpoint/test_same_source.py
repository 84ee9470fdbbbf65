"""A source is the same one however its place is spelled and at whatever pace it is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from cutwater.spark.checkpoint.leaves import Leaf, native_leaf
from cutwater.spark.checkpoint.same_source import normal_place, reads_table, share_place, share_rows


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


def test_objects_are_the_same_under_the_schemes_of_one_store() -> None:
    assert share_rows(files("s3a://b/in/"), files("s3://b//in"))
    assert not share_rows(files("s3://b/in"), files("s3://c/in"))
    assert not share_rows(files("s3://b/in"), files("/b/in"))


def test_pace_does_not_tell_sources_apart_but_a_choice_of_files_does() -> None:
    slow = files("/in", maxfilespertrigger="1", latestfirst="true", maxfileage="1d", cleansource="off")
    assert share_rows(slow, files("/in", maxfilespertrigger="2", mergeschema="true"))
    assert not share_rows(files("/in", pathglobfilter="a*"), files("/in", pathglobfilter="b*"))


def test_sources_without_files_are_distinguished_by_what_they_subscribe_to() -> None:
    def topic(name: str, **options: str) -> Leaf:
        return native_leaf("kafka", [("subscribe", name), *options.items()], [], 0)

    assert share_rows(topic("t", startingoffsets="earliest"), topic("t", startingoffsets="latest"))
    assert not share_rows(topic("t"), topic("u"))
    assert not share_rows(topic("t", includeheaders="true"), topic("t"))
    assert not share_place("kafka", "subscribe=t", "parquet", "path=t")


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
