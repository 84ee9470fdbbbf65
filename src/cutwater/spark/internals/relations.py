"""DataFrames made of named Parquet files, or of a streaming source of ours, on the Java side of a session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from cutwater.spark.internals import java as j
from cutwater.spark.internals.gateway import accept_calls
from cutwater.spark.internals.source import SparkSource

JavaSchema = Any
"""A StructType of the Java side."""
JavaRows = Any
"""A Dataset of the Java side, as Spark takes it from a source."""
JavaRow = Any
"""An InternalRow of the Java side."""

OPTIONS = {
    "mergeSchema": "false",
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "parquet.page.verify-checksum.enabled": "true",
}


class Relations:
    """Makes relations in one session. Classes and members are looked up once, because each lookup is a call to another
    process."""

    def __init__(self, spark: SparkSession) -> None:
        inner: Any = spark
        java = self._java = j.Java.of(spark)
        self.spark = spark
        self._session = inner._jsparkSession
        self._conf = self._session.sessionState().newHadoopConf()
        self._none = java.singleton(j.NONE)
        self._some = java.type(j.SOME)
        self._seq = java.type(j.PYTHON_UTILS).toSeq
        self._rows_of = java.singleton(j.DATASET).ofRows
        self._attributes = java.type(j.TYPE_UTILS).toAttributes
        self._path = java.type(j.PATH)
        self._index = java.type(j.FILE_INDEX)
        self._cache = getattr(self._index, "$lessinit$greater$default$5")()
        self._partition_spec = java.type(j.PARTITIONS)
        self._partition = java.type(j.PARTITION)
        self._no_partitions = self._partition_spec.emptySpec()
        self._no_columns = java.type(j.STRUCT)()
        self._file_relation = java.type(j.FILE_RELATION)
        self._format = java.type(j.PARQUET)
        self._options = java.type(j.PYTHON_UTILS).toScalaMap(OPTIONS)
        self._relation = java.singleton(j.RELATION)
        self._local = java.type(j.LOCAL_RELATION)

    def schema(self, json: str) -> JavaSchema:
        """A schema, from its JSON."""
        return self._session.parseDataType(json)

    def rows(self, paths: Sequence[str], schema: JavaSchema, is_streaming: bool) -> JavaRows:
        """The rows of exactly these files, optionally as a batch of a stream. Raises `FileNotFoundError` if one is gone.
        A batch of a stream without files is not an empty relation: if Spark knows that there are no rows, it leaves out a
        `limit`, and the next batch does not find the state of that."""
        if not paths and not is_streaming:
            plan = self._local(self._attributes(schema), self._seq([]), False, self._none)
            return self._rows_of(self._session, plan)
        return self._read(paths, schema, self._no_columns, self._no_partitions, is_streaming)

    def frame(self, paths: Sequence[str], schema: JavaSchema) -> DataFrame:
        """The same as a DataFrame."""
        return DataFrame(self.rows(paths, schema, False), self.spark)

    def partitioned_frame(
        self,
        paths: Sequence[str],
        inside: JavaSchema,
        outside: JavaSchema,
        folders: Sequence[tuple[str, JavaRow]],
    ) -> DataFrame:
        """The rows of files that hold the columns `inside`, with those of `outside` from the file's folder: `folders` has
        a file of each folder, and the folder's values."""
        partitions = [self._partition(values, self._folder(path)) for path, values in folders]
        spec = self._partition_spec(outside, self._seq(partitions))
        return DataFrame(self._read(paths, inside, outside, spec, False), self.spark)

    def channel_frame(self, source: SparkSource, schema: JavaSchema) -> DataFrame:
        """A streaming DataFrame that reads a source of ours. Spark can only register sources that are Java classes, so
        the relation is put into the plan here, as Spark would put it there. From Spark 4.2 on it can have a name."""
        accept_calls(self.spark)
        relation = self._java.type(j.STREAM_RELATION)
        is_named = self._java.takes(j.STREAM_RELATION, 5)
        name = (getattr(relation, "apply$default$4")(),) if is_named else ()
        plan = relation(source, self._attributes(schema), self._none, *name, self._session)
        return DataFrame(self._rows_of(self._session, plan), self.spark)

    def exist(self, paths: Sequence[str]) -> list[bool]:
        """Which of these files exist."""
        found = [self._path(path) for path in paths]
        return [bool(path.getFileSystem(self._conf).exists(path)) for path in found]

    def footer(self, url: str) -> tuple[list[str], dict[str, str]]:
        """The names of the columns of a Parquet file, and its metadata."""
        opened = self._java.type(j.INPUT_FILE).fromPath(self._path(url), self._conf)
        reader = self._java.type(j.FOOTERS).open(opened)
        try:
            found = reader.getFooter().getFileMetaData()
            names = [field.getName() for field in found.getSchema().getFields()]
            return names, dict(found.getKeyValueMetaData())
        finally:
            reader.close()

    def _folder(self, path: str) -> Any:
        found = self._path(path)
        return found.getFileSystem(self._conf).makeQualified(found).getParent()

    def _read(
        self,
        paths: Sequence[str],
        schema: JavaSchema,
        outside: JavaSchema,
        partitions: Any,
        is_streaming: bool,
    ) -> JavaRows:
        index = self._index(
            self._session, self._seq([self._path(p) for p in paths]), self._options, self._some(schema), self._cache,
            self._some(partitions), self._none,
        )  # fmt: skip
        if len(index.inputFiles()) != len(paths):
            raise FileNotFoundError
        relation = self._file_relation(
            index, outside, schema, self._none, self._format(), self._options, self._session
        )
        return self._rows_of(self._session, self._relation.apply(relation, is_streaming))


def internal_rows(frame: DataFrame) -> list[JavaRow]:
    """The rows of a small batch DataFrame in Spark's internal form."""
    return list(frame._jdf.queryExecution().executedPlan().executeCollect())
