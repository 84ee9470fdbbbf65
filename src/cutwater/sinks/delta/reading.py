"""Reads a Delta table at one version, with Arrow or with Spark, which has no Delta connector of its own."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.dataset  # type: ignore[import-untyped]
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from cutwater.protocol.base.errors import UserError
from cutwater.sinks.schemas import plain
from cutwater.spark.files import Files
from cutwater.store.contract import Store
from cutwater.store.s3_access import access_to

READABLE = {"timestampNtz"}
"""Table features with which the files still contain exactly the table's rows and column names."""

_BROKEN_ANSWERS = 3


def load(url: str, version: int | None = None) -> DeltaTable:
    """Opens the newest or another version of a table, with the access to S3 that the store has too. Raises what
    deltalake raises. An answer that breaks off is asked for again, which deltalake does not do."""
    options = access_to(url).storage_options() or None
    for _ in range(_BROKEN_ANSWERS):
        try:
            return DeltaTable(url, version=version, storage_options=options)
        except OSError as error:
            if "response body" not in str(error):
                raise
    return DeltaTable(url, version=version, storage_options=options)


def refuse_unreadable(table: DeltaTable, path: str) -> None:
    """Raises `UserError` if the rows of the table are not just those in its files."""
    used = set(table.protocol().reader_features or ()) - READABLE
    if table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
        used.add("columnMapping")
    if used:
        raise UserError(
            f"the Delta table {path} uses {', '.join(sorted(used))}, which Cutwater cannot read; read version "
            f"{table.version()} by time travel with an engine that can"
        )


def dataset(table: DeltaTable) -> Any:
    """The rows as an Arrow dataset. It skips files by their partition alone: deltalake's own dataset skips by statistics
    too, and loses rows where a file has bounds for some of its columns only."""
    found = table.to_pyarrow_dataset()
    actions = pa.table(table.get_add_actions(flatten=True))
    columns = table.metadata().partition_columns
    values = pa.table({column: actions.column(f"partition.{column}") for column in columns})
    fragments = [
        found.format.make_fragment(unquote(path), found.filesystem, _is_in_partition(values, row))
        for row, path in enumerate(actions.column("path").to_pylist())
    ]
    return pyarrow.dataset.FileSystemDataset(fragments, found.schema, found.format, found.filesystem)


def _is_in_partition(values: Any, row: int) -> Any:
    """What holds for all rows of a file, given the values of its partition columns."""
    holds = pyarrow.dataset.scalar(True)
    for name in values.column_names:
        field, value = pyarrow.dataset.field(name), values.column(name)[row]
        holds = holds & (field == value if value.is_valid else field.is_null())
    return holds


def empty_dataset(table: DeltaTable) -> Any:
    """No rows, with the columns of the table."""
    schema: Any = dataset(table).schema
    return pyarrow.dataset.dataset(schema.empty_table())


def frame(spark: SparkSession, table: DeltaTable, files: Store, is_empty: bool) -> DataFrame:
    """The rows as a DataFrame, or no rows if `is_empty`, with the columns in the table's order. Raises
    `FileNotFoundError` if a file is gone."""
    schema = plain(msgspec.json.decode(table.schema().to_json()))
    actions = pa.table(table.get_add_actions(flatten=True))
    columns = table.metadata().partition_columns
    paths = [_url(files, path) for path in actions.column("path").to_pylist()]
    values = pa.table({column: actions.column(f"partition.{column}") for column in columns})
    if is_empty:
        paths, values = [], values.slice(0, 0)
    return Files(spark).partitioned_frame(paths, schema, values)


def _url(files: Store, path: str) -> str:
    """The URL of a file for Spark. The files of a shallow clone are outside the table's folder."""
    name = unquote(path)
    return name if "://" in name or name.startswith("/") else files.spark_url(name)
