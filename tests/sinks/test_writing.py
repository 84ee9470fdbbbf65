"""The layout in which Spark is told to write the rows of a batch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cutwater.sinks import Sink, contract, parquet
from cutwater.sinks.delta.making import delta
from cutwater.store.opening import open_store
from tests.support.sink_helpers import schema

ROWS = schema(id="long", city="string", at="timestamp")


class Rows:
    """Rows that note what columns they get and how they are written."""

    def __init__(self, added: tuple[tuple[str, Any], ...] = ()) -> None:
        self.added = added

    def withColumn(self, name: str, value: Any) -> Rows:
        return Rows((*self.added, (name, value)))

    @property
    def write(self) -> Any:
        plain = SimpleNamespace(added=self.added, folders=())
        plain.partitionBy = lambda *names: SimpleNamespace(added=self.added, folders=names)
        return plain


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "end_ms", lambda rows, by: f"end of {by}")
    monkeypatch.setattr(
        sys.modules["cutwater.sinks.parquet"], "F", SimpleNamespace(col=lambda name: f"column {name}")
    )


@pytest.mark.parametrize(
    ("make", "options", "added", "folders"),
    [
        (delta, {}, (), ()),
        (delta, {"partition_by": "city"}, (), ("city",)),
        (delta, {"final_by": "at"}, (("__cutwater_end", "end of at"),), ("__cutwater_end",)),
        (
            delta, {"final_by": "at", "partition_by": ["city", "id"]},
            (("__cutwater_end", "end of at"),), ("__cutwater_end", "city", "id"),
        ),
        (parquet, {}, (), ()),
        (
            parquet, {"partition_by": "city"},
            (("__cutwater_by_city", "column `city`"),), ("__cutwater_by_city",),
        ),
        (
            parquet, {"partition_by": "city", "final_by": "at"},
            (("__cutwater_by_city", "column `city`"), ("__cutwater_end", "end of at")),
            ("__cutwater_end", "__cutwater_by_city"),
        ),
    ],
)  # fmt: skip
def test_windows_and_partitions_have_folders_of_their_own(
    make: Callable[..., Sink], options: dict[str, Any], added: Any, folders: Any, tmp_path: Path
) -> None:
    sink = make(str(tmp_path / "out"), **options)
    sink.bind(open_store("memory://"), "out", ROWS)
    writer: Any = sink.writer(Rows())  # type: ignore[arg-type]
    assert (writer.added, writer.folders) == (added, folders)
