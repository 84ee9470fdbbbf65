"""Keyed tables: which change of a key wins, and what may be removed of the output of publishing.

An epoch of a keyed table is a function of the records: of all changes of a key in its files, the one with the highest
order is applied to the table at the version before. The order is the user's sequence; of equal ones, the later change
wins. A delete leaves a *tombstone*, the key with its sequence, so that an older change that arrives later does not
bring the row back. Spark does this with joins (`sinks/delta/merge.py`); `applied` is what these joins mean.

Each attempt to publish writes into a folder of its own, named after the version on top of which it is to be committed.
Nobody knows whether the process that wrote it is dead, so the folder may be removed only when the table's log has
another commit in that place: then no process can commit it any more.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

_OUTPUT = re.compile(r"(\d+)-(-1|\d+)-([0-9a-f]{8,})")


# --- which change wins --------------------------------------------------------------------------------------


class Change(msgspec.Struct, frozen=True):
    """A change of the row with this key. `sequence` is `None` in tables that have none: then the later change wins.
    `place` is that of its file among the files of the epoch, `row` its place in the file. `value` is the new row, `None`
    if the row is deleted."""

    key: Hashable
    sequence: Any
    place: int
    row: int
    value: Any

    @property
    def order(self) -> tuple[Any, int, int]:
        """Comparable among the changes of one epoch."""
        return (self.sequence if self.sequence is not None else 0, self.place, self.row)


class Rows(msgspec.Struct, frozen=True):
    """The rows of a table by their keys, each with its sequence and value; and the sequences of deleted keys."""

    rows: Mapping[Hashable, tuple[Any, Any]] = {}
    deleted: Mapping[Hashable, Any] = {}


def winners(changes: Iterable[Change]) -> dict[Hashable, Change]:
    """The change with the highest order of each key."""
    found: dict[Hashable, Change] = {}
    for change in changes:
        if change.key not in found or found[change.key].order <= change.order:
            found[change.key] = change
    return found


def is_beaten(sequence: Any, known: Any) -> bool:
    """Whether a change comes too late for what the table knows of its key: a row or a tombstone with a higher sequence.
    `None` knows nothing."""
    return known is not None and sequence < known


def applied(table: Rows, changes: Iterable[Change]) -> Rows:
    """The table after an epoch with these changes."""
    rows, deleted = dict(table.rows), dict(table.deleted)
    for key, change in winners(changes).items():
        row = rows.get(key)
        if is_beaten(change.sequence, deleted.get(key)) or (
            row is not None and is_beaten(change.sequence, row[0])
        ):
            continue
        if change.value is not None:
            rows[key] = (change.sequence, change.value)
            continue
        rows.pop(key, None)
        if change.sequence is not None:
            deleted[key] = change.sequence
    return Rows(rows, deleted)


# --- which files can have a row -----------------------------------------------------------------------------


class Range(msgspec.Struct, frozen=True):
    """The lowest and the highest value of a column in a file, or wider bounds; `None` is not known."""

    lowest: Any = None
    highest: Any = None


def may_share_keys(one: Sequence[Range], other: Sequence[Range]) -> bool:
    """Whether two files may have rows with the same key, by the ranges of each of their key columns. What is not known
    is not a reason to skip a file."""
    return all(
        _is_not_above(a.lowest, b.highest) and _is_not_above(b.lowest, a.highest)
        for a, b in zip(one, other, strict=True)
    )


def _is_not_above(lowest: Any, highest: Any) -> bool:
    return lowest is None or highest is None or bool(lowest <= highest)


# --- tombstones ---------------------------------------------------------------------------------------------


def runs_to_merge(sizes: Sequence[int], new: int) -> int:
    """How many of the newest runs of tombstones to write again together with `new` tombstones. `sizes` are the rows of
    the runs, oldest first. Afterwards each run is more than twice as large as the next, so that there are few, and a
    tombstone is written again only a few times."""
    total, count = new, 0
    for size in reversed(sizes):
        if size > 2 * total:
            break
        total += size
        count += 1
    return count


# --- the output of an attempt to publish --------------------------------------------------------------------


class Output(msgspec.Struct, frozen=True):
    """An attempt to publish the journal entry `index` on top of the table's version `expected`."""

    index: int
    expected: int
    nonce: str


def output_name(output: Output) -> str:
    """The name of its folder."""
    return f"{output.index}-{output.expected}-{output.nonce}"


def output_of(name: str) -> Output | None:
    """The attempt whose folder has this name; `None` if it is another folder."""
    match = _OUTPUT.fullmatch(name)
    return Output(int(match[1]), int(match[2]), match[3]) if match else None


def obsolete_outputs(names: Iterable[str], newest: int, shown: Collection[str]) -> set[str]:
    """The folders that no version of the table shows, and that no process can show any more. `newest` is the table's
    newest version, and `shown` the folders in versions that can still be read; both must be read after `names`."""
    found = set()
    for name in names:
        output = output_of(name)
        if output is not None and output.expected < newest and name not in shown:
            found.add(name)
    return found
