"""Keyed tables: which change wins, which files are looked at, and which output may be removed."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutwater.protocol.base.paths import Attempt, staged_attempt_name, staged_attempt_of
from cutwater.protocol.member.upsert import (
    Change,
    Output,
    Range,
    Rows,
    applied,
    is_beaten,
    may_share_keys,
    obsolete_outputs,
    output_name,
    output_of,
    runs_to_merge,
    winners,
)

# --- which change wins --------------------------------------------------------------------------------------

KEYS = st.sampled_from("abc")
VALUES = st.one_of(st.none(), st.integers(0, 99))
ARRIVING = st.lists(st.tuples(KEYS, st.integers(0, 6), VALUES), max_size=30)
"""Changes in the order in which they arrive, with sequences in any order, repeated ones among them."""


def fold(arriving: list[tuple[str, int, Any]]) -> dict[str, Any]:
    """What the table should be: one change after the other, and a key never forgets its highest sequence."""
    rows: dict[str, Any] = {}
    highest: dict[str, int] = {}
    for key, sequence, value in arriving:
        if sequence < highest.get(key, sequence):
            continue
        highest[key] = sequence
        rows[key] = value
    return {key: value for key, value in rows.items() if value is not None}


def epochs(
    arriving: list[tuple[str, int, Any]], cuts: list[int], with_sequence: bool = True
) -> list[list[Change]]:
    """The same changes in several epochs, and each epoch in files of two rows."""
    bounds = [0, *sorted(cut % (len(arriving) + 1) for cut in cuts), len(arriving)]
    return [
        [
            Change(key, sequence if with_sequence else None, n // 2, n % 2, value)
            for n, (key, sequence, value) in enumerate(arriving[begin:end])
        ]
        for begin, end in itertools.pairwise(bounds)
    ]


def shown(table: Rows) -> dict[Any, Any]:
    return {key: value for key, (_, value) in table.rows.items()}


@given(ARRIVING, st.lists(st.integers(0, 30), max_size=5))
def test_a_table_is_the_fold_of_its_changes_however_they_are_cut_into_epochs(
    arriving: list[tuple[str, int, Any]], cuts: list[int]
) -> None:
    table = Rows()
    seen = 0
    for changes in epochs(arriving, cuts):
        table = applied(table, changes)
        seen += len(changes)
        assert shown(table) == fold(arriving[:seen])


@given(ARRIVING, st.lists(st.integers(0, 30), max_size=5))
def test_without_a_sequence_the_last_change_wins(
    arriving: list[tuple[str, int, Any]], cuts: list[int]
) -> None:
    table = Rows()
    for changes in epochs(arriving, cuts, with_sequence=False):
        table = applied(table, changes)
    last = {key: value for key, _, value in arriving}
    assert shown(table) == {key: value for key, value in last.items() if value is not None}
    assert table.deleted == {}


@given(ARRIVING)
def test_the_winner_does_not_depend_on_the_order_in_which_the_changes_are_read(
    arriving: list[tuple[str, int, Any]],
) -> None:
    (changes,) = epochs(arriving, [])
    assert winners(changes) == winners(reversed(changes))


def test_a_late_change_does_not_bring_a_deleted_row_back() -> None:
    table = applied(Rows(), [Change("a", 5, 0, 0, None)])
    assert shown(applied(table, [Change("a", 4, 0, 0, "late")])) == {}
    assert shown(applied(table, [Change("a", 5, 0, 0, "equal, and later")])) == {"a": "equal, and later"}


def test_a_late_delete_does_not_remove_a_newer_row() -> None:
    table = applied(Rows(), [Change("a", 5, 0, 0, "new")])
    after = applied(table, [Change("a", 4, 0, 0, None)])
    assert (shown(after), after.deleted) == ({"a": "new"}, {})


def test_what_is_not_known_beats_nothing() -> None:
    assert not is_beaten(5, None)
    assert not is_beaten(5, 5)
    assert is_beaten(4, 5)


# --- which files can have a row -----------------------------------------------------------------------------

SPANS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=8)


@given(SPANS, SPANS, st.booleans())
def test_a_file_with_a_shared_key_is_never_skipped(
    one: list[tuple[int, int]], other: list[tuple[int, int]], unknown: bool
) -> None:
    def ranges(rows: list[tuple[int, int]]) -> list[Range]:
        return [Range(min(column), max(column)) for column in zip(*rows, strict=True)]

    mine = ranges(one)
    if unknown:
        mine[0] = Range()
    if set(one) & set(other):
        assert may_share_keys(mine, ranges(other))
        assert may_share_keys(ranges(other), mine)


def test_a_file_without_a_shared_key_is_skipped() -> None:
    assert not may_share_keys([Range(1, 5)], [Range(6, 9)])
    assert not may_share_keys([Range(1, 5), Range(0, 0)], [Range(3, 3), Range(1, 2)])
    assert may_share_keys([Range(None, 5)], [Range(5, None)])
    assert not may_share_keys([Range(None, 5)], [Range(6, None)])


# --- tombstones ---------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=60))
def test_there_are_few_runs_of_tombstones_and_none_is_lost(added: list[int]) -> None:
    runs: list[int] = []
    for new in added:
        merged = runs_to_merge(runs, new)
        kept = len(runs) - merged
        runs = [*runs[:kept], sum(runs[kept:]) + new]
        assert all(older > 2 * newer for older, newer in itertools.pairwise(runs))
    assert sum(runs) == sum(added)


def test_a_large_run_stays_as_it_is() -> None:
    assert runs_to_merge([1000], 10) == 0
    assert runs_to_merge([1000, 20], 10) == 1
    assert runs_to_merge([60, 20], 10) == 2
    assert runs_to_merge([], 10) == 0


# --- the output of an attempt to publish --------------------------------------------------------------------


@pytest.mark.parametrize("output", [Output(7, -1, "0a1b2c3d"), Output(12, 40, "0a1b2c3d")])
def test_the_name_of_an_output_says_what_it_is(output: Output) -> None:
    assert output_of(output_name(output)) == output
    assert staged_attempt_of(output_name(output)) is None, "it is not taken for rows of a batch"


@pytest.mark.parametrize("name", ["7-1", "a-1-0a1b2c3d", "7--2-0a1b2c3d", "versions", ""])
def test_other_folders_are_not_outputs(name: str) -> None:
    assert output_of(name) is None
    assert output_of(staged_attempt_name(1, Attempt(2, 3, "0a1b2c3d"))) is None


def test_an_output_is_kept_until_its_place_in_the_log_is_taken() -> None:
    names = [output_name(Output(9, expected, "0a1b2c3d")) for expected in (-1, 3, 4, 5)]
    assert obsolete_outputs(names, 4, ()) == set(names[:2])
    assert obsolete_outputs(names, 4, {names[1]}) == {names[0]}
    assert obsolete_outputs(names, -1, ()) == set()
    assert obsolete_outputs(["1-2-3-0a1b2c3d", "versions"], 99, ()) == set()


STEPS = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["begin", "commit", "tidy"])), max_size=40)


@given(STEPS)
def test_no_version_ever_names_a_folder_that_was_removed(steps: list[tuple[int, str]]) -> None:
    """Processes that publish on top of what they saw, some of them much later, while others remove folders."""
    log: list[str] = []
    folders: set[str] = set()
    begun: dict[int, str] = {}
    for number, (process, step) in enumerate(steps):
        if step == "begin":
            begun[process] = output_name(Output(number, len(log) - 1, f"{number:08x}"))
            folders.add(begun[process])
        elif step == "commit" and process in begun:
            name = begun.pop(process)
            output = output_of(name)
            assert output is not None
            if output.expected == len(log) - 1:
                log.append(name)
        elif step == "tidy":
            folders -= obsolete_outputs(folders, len(log) - 1, set(log))
        assert set(log) <= folders
