"""The analysed plan of a DataFrame, node by node."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from cutwater.spark.internals import java as j
from cutwater.spark.internals.borders import stage_of_border

CHECKS = "spark.sql.streaming.unsupportedOperationCheck"
"""The setting with which Spark checks plans when their query starts."""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
Options = tuple[tuple[str, str], ...]
STATELESS = frozenset({
    "Project", "Filter", "SubqueryAlias", "Union", "Generate", "CollectMetrics", "View", "ResolvedHint",
    "MapInPandas", "MapInArrow", "PythonMapInArrow", "MapPartitions", "MapElements", "TypedFilter",
    "SerializeFromObject", "DeserializeToObject", "Repartition", "RepartitionByExpression", "RebalancePartitions",
    "Sample", "Expand", "EventTimeWatermark", "UpdateEventTimeWatermarkColumn", "StreamingRelation",
    "StreamingRelationV2", "StreamingExecutionRelation",
})  # fmt: skip
"""The operators of a streaming plan that are known to keep no state."""


@dataclass(frozen=True)
class PlanNode:
    """A node of a plan. Two are equal if Spark says so."""

    java: Any
    kind: str

    def walk(self) -> Iterator[PlanNode]:
        """This node and all below it, parents first."""
        yield self
        children = self.java.children()
        for i in range(children.size()):
            yield from _node(children.apply(i)).walk()

    def walk_stages(self, chained: Collection[str], stage: str = "") -> Iterator[tuple[PlanNode, str]]:
        """The same, each with the chained stage that it belongs to: the last border above it says which; empty above
        all."""
        found = self._border(chained)
        stage = stage if found is None else found
        yield self, stage
        children = self.java.children()
        for i in range(children.size()):
            yield from _node(children.apply(i)).walk_stages(chained, stage)

    def _border(self, chained: Collection[str]) -> str | None:
        """The chained stage whose rows pass the border here, if this is one (see `borders.py`)."""
        return stage_of_border(str(self.java.name()), chained) if self.kind == "CollectMetrics" else None

    @property
    def is_watermark(self) -> bool:
        return self.kind.startswith(("EventTimeWatermark", "UpdateEventTimeWatermarkColumn"))

    @property
    def has_timers(self) -> bool:
        """Whether Spark runs batches for this operator all the time, because processing time passes: one of them may
        find that a timer of the user's is due."""
        if self.kind in ("FlatMapGroupsWithState", "FlatMapGroupsInPandasWithState"):
            return "ProcessingTime" in str(self.java.timeout().toString())
        if self.kind.startswith("TransformWithState"):
            return "ProcessingTime" in str(self.java.timeMode().toString())
        return False

    @property
    def is_stateless(self) -> bool:
        """Whether this operator is known to keep no state. (A join of a stream with a table keeps none.)"""
        if self.kind in STATELESS or not self.java.isStreaming():
            return True
        children = self.java.children()
        streams = sum(bool(children.apply(i).isStreaming()) for i in range(children.size()))
        return self.kind == "Join" and streams < 2

    @property
    def channel(self) -> str | None:
        """The channel that this leaf reads, if it is one (see `Relations.channel_frame`)."""
        return str(self.java.source().toString()) if self.kind == "StreamingExecutionRelation" else None

    @property
    def native(self) -> tuple[str, Options] | None:
        """The format and the options of the native streaming source that this leaf reads, if it is one."""
        if self.kind == "StreamingRelationV2":
            found = self.java.extraOptions().asCaseSensitiveMap()
            return str(self.java.sourceName()), tuple((str(k).lower(), str(found[k])) for k in found)
        if self.kind == "StreamingRelation":
            source = self.java.dataSource()
            paths = source.paths()
            options = tuple(("path", str(paths.apply(i))) for i in range(paths.size()))
            return str(source.className()), (*_options(source.options()), *options)
        return None

    def absolute(self, spark: SparkSession, path: str) -> str:
        """The path of this native source as Spark's file source completes it: with the file system and the folder that
        paths without them belong to, and without following links. Empty if it is not a source of files, and if the path
        is a URL of another file system than the local one, which is complete."""
        is_complete = _SCHEME.match(path) is not None and not path.lower().startswith("file:")
        if self.kind != "StreamingRelation" or not path or is_complete:
            return ""
        conf = self.java.dataSource().sparkSession().sessionState().newHadoopConf()
        try:
            found = j.Java.of(spark).type(j.PATH)(path)
            return str(found.getFileSystem(conf).makeQualified(found).toString())
        except (Py4JJavaError, PySparkException):  # some other source has an option of this name
            return ""

    @property
    def table(self) -> str | None:
        """The table that a native source reads, if it was given by its name."""
        if self.kind == "StreamingRelationV2":
            found = self.java.identifier()
            return str(found.get().toString()) if found.isDefined() else None
        found = self.java.dataSource().catalogTable()
        return str(found.get().identifier().unquotedString()) if found.isDefined() else None


def _node(java: Any) -> PlanNode:
    return PlanNode(java, str(java.nodeName()))


def _options(found: Any) -> Options:
    """A Scala map."""
    pairs = []
    iterator = found.iterator()
    while iterator.hasNext():
        pair = iterator.next()
        pairs.append((str(pair._1()).lower(), str(pair._2())))
    return tuple(pairs)


def analysed_plan(frame: DataFrame) -> PlanNode:
    """The root of the plan."""
    return _node(frame._jdf.queryExecution().analyzed())


def unsupported(frame: DataFrame, output_mode: str) -> str | None:
    """What Spark would say when a query with this plan is started, if it would refuse: its own check, with the settings
    of the frame's session."""
    spark = frame.sparkSession
    if spark.conf.get(CHECKS, "true") != "true":
        return None
    java, inner = j.Java.of(spark), frame._jdf.sparkSession()
    sessions = java.singleton(j.SESSIONS)
    mode = getattr(java.type(j.OUTPUT_MODE), output_mode.capitalize())()
    active = sessions.getActiveSession()
    sessions.setActiveSession(inner)  # the check takes its settings from there
    try:
        java.singleton(j.CHECKER).checkForStreaming(frame._jdf.queryExecution().analyzed(), mode)
    except AnalysisException as error:
        return str(error)
    finally:
        if active.isDefined():
            sessions.setActiveSession(active.get())
        else:
            sessions.clearActiveSession()
    return None


def is_of_session(frame: DataFrame, spark: SparkSession) -> bool:
    """Whether a streaming DataFrame would run in this session, and the native sources in it take their settings from
    there: each holds the session that it was read with."""
    inner: Any = spark
    found = [frame._jdf.sparkSession()]
    for node in analysed_plan(frame).walk():
        if node.kind == "StreamingRelation":
            found.append(node.java.dataSource().sparkSession())
    return all(session.equals(inner._jsparkSession) for session in found)
