"""Opens sinks from their descriptions in the store, without the user's code or Spark."""

from __future__ import annotations

from pyspark.sql import DataFrame

from cutwater.protocol.base.effects import TableHistory
from cutwater.protocol.base.errors import StoreError
from cutwater.sinks.contract import Sink
from cutwater.sinks.delta.making import delta
from cutwater.sinks.foreach_epoch import ForeachEpochSink, foreach_epoch
from cutwater.sinks.parquet import parquet
from cutwater.sinks.records import KINDS_BEFORE, Description, description
from cutwater.store.contract import Store


def open_sink(store: Store, name: str) -> Sink:
    """Open a sink of a store for reading (`head`, `find`), not for writing. Raises `StoreError` if it is not known, or if
    its target is gone."""
    known = description(store, name)
    if known is None:
        raise StoreError(
            f"{store.url} does not record where sink {name} writes to. A start of the pipeline records it: start the "
            "pipeline once, then try again"
        )
    sink = _make(name, known)
    try:
        sink.open(store, name)
    except StoreError as error:
        raise StoreError(f"sink {name} cannot be opened: {error}") from error
    return sink


def find_version(store: Store, sink: str, transaction: int) -> int | None:
    """The version of a sink's table to which a restore would go back (`Sink.find`). Stores of old versions do not record
    where sinks write to: then assume that the table can go back."""
    if description(store, sink) is None:
        return 0
    return open_sink(store, sink).find(transaction)


def read_history(store: Store, sink: str, transaction: int) -> TableHistory | None:
    """What a sink's table records about the version that `find_version` finds (`Sink.history`)."""
    if description(store, sink) is None:
        return None
    return open_sink(store, sink).history(transaction)


def _make(name: str, known: Description) -> Sink:
    if KINDS_BEFORE.get(known.kind, known.kind) == ForeachEpochSink.kind:
        return foreach_epoch(_not_called, name, known.final_by)
    if known.kind == "delta" and known.url is not None:
        return delta(
            known.url,
            known.partition_by,
            known.final_by,
            name,
            keys=known.keys,
            sequence_by=known.sequence_by,
        )
    if known.kind == "parquet" and known.url is not None:
        return parquet(known.url, known.partition_by, known.final_by, name)
    raise StoreError(f"sink {name} is a {known.kind!r}, which this version of Cutwater does not know")


def _not_called(rows: DataFrame, epoch: int) -> None:
    raise AssertionError("a sink that is open for reading must not call its function")
