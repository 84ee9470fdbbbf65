"""The rows of a sink's target at one of its versions, for Arrow, and which files Spark is given for them."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from cutwater.protocol.base.errors import UserError
from cutwater.sinks import Sink, parquet
from cutwater.sinks.delta import reading
from cutwater.sinks.delta.making import delta
from cutwater.sinks.delta.sink import DeltaSink
from cutwater.sinks.registry import open_sink
from cutwater.store.contract import Store
from tests.support.s3_proxy import Fault, s3_proxy
from tests.support.s3_server import BUCKET, s3_server
from tests.support.sink_helpers import ROWS, needs_server, publish, store, write_with_spark

__all__ = ["store"]

KINDS: dict[str, Callable[..., Sink]] = {"delta": delta, "parquet": parquet}
SPARK: Any = SimpleNamespace()


@pytest.fixture(params=list(KINDS))
def sink(request: pytest.FixtureRequest, tmp_path: Path, store: Store) -> Sink:
    made = KINDS[request.param](str(tmp_path / "out"))
    made.bind(store, "out", ROWS)
    return made


class Asked:
    """Files, as Spark is asked for them."""

    def __init__(self, spark: Any) -> None:
        assert spark is SPARK

    def frame(self, paths: list[str], columns: str) -> Any:
        return [Path(p.removeprefix("file://")).parent.name for p in paths], json.loads(columns)

    def partitioned_frame(self, paths: list[str], columns: dict[str, Any], values: pa.Table) -> Any:
        assert values.num_rows in (0, len(paths))
        return self.frame(paths, json.dumps(columns))


@pytest.fixture
def modelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "Files", Asked)
    monkeypatch.setattr(sys.modules["cutwater.sinks.parquet"], "Files", Asked)


def rows_at(sink: Sink, version: int) -> list[int]:
    return sorted(sink.dataset(version).to_table().column("id").to_pylist())


def test_every_version_has_its_own_rows_and_before_the_first_there_are_none(sink: Sink) -> None:
    publish(sink, 5, [1])
    publish(sink, 6, [2, 3])
    sink.rewind(1, 7, 0)
    assert [rows_at(sink, version) for version in (-1, 0, 1, 2)] == [[], [1], [1, 2, 3], [1]]
    assert sink.dataset(-1).schema.names == ["id", "city"]


@pytest.mark.usefixtures("modelled")
def test_spark_is_given_the_files_and_columns_of_a_version(sink: Sink) -> None:
    publish(sink, 5, [1])
    publish(sink, 6, [2])
    found: Any = [sink.frame(SPARK, version) for version in (-1, 0, 1)]
    assert [sorted(files) for files, _ in found] == [[], ["attempt-5"], ["attempt-5", "attempt-6"]]
    for _, columns in found:
        assert [field["name"] for field in columns["fields"]] == ["id", "city"]


@pytest.mark.usefixtures("modelled")
@pytest.mark.parametrize(
    "ask", [lambda s, v: s.dataset(v), lambda s, v: s.frame(SPARK, v)], ids=["arrow", "spark"]
)
def test_what_cannot_be_read_is_reported(sink: Sink, ask: Callable[[Sink, int], Any], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"table 'out' \(.*out\) does not exist yet"):
        ask(sink, -1)
    for transaction in (5, 6):
        publish(sink, transaction, [transaction])
    ask(sink, 1)
    with pytest.raises(
        UserError, match=r"'out' \(.*out\) was removed or replaced.* version 2 of it, .* now 1"
    ):
        ask(sink, 2)
    sink.rewind(1, 7, 0)
    next((tmp_path / "out/_cutwater").glob("*/attempt-6/*")).unlink()
    with pytest.raises(UserError, match=r"version 1 of table 'out' \(.*out\) can no longer be read"):
        ask(sink, 1)
    ask(sink, 0)


@pytest.mark.usefixtures("modelled")
def test_the_advice_for_a_table_that_was_deleted_does_not_name_what_is_not_there(
    sink: Sink, store: Store, tmp_path: Path
) -> None:
    publish(sink, 5, [1])
    shutil.rmtree(tmp_path / "out")
    (tmp_path / "out").mkdir()
    found = open_sink(store, "out")
    with pytest.raises(UserError, match=r"Bring it back; or .*--restore latest --drop out") as refused:
        found.dataset(0)
    assert "newer" not in str(refused.value)
    with pytest.raises(UserError, match="Bring it back"):
        found.frame(SPARK, 0)


def test_a_delta_table_whose_files_are_not_the_whole_table_is_not_read(tmp_path: Path) -> None:
    def table(**says: Any) -> Any:
        protocol = SimpleNamespace(reader_features=says.get("features"))
        metadata = SimpleNamespace(configuration=says.get("configuration", {}))
        return SimpleNamespace(protocol=lambda: protocol, metadata=lambda: metadata, version=lambda: 7)

    reading.refuse_unreadable(table(), "t")
    reading.refuse_unreadable(table(features=["timestampNtz"]), "t")
    reading.refuse_unreadable(table(configuration={"delta.columnMapping.mode": "none"}), "t")
    with pytest.raises(
        UserError, match="the Delta table t uses deletionVectors, which Cutwater cannot read; read version 7"
    ):
        reading.refuse_unreadable(table(features=["timestampNtz", "deletionVectors"]), "t")
    with pytest.raises(UserError, match="uses columnMapping"):
        reading.refuse_unreadable(table(configuration={"delta.columnMapping.mode": "name"}), "t")


@pytest.mark.usefixtures("modelled")
def test_spark_is_given_the_values_of_partitions_beside_the_files(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    monkeypatch.setattr(Asked, "partitioned_frame", lambda self, *what: given.append(what))
    sink = DeltaSink(str(tmp_path / "out"), "city", None, "out")
    sink.bind(store, "out", ROWS)
    write_deltalake(
        str(tmp_path / "out"), pa.table({"id": [1, 2], "city": ["a b", "c"]}), partition_by=["city"]
    )
    sink.frame(SPARK, 0)
    sink.frame(SPARK, -1)
    (paths, columns, values), (none, _, no_values) = given
    folders = [unquote(Path(path).parent.name) for path in paths]
    assert folders == [f"city={city}" for city in values["city"].to_pylist()]
    assert sorted(folders) == ["city=a b", "city=c"]
    assert all(Path(path.removeprefix("file://")).exists() for path in paths), (
        "as they lie there, not as the log has them"
    )
    assert [field["name"] for field in columns["fields"]] == ["id", "city"]
    assert (none, no_values.num_rows, no_values.column_names) == ([], 0, ["city"])


@pytest.mark.parametrize("kind", list(KINDS))
def test_columns_may_have_backticks_and_dots_in_their_names(
    kind: str, tmp_path: Path, store: Store, spark: SparkSession
) -> None:
    rows = spark.range(4).selectExpr("id", "id % 2 as `by``half.x`", "id * 2 as `a``b`")
    sink = KINDS[kind](str(tmp_path / "out"), partition_by="by`half.x")
    sink.bind(store, "out", rows.schema.json())
    files = write_with_spark(sink, "a", rows)
    assert sink.publish(-1, 1, tuple(file.name for file in files)) == 0
    back = sink.frame(spark, 0)
    assert back.columns == rows.columns
    assert sorted(map(tuple, back.collect())) == [(0, 0, 0), (1, 1, 2), (2, 0, 4), (3, 1, 6)]


@pytest.mark.parametrize(
    ("path", "url"),
    [
        ("a%20b/p", "here/a b/p"),
        ("/other/p", "/other/p"),
        ("s3://b/p%3D1", "s3://b/p=1"),
        ("a/p", "here/a/p"),
    ],
)
def test_files_of_a_shallow_clone_are_read_where_they_lie(path: str, url: str) -> None:
    files: Any = SimpleNamespace(spark_url=lambda name: f"here/{name}")
    assert reading._url(files, path) == url


@needs_server
@pytest.mark.parametrize("fault", list(Fault))
def test_a_table_in_a_bucket_is_opened_although_a_request_fails(
    fault: Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"s3://{BUCKET}/t"
    with s3_server(tmp_path / "s3") as server, s3_proxy(server.port) as proxy:
        for key, value in server.environment.items():
            monkeypatch.setenv(key, value)
        write_deltalake(url, pa.table({"id": [1]}), storage_options={"allow_http": "true"})
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        for kind in ("get", "list"):
            waiting = [fault]
            proxy.weather = lambda request, kind=kind, waiting=waiting: (  # type: ignore[misc]
                waiting.pop() if waiting and request.kind == kind else None
            )
            assert reading.load(url).version() == 0
            assert waiting == []


@pytest.mark.parametrize(
    ("said", "answers", "asked"),
    [("error decoding response body", 2, 3), ("error decoding response body", 9, 4), ("Access Denied", 9, 1)],
)
def test_an_answer_that_breaks_off_is_asked_for_again_a_few_times(
    monkeypatch: pytest.MonkeyPatch, said: str, answers: int, asked: int
) -> None:
    tries: list[str] = []

    def table(url: str, version: int | None, storage_options: object) -> str:
        tries.append(url)
        if len(tries) <= answers:
            raise OSError(said)
        return "the table"

    monkeypatch.setattr(reading, "DeltaTable", table)
    if asked > answers:
        found: object = reading.load("file:///x")
        assert found == "the table"
    else:
        with pytest.raises(OSError, match=said):
            reading.load("file:///x")
    assert len(tries) == asked
