"""Names in the store: their form, that parsing is the exact inverse of building, and that only paths.py does either."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cutwater
from cutwater.protocol.base import paths as p

SOURCE = Path(cutwater.__file__).parent

WORDS = st.text("abz019_.-", min_size=1, max_size=8) | st.text(
    st.characters(exclude_characters="/", categories=["L", "N", "P", "S", "Zs", "Cc"]), min_size=1, max_size=4
)
FILES = st.lists(WORDS, min_size=1, max_size=3).map("/".join)
NUMBERS = st.integers(0, 20) | st.integers(0, 10**14)
ATTEMPTS = st.builds(p.Attempt, NUMBERS, NUMBERS, st.text("0123456789abcdef", min_size=1, max_size=8))
KINDS = st.sampled_from(["offsets", "commits", "prepared"])

Case = tuple[Callable[..., Any], Callable[..., str], Callable[[str], object]]


def case(value: Callable[..., Any], build: Callable[..., str], parse: Callable[[str], object]) -> Case:
    return value, build, parse


def same(value: Any) -> Any:
    return value


CASES: dict[str, tuple[Case, tuple[st.SearchStrategy[Any], ...]]] = {
    "journal entry": (
        case(same, lambda index: p.entry_name(p.JOURNAL_PREFIX, index), p.journal_entry_of),
        (NUMBERS,),
    ),
    "stage entry": (
        case(p.StageEntry, lambda s, g, i: p.entry_name(p.stage_log_prefix(s, g), i), p.stage_entry_of),
        (WORDS, NUMBERS, NUMBERS),
    ),
    "stage object": (
        case(p.StageObject, lambda s, g, f: p.generation_prefix(s, g) + f, p.stage_object_of),
        (WORDS, NUMBERS, FILES),
    ),
    "channel file": (
        case(p.ChannelFile, p.channel_file_name, p.channel_file_of),
        (WORDS, NUMBERS, ATTEMPTS, FILES),
    ),
    "staged attempt": (
        case(p.StagedAttempt, p.staged_attempt_name, p.staged_attempt_of),
        (NUMBERS, ATTEMPTS),
    ),
    "spark file": (
        case(p.SparkFile, lambda s, g, i, f: p.spark_prefix(s, g, i) + f, p.spark_file_of),
        (WORDS, NUMBERS, NUMBERS, FILES),
    ),
    "file of a batch": (
        case(p.BatchFile, p.batch_file_name, p.batch_file_of),
        (KINDS, NUMBERS | st.integers(-2, -1)),
    ),
    "source log": (
        case(p.SourceLogFile, p.source_log_name, p.source_log_of),
        (NUMBERS, NUMBERS, st.booleans()),
    ),
    "checkpoint": (
        case(
            lambda e, c, f: p.CheckpointObject(e, c),
            lambda e, c, f: p.checkpoint_prefix(e, c) + f,
            p.checkpoint_of,
        ),
        (NUMBERS, NUMBERS, FILES),
    ),
    "manifest": (case(p.CheckpointObject, p.manifest_name, p.manifest_of), (NUMBERS, NUMBERS)),
    "state copy": (
        case(p.StateCopy, lambda e, c, s, f: p.state_copies_prefix(e, c, s) + f, p.state_copy_of),
        (NUMBERS, NUMBERS, WORDS, FILES),
    ),
    "channel copy": (
        case(p.ChannelCopy, p.channel_copy_name, p.channel_copy_of),
        (NUMBERS, NUMBERS, WORDS, NUMBERS, WORDS),
    ),
    "mark": (case(lambda i, s: p.Mark(s, i), p.mark_name, p.mark_of), (NUMBERS, FILES)),
    "sink id": (case(same, p.sink_id_name, p.sink_id_of), (WORDS,)),
    "sink description": (case(same, p.sink_description_name, p.sink_description_of), (WORDS,)),
    "published by a function": (
        case(same, lambda t: p.done_name("out", t), lambda name: p.done_of("out", name)),
        (NUMBERS,),
    ),
    "graph part": (case(same, p.graph_part_name, p.graph_part_of), (WORDS,)),
    "request": (case(same, p.request_name, p.request_of), (WORDS,)),
    "reply": (case(same, p.reply_name, p.reply_of), (WORDS,)),
    "status": (case(same, p.status_name, p.status_of), (WORDS,)),
    "notes": (case(p.Notes, p.notes_name, p.notes_of), (NUMBERS, st.none() | WORDS)),
}


@pytest.mark.parametrize("kind", CASES)
@given(data=st.data())
def test_parsing_a_name_returns_what_it_was_built_from(kind: str, data: st.DataObject) -> None:
    (value, build, parse), strategies = CASES[kind]
    args = [data.draw(strategy) for strategy in strategies]
    assert parse(build(*args)) == value(*args)


def args_of(kind: str, found: Any, name: str) -> tuple[Any, ...]:
    """The arguments with which `found` would have been built."""
    if kind == "checkpoint":
        return found.epoch, found.checkpoint_id, name.split("/", 2)[2]
    if kind == "mark":
        return found.index, found.sink
    if not hasattr(found, "__struct_fields__"):
        return (found,)
    return tuple(getattr(found, field) for field in found.__struct_fields__)


@st.composite
def nearly(draw: st.DrawFn, kind: str) -> str:
    """A name of some kind with a change, or any text."""
    (_, build, _), strategies = CASES[draw(st.sampled_from([kind, *CASES]))]
    name = build(*(draw(strategy) for strategy in strategies))
    at, until = sorted((draw(st.integers(0, len(name))), draw(st.integers(0, len(name)))))
    piece = draw(st.sampled_from(["", "/", "0", "-", "x", ".json", "٣", "\n", name]) | st.text(max_size=3))
    return draw(st.sampled_from([name[:at] + piece + name[until:], name[:at] + piece + name[at:], piece]))


@pytest.mark.parametrize("kind", CASES)
@given(data=st.data())
def test_a_name_that_would_not_be_built_is_not_parsed(kind: str, data: st.DataObject) -> None:
    """Parsing returns what builds exactly this name, so every other name gives `None`."""
    _, build, parse = CASES[kind][0]
    name = data.draw(nearly(kind))
    found = parse(name)
    assert found is None or build(*args_of(kind, found, name)) == name


@pytest.mark.parametrize(
    ("name", "parse"),
    [
        ("journal/1.json", p.journal_entry_of),
        ("journal/000000000001.json.tmp", p.journal_entry_of),
        ("journal/0000000000001.json", p.journal_entry_of),
        ("journal/٠٠٠٠٠٠٠٠٠٠٠١.json", p.journal_entry_of),
        ("stages/a/1/log/extra", p.stage_entry_of),
        ("stages/a/b/1/log/000000000001.json", p.stage_entry_of),
        ("stages/a/01/data/1-2-x/part", p.channel_file_of),
        ("stages/a/1/data/notes.txt", p.channel_file_of),
        ("stages/a/1/data/1-2-x/", p.channel_file_of),
        ("stages/a/1/spark/x/cutwater/complete", p.spark_file_of),
        ("offsets/1.json", p.batch_file_of),
        ("prepared/1", p.batch_file_of),
        ("commits/-0", p.batch_file_of),
        ("checkpoints/notes.txt", p.checkpoint_of),
        ("checkpoints/4-12", p.checkpoint_of),
        ("checkpoints/4-12/state/a/manifest.json", p.manifest_of),
        ("published/000000000001.json", p.mark_of),
        ("published/a/1.json", p.mark_of),
        ("sinks/a/b/description.json", p.sink_description_of),
        ("sinks/a/description.json", p.sink_id_of),
        ("requests/a/b.json", p.request_of),
        ("replies/.json", p.reply_of),
        ("1-2-3-x-y", p.staged_attempt_of),
        ("done", p.staged_attempt_of),
    ],
)
def test_foreign_names_are_not_parsed(name: str, parse: Callable[[str], object]) -> None:
    assert parse(name) is None


def test_names_are_those_of_existing_stores() -> None:
    attempt = p.Attempt(3, 7, "0a1b2c3d")
    assert [
        p.entry_name(p.JOURNAL_PREFIX, 12),
        p.entry_name(p.stage_log_prefix("clean", 2), 12),
        p.channel_file_name("clean", 2, attempt, "part-0.parquet"),
        p.staged_attempt_name(2, attempt),
        p.spark_prefix("clean", 2, 3) + p.batch_file_name("offsets", -1),
        p.spark_prefix("clean", 2, 3) + p.batch_file_name("commits", 7),
        p.spark_prefix("clean", 2, 3) + p.batch_file_name("prepared", 7),
        p.spark_prefix("clean", 2, 3) + p.source_log_name(0, 9),
        p.source_log_name(0, 9, compact=True),
        p.BASE,
        p.COMPLETE,
        p.SOURCES,
        p.manifest_name(4, 12),
        p.state_copies_prefix(4, 12, "clean"),
        p.channel_copy_name(4, 12, "clean", 7, "part-0.parquet"),
        p.mark_name(12, "t1"),
        p.sink_id_name("t1"),
        p.sink_description_name("t1"),
        p.staged_prefix("mail"),
        p.done_name("mail", 12),
        p.graph_part_name("main"),
        p.request_name("a1"),
        p.reply_name("a1"),
        p.status_name("main"),
        p.notes_name(4),
        p.notes_name(4, "main"),
    ] == [
        "journal/000000000012.json",
        "stages/clean/2/log/000000000012.json",
        "stages/clean/2/data/3-7-0a1b2c3d/part-0.parquet",
        "2-3-7-0a1b2c3d",
        "stages/clean/2/spark/3/offsets/-1",
        "stages/clean/2/spark/3/commits/7",
        "stages/clean/2/spark/3/prepared/7.json",
        "stages/clean/2/spark/3/sources/0/9",
        "sources/0/9.compact",
        "cutwater/base.json",
        "cutwater/complete",
        "cutwater/sources.json",
        "checkpoints/4-12/manifest.json",
        "checkpoints/4-12/state/clean/",
        "checkpoints/4-12/channels/clean/7/part-0.parquet",
        "published/t1/000000000012.json",
        "sinks/t1.json",
        "sinks/t1/description.json",
        "staged/mail/",
        "staged/mail/done/000000000012.json",
        "graph/main.json",
        "requests/a1.json",
        "replies/a1.json",
        "status/main.json",
        "explain/000000000004.json",
        "explain/000000000004-main.json",
    ]


def test_names_sort_as_their_numbers_do() -> None:
    assert p.mark_name(9, "t1") < p.mark_name(10, "t1")
    assert p.entry_name(p.JOURNAL_PREFIX, 99) < p.entry_name(p.JOURNAL_PREFIX, 100)


def test_only_files_of_the_same_incarnation_share_a_prefix() -> None:
    def url(incarnation: int, batch: int) -> str:
        file = p.channel_file_name("a", 1, p.Attempt(incarnation, batch, "x"), "part-0")
        return p.incarnation_url(f"s3a://bucket/state/{file}")

    assert url(3, 7) == url(3, 8) != url(4, 9)


# --- other modules ------------------------------------------------------------------------------------

INSIDE = ("offsets/", "commits/", "prepared/", "sources/", p.BASE, p.COMPLETE, p.SOURCES)
PARTS = ("/log/", "/data/", "/spark/", "/channels/", "manifest.json", "description.json")
SPLITTERS = {"split", "rsplit", "partition", "rpartition"}

SPLIT_OTHER_THINGS = {
    "cluster/links.py": "keys of messages",
    "cluster/zenoh_kv.py": "keys of messages",
    "protocol/member/staged.py": "paths below a table",
    "sim/chaos.py": "paths below a table",
    "sinks/contract.py": "paths below a table, and the path of a table itself",
    "sinks/delta/sink.py": "paths below a table",
    "sinks/parquet.py": "paths below a table",
    "sinks/staged_files.py": "paths below a table",
    "spark/checkpoint/folder.py": "the folder of a snapshot of Spark's",
    "spark/checkpoint/moved_files.py": "paths of a source's files",
    "spark/checkpoint/same_source.py": "paths of a source's files",
    "spark/errors.py": "URLs that Spark names in an error",
    "spark/files.py": "paths of any files",
    "store/contract.py": "any name, whatever it means",
    "store/objects.py": "any name, whatever it means",
}


def trees(*texts: str) -> Iterator[tuple[str, ast.Module]]:
    """The syntax of all other modules with one of these texts in them."""
    for file in sorted(SOURCE.rglob("*.py")):
        name, source = file.relative_to(SOURCE).as_posix(), file.read_text()
        if name != "protocol/base/paths.py" and any(text in source for text in texts):
            yield name, ast.parse(source)


def docstrings(tree: ast.Module) -> set[int]:
    """The string literals that are documentation."""
    return {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}


def test_no_other_module_spells_out_a_name_in_the_store() -> None:
    wrong = []
    for file, tree in trees(*p.PREFIXES, *INSIDE, *PARTS):
        documentation = docstrings(tree)
        for node in ast.walk(tree):
            if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
                continue
            spelled = node.value.startswith((*p.PREFIXES, *INSIDE)) or any(
                part in node.value for part in PARTS
            )
            if spelled and id(node) not in documentation:
                wrong.append(f"{file}:{node.lineno}: {node.value!r}")
    assert not wrong, "build and parse names in protocol/base/paths.py: " + "; ".join(wrong)


def test_no_other_module_parses_a_name_in_the_store() -> None:
    found: dict[str, list[int]] = {}
    for file, tree in trees('"/"', "'/'"):
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in SPLITTERS
                and any(isinstance(arg, ast.Constant) and arg.value == "/" for arg in node.args)
            ):
                found.setdefault(file, []).append(node.lineno)
    wrong = {file: lines for file, lines in found.items() if file not in SPLIT_OTHER_THINGS}
    assert not wrong, f"parse names in protocol/base/paths.py, or list here what else these split: {wrong}"
    assert found.keys() == SPLIT_OTHER_THINGS.keys(), "an exception that is no longer needed"
