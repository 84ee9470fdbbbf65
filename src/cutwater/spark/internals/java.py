"""The Java classes of Spark that Cutwater uses, and the check that this build of Spark has them.

Spark promises nothing about them: they move and change between versions, and vendors patch them. `NEEDS` lists each
class with the members that are used. `Java.of` checks the list once per JVM, so an unfit build is refused with one line
at the start of a run, not with a stack trace in the middle of one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import msgspec
from py4j.java_gateway import JavaClass  # type: ignore[import-untyped]
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from cutwater.protocol.base.errors import UserError

SUPPORTED = "Spark 4.0 to 4.3"
NEW = "a constructor"

SQL = "org.apache.spark.sql"
SOURCES = f"{SQL}.execution.datasources"
STREAMING = f"{SQL}.execution.streaming"
MEMBER = re.compile(r"([\w$]+)\(([^)]*)\)")
"""A member in the text that Java's reflection gives for it: its name and its parameters."""


class Need(msgspec.Struct, frozen=True):
    """A class, with the numbers of arguments that Cutwater can use of each member. `before` is the package that has it
    in Spark versions before it moved."""

    name: str
    members: dict[str, tuple[int, ...]] = {}
    before: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names that the class has had, newest first."""
        if self.before is None:
            return (self.name,)
        return self.name, f"{self.before}.{self.name.rpartition('.')[2]}"


PATH = Need("org.apache.hadoop.fs.Path", {NEW: (1,)})
FOOTERS = Need("org.apache.parquet.hadoop.ParquetFileReader", {"open": (1,)})
INPUT_FILE = Need("org.apache.parquet.hadoop.util.HadoopInputFile", {"fromPath": (2,)})
NONE = Need("scala.None$")
SOME = Need("scala.Some", {NEW: (1,)})
PYTHON_UTILS = Need("org.apache.spark.api.python.PythonUtils", {"toSeq": (1,), "toScalaMap": (1,)})
SESSION = Need(
    f"{SQL}.classic.SparkSession", {"cloneSession": (0,), "parseDataType": (1,), "sessionState": (0,)}
)
DATASET = Need(f"{SQL}.classic.Dataset$", {"ofRows": (2,)})
STRUCT = Need(f"{SQL}.types.StructType", {NEW: (0,)})
TYPE_UTILS = Need(f"{SQL}.catalyst.types.DataTypeUtils", {"toAttributes": (1,)})
LOCAL_RELATION = Need(f"{SQL}.catalyst.plans.logical.LocalRelation", {NEW: (4,)})
FILE_INDEX = Need(f"{SOURCES}.InMemoryFileIndex", {NEW: (7,), "$lessinit$greater$default$5": (0,)})
PARTITIONS = Need(f"{SOURCES}.PartitionSpec", {NEW: (2,), "emptySpec": (0,)})
PARTITION = Need(f"{SOURCES}.PartitionPath", {NEW: (2,)})
FILE_RELATION = Need(f"{SOURCES}.HadoopFsRelation", {NEW: (7,)})
PARQUET = Need(f"{SOURCES}.parquet.ParquetFileFormat", {NEW: (0,)})
RELATION = Need(f"{SOURCES}.LogicalRelation$", {"apply": (2,)})
SOURCE = Need(f"{STREAMING}.Source")
AVAILABLE_NOW = Need(f"{SQL}.connector.read.streaming.SupportsTriggerAvailableNow")
READ_LIMIT = Need(f"{SQL}.connector.read.streaming.ReadLimit", {"allAvailable": (0,)})
OFFSET = Need(f"{STREAMING}.runtime.SerializedOffset", {NEW: (1,)}, STREAMING)
STREAM_RELATION = Need(
    f"{STREAMING}.runtime.StreamingExecutionRelation", {NEW: (5, 4), "source": (0,)}, STREAMING
)
NATIVE_V1 = Need(f"{STREAMING}.runtime.StreamingRelation", {"dataSource": (0,)}, STREAMING)
NATIVE_V2 = Need(
    f"{SQL}.catalyst.streaming.StreamingRelationV2",
    {"sourceName": (0,), "extraOptions": (0,), "identifier": (0,)},
)
DATA_SOURCE = Need(
    f"{SOURCES}.DataSource",
    {"className": (0,), "options": (0,), "paths": (0,), "catalogTable": (0,), "sparkSession": (0,)},
)
QUERY = Need(
    f"{STREAMING}.runtime.MicroBatchExecution", {"noNewData": (0,), "triggerExecutor": (0,)}, STREAMING
)
ONE_BATCH = Need(f"{STREAMING}.runtime.SingleBatchExecutor", {}, STREAMING)
CHECKER = Need(f"{SQL}.catalyst.analysis.UnsupportedOperationChecker$", {"checkForStreaming": (2,)})
OUTPUT_MODE = Need(f"{SQL}.streaming.OutputMode", {"Append": (0,), "Update": (0,), "Complete": (0,)})
SESSIONS = Need(
    f"{SQL}.classic.SparkSession$",
    {"getActiveSession": (0,), "setActiveSession": (1,), "clearActiveSession": (0,)},
)
FILE_MANAGER = Need(f"{STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager", {NEW: (2,)}, STREAMING)
QUERY_EXECUTION = Need(f"{SQL}.execution.QueryExecution", {"analyzed": (0,), "executedPlan": (0,)})
LOGICAL_PLAN = Need(
    f"{SQL}.catalyst.plans.logical.LogicalPlan",
    {"children": (0,), "isStreaming": (0,), "nodeName": (0,), "output": (0,)},
)
ATTRIBUTE = Need(
    f"{SQL}.catalyst.expressions.AttributeReference",
    {"dataType": (0,), "metadata": (0,), "name": (0,), "nullable": (0,)},
)
OBSERVATION = Need(f"{SQL}.catalyst.plans.logical.CollectMetrics", {"name": (0,)})
KNOWN_NULLABLE = Need(f"{SQL}.catalyst.expressions.KnownNullable", {NEW: (1,)})
EXPRESSIONS = Need(f"{SQL}.classic.ExpressionUtils", {"column": (1,), "expression": (1,)})

NEEDS = (
    PATH, FOOTERS, INPUT_FILE, NONE, SOME, PYTHON_UTILS, SESSION, DATASET, STRUCT, TYPE_UTILS, LOCAL_RELATION, FILE_INDEX,
    PARTITIONS, PARTITION, FILE_RELATION, PARQUET, RELATION, SOURCE, AVAILABLE_NOW, READ_LIMIT, OFFSET, STREAM_RELATION,
    NATIVE_V1, NATIVE_V2, DATA_SOURCE, QUERY, ONE_BATCH, CHECKER, OUTPUT_MODE, SESSIONS,
    FILE_MANAGER, QUERY_EXECUTION, LOGICAL_PLAN, ATTRIBUTE, OBSERVATION, KNOWN_NULLABLE, EXPRESSIONS,
)  # fmt: skip


class Java:
    """The classes of one JVM. A class is a name until something is called on it, so making this is cheap."""

    _checked: ClassVar[WeakKeyDictionary[Any, Java]] = WeakKeyDictionary()

    def __init__(self, spark: SparkSession, needs: Sequence[Need] = NEEDS) -> None:
        """Checks the needs. Raises `UserError`, in one line, for the first that this build of Spark lacks."""
        context: Any = spark.sparkContext
        self._client = context._gateway._gateway_client
        self._class_for = JavaClass("py4j.reflection.ReflectionUtil", self._client).classForName
        self._show = JavaClass("scala.runtime.ScalaRunTime", self._client).stringOf
        self._found: dict[str, tuple[str, dict[str, set[int]]]] = {}
        self._is_older = False
        """Whether a class was found under its earlier name: then the others are tried under theirs first."""
        for need in needs:
            lack = self._lack(need)
            if lack is not None:
                raise UserError(
                    f"this build of Spark {spark.version} lacks {lack}, which Cutwater needs; supported: {SUPPORTED}"
                )

    @classmethod
    def of(cls, spark: SparkSession) -> Java:
        """The checked classes of the session's JVM; only the first call for a JVM checks. Raises as the constructor."""
        context: Any = spark.sparkContext
        gateway = context._gateway
        if gateway not in cls._checked:
            cls._checked[gateway] = cls(spark)
        return cls._checked[gateway]

    def type(self, need: Need) -> Any:
        """The class: call it to make an object, or use its static members."""
        return JavaClass(self._found[need.name][0], self._client)

    def singleton(self, need: Need) -> Any:
        """A Scala object."""
        return getattr(self.type(need), "MODULE$")

    def name(self, need: Need) -> str:
        """The name that the class has in this version of Spark."""
        return self._found[need.name][0]

    def takes(self, need: Need, count: int) -> bool:
        """Whether the class has a constructor with this many arguments."""
        return count in self._found[need.name][1][NEW]

    def _lack(self, need: Need) -> str | None:
        """What this JVM lacks of a need; remembers where it found the rest."""
        for name in reversed(need.names) if self._is_older else need.names:
            try:
                found = self._class_for(name)
            except Py4JJavaError:  # which costs dozens of calls
                continue
            members = self._members(found, need.members)
            for member, counts in need.members.items():
                if not members.get(member, set()).intersection(counts):
                    return f"{member} of {name} with {' or '.join(map(str, sorted(counts)))} arguments"
            self._found[need.name] = name, members
            self._is_older |= name != need.name
            return None
        return f"the class {' or '.join(need.names)}"

    def _members(self, found: Any, wanted: Collection[str]) -> dict[str, set[int]]:
        """The public members of a class by name, with their numbers of arguments: its constructors, its methods or both,
        as needed. Each list of them is fetched as one text, which saves a call to the JVM per member."""
        members: dict[str, set[int]] = {}
        if NEW in wanted:
            members[NEW] = {count for _, count in _parse(self._show(found.getConstructors()))}
        if any(name != NEW for name in wanted):
            for name, count in _parse(self._show(found.getMethods())):
                members.setdefault(name, set()).add(count)
        return members


def _parse(text: str) -> Iterator[tuple[str, int]]:
    for member, parameters in MEMBER.findall(text.removeprefix("Array(")):
        yield member, parameters.count(",") + 1 if parameters else 0
