"""Rows of exactly these Parquet files, as a DataFrame.

`spark.read.parquet` takes names for patterns, and passes over files that are gone. A store may have any name, and
a file that a log names must be there: here names are names, and a missing file is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from cutwater.protocol.base.errors import StoreError

SCHEMA_KEY = "org.apache.spark.sql.parquet.row.metadata"
OPTIONS = {
    "mergeSchema": "false",
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "parquet.page.verify-checksum.enabled": "true",
}


class Files:
    """Reads files on the Java side of a session. What is needed of that is looked up once: each look is a trip to
    another process."""

    def __init__(self, spark: SparkSession) -> None:
        inner: Any = spark
        context: Any = spark.sparkContext
        jvm = context._jvm
        sql = jvm.org.apache.spark.sql
        sources = sql.execution.datasources
        self.spark = spark
        self.session = inner._jsparkSession
        self.none = scala_object(jvm.scala, "None")
        self.dataset = scala_object(sql.classic, "Dataset")
        self.attributes = sql.catalyst.types.DataTypeUtils.toAttributes
        self._conf = self.session.sessionState().newHadoopConf()
        self._some = jvm.scala.Some
        self._seq = jvm.org.apache.spark.api.python.PythonUtils.toSeq
        self._path = jvm.org.apache.hadoop.fs.Path
        self._index = sources.InMemoryFileIndex
        self._cache = getattr(self._index, "$lessinit$greater$default$5")()
        self._partition_spec = sources.PartitionSpec
        self._partition = sources.PartitionPath
        self._no_partitions = scala_object(sources, "PartitionSpec").emptySpec()
        self._no_columns = sql.types.StructType()
        self._relation = sources.HadoopFsRelation
        self._format = sources.parquet.ParquetFileFormat
        self._options = jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(OPTIONS)
        self._logical = scala_object(sources, "LogicalRelation")
        self._local = sql.catalyst.plans.logical.LocalRelation
        self._parquet = jvm.org.apache.parquet.hadoop

    def schema(self, json: str) -> Any:
        """A schema on the Java side."""
        return self.session.parseDataType(json)

    def frame(self, paths: Sequence[str], schema: str) -> DataFrame:
        """The rows of these files. Raises `FileNotFoundError` if one is gone."""
        return DataFrame(self.rows(paths, self.schema(schema), False), self.spark)

    def rows(self, paths: Sequence[str], schema: Any, is_streaming: bool) -> Any:
        """The same on the Java side; as a batch of a stream, if it is to be one."""
        if not paths:
            plan = self._local(self.attributes(schema), self._seq([]), is_streaming, self.none)
            return self.dataset.ofRows(self.session, plan)
        return self._read(paths, schema, self._no_columns, self._no_partitions, is_streaming)

    def partitioned_frame(self, paths: Sequence[str], schema: dict[str, Any], values: pa.Table) -> DataFrame:
        """The rows of files that do not hold all columns of `schema`: `values` has the others, a row for each file.
        Raises `FileNotFoundError` if a file is gone."""
        if not values.num_columns or not paths:
            return self.frame(paths, msgspec.json.encode(schema).decode())
        fields = {field["name"]: field for field in schema["fields"]}
        outside = self._struct([fields[name] for name in values.column_names])
        inside = self._struct([field for name, field in fields.items() if name not in values.column_names])
        found = None
        for files, partitions in self._layers(paths, values, fields):
            spec = self._partition_spec(outside, self._seq(partitions))
            rows = DataFrame(self._read(files, inside, outside, spec, False), self.spark)
            found = rows if found is None else found.union(rows)
        assert found is not None
        return found.select(*(F.col(f"`{name}`") for name in fields))

    def _layers(
        self, paths: Sequence[str], values: pa.Table, fields: dict[str, dict[str, Any]]
    ) -> Iterator[tuple[list[str], list[Any]]]:
        """The files, and Spark's partitions of them. To Spark a partition is a folder, so that files of one folder that
        have different values, as some writers lay them down, come in different layers."""
        by_folder: dict[str, dict[tuple[Any, ...], list[str]]] = {}
        for path, row in zip(paths, values.to_pylist(), strict=True):
            folder = by_folder.setdefault(path.rpartition("/")[0], {})
            folder.setdefault(tuple(row.values()), []).append(path)
        rows = list({row: None for folder in by_folder.values() for row in folder})
        kinds = StructType.fromJson({"fields": [fields[name] for name in values.column_names]})
        made = self.spark.createDataFrame(rows, kinds)._jdf.queryExecution().executedPlan().executeCollect()
        row_of = dict(zip(rows, made, strict=True))
        for layer in range(max(len(folder) for folder in by_folder.values())):
            files: list[str] = []
            partitions = []
            for folder in by_folder.values():
                for row, inside in list(folder.items())[layer : layer + 1]:
                    files += inside
                    path = self._path(inside[0])
                    where = path.getFileSystem(self._conf).makeQualified(path).getParent()
                    partitions.append(self._partition(row_of[row], where))
            yield files, partitions

    def _struct(self, fields: list[dict[str, Any]]) -> Any:
        return self.schema(msgspec.json.encode({"type": "struct", "fields": fields}).decode())

    def _read(
        self, paths: Sequence[str], schema: Any, outside: Any, partitions: Any, is_streaming: bool
    ) -> Any:
        index = self._index(
            self.session, self._seq([self._path(p) for p in paths]), self._options, self._some(schema), self._cache,
            self._some(partitions), self.none,
        )  # fmt: skip
        if len(index.inputFiles()) != len(paths):
            raise FileNotFoundError(self._missing(paths))
        relation = self._relation(
            index, outside, schema, self.none, self._format(), self._options, self.session
        )
        return self.dataset.ofRows(self.session, self._logical.apply(relation, is_streaming))

    def columns(self, url: str) -> tuple[list[str], str | None]:
        """The names of a Parquet file's columns, and the schema with which Spark says it wrote them."""
        if url.startswith("file://"):
            try:
                footer = pq.read_metadata(url.removeprefix("file://"))
            except FileNotFoundError:
                raise
            except (OSError, ValueError) as error:
                raise _damaged(url, error) from error
            said = (footer.metadata or {}).get(SCHEMA_KEY.encode())
            return footer.schema.to_arrow_schema().names, said.decode() if said is not None else None
        opened = self._parquet.util.HadoopInputFile.fromPath(self._path(url), self._conf)
        reader = self._parquet.ParquetFileReader.open(opened)
        try:
            found = reader.getFooter().getFileMetaData()
            names = [field.getName() for field in found.getSchema().getFields()]
            return names, found.getKeyValueMetaData().get(SCHEMA_KEY)
        finally:
            reader.close()

    def _missing(self, paths: Sequence[str]) -> str:
        found = [self._path(p) for p in paths]
        gone = [str(p.toString()) for p in found if not p.getFileSystem(self._conf).exists(p)]
        return (
            f"{len(gone)} of {len(paths)} files are gone, {gone[0] if gone else paths[0]} among them; `cutwater verify` "
            "says what is damaged, and a checkpoint before it can be restored"
        )


def _damaged(url: str, error: Exception) -> StoreError:
    return StoreError(
        f"{url} is damaged ({error}); `cutwater verify` says what else is, and a checkpoint before it can be restored"
    )


def scala_object(package: Any, name: str) -> Any:
    """A Scala object, by its package and name."""
    return getattr(getattr(package, f"{name}$"), "MODULE$")
