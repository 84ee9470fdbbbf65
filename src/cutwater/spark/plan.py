"""What can be told from a stage's plan before it runs: its schema, its sources, its watermarks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t

from cutwater.protocol.base.errors import UserError
from cutwater.spark.checkpoint.leaves import Leaf, native_leaf

WATERMARK_KEY = "spark.watermarkDelayMs"
GENERATED = {"rate", "rate-micro-batch", "socket", "memory"}
"""Sources that give every reader rows of its own; two stages may well read "the same"."""


class Source(msgspec.Struct, frozen=True):
    """A leaf of a streaming plan: a channel (`input` says which), or a native source."""

    format: str
    options: tuple[tuple[str, str], ...]
    input: str | None = None

    @property
    def is_shareable(self) -> bool:
        return self.input is not None or self.format in GENERATED or not self.options

    def __str__(self) -> str:
        return f"{self.format} ({', '.join(f'{k}={v}' for k, v in self.options)})"


class Plan(msgspec.Struct, frozen=True):
    """What a stage's plan says of itself. `fan_in_watermark`: the inputs below a watermark that lies above
    a fan-in of channels. `leaves`: what it reads, as a checkpoint remembers it."""

    sources: tuple[Source, ...]
    has_watermark: bool
    fan_in_watermark: tuple[str, ...] = ()
    leaves: tuple[Leaf, ...] = ()


def read_plan(frame: DataFrame) -> Plan:
    """Looks at the analysed plan of a streaming DataFrame."""
    root = frame._jdf.queryExecution().analyzed()
    sources: list[Source] = []
    leaves: list[Leaf] = []
    native: list[Any] = []
    above: tuple[str, ...] = ()
    has_watermark = False
    for node in _nodes(root):
        kind = node.nodeName()
        if kind.startswith(("EventTimeWatermark", "UpdateEventTimeWatermarkColumn")):
            has_watermark = True
            below = [s.input for n in _nodes(node) if (s := _source(n)) is not None and s.input is not None]
            if len(below) > 1:
                above = tuple(below)
        source = _source(node)
        if source is not None:
            sources.append(source)
            leaves.append(_leaf(node, source, native))
    return Plan(tuple(sources), has_watermark, above, tuple(leaves))


def is_of_session(frame: DataFrame, spark: SparkSession) -> bool:
    """Whether a streaming DataFrame would run in this session, and Spark's own sources in it take their settings from
    there: each holds the session that it was read with."""
    inner: Any = spark
    found = [frame._jdf.sparkSession()]
    for node in _nodes(frame._jdf.queryExecution().analyzed()):
        if node.nodeName() == "StreamingRelation":
            found.append(node.dataSource().sparkSession())
    return all(session.equals(inner._jsparkSession) for session in found)


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    children = node.children()
    for i in range(children.size()):
        yield from _nodes(children.apply(i))


def _source(node: Any) -> Source | None:
    kind = node.nodeName()
    if kind == "StreamingExecutionRelation":
        return Source("channel", (), node.source().toString())
    if kind not in ("StreamingRelation", "StreamingRelationV2"):
        return None
    if kind == "StreamingRelationV2":
        name = node.sourceName()
        options = _options(node.extraOptions().asCaseSensitiveMap())
    else:
        data_source = node.dataSource()
        name = data_source.className()
        options = _scala_options(data_source.options())
        paths = data_source.paths()
        options += tuple(("path", paths.apply(i)) for i in range(paths.size()))
    return Source(name.lower(), tuple(sorted(set(options))))


def _leaf(node: Any, source: Source, native: list[Any]) -> Leaf:
    """A leaf, where `native` has those of native sources so far. Spark makes one source, with one log, of leaves that
    are equal, and numbers the logs as it comes upon them."""
    if source.input is not None:
        return Leaf(channel=source.input)
    log = next((number for number, other in enumerate(native) if other == node), len(native))
    if log == len(native):
        native.append(node)
    return native_leaf(source.format, source.options, _table(node), log)


def _table(node: Any) -> list[str]:
    """The table that a source is of, if it was given by its name."""
    if node.nodeName() == "StreamingRelationV2":
        found = node.identifier()
        return [f"table={found.get().toString()}"] if found.isDefined() else []
    found = node.dataSource().catalogTable()
    return [f"table={found.get().identifier().unquotedString()}"] if found.isDefined() else []


def _options(found: Any) -> tuple[tuple[str, str], ...]:
    return tuple((str(k).lower(), str(found[k])) for k in found)


def _scala_options(found: Any) -> tuple[tuple[str, str], ...]:
    pairs = []
    iterator = found.iterator()
    while iterator.hasNext():
        pair = iterator.next()
        pairs.append((str(pair._1()).lower(), str(pair._2())))
    return tuple(pairs)


# --- schemas ------------------------------------------------------------------------------------------


def channel_schema(stage: str, schema: t.StructType) -> str:
    """The schema of a stage's rows as its readers declare it: all may be null, no watermark in it (with it
    append mode would be accepted downstream and nothing ever be emitted). Raises `UserError` for what a
    channel cannot carry."""
    return json.dumps(_plain(stage, schema, ""), separators=(",", ":"))


def row_schema(schema: t.StructType) -> t.StructType:
    """The schema without watermark metadata, everything nullable: what files and tables have."""
    return t.StructType.fromJson(_plain(None, schema, ""))


def _plain(stage: str | None, schema: t.DataType, where: str) -> Any:
    """A type's JSON, everywhere nullable. With a stage, raises for types that channels cannot carry."""
    if isinstance(schema, t.StructType):
        fields = []
        for field in schema.fields:
            name = f"{where}.{field.name}" if where else field.name
            # The JSON's metadata has more in it than the field's own: collations.
            kept = {k: v for k, v in field.jsonValue()["metadata"].items() if k != WATERMARK_KEY}
            fields.append(
                {
                    "name": field.name,
                    "type": _plain(stage, field.dataType, name),
                    "nullable": True,
                    "metadata": kept,
                }
            )
        return {"type": "struct", "fields": fields}
    if isinstance(schema, t.ArrayType):
        return {
            "type": "array",
            "elementType": _plain(stage, schema.elementType, f"{where}[]"),
            "containsNull": True,
        }
    if isinstance(schema, t.MapType):
        return {
            "type": "map",
            "keyType": _plain(stage, schema.keyType, f"{where}.key"),
            "valueType": _plain(stage, schema.valueType, f"{where}.value"),
            "valueContainsNull": True,
        }
    if stage is not None:
        fix = _cannot_carry(schema)
        if fix:
            raise UserError(
                f"stage '{stage}' is read by other stages, and its column '{where}' has type "
                f"{schema.simpleString()}, which a channel cannot carry; {fix}"
            )
    return "string" if type(schema) is t.StringType else schema.jsonValue()


def _cannot_carry(kind: t.DataType) -> str | None:
    if isinstance(kind, t.CalendarIntervalType):
        return "carry it as two numbers"
    if isinstance(kind, t.UserDefinedType):
        return "carry its parts as a struct"
    carried = (
        t.StringType, t.BinaryType, t.BooleanType, t.NumericType, t.DateType, t.TimestampType,
        t.TimestampNTZType, t.DayTimeIntervalType, t.YearMonthIntervalType, t.CharType, t.VarcharType, t.VariantType,
        t.NullType, t.GeographyType, t.GeometryType,
    )  # fmt: skip
    return None if isinstance(kind, carried) else "cast it to a string or a number"


def refuse_clashing_names(stage: str, kind: t.DataType, where: str = "") -> None:
    """Raises `UserError` if two columns, or two fields of one struct, have the same name but for its case: neither a
    channel nor a table can hold both."""
    match kind:
        case t.ArrayType():
            refuse_clashing_names(stage, kind.elementType, where)
        case t.MapType():
            refuse_clashing_names(stage, kind.keyType, where)
            refuse_clashing_names(stage, kind.valueType, where)
        case t.StructType():
            seen: dict[str, str] = {}
            for field in kind.fields:
                name = f"{where}.{field.name}" if where else field.name
                if name.lower() in seen:
                    raise UserError(
                        f"stage '{stage}' has two columns named '{seen[name.lower()]}' and '{name}'; a file can hold "
                        "only one of them: rename one with withColumnRenamed(), or select() what is needed"
                    )
                seen[name.lower()] = name
                refuse_clashing_names(stage, field.dataType, name)
        case _:
            pass
