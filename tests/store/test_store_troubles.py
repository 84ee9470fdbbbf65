"""A store that fails intermittently, at inconvenient moments."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import cutwater as cw
from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.base.log import append
from cutwater.protocol.base.records import Leader
from cutwater.protocol.member.journal import Journal
from cutwater.store.at_rest import drive
from cutwater.store.local import LocalStore
from cutwater.store.opening import open_store
from tests.support.spark_helpers import NUMBERS, deliver, numbers, rows_of


class FlakyStore(LocalStore):
    """Fails the first few times that each of these operations is called."""

    def __init__(self, root: Path, times: int = 3) -> None:
        super().__init__(root)
        self._times = times
        self.failed: dict[str, int] = {}

    def _maybe_fail(self, what: str) -> None:
        if self.failed.get(what, 0) < self._times:
            self.failed[what] = self.failed.get(what, 0) + 1
            raise OSError("the store does not answer")

    def exists(self, name: str) -> bool:
        if "/commits/" in name:
            self._maybe_fail("is it committed?")
        return super().exists(name)

    def list(self, prefix: str, after: str = "") -> list[str]:
        if prefix.endswith("commits/"):
            self._maybe_fail("what is committed?")
        return super().list(prefix, after)

    def read(self, name: str) -> bytes | None:
        if name.endswith("base.json"):
            self._maybe_fail("where does the folder begin?")
        return super().read(name)


def test_a_store_that_fails_while_a_query_starts_commits_and_rests_does_no_harm(
    spark: SparkSession, tmp_path: Path
) -> None:
    deliver(tmp_path / "in", "one", numbers(range(20)))
    pipeline = cw.Pipeline("moody", chain=False)

    @pipeline.stage
    def source(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema(NUMBERS).parquet(str(tmp_path / "in"))

    @pipeline.stage(sinks=[cw.delta(str(tmp_path / "out"))])
    def copy(source: DataFrame) -> DataFrame:
        return source.select("id")

    open_store(str(tmp_path / "store"), create=True)
    store = FlakyStore(tmp_path / "store")
    pipeline.start(store, every="1s", spark=spark)
    pipeline.drain()
    pipeline.stop()
    assert [row[0] for row in rows_of(tmp_path / "out")] == list(range(20))
    assert store.failed == {
        "is it committed?": 3, "what is committed?": 3, "where does the folder begin?": 3,
    }  # fmt: skip


@pytest.mark.slow
def test_a_command_gives_up_on_a_read_only_store(tmp_path: Path) -> None:
    class ReadOnly(LocalStore):
        def create(self, name: str, data: bytes) -> bool:
            raise OSError(errno.EROFS, "Read-only file system")

    open_store(str(tmp_path / "store"), create=True)
    store = ReadOnly(tmp_path / "store")
    journal = Journal()
    with pytest.raises(StoreError, match=r"does not answer: .*Read-only file system"):
        drive(store, append(journal.view, journal.view.seal(Leader(1, "command"), "n1")))
