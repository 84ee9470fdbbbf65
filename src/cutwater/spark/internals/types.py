"""Types and modules of pyspark that are not public, or not the same in every supported version."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pyspark
from pyspark import cloudpickle
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema


def _known(*names: str) -> tuple[type[t.DataType], ...]:
    """Those of these types that this version of pyspark has."""
    return tuple(getattr(t, name) for name in names if hasattr(t, name))


PLAIN_TYPES = _known("NumericType", "DateType", "TimestampType", "TimestampNTZType", "TimeType")
"""Numbers, dates and times. Spark 4.0 has no common name for the latter."""

SPATIAL_TYPES = _known("GeographyType", "GeometryType")
"""Types that Spark has from 4.1 on."""

VERSION = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
VOID_TYPES: tuple[type[t.DataType], ...] = (t.NullType,) if VERSION >= (4, 1) else ()
"""The type of a column that is always null, where Spark's Parquet writer takes it: from 4.1 on."""


def arrow_schema(schema: t.StructType) -> Any:
    """The schema as pyarrow has it."""
    return to_arrow_schema(schema)


def pickle_by_value(module: ModuleType) -> None:
    """Sends a module's functions to Spark's Python processes with their code: the module cannot be imported there."""
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
