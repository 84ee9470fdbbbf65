"""The files that Spark writes for a batch: what their paths mean, and how they become durable."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cutwater.protocol.base.errors import UserError
from cutwater.store.contract import Store

END = "__cutwater_end"
"""The folder level with the end of the window of the rows below it, in ms since 1970."""

NULL = "__HIVE_DEFAULT_PARTITION__"


def window_end(rows: DataFrame, final_by: str) -> Column:
    """The end of a row's window. Raises `UserError` if it is not a timestamp."""
    end = F.expr(final_by)
    kind = rows.select(end).schema[0].dataType.typeName()
    if kind != "timestamp":
        raise UserError(
            f"final_by={final_by!r} is a {kind}, and must be the timestamp at which a row's window ends, "
            'for example "window.end"'
        )
    return end


def end_ms(rows: DataFrame, final_by: str) -> Column:
    """The end of a row's window in ms, rounded up, so that it does not close too early."""
    end = window_end(rows, final_by)
    is_between = F.pmod(F.unix_micros(end), F.lit(1000)) > 0
    return F.unix_millis(end) + is_between.cast("int")


def partition_values(name: str, columns: Sequence[str]) -> dict[str, str | None]:
    """The values of partition columns in the path of a file that Spark has written."""
    values: dict[str, str | None] = {}
    for part in name.split("/")[:-1]:
        key, equals, value = part.partition("=")
        if equals and unquote(key) in columns:
            values[unquote(key)] = None if value == NULL else unquote(value)
    return values


def partition_columns(name: str) -> list[str]:
    """The columns that are in the path of a file that Spark has written."""
    return [unquote(part.partition("=")[0]) for part in name.split("/")[:-1] if "=" in part]


def end_of(name: str) -> int | None:
    """The window end in a file's path; rows without one need not wait."""
    end = partition_values(name, [END]).get(END)
    return None if end is None else int(end)


def is_data(name: str) -> bool:
    """Whether a file, by its name in an attempt's folder, is output of the job. Files in hidden folders are not: a task
    that Spark has given up on may leave a file there after the job's commit."""
    hidden = (part.startswith(".") or (part.startswith("_") and "=" not in part) for part in name.split("/"))
    return name.endswith(".parquet") and not any(hidden)


def sync(store: Store, names: Sequence[str]) -> None:
    """Make files durable that others have written to a local folder, including every folder above them."""
    folders: set[Path] = set()
    for name in names:
        path = store.path(name)
        if path is None:
            return
        _fsync(path)
        folders.update(list(path.parents)[: name.count("/") + 1])
    for folder in folders:
        _fsync(folder)


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
