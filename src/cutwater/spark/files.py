"""The rows of exactly these Parquet files, as a DataFrame.

`spark.read.parquet` treats names as patterns and skips missing files. A store may have any name, and a file that a log
names must exist: here names are literal, and a missing file is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from cutwater.protocol.base.errors import VERIFY_FIRST, StoreError
from cutwater.spark.internals.relations import JavaRow, JavaRows, JavaSchema, Relations, internal_rows

SCHEMA_KEY = "org.apache.spark.sql.parquet.row.metadata"
FILE = "__cutwater_file"
ROW = "__cutwater_row"
_SLASHES = "^file:/+"
"""Spark spells the URL of a local file with one slash in some places, and with three in others."""


class Files:
    """Reads files in a session."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self.relations = Relations(spark)

    def frame(self, paths: Sequence[str], schema: str) -> DataFrame:
        """The rows of these files. Raises `FileNotFoundError` if one is missing."""
        try:
            return self.relations.frame(paths, self.relations.schema(schema))
        except FileNotFoundError:
            raise self._missing(paths) from None

    def rows(self, paths: Sequence[str], schema: JavaSchema) -> JavaRows:
        """The rows of these files as a batch of a stream. Raises `FileNotFoundError` if one is missing."""
        try:
            return self.relations.rows(paths, schema, True)
        except FileNotFoundError:
            raise self._missing(paths) from None

    def partitioned_frame(
        self, paths: Sequence[str], schema: dict[str, Any], values: pa.Table, with_places: bool = False
    ) -> DataFrame:
        """The rows of files that do not hold all columns of `schema`: `values` has the others, a row for each file. With
        `with_places` each row has its file and its number in the file, too, in the columns `FILE` and `ROW`. Raises
        `FileNotFoundError` if a file is missing."""
        added = _places() if with_places else []
        if not values.num_columns or not paths:
            rows = self.frame(paths, msgspec.json.encode(schema).decode())
            return rows.select("*", *added) if added else rows
        fields = {field["name"]: field for field in schema["fields"]}
        outside = self._struct([fields[name] for name in values.column_names])
        inside = self._struct([field for name, field in fields.items() if name not in values.column_names])
        found = None
        for files, folders in self._layers(paths, values, fields):
            try:
                rows = self.relations.partitioned_frame(files, inside, outside, folders)
            except FileNotFoundError:
                raise self._missing(files) from None
            rows = rows.select(*(F.col(quoted(name)) for name in fields), *added)
            found = rows if found is None else found.union(rows)
        assert found is not None
        return found

    def _layers(
        self, paths: Sequence[str], values: pa.Table, fields: dict[str, dict[str, Any]]
    ) -> Iterator[tuple[list[str], list[tuple[str, JavaRow]]]]:
        """The files, and a file of each folder with the folder's values. To Spark a partition is a folder, so files of
        one folder with different values, as some writers leave them, go to different layers."""
        by_folder: dict[str, dict[tuple[Any, ...], list[str]]] = {}
        for path, row in zip(paths, values.to_pylist(), strict=True):
            folder = by_folder.setdefault(path.rpartition("/")[0], {})
            folder.setdefault(tuple(row.values()), []).append(path)
        rows = list({row: None for folder in by_folder.values() for row in folder})
        kinds = StructType.fromJson({"fields": [fields[name] for name in values.column_names]})
        row_of = dict(zip(rows, internal_rows(self.spark.createDataFrame(rows, kinds)), strict=True))
        for layer in range(max(len(folder) for folder in by_folder.values())):
            files: list[str] = []
            folders = []
            for folder in by_folder.values():
                for row, inside in list(folder.items())[layer : layer + 1]:
                    files += inside
                    folders.append((inside[0], row_of[row]))
            yield files, folders

    def _struct(self, fields: list[dict[str, Any]]) -> JavaSchema:
        return self.relations.schema(msgspec.json.encode({"type": "struct", "fields": fields}).decode())

    def columns(self, url: str) -> tuple[list[str], str | None]:
        """The names of a Parquet file's columns, and the schema that Spark has recorded in it."""
        if not url.startswith("file://"):
            names, metadata = self.relations.footer(url)
            return names, metadata.get(SCHEMA_KEY)
        try:
            footer = pq.read_metadata(url.removeprefix("file://"))
        except FileNotFoundError:
            raise
        except (OSError, ValueError) as error:
            raise _damaged(url, error) from error
        said = (footer.metadata or {}).get(SCHEMA_KEY.encode())
        return footer.schema.to_arrow_schema().names, said.decode() if said is not None else None

    def _missing(self, paths: Sequence[str]) -> FileNotFoundError:
        gone = [p for p, exists in zip(paths, self.relations.exist(paths), strict=True) if not exists]
        return FileNotFoundError(
            f"{len(gone)} of {len(paths)} files are missing, {gone[0] if gone else paths[0]} among them; "
            f"{VERIFY_FIRST}restore an older checkpoint"
        )


def _places() -> list[Column]:
    file = F.regexp_replace(F.col("_metadata.file_path"), _SLASHES, "file:/")
    return [file.alias(FILE), F.col("_metadata.row_index").alias(ROW)]


def files_of(frame: DataFrame) -> list[str]:
    """The files that a DataFrame reads, as its column `FILE` spells them."""
    return [re.sub(_SLASHES, "file:/", url) for url in frame.inputFiles()]


def quoted(column: str) -> str:
    """The name of a column as Spark's expressions spell it, whatever characters it has."""
    return "`" + column.replace("`", "``") + "`"


def _damaged(url: str, error: Exception) -> StoreError:
    return StoreError(f"{url} is damaged ({error}); {VERIFY_FIRST}restore an older checkpoint")
