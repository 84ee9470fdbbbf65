"""The user's session is not changed: queries run in a copy of it, with the settings that they need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

import cutwater as cw
from cutwater.protocol.base.errors import UserError
from cutwater.spark.session import NEEDED, copy_session, refuse_active_session
from tests.support.spark_helpers import NUMBERS, await_that, deliver, numbers, rows_of

DERBY = {
    "spark.sql.catalog.derby": "org.apache.spark.sql.execution.datasources.v2.jdbc.JDBCTableCatalog",
    "spark.sql.catalog.derby.url": "jdbc:derby:memory:cutwater;create=true",
    "spark.sql.catalog.derby.driver": "org.apache.derby.iapi.jdbc.AutoloadedDriver",
}


class Started(StreamingQueryListener):
    """Records which queries have started."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def onQueryStarted(self, event: Any) -> None:
        self.names.append(event.name)

    def onQueryProgress(self, event: Any) -> None: ...

    def onQueryIdle(self, event: Any) -> None: ...

    def onQueryTerminated(self, event: Any) -> None: ...


@pytest.fixture
def user(spark: SparkSession) -> SparkSession:
    """A user's session, without anything of Cutwater's."""
    session = spark.newSession()
    for key in NEEDED:
        session.conf.unset(key)
    session.conf.set("spark.sql.streaming.minBatchesToRetain", "7")
    session.conf.set("spark.sql.streaming.fileSource.log.deletion", "true")
    return session


def settings(session: SparkSession) -> dict[str, str]:
    return dict(session.conf.getAll)


def test_a_run_uses_the_users_session_and_does_not_change_it(user: SparkSession, tmp_path: Path) -> None:
    deliver(tmp_path / "in", "0", numbers(range(5)))
    user.createDataFrame([(1, "one"), (2, "two")], "id long, word string").createOrReplaceTempView("words")
    user.udf.register("twice", lambda number: number * 2, "long")
    listener = Started()
    user.streams.addListener(listener)
    before, seen = settings(user), dict[str, Any]()
    pipeline = cw.Pipeline("guest", chain=False)

    @pipeline.stage
    def source(spark: SparkSession) -> DataFrame:
        seen["retained"] = spark.conf.get("spark.sql.streaming.minBatchesToRetain")
        seen["deletion"] = spark.conf.get("spark.sql.streaming.fileSource.log.deletion")
        spark.sql("CREATE TEMPORARY VIEW of_the_pipeline AS SELECT 1")
        return spark.readStream.schema(NUMBERS).parquet(str(tmp_path / "in"))

    @pipeline.stage(sinks=[cw.delta(str(tmp_path / "out"))])
    def named(spark: SparkSession, source: DataFrame) -> DataFrame:
        words = spark.table("words")
        return source.join(words, "id").selectExpr("twice(id) AS id", "word")

    def retained() -> str:
        (query,) = (q for name, q in pipeline.queries.items() if name == "source")
        session = query._jsq.streamingQuery().sparkSession()
        return str(session.conf().get("spark.sql.streaming.minBatchesToRetain"))

    with pipeline.start(str(tmp_path / "state"), every="1h", spark=user):
        await_that("both queries", lambda: len(pipeline.queries) == 2)
        assert retained() == NEEDED["spark.sql.streaming.minBatchesToRetain"]
        assert user.streams.active == []
    assert rows_of(tmp_path / "out") == [(2, "one"), (4, "two")]
    assert seen == {"retained": NEEDED["spark.sql.streaming.minBatchesToRetain"], "deletion": "false"}
    assert settings(user) == before
    assert not user.catalog.tableExists("of_the_pipeline")
    await_that("the listener is told", lambda: {"guest.source", "guest.named"} <= set(listener.names))
    user.streams.removeListener(listener)
    assert user.range(3).count() == 3, "it is not stopped with the pipeline"


def test_a_stage_that_reads_with_another_session_is_refused(user: SparkSession, tmp_path: Path) -> None:
    deliver(tmp_path / "in", "0", numbers(range(5)))
    static = user.range(5)

    def refused(*stages: Any) -> None:
        pipeline = cw.Pipeline("p")
        for number, stage in enumerate(stages):
            last = number == len(stages) - 1
            pipeline.stage(sinks=[cw.delta(str(tmp_path / "out"))] if last else [])(stage)
        with pytest.raises(
            UserError, match=f"stage '{stages[-1].__name__}' uses a Spark session other than the pipeline's"
        ):
            pipeline.start(str(tmp_path / "state"), spark=user)

    def read(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema(NUMBERS).parquet(str(tmp_path / "in")).select("id")

    def own() -> DataFrame:
        return read(user)

    def half(spark: SparkSession) -> DataFrame:
        return read(spark).union(read(user))

    def source(spark: SparkSession) -> DataFrame:
        return read(spark)

    def joined(source: DataFrame) -> DataFrame:
        return static.join(source, "id")

    refused(own)
    refused(half)
    refused(source, joined)


def test_a_copy_has_the_current_catalog_and_database(user: SparkSession, tmp_path: Path) -> None:
    jvm: Any = user.sparkContext._jvm
    jvm.System.setProperty("derby.stream.error.file", str(tmp_path / "derby.log"))
    for key, value in DERBY.items():
        user.conf.set(key, value)
    user.sql(f"CREATE DATABASE elsewhere LOCATION '{tmp_path}/elsewhere'")
    user.catalog.setCurrentDatabase("elsewhere")
    assert copy_session(user).catalog.currentDatabase() == "elsewhere"
    user.sql("USE derby.SYSIBM")
    copy = copy_session(user)
    assert copy.catalog.currentCatalog() == "derby"
    assert copy.catalog.currentDatabase() == user.catalog.currentDatabase() == "SYSIBM"
    copy.sql("USE spark_catalog")
    assert user.catalog.currentCatalog() == "derby"
    user.sql("DROP DATABASE spark_catalog.elsewhere")


@pytest.mark.parametrize("known", [None, "http://mine:1"])
def test_the_s3_server_of_the_environment_is_set_only_in_the_copy(
    user: SparkSession, monkeypatch: pytest.MonkeyPatch, known: str | None
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://theirs:2")
    monkeypatch.setenv("AWS_REGION", "here")
    context: Any = user.sparkContext
    if known is not None:
        user.conf.set("fs.s3a.endpoint", known)
    copy = copy_session(user)
    assert copy.conf.get("fs.s3a.endpoint") == (known or "http://theirs:2")
    assert copy.conf.get("fs.s3a.endpoint.region") == "here"
    assert user.conf.get("fs.s3a.endpoint.region", "unset") == "unset"
    assert context._jsc.hadoopConfiguration().get("fs.s3a.endpoint.region", "") == ""


def test_an_existing_session_is_used_only_if_it_is_given(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = cw.Pipeline("p")

    @pipeline.stage(sinks=[cw.delta(str(tmp_path / "out"))])
    def any(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("rate").load()

    before = settings(spark)
    with pytest.raises(
        UserError, match=r"only one SparkContext.*give it to the pipeline: start\(..., spark=session\)"
    ):
        pipeline.start(str(tmp_path / "state"))
    with pytest.raises(UserError, match="only one SparkContext"):
        refuse_active_session()
    with pytest.raises(UserError, match=r"either your own session \(spark=\) or settings"):
        pipeline.start(str(tmp_path / "state"), spark=spark, master="local[1]")
    assert settings(spark) == before
    assert spark.range(1).count() == 1
