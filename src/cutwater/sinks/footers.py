"""Parquet footers: row counts, and the statistics by which engines skip files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime
from decimal import Decimal
from io import BytesIO
from math import isfinite
from threading import Lock
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from cutwater.protocol.base.errors import StoreError
from cutwater.store.contract import Store

INDEXED_COLUMNS = 32
LONGEST_TEXT = 32
HIGHEST_CHARACTER = "\U0010ffff"
_PARALLEL_READS = 16
MOST_KEPT = 1_000
"""The most footers to cache for files that wait to be published. That of a wide table takes about 100 KB."""
_TAIL = 64 << 10
_ENCODE = msgspec.json.Encoder().encode

Path = tuple[str, ...]


class Footer(NamedTuple):
    """The footer of a Parquet file: pyarrow's `metadata`, and the size of the file in bytes."""

    metadata: Any
    size: int

    @property
    def rows(self) -> int:
        return int(self.metadata.num_rows)


def read_footers(store: Store, names: Sequence[str]) -> list[Footer]:
    """The footer of each file. Raises `StoreError` if a file is gone or is not a Parquet file."""
    if not names:
        return []
    if store.path(names[0]) is not None:
        return [_read_file(name, store.path(name)) for name in names]
    with ThreadPoolExecutor(_PARALLEL_READS) as pool:
        return list(pool.map(lambda name: _read_object(store, name), names))


class Footers:
    """The footers of files that a process has written and will publish. Each is read once: staged files never change, so
    before publishing it is enough to check that they still exist and have the same size. The query that writes and the
    one who publishes use it at the same time."""

    def __init__(self) -> None:
        self._known: dict[str, Footer] = {}
        self._lock = Lock()

    def get(self, store: Store, names: Sequence[str]) -> list[Footer]:
        """The footer of each file. Raises `StoreError` as `read_footers` does."""
        return self._with_unknown(store, names, self._of(names))

    def add(self, found: Mapping[str, Footer]) -> None:
        """Keep footers that were read already, by the file's name."""
        with self._lock:
            self._known |= found
            for name in list(self._known)[: max(0, len(self._known) - MOST_KEPT)]:
                del self._known[name]

    def check(self, store: Store, names: Sequence[str]) -> list[Footer]:
        """The same as `get`, after checking that the files still exist."""
        known = self._of(names)
        for name, size in _sizes(store, list(known)).items():
            if size is None:
                raise _gone(name)
            if size != known[name].size:
                del known[name]
        return self._with_unknown(store, names, known)

    def forget(self, names: Iterable[str]) -> None:
        """Drop the footers of published files."""
        with self._lock:
            for name in names:
                self._known.pop(name, None)

    def _of(self, names: Iterable[str]) -> dict[str, Footer]:
        with self._lock:
            return {name: self._known[name] for name in names if name in self._known}

    def _with_unknown(self, store: Store, names: Sequence[str], known: dict[str, Footer]) -> list[Footer]:
        unknown = [name for name in names if name not in known]
        found = known | dict(zip(unknown, read_footers(store, unknown), strict=True))
        self.add(found)
        return [found[name] for name in names]


def _sizes(store: Store, names: Sequence[str]) -> dict[str, int | None]:
    if not names or store.path(names[0]) is not None:
        return {name: store.size(name) for name in names}
    with ThreadPoolExecutor(_PARALLEL_READS) as pool:
        return dict(zip(names, pool.map(store.size, names), strict=True))


def check_pages(store: Store, name: str) -> int:
    """Read a whole Parquet file and return its number of rows. Raises `StoreError` if it is gone or damaged, or if its
    statistics, by which readers skip rows, do not match the values."""
    path = store.path(name)
    data = store.read(name) if path is None else b""
    if data is None or not store.exists(name):
        raise _gone(name)
    try:
        file = pq.ParquetFile(BytesIO(data) if path is None else path, page_checksum_verification=True)
        rows = 0
        wrong: str | None = None
        for number in range(file.num_row_groups):
            group = file.read_row_group(number)
            rows += group.num_rows
            wrong = wrong or _wrong_statistics(group, file.metadata.row_group(number))
    except Exception as error:  # reading damaged bytes may raise anything
        raise StoreError(f"{name} is damaged ({str(error)[:200]})") from error
    if wrong is not None:
        raise StoreError(f"{name} is damaged (its statistics do not match the values of {wrong})")
    return rows


def _wrong_statistics(group: Any, footer: Any) -> str | None:
    """A column whose statistics would make a reader skip rows wrongly; `None` if there is none. Bounds may be wider than
    the values, and may be missing."""
    for place, path, kind in _columns(group.schema):
        said = footer.column(place).statistics
        if said is None:
            continue
        values = group.column(path[0])
        for name in path[1:]:
            values = pc.struct_field(values, name)
        if said.has_null_count and said.null_count != values.null_count:
            return ".".join(path)
        if said.has_min_max and _is_ordered(kind) and values.null_count < len(values):
            lowest, highest = pc.min_max(values).values()
            if not _encloses(said, lowest, highest):
                return ".".join(path)
    return None


def _encloses(said: Any, lowest: Any, highest: Any) -> bool:
    try:
        # A NaN is neither lower nor higher than anything: as a bound it says nothing, which is Spark's maximum if there
        # is a NaN among the values; and the values have no bounds if all of them are NaN.
        return not (lowest.as_py() < said.min or said.max < highest.as_py())
    except (
        TypeError,
        ValueError,
        OverflowError,
    ):  # values that Python cannot represent, such as far-off dates
        return True


def _read_file(name: str, path: Any) -> Footer:
    try:
        return Footer(_read(name, path), path.stat().st_size)
    except FileNotFoundError:
        raise _gone(name) from None


def _read_object(store: Store, name: str) -> Footer:
    tail = store.tail(name, _TAIL)
    if tail is None:
        raise _gone(name)
    length = int.from_bytes(tail.data[-8:-4], "little") + 8  # the footer's length is stored right after it
    if _TAIL < length <= tail.size:
        tail = store.tail(name, length)
        if tail is None:
            raise _gone(name)
    return Footer(_read(name, BytesIO(tail.data)), tail.size)


def _read(name: str, source: Any) -> Any:
    try:
        return pq.read_metadata(source)
    except pa.ArrowInvalid as error:
        raise StoreError(
            f"the staged file {name} is damaged ({error}), so its epoch cannot be published; "
            "restore an older checkpoint"
        ) from error


def _gone(name: str) -> StoreError:
    return StoreError(
        f"the staged file {name} is gone, so its epoch cannot be published: something other than Cutwater "
        "has removed it. Restore an older checkpoint"
    )


def statistics(footer: Any) -> str:
    """A file's statistics in Delta's format: the number of rows, and per column minimum, maximum and nulls.

    If one column has no bounds, no column has any: deltalake's Arrow dataset treats a bound that is missing beside others
    as one that no value satisfies, and skips the file for every filter on that column."""
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    has_all_bounds = True
    for place, path, kind in list(_columns(footer.schema.to_arrow_schema()))[:INDEXED_COLUMNS]:
        chunks = [footer.row_group(g).column(place).statistics for g in range(footer.num_row_groups)]
        if any(chunk is None or not chunk.has_null_count for chunk in chunks):
            has_all_bounds = False
            continue
        _put(nulls, path, sum(chunk.null_count for chunk in chunks))
        with_values = [c for c in chunks if c.num_values > 0]
        if with_values and _is_ordered(kind):
            bounds = _bounds(with_values)
            if bounds is None:
                has_all_bounds = False
                continue
            _put(lowest, path, bounds[0])
            _put(highest, path, bounds[1])
    found = {"numRecords": footer.num_rows, "nullCount": nulls}
    if has_all_bounds:
        found |= {"minValues": lowest, "maxValues": highest}
    return _ENCODE(found).decode()


def has_nulls(footer: Any, column: str) -> bool:
    """Whether a simple column of a file has nulls, as far as its footer says."""
    for place, path, _ in _columns(footer.schema.to_arrow_schema()):
        if path == (column,):
            chunks = (footer.row_group(g).column(place).statistics for g in range(footer.num_row_groups))
            return any(
                chunk is not None and chunk.has_null_count and chunk.null_count > 0 for chunk in chunks
            )
    return False


def bounds(footer: Any, column: str) -> tuple[Any, Any] | None:
    """The lowest and highest value of a simple column of a file, `None` if the footer does not say."""
    for place, path, kind in _columns(footer.schema.to_arrow_schema()):
        if path == (column,) and _is_ordered(kind):
            chunks = [footer.row_group(g).column(place).statistics for g in range(footer.num_row_groups)]
            if any(chunk is None or not chunk.has_min_max for chunk in chunks):
                return None
            try:
                return min(chunk.min for chunk in chunks), max(chunk.max for chunk in chunks)
            except (OverflowError, ValueError):  # nothing there, or a date that Python cannot represent
                return None
    return None


def _bounds(chunks: list[Any]) -> tuple[Any, Any] | None:
    """The lowest and highest value, or wider bounds, as JSON values; `None` if they are unknown."""
    if not all(chunk.has_min_max for chunk in chunks):
        return None
    try:
        lowest, highest = [c.min for c in chunks], [c.max for c in chunks]
    except (OverflowError, ValueError):  # a date that Python cannot represent
        return None
    # JSON has no infinity. A maximum of NaN says that there is one, which is above all numbers, and min() and max()
    # may overlook it.
    if any(isinstance(bound, float) and not isfinite(bound) for bound in (*lowest, *highest)):
        return None
    low, high = min(lowest), max(highest)
    if isinstance(low, float):  # some readers order the two zeros, and there may be both
        return low or -0.0, high or 0.0
    if isinstance(low, str):
        return low[:LONGEST_TEXT], _not_below(high)
    return _plain(low), _plain(high)


def _not_below(text: str) -> str:
    """A text that is short and not lower than this one."""
    for end in range(LONGEST_TEXT, len(text)):
        if text[end] < HIGHEST_CHARACTER:
            return text[:end] + HIGHEST_CHARACTER
    return text


def _columns(fields: Any, path: Path = (), place: int = 0) -> Iterator[tuple[int, Path, Any]]:
    """The columns with one value per row: place in the file, path, type. Includes the fields of structs, but not what is
    inside lists and maps."""
    for field in fields:
        if pa.types.is_struct(field.type):
            yield from _columns(field.type, (*path, field.name), place)
        elif not pa.types.is_nested(field.type):
            yield place, (*path, field.name), field.type
        place += _width(field.type)


def _width(kind: Any) -> int:
    """The number of Parquet columns that a type takes."""
    if not pa.types.is_nested(kind):
        return 1
    return sum(_width(kind.field(i).type) for i in range(kind.num_fields))


def _is_ordered(kind: Any) -> bool:
    return not pa.types.is_binary(kind)


def _put(tree: dict[str, Any], path: Path, value: Any) -> None:
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = value


def _plain(value: Any) -> bool | int | float | str | msgspec.Raw:
    if isinstance(value, datetime):
        text = value.replace(tzinfo=None).isoformat(timespec="microseconds")
        return text if value.tzinfo is None else f"{text}Z"
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):  # not every reader understands 0E-8
        return msgspec.Raw(format(value, "f").encode())
    assert isinstance(value, int | float)
    return value
