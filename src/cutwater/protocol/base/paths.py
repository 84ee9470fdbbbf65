"""The names of all objects in a store. They are built and parsed only here.

Each `..._name` function builds the name of one object, each `..._prefix` function the start of a group of names, and each
`..._of` function parses. Parsing is strict: it returns `None` for every name that the matching builder does not build,
because people and tools put other files into stores, and those must not be touched.

    journal/<index>.json                                        the leader's log
    stages/<stage>/<generation>/log/<index>.json                a stage's log
    stages/<stage>/<generation>/data/<attempt>/<file>           rows of its channel
    stages/<stage>/<generation>/spark/<incarnation>/<file>      Spark's checkpoint folder, one per incarnation
    checkpoints/<epoch>-<checkpoint id>/manifest.json           a checkpoint
    checkpoints/<epoch>-<checkpoint id>/state/<stage>/<file>    in a full checkpoint: copies of state files
    checkpoints/<epoch>-<checkpoint id>/channels/<stage>/<batch>/<file>      and of rows in flight
    published/<sink>/<index>.json                               marks
    sinks/<sink>.json, sinks/<sink>/description.json            a sink's id, and what it is
    sources/<digest>.json                                       a source that some stage has read
    staged/<sink>/<staged attempt>/<file>                       rows for sinks that have no place of their own
    staged/<sink>/done/<transaction>.json                       and what such a sink has published
    graph/<member>.json                                         a member's part of the graph
    requests/<id>.json, replies/<id>.json                       requests from outside
    status/<member>.json, explain/<epoch>[-<member>].json       hints for people
    followers/<follower>/<index>.json                           how far a named follower has come
    probe/<id>.json                                             written and removed by `cutwater doctor`

An index, an epoch or a transaction in a file name has at least twelve digits, so that names sort as numbers do.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Literal, TypeVar, cast

import msgspec

JOURNAL_PREFIX = "journal/"
STAGE_PREFIX = "stages/"
CHECKPOINT_PREFIX = "checkpoints/"
MARK_PREFIX = "published/"
SINK_PREFIX = "sinks/"
SOURCE_PREFIX = "sources/"
STAGED_PREFIX = "staged/"
GRAPH_PREFIX = "graph/"
REQUEST_PREFIX = "requests/"
REPLY_PREFIX = "replies/"
STATUS_PREFIX = "status/"
EXPLAIN_PREFIX = "explain/"
PROBE_PREFIX = "probe/"
FOLLOWER_PREFIX = "followers/"
FORMAT_NAME = "format.json"

PREFIXES = (
    JOURNAL_PREFIX,
    STAGE_PREFIX,
    CHECKPOINT_PREFIX,
    MARK_PREFIX,
    SINK_PREFIX,
    SOURCE_PREFIX,
    STAGED_PREFIX,
    GRAPH_PREFIX,
    REQUEST_PREFIX,
    REPLY_PREFIX,
    STATUS_PREFIX,
    EXPLAIN_PREFIX,
    PROBE_PREFIX,
    FOLLOWER_PREFIX,
)
"""The prefixes of all object names."""

_NUMBER = "(0|[1-9][0-9]*)"
_PADDED = "([0-9]{12}|[1-9][0-9]{12,})"
_WORD = "([^/]+)"
_FILE = "(.+)"


F = TypeVar("F", bound=Callable[..., object])


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text, re.DOTALL)


def _remembered(function: F) -> F:
    """The function with a cache of its latest answers: logs and folders are listed again and again."""
    return cast(F, lru_cache(maxsize=2_048)(function))


def top_folder(name: str) -> str:
    """The first part of a name: the kind of object."""
    return name.partition("/")[0]


def file_name(name: str) -> str:
    """The last part of a name."""
    return name.rpartition("/")[2]


# --- entries of logs ----------------------------------------------------------------------------------


@_remembered
def entry_name(prefix: str, index: int) -> str:
    """The object that holds entry `index` of the log at `prefix`; names sort as indexes do."""
    return f"{prefix}{index:012d}.json"


@_remembered
def entry_of(prefix: str, name: str) -> int | None:
    """The index of an entry of the log at `prefix`."""
    index = name.removeprefix(prefix).removesuffix(".json")
    is_entry = index.isascii() and index.isdigit() and name == entry_name(prefix, int(index))
    return int(index) if is_entry else None


def journal_entry_of(name: str) -> int | None:
    """The index of a journal entry."""
    return entry_of(JOURNAL_PREFIX, name)


class StageEntry(msgspec.Struct, frozen=True):
    """An entry of a stage's log."""

    stage: str
    generation: int
    index: int


_STAGE_ENTRY = _pattern(f"{STAGE_PREFIX}{_WORD}/{_NUMBER}/log/{_PADDED}\\.json")


def stage_log_prefix(stage: str, generation: int) -> str:
    return f"{generation_prefix(stage, generation)}log/"


@_remembered
def stage_entry_of(name: str) -> StageEntry | None:
    match = _STAGE_ENTRY.fullmatch(name)
    return StageEntry(match[1], int(match[2]), int(match[3])) if match else None


def log_prefix_of(name: str) -> str | None:
    """The prefix of the log, the journal's or a stage's, to which an entry belongs."""
    if journal_entry_of(name) is not None:
        return JOURNAL_PREFIX
    entry = stage_entry_of(name)
    return stage_log_prefix(entry.stage, entry.generation) if entry is not None else None


# --- objects of a stage -------------------------------------------------------------------------------


class StageObject(msgspec.Struct, frozen=True):
    """Any object of a stage: its generation, and its name below that generation's folder."""

    stage: str
    generation: int
    inside: str


_STAGE_OBJECT = _pattern(f"{STAGE_PREFIX}{_WORD}/{_NUMBER}/{_FILE}")


def stage_prefix(stage: str) -> str:
    return f"{STAGE_PREFIX}{stage}/"


def generation_prefix(stage: str, generation: int) -> str:
    return f"{STAGE_PREFIX}{stage}/{generation}/"


def stage_object_of(name: str) -> StageObject | None:
    match = _STAGE_OBJECT.fullmatch(name)
    return StageObject(match[1], int(match[2]), match[3]) if match else None


@_remembered
def generation_of(name: str) -> int | None:
    """The generation of a stage's object."""
    found = stage_object_of(name)
    return found.generation if found is not None else None


class Attempt(msgspec.Struct, frozen=True):
    """One attempt at a batch. The nonce separates its output from that of all other attempts."""

    incarnation: int
    batch: int
    nonce: str


_NONCE = "([^/-]+)"
_ATTEMPT = f"{_NUMBER}-{_NUMBER}-{_NONCE}"
_STAGED_ATTEMPT = _pattern(f"{_NUMBER}-{_ATTEMPT}")


class ChannelFile(msgspec.Struct, frozen=True):
    """A file with rows of a stage's channel."""

    stage: str
    generation: int
    attempt: Attempt
    file: str


_CHANNEL_FILE = _pattern(f"{STAGE_PREFIX}{_WORD}/{_NUMBER}/data/{_ATTEMPT}/{_FILE}")


def channel_prefix(stage: str, generation: int) -> str:
    return f"{generation_prefix(stage, generation)}data/"


def attempt_prefix(stage: str, generation: int, attempt: Attempt) -> str:
    """The folder with the channel files of one attempt."""
    return f"{channel_prefix(stage, generation)}{attempt.incarnation}-{attempt.batch}-{attempt.nonce}/"


def channel_file_name(stage: str, generation: int, attempt: Attempt, file: str) -> str:
    return f"{attempt_prefix(stage, generation, attempt)}{file}"


@_remembered
def channel_file_of(name: str) -> ChannelFile | None:
    match = _CHANNEL_FILE.fullmatch(name)
    if match is None:
        return None
    return ChannelFile(match[1], int(match[2]), Attempt(int(match[3]), int(match[4]), match[5]), match[6])


def incarnation_url(url: str) -> str:
    """The common prefix of the URLs of all channel files written by the incarnation that wrote this one."""
    folder, attempt, _ = url.rsplit("/", 2)
    return f"{folder}/{attempt.partition('-')[0]}"


class StagedAttempt(msgspec.Struct, frozen=True):
    """An attempt as sinks name it: with its generation, because they store the output of all generations together."""

    generation: int
    attempt: Attempt


def staged_attempt_name(generation: int, attempt: Attempt) -> str:
    return f"{generation}-{attempt.incarnation}-{attempt.batch}-{attempt.nonce}"


def staged_attempt_of(name: str) -> StagedAttempt | None:
    match = _STAGED_ATTEMPT.fullmatch(name)
    return StagedAttempt(int(match[1]), Attempt(int(match[2]), int(match[3]), match[4])) if match else None


# --- Spark's checkpoint folders -----------------------------------------------------------------------


class SparkFile(msgspec.Struct, frozen=True):
    """A file in the Spark folder of one incarnation, with its name in that folder."""

    stage: str
    generation: int
    incarnation: int
    file: str


_SPARK_FILE = _pattern(f"{STAGE_PREFIX}{_WORD}/{_NUMBER}/spark/{_NUMBER}/{_FILE}")


def spark_folders_prefix(stage: str, generation: int) -> str:
    return f"{generation_prefix(stage, generation)}spark/"


def spark_prefix(stage: str, generation: int, incarnation: int) -> str:
    """The Spark folder of one incarnation."""
    return f"{spark_folders_prefix(stage, generation)}{incarnation}/"


@_remembered
def spark_file_of(name: str) -> SparkFile | None:
    match = _SPARK_FILE.fullmatch(name)
    return SparkFile(match[1], int(match[2]), int(match[3]), match[4]) if match else None


# Names in such a folder. The names of Spark's state files are parsed in `spark/checkpoint/`.

BASE = "cutwater/base.json"
COMPLETE = "cutwater/complete"
SOURCES = "cutwater/sources.json"
_COMPACT = ".compact"

BatchKind = Literal["offsets", "commits", "prepared"]


class BatchFile(msgspec.Struct, frozen=True):
    """A file that belongs to one batch: Spark's plan of it, Spark's commit, or our record of what it did. The number
    is Spark's."""

    kind: BatchKind
    batch: int


_BATCH_FILE = _pattern("(offsets|commits|prepared)/(0|-?[1-9][0-9]*)(\\.json)?")


def batch_files_prefix(kind: BatchKind) -> str:
    return f"{kind}/"


def batch_file_name(kind: BatchKind, batch: int) -> str:
    return f"{kind}/{batch}.json" if kind == "prepared" else f"{kind}/{batch}"


def batch_file_of(file: str) -> BatchFile | None:
    match = _BATCH_FILE.fullmatch(file)
    if match is None or (match[1] == "prepared") != (match[3] is not None):
        return None
    kind: BatchKind = match[1]  # type: ignore[assignment]  # one of the three, as the pattern says
    return BatchFile(kind, int(match[2]))


class SourceLogFile(msgspec.Struct, frozen=True):
    """An entry of a native source's log; a compact one also contains all entries before it."""

    source: int
    entry: int
    compact: bool


_SOURCE_LOG_FILE = _pattern(f"sources/{_NUMBER}/{_NUMBER}(\\.compact)?")


def source_logs_prefix() -> str:
    return "sources/"


def source_log_name(source: int, entry: int, compact: bool = False) -> str:
    return f"{source_logs_prefix()}{source}/{entry}{_COMPACT if compact else ''}"


def source_log_of(file: str) -> SourceLogFile | None:
    match = _SOURCE_LOG_FILE.fullmatch(file)
    return SourceLogFile(int(match[1]), int(match[2]), match[3] is not None) if match else None


# --- checkpoints --------------------------------------------------------------------------------------


class CheckpointObject(msgspec.Struct, frozen=True):
    """Any object of a checkpoint."""

    epoch: int
    checkpoint_id: int


_CHECKPOINT = _pattern(f"{CHECKPOINT_PREFIX}{_NUMBER}-{_NUMBER}/{_FILE}")
_MANIFEST = "manifest.json"


def checkpoint_prefix(epoch: int, checkpoint_id: int) -> str:
    return f"{CHECKPOINT_PREFIX}{epoch}-{checkpoint_id}/"


@_remembered
def checkpoint_of(name: str) -> CheckpointObject | None:
    """The checkpoint that an object belongs to."""
    match = _CHECKPOINT.fullmatch(name)
    return CheckpointObject(int(match[1]), int(match[2])) if match else None


def manifest_name(epoch: int, checkpoint_id: int) -> str:
    return f"{checkpoint_prefix(epoch, checkpoint_id)}{_MANIFEST}"


def manifest_of(name: str) -> CheckpointObject | None:
    """The checkpoint, if the object is its manifest."""
    match = _CHECKPOINT.fullmatch(name)
    return CheckpointObject(int(match[1]), int(match[2])) if match and match[3] == _MANIFEST else None


class StateCopy(msgspec.Struct, frozen=True):
    """A copy of a file of a stage's Spark folder, with its name in that folder."""

    epoch: int
    checkpoint_id: int
    stage: str
    file: str


_STATE_COPY = _pattern(f"{CHECKPOINT_PREFIX}{_NUMBER}-{_NUMBER}/state/{_WORD}/{_FILE}")


def state_copies_prefix(epoch: int, checkpoint_id: int, stage: str) -> str:
    return f"{checkpoint_prefix(epoch, checkpoint_id)}state/{stage}/"


def state_copy_of(name: str) -> StateCopy | None:
    match = _STATE_COPY.fullmatch(name)
    return StateCopy(int(match[1]), int(match[2]), match[3], match[4]) if match else None


class ChannelCopy(msgspec.Struct, frozen=True):
    """A copy of a file with rows that were in flight: produced by `stage` as its batch `batch`."""

    epoch: int
    checkpoint_id: int
    stage: str
    batch: int
    file: str


_CHANNEL_COPY = _pattern(f"{CHECKPOINT_PREFIX}{_NUMBER}-{_NUMBER}/channels/{_WORD}/{_NUMBER}/{_WORD}")


def channel_copy_name(epoch: int, checkpoint_id: int, stage: str, batch: int, file: str) -> str:
    return f"{checkpoint_prefix(epoch, checkpoint_id)}channels/{stage}/{batch}/{file}"


def channel_copy_of(name: str) -> ChannelCopy | None:
    match = _CHANNEL_COPY.fullmatch(name)
    if match is None:
        return None
    return ChannelCopy(int(match[1]), int(match[2]), match[3], int(match[4]), match[5])


# --- sinks --------------------------------------------------------------------------------------------


class Mark(msgspec.Struct, frozen=True):
    """The mark of a sink: the journal entry that ordered what it published. To the protocol a sink's name is any text."""

    sink: str
    index: int


_MARK = _pattern(f"{MARK_PREFIX}{_FILE}/{_PADDED}\\.json")


def mark_prefix(sink: str) -> str:
    return f"{MARK_PREFIX}{sink}/"


def mark_name(index: int, sink: str) -> str:
    return entry_name(mark_prefix(sink), index)


@_remembered
def mark_of(name: str) -> Mark | None:
    match = _MARK.fullmatch(name)
    return Mark(match[1], int(match[2])) if match else None


_SINK_DESCRIPTION = _pattern(f"{SINK_PREFIX}{_WORD}/description\\.json")


def sink_id_name(sink: str) -> str:
    return _named(SINK_PREFIX, sink)


def sink_id_of(name: str) -> str | None:
    return _name_in(SINK_PREFIX, name)


def sink_description_name(sink: str) -> str:
    return f"{SINK_PREFIX}{sink}/description.json"


def sink_description_of(name: str) -> str | None:
    match = _SINK_DESCRIPTION.fullmatch(name)
    return match[1] if match else None


def source_name(key: str) -> str:
    return _named(SOURCE_PREFIX, key)


def source_of(name: str) -> str | None:
    return _name_in(SOURCE_PREFIX, name)


def staged_prefix(sink: str) -> str:
    """The staging folder of a sink that has no location of its own."""
    return f"{STAGED_PREFIX}{sink}/"


def staged_file_of(sink: str, name: str) -> StagedAttempt | None:
    """The attempt that has written a file in the staging folder of such a sink."""
    inside = name.removeprefix(staged_prefix(sink))
    return staged_attempt_of(inside.partition("/")[0]) if inside != name else None


DONE_FOLDER = "done"
"""A folder in such a staging folder that is not an attempt."""


def done_prefix(sink: str) -> str:
    return f"{staged_prefix(sink)}{DONE_FOLDER}/"


def done_name(sink: str, transaction: int) -> str:
    return entry_name(done_prefix(sink), transaction)


def done_of(sink: str, name: str) -> int | None:
    """The transaction that an object records as published."""
    return entry_of(done_prefix(sink), name)


# --- members, requests, hints -------------------------------------------------------------------------


def graph_part_name(member: str) -> str:
    return _named(GRAPH_PREFIX, member)


def graph_part_of(name: str) -> str | None:
    return _name_in(GRAPH_PREFIX, name)


def request_name(request_id: str) -> str:
    return _named(REQUEST_PREFIX, request_id)


def request_of(name: str) -> str | None:
    return _name_in(REQUEST_PREFIX, name)


def reply_name(request_id: str) -> str:
    return _named(REPLY_PREFIX, request_id)


def reply_of(name: str) -> str | None:
    return _name_in(REPLY_PREFIX, name)


def status_name(member: str) -> str:
    return _named(STATUS_PREFIX, member)


def status_of(name: str) -> str | None:
    return _name_in(STATUS_PREFIX, name)


def probe_name(probe_id: str) -> str:
    return _named(PROBE_PREFIX, probe_id)


def follower_prefix(follower: str) -> str:
    return f"{FOLLOWER_PREFIX}{follower}/"


def position_name(index: int, follower: str) -> str:
    return entry_name(follower_prefix(follower), index)


def position_of(name: str, follower: str) -> int | None:
    """The index of a position of this follower."""
    return entry_of(follower_prefix(follower), name)


class Notes(msgspec.Struct, frozen=True):
    """A member's notes on an epoch; `member` is `None` for the leader's notes."""

    epoch: int
    member: str | None


_NOTES = _pattern(f"{EXPLAIN_PREFIX}{_PADDED}(?:-{_WORD})?\\.json")


def notes_prefix(epoch: int) -> str:
    return f"{EXPLAIN_PREFIX}{epoch:012d}"


def notes_name(epoch: int, member: str | None = None) -> str:
    return f"{notes_prefix(epoch)}{f'-{member}' if member is not None else ''}.json"


def notes_of(name: str) -> Notes | None:
    match = _NOTES.fullmatch(name)
    return Notes(int(match[1]), match[2]) if match else None


def _named(prefix: str, word: str) -> str:
    return f"{prefix}{word}.json"


def _name_in(prefix: str, name: str) -> str | None:
    word = name.removeprefix(prefix).removesuffix(".json")
    return word if word and "/" not in word and name == _named(prefix, word) else None
