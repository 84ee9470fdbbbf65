"""Helpers for tests of Spark folders."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from cutwater.protocol.base.paths import spark_prefix
from cutwater.protocol.base.records import (
    Prepared,
    StageReport,
)
from cutwater.protocol.base.watermark import NONE
from cutwater.spark.checkpoint.folder import Cache
from cutwater.spark.checkpoint.new_folder import make_folder
from cutwater.spark.checkpoint.prepared import committed
from cutwater.spark.checkpoint.stage_files import find_stored
from cutwater.store.contract import Store
from cutwater.store.opening import open_store
from tests.support.modelled_folder import STAGE, Query


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store") if request.param == "local" else "memory://", create=True)


def report(batch: int, state: dict[str, str]) -> StageReport:
    return StageReport(STAGE, 1, batch, False, consumed={}, offsets={}, watermark=NONE, state=state)


def new_query(store: Store, rocksdb: bool = True) -> Query:
    make_folder(store, STAGE, 1, 1, None, None)
    return Query(store, 1, rocksdb)


def spans(store: Store, cache: Cache | None = None, last: int = 1) -> dict[str, tuple[int, int | None]]:
    """The batches that need each file, by name."""
    _, states = find_stored(store, STAGE, 1, last, cache or Cache())
    return {stored.name: (stored.batch, stored.until) for stored in states}


def prepared_again(
    store: Store, stage: str, generation: int, incarnation: int, batch: int
) -> Prepared | None:
    """The prepared record of a committed batch, without the checksum of its commit."""
    found = committed(store, stage, generation, incarnation, batch)
    return msgspec.structs.replace(found, commit="") if found is not None else None


def names(store: Store, generation: int, incarnation: int) -> set[str]:
    prefix = spark_prefix(STAGE, generation, incarnation)
    return {name.removeprefix(prefix) for name in store.list(prefix)}
