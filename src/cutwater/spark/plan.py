"""What a stage's plan shows before it runs: its schema, its sources, its watermarks."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import types as t

from cutwater.protocol.base.errors import UserError
from cutwater.spark.checkpoint.leaves import GENERATED, Leaf, native_leaf
from cutwater.spark.internals.plans import PlanNode, analysed_plan
from cutwater.spark.internals.types import SPATIAL_TYPES, VOID_TYPES

WATERMARK_KEY = "spark.watermarkDelayMs"


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
    """`fan_in_watermark`: the inputs below a watermark that is above a fan-in of channels. `leaves`: what the plan reads,
    as a checkpoint records it. `has_timers`: Spark always has a reason for another batch, see `PlanNode.has_timers`.
    `stateful`: an operator that keeps state, or that is not known to keep none."""

    sources: tuple[Source, ...]
    has_watermark: bool
    fan_in_watermark: tuple[str, ...] = ()
    leaves: tuple[Leaf, ...] = ()
    has_timers: bool = False
    stateful: str = ""

    def uses(self, channel: str) -> int:
        """How often the plan reads a channel."""
        return sum(source.input == channel for source in self.sources)


def read_plan(frame: DataFrame, chained: Collection[str] = ()) -> Plan:
    """Reads the analysed plan of a streaming DataFrame, in which these stages are chained."""
    sources: list[Source] = []
    leaves: list[Leaf] = []
    native: list[PlanNode] = []
    above: tuple[str, ...] = ()
    has_watermark = has_timers = False
    stateful = ""
    for node, stage in analysed_plan(frame).walk_stages(chained):
        has_timers |= node.has_timers
        stateful = stateful or ("" if node.is_stateless else node.kind)
        if node.is_watermark:
            has_watermark = True
            below = [channel for n in node.walk() if (channel := n.channel) is not None]
            if len(below) > 1:
                above = tuple(below)
        source = _source(node)
        if source is not None:
            sources.append(source)
            leaf = _leaf(frame, node, source, native)
            leaves.append(msgspec.structs.replace(leaf, stage=stage, by_border=True))
    return Plan(tuple(sources), has_watermark, above, tuple(leaves), has_timers, stateful)


def _source(node: PlanNode) -> Source | None:
    if (channel := node.channel) is not None:
        return Source("channel", (), channel)
    if (native := node.native) is not None:
        name, options = native
        return Source(name.lower(), tuple(sorted(set(options))))
    return None


def _leaf(frame: DataFrame, node: PlanNode, source: Source, native: list[PlanNode]) -> Leaf:
    """A leaf, without its stage. `native` has those of native sources so far: Spark makes one source, with one log, of
    leaves that are equal, and numbers the logs in the order in which it meets them."""
    if source.input is not None:
        return Leaf(channel=source.input)
    log = next((number for number, other in enumerate(native) if other == node), len(native))
    if log == len(native):
        native.append(node)
    table = node.table
    tables = [f"table={table}"] if table is not None else []
    path = dict(source.options).get("path", "")
    absolute = node.absolute(frame.sparkSession, path) if path else ""
    return native_leaf(source.format, source.options, tables, log, absolute)


# --- schemas ------------------------------------------------------------------------------------------


def channel_schema(stage: str, schema: t.StructType) -> str:
    """The schema of a stage's rows as its readers declare it: everything nullable, and without watermark metadata (with
    it Spark would accept append mode downstream and never emit anything). Raises `UserError` for columns that a channel
    cannot carry."""
    return json.dumps(_plain(stage, schema, ""), separators=(",", ":"))


def row_schema(schema: t.StructType) -> t.StructType:
    """The schema without watermark metadata, everything nullable: as files and tables have it."""
    return t.StructType.fromJson(_plain(None, schema, ""))


def _plain(stage: str | None, schema: t.DataType, where: str) -> Any:
    """A type's JSON, everything in it nullable. With a stage, raises for types that channels cannot carry."""
    if isinstance(schema, t.StructType):
        fields = []
        for field in schema.fields:
            name = f"{where}.{field.name}" if where else field.name
            # The metadata of the JSON has more than the field's own: collations.
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
        *VOID_TYPES, *SPATIAL_TYPES,
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
