"""Rows of exactly these Parquet files, as a DataFrame.

`spark.read.parquet` takes names for patterns, and passes over files that are gone. A store may have any name, and
a file that a log names must be there: here names are names, and a missing file is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow.parquet as pq  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession

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
        self._no_partitions = self._some(scala_object(sources, "PartitionSpec").emptySpec())
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
        index = self._index(
            self.session, self._seq([self._path(p) for p in paths]), self._options, self._some(schema), self._cache,
            self._no_partitions, self.none,
        )  # fmt: skip
        if len(index.inputFiles()) != len(paths):
            raise FileNotFoundError(self._missing(paths))
        relation = self._relation(
            index, self._no_columns, schema, self.none, self._format(), self._options, self.session
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
