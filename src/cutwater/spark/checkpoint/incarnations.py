"""Spark's checkpoint folders in the store: creating, checking, reporting and cleaning them up.

Every start of a stage's query has its own folder, `stages/<stage>/<generation>/spark/<incarnation>/`. In addition to
Spark's files it contains `prepared/<batch>.json` (what a batch did, written before Spark commits it),
`cutwater/base.json` (a folder that starts without state at the log's batch `base` numbers its batches from there; it
still has the positions of its sources, see `folder.py`) and `cutwater/complete` (created last). Batches have the numbers
of the stage's log here.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec

from cutwater.protocol.base.chain import digest
from cutwater.protocol.base.effects import Stored
from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.base.paths import (
    BASE,
    COMPLETE,
    SOURCES,
    batch_file_name,
    batch_file_of,
    channel_file_of,
    channel_prefix,
    source_logs_prefix,
    spark_file_of,
    spark_folders_prefix,
    spark_prefix,
    state_copy_of,
)
from cutwater.protocol.base.records import Prepared, StageReport, decode, seal
from cutwater.protocol.base.watermark import Watermark, WatermarkKind
from cutwater.spark.checkpoint.folder import OPERATOR, Cache, Move, SparkFolder, is_lasting
from cutwater.spark.checkpoint.leaves import Leaf, refuse_changed
from cutwater.spark.checkpoint.offsets import parse_commit
from cutwater.spark.checkpoint.source_logs import DEFAULT_INTERVAL
from cutwater.spark.checkpoint.state_files import FOREVER, moved_metadata, split_name
from cutwater.store import failpoints
from cutwater.store.contract import Store, StoreUnavailable

__all__ = [
    "Cache",
    "base_of",
    "check_newest",
    "claim_sources",
    "claimed_positions",
    "committed",
    "find_state",
    "find_stored",
    "list_folders",
    "make_folder",
    "refuse_other_sources",
    "write_prepared",
]

_PARALLEL = 16
IDENTITY = ("metadata", SOURCES)
"""The files that identify the query and its sources."""

T = TypeVar("T")
R = TypeVar("R")


class Base(msgspec.Struct, frozen=True):
    """Spark's batch 0 is the log's batch `base` + 1."""

    base: int


class Complete(msgspec.Struct, frozen=True):
    """The mark of a complete folder: the last batch in it when it was made, and the first batch at which the stage can be
    cut with its files. `checksums`: by name, of each file that was copied or rewritten, except state files without a
    known checksum. `folder`: the folder that the mark belongs to."""

    batch: int
    lowest: int
    checksums: dict[str, str] = {}
    folder: str = ""


def list_folders(store: Store, stage: str, generation: int) -> list[int]:
    """The incarnations with a complete folder."""
    files = (spark_file_of(name) for name in store.list(spark_folders_prefix(stage, generation)))
    return sorted(file.incarnation for file in files if file is not None and file.file == COMPLETE)


def base_of(store: Store, stage: str, generation: int, incarnation: int, cache: Cache | None = None) -> int:
    """The offset of batch numbers: the log's number is Spark's plus this plus one."""
    return _base(store, spark_prefix(stage, generation, incarnation), cache or Cache())


def _base(store: Store, prefix: str, cache: Cache) -> int:
    if prefix not in cache.bases:
        cache.bases[prefix] = _read(store, prefix + BASE, Base).base
    return cache.bases[prefix]


def _lowest(store: Store, prefix: str, cache: Cache) -> int:
    """The first batch at which the stage can be cut with the files of a folder."""
    if prefix not in cache.lowest:
        cache.lowest[prefix] = _mark(prefix, _read(store, prefix + COMPLETE, Complete)).lowest
    return cache.lowest[prefix]


def _read(store: Store, name: str, kind: type[T]) -> T:
    data = store.read(name)
    if data is None:
        raise StoreError(f"{name} is gone, and its folder cannot be used without it; restore a checkpoint")
    return decode(name, data, kind)


def _mark(prefix: str, mark: Complete) -> Complete:
    """Raises `StoreError` if a mark belongs to another folder."""
    if mark.folder not in ("", prefix):  # old marks do not name their folder
        raise StoreError(
            f"{prefix}{COMPLETE} is the mark of {mark.folder}: objects of the store were mixed up; restore the newest "
            "checkpoint that `cutwater verify` reports as restorable"
        )
    return mark


# --- batches ----------------------------------------------------------------------------------------


def write_prepared(
    store: Store, stage: str, generation: int, incarnation: int, record: Prepared, cache: Cache | None = None
) -> None:
    """Write the record of a batch. Must be called before Spark commits the batch."""
    base = base_of(store, stage, generation, incarnation, cache)
    folder = spark_prefix(stage, generation, incarnation)
    name = folder + batch_file_name("prepared", record.batch - base - 1)
    data = seal(record)
    if not store.create(name, data) and store.read(name) != data:
        raise StoreError(f"{name} already exists: two queries use the same Spark folder; stop one of them")
    if cache is not None:
        cache.prepared[name] = record


def committed(
    store: Store, stage: str, generation: int, incarnation: int, batch: int, cache: Cache | None = None
) -> Prepared | None:
    """The prepared record of a batch that the log does not have yet, if Spark has committed the batch. It is not read
    again if `cache` was used to write it."""
    prefix = spark_prefix(stage, generation, incarnation)
    number = batch - base_of(store, stage, generation, incarnation, cache) - 1
    commit_name = prefix + batch_file_name("commits", number)
    commit = store.read(commit_name) if number >= 0 else None
    if commit is None:
        return None
    name = prefix + batch_file_name("prepared", number)
    record = cache.prepared.get(name) if cache is not None else None
    if record is None:
        data = store.read(name)
        if data is None and max(list_folders(store, stage, generation), default=0) > incarnation:
            return None  # superseded and cleaned up
        record = decode(name, data, Prepared) if data is not None else None
    if record is None or record.batch != batch:
        raise StoreError(
            f"Spark has committed batch {batch} of stage {stage}, but the record of the batch, {name}, is "
            f"{'gone' if record is None else f'that of batch {record.batch}'}; restore the newest checkpoint"
        )
    watermark = record.watermark
    if watermark.kind is not WatermarkKind.NONE and not _has_state(store, prefix, cache):
        # Without state nothing waits for the watermark, so the one that this batch produces is already in effect.
        reached_ms = parse_commit(commit_name, commit).watermark_ms
        watermark = Watermark(WatermarkKind.KNOWN, reached_ms) if reached_ms > 0 else watermark
    return msgspec.structs.replace(record, commit=digest(commit), watermark=watermark)


def _has_state(store: Store, prefix: str, cache: Cache | None) -> bool:
    """Whether the query of a folder keeps state. Call it after the first commit, when Spark has written state."""
    known_already = cache.stateful if cache is not None else {}
    if prefix not in known_already:
        known_already[prefix] = bool(store.list(f"{prefix}state/"))
    return known_already[prefix]


# --- sources ---------------------------------------------------------------------------------------------


def claim_sources(
    store: Store,
    stage: str,
    generation: int,
    incarnation: int,
    leaves: Sequence[Leaf],
    identified: Callable[[], Sequence[Leaf]] | None = None,
) -> None:
    """Record the sources of a query that is about to start in its folder: `leaves`, or what `identified` makes of them.
    Raises `SourcesChanged` if the positions there are of other sources."""
    prefix = spark_prefix(stage, generation, incarnation)
    folder = SparkFolder(store, prefix, Cache())
    _refuse_other_sources(folder, leaves)
    if folder.recorded_leaves() is None:
        store.create(
            prefix + SOURCES, msgspec.json.encode(identified() if identified is not None else leaves)
        )


def claimed_positions(
    store: Store, stage: str, generation: int, incarnation: int
) -> tuple[Sequence[Leaf] | None, Sequence[str | None] | None]:
    """The recorded sources of a folder, and the positions up to which its committed batches have read them."""
    folder = SparkFolder(store, spark_prefix(stage, generation, incarnation), Cache())
    return folder.recorded_leaves(), folder.done_positions()


def refuse_other_sources(store: Store, report: StageReport, leaves: Sequence[Leaf], reset: bool) -> None:
    """Raises `SourcesChanged` if `claim_sources` would, in the folder that `make_folder` makes from `report`."""
    if report.offsets or not reset:
        _refuse_other_sources(_folder_of(store, _files_of(report)), leaves)


def _refuse_other_sources(folder: SparkFolder, leaves: Sequence[Leaf]) -> None:
    positions = folder.positions()
    if positions is not None:
        refuse_changed(folder.recorded_leaves(), positions, leaves)


# --- making folders -----------------------------------------------------------------------------------


def make_folder(
    store: Store,
    stage: str,
    generation: int,
    incarnation: int,
    source: int | None,
    report: StageReport | None,
    last: int | None = None,
    log_interval: int = DEFAULT_INTERVAL,
    commit: str = "",
    reset: bool = False,
    cache: Cache | None = None,
    move: Move | None = None,
) -> None:
    """Make an incarnation's folder: from the folder of incarnation `source`, up to the last batch that Spark has
    committed there; without one, from the files that `report` names; or empty. With `reset`, take over only the
    positions of the stage's own sources, which `move` may change.

    `last` is the last batch in the stage's log, if it is known, and `commit` the checksum of Spark's commit of it. Files
    that only earlier batches need are not taken over. `log_interval` is Spark's setting, see `source_logs.py`. Removes
    the remains of an earlier attempt first.
    """
    prefix = spark_prefix(stage, generation, incarnation)
    if store.exists(prefix + COMPLETE):
        return
    store.delete(store.list(prefix))
    if source is not None:
        origin = spark_prefix(stage, generation, source)
        names, known, mark = _to_take_over(store, origin, last, report, commit, cache)
        gone, there = _fill(store, prefix, {name: origin + name for name in names}, log_interval)
        if gone:
            raise StoreError(
                f"{gone[0]}, which batch {mark.batch} needs, is gone; restore the newest checkpoint"
            )
    elif report is not None and report.state and not reset:
        known = {_name_in_folder(name): checksum for name, checksum in report.state.items()}
        mark = Complete(report.batch, report.batch)
        there = _rebuild(store, report, prefix, log_interval)
    else:
        batch = report.batch if report is not None else -1
        known, mark, there = {}, Complete(batch, batch), {BASE}
        if report is not None and report.offsets:
            there |= _rebuild(store, report, prefix, log_interval, reset=True, move=move)
        store.create(prefix + BASE, seal(Base(batch)))
    vouched = _vouched(store, prefix, there, known)
    failpoints.reach("during folder", stage)
    store.create(prefix + COMPLETE, seal(msgspec.structs.replace(mark, checksums=vouched, folder=prefix)))


def _vouched(store: Store, prefix: str, names: Iterable[str], known: Mapping[str, str]) -> dict[str, str]:
    """The checksums of the files of a new folder. The files are durable when this returns. State, which may be large, is
    not read: known checksums still hold, and Spark has its own."""
    names = list(names)
    small = sorted(name for name in names if _is_small(name))
    vouched = {name: known[name] for name in names if not _is_small(name) and name in known}
    for name, found in zip(small, store.checksum_many([prefix + name for name in small]), strict=True):
        if found is None:
            raise StoreUnavailable(f"{prefix}{name} was just written, but is gone")
        vouched[name] = found
    return dict(sorted(vouched.items()))


def _is_small(name: str) -> bool:
    """Whether a file in a Spark folder is small enough to be read at every start: all but state files are."""
    return split_name(name) is None or name.endswith(".crc")


def check_newest(
    store: Store,
    stage: str,
    generation: int,
    incarnation: int,
    last: int,
    report: StageReport | None,
    commit: str = "",
) -> list[str]:
    """The files of this incarnation's folder that the next one would take over and for which only Spark has checksums.
    Raises `StoreError` if they cannot be taken over."""
    origin = spark_prefix(stage, generation, incarnation)
    names, known, _ = _to_take_over(store, origin, last, report, commit)
    for name, found in zip(names, _in_parallel(store.exists, [origin + name for name in names]), strict=True):
        if not found:
            raise StoreError(f"{origin}{name} is gone; restore the newest checkpoint")
    of_checkpoint = report.state if report is not None else {}
    state = [name for name in names if split_name(name) is not None and origin + name not in of_checkpoint]
    _refuse_damaged(store, {origin + name: known[name] for name in state if name in known})
    return [name for name in state if name not in known or name.endswith(".crc")]


def _to_take_over(
    store: Store,
    origin: str,
    last: int | None,
    report: StageReport | None,
    commit: str = "",
    known_before: Cache | None = None,
) -> tuple[list[str], dict[str, str], Complete]:
    """The files of a folder that its successor needs, their known checksums, and the successor's mark. Reads Spark's
    files again even if they are cached: the successor starts from what is in the store."""
    cache = Cache()
    made = _mark(origin, _read(store, origin + COMPLETE, Complete))
    lasting = (origin + name for name in made.checksums if is_lasting(name))
    folder = SparkFolder(store, origin, cache, {*store.list(origin), *lasting})
    base = _base(store, origin, known_before or cache)
    start = made.batch - base - 1
    upto = folder.last_committed(start)
    if last is not None and upto + base + 1 < last:
        raise StoreError(
            f"Spark's files in {origin} end at batch {upto + base + 1}, but the stage's log has batch {last}: the last "
            "files that Spark wrote are lost. Restore the newest checkpoint"
        )
    prepared = {batch for batch in folder.prepared if batch <= upto}
    lowest = last - base - 1 if last is not None else min(prepared, default=upto + 1) - 1
    names = {BASE, *(batch_file_name("prepared", batch) for batch in prepared if batch > lowest)}
    for batch in range(max(lowest, folder.first), upto + 1):
        needed = folder.needed(batch)
        if needed is None and batch == upto:
            raise StoreError(
                f"files of batch {upto + base + 1} are gone from {origin}; restore the newest checkpoint"
            )
        names |= needed or set()
    known = {n.removeprefix(origin): c for n, c in report.state.items()} if report is not None else {}
    for batch in sorted(prepared & set(range(max(lowest, 0), upto + 1))):
        known |= _read(store, origin + batch_file_name("prepared", batch), Prepared).checksums
    if last is not None and commit:
        known[batch_file_name("commits", last - base - 1)] = commit
    known |= (
        made.checksums
    )  # last, since earlier records have other checksums for files that were rewritten here
    for name in names:
        if (of := batch_file_of(name)) is not None and of.kind == "commits":
            parse_commit(origin + name, store.read(origin + name) or b"")
    names |= {name for name in made.checksums if name.endswith(".crc") and name.removesuffix(".crc") in names}
    small = [name for name in names if _is_small(name) and name in known]
    _refuse_damaged(store, {origin + name: known[name] for name in small})
    return sorted(names), known, Complete(upto + base + 1, lowest + base + 1)


def _refuse_damaged(store: Store, known: Mapping[str, str]) -> None:
    """Raises `StoreError` if one of these files does not have its known checksum."""
    names = sorted(known)
    for name, found in zip(names, store.checksum_many(names), strict=True):
        if found != known[name]:
            raise StoreError(
                f"{name} is {'gone' if found is None else 'damaged (its checksum differs)'}; restore the newest "
                "checkpoint that `cutwater verify` reports as restorable"
            )


def _rebuild(
    store: Store,
    report: StageReport,
    prefix: str,
    log_interval: int,
    reset: bool = False,
    move: Move | None = None,
) -> set[str]:
    """Make a folder from the files that `report` names. Returns the names of its files."""
    files = _files_of(report)
    gone, there = _fill(store, prefix, files, log_interval, report.consumed if reset else None, move)
    if gone:
        raise StoreError(
            f"{len(gone)} of {len(report.state)} state files of stage {report.stage} at batch {report.batch} "
            f"are gone: {', '.join(gone[:5])}{' ...' if len(gone) > 5 else ''}; restore another checkpoint"
        )
    small = [source for name, source in files.items() if _is_small(name)]
    _refuse_damaged(store, {source: report.state[source] for source in small})
    return there


def _fill(
    store: Store,
    prefix: str,
    files: Mapping[str, str],
    log_interval: int,
    consumed: Mapping[str, int] | None = None,
    move: Move | None = None,
) -> tuple[list[str], set[str]]:
    """Copy `files` (sources by name) to the folder at `prefix`, and ensure that Spark can start with their source logs
    and with the batch that is due. With `consumed`, the positions on channels, copy only the files of sources, so that
    Spark starts without state, at positions that `move` may change. Returns the files that are gone, and those that are
    now in the folder."""
    gone: list[str] = []

    def copy(name: str) -> None:
        try:
            _copy(store, files[name], prefix, name)
        except OSError:
            if store.exists(files[name]):
                raise
            gone.append(files[name])

    folder = _folder_of(store, files)
    replaced, written = folder.rewritten_logs(log_interval)
    if consumed is None:
        written |= folder.due_plan(int(time.time() * 1000))
    else:
        written |= folder.first_plan(consumed, move)
        replaced |= {
            name for name in files if not (name in IDENTITY or name.startswith(source_logs_prefix()))
        }
    replaced |= files.keys() & written.keys()
    copied = files.keys() - replaced
    _in_parallel(copy, sorted(copied))
    for name, data in written.items():
        store.create(prefix + name, data)
    return sorted(gone), {*copied, *written}


def _copy(store: Store, source: str, prefix: str, name: str) -> None:
    """Copy one file to `name` in the folder at `prefix`."""
    if OPERATOR.fullmatch(name) is None:
        store.copy(source, prefix + name)
        return
    data = store.read(source)
    if data is None:
        raise FileNotFoundError(f"nothing to copy: there is no {source}")
    store.create(prefix + name, moved_metadata(source, data, store.spark_url(prefix.rstrip("/"))))


def _folder_of(store: Store, files: Mapping[str, str]) -> SparkFolder:
    """The folder that consists of `files` (sources by name), which are all in one place."""
    origin = next((source.removesuffix(name) for name, source in files.items()), "")
    return SparkFolder(store, origin, Cache(), files.values())


def _files_of(report: StageReport) -> dict[str, str]:
    """The state files of a checkpoint, by their names in a folder."""
    return {_name_in_folder(name): name for name in report.state}


def _name_in_folder(name: str) -> str:
    of = spark_file_of(name) or state_copy_of(name)
    if of is None:
        raise StoreError(f"{name} is listed as a state file, but is not in a Spark folder or a checkpoint")
    return of.file


def _in_parallel(act: Callable[[T], R], items: Sequence[T]) -> list[R]:
    with ThreadPoolExecutor(_PARALLEL) as pool:
        return list(pool.map(act, items))


# --- files of a checkpoint ------------------------------------------------------------------------------


def find_state(
    store: Store,
    stage: str,
    generation: int,
    incarnation: int,
    batch: int,
    copy_to: str | None,
    cache: Cache,
) -> dict[str, str] | None:
    """Names and checksums of the files from which a folder can be rebuilt to continue after `batch`; `None` if some are
    gone. With `copy_to`, copy them below that prefix and return the copies."""
    prefix = spark_prefix(stage, generation, incarnation)
    number = batch - _base(store, prefix, cache) - 1
    folder = SparkFolder(store, prefix, cache)
    if number < folder.first:
        return {}
    needed = folder.needed(number)
    if needed is None:
        return None
    names = sorted(needed)
    if copy_to is None:
        return _checksums(store, [prefix + name for name in names], cache.checksums)
    try:
        _in_parallel(lambda name: store.copy(prefix + name, copy_to + name), names)
    except OSError:
        if all(store.exists(prefix + name) for name in names):
            raise
        return None
    return _checksums(store, [copy_to + name for name in names], {})


def _checksums(store: Store, names: list[str], known: dict[str, str]) -> dict[str, str] | None:
    new = [name for name in names if name not in known]
    for name, checksum in zip(new, store.checksum_many(new), strict=True):
        if checksum is None:
            return None
        known[name] = checksum
    return {name: known[name] for name in names}


# --- files that may be deleted --------------------------------------------------------------------------


def find_stored(
    store: Store, stage: str, generation: int, last_incarnation: int, cache: Cache
) -> tuple[list[Stored], list[Stored]]:
    """The channel files of a stage, and its state files with the batches that need them. `cache` must be the same in
    every call of a process: it remembers when a snapshot was first seen."""
    data = []
    for name in store.list(channel_prefix(stage, generation)):
        if of := channel_file_of(name):
            data.append(Stored(name, of.attempt.incarnation, of.attempt.batch))
    names = store.list(spark_folders_prefix(stage, generation))
    folders: dict[int, list[str]] = defaultdict(list)
    for name in names:
        if (file := spark_file_of(name)) is not None:
            folders[file.incarnation].append(name)
    states: list[Stored] = []
    for incarnation, files in folders.items():
        if incarnation <= last_incarnation:
            prefix = spark_prefix(stage, generation, incarnation)
            states += _stored(store, prefix, incarnation, files, last_incarnation, cache)
    _forget(cache, spark_folders_prefix(stage, generation), set(names))
    return data, states


def _stored(
    store: Store, prefix: str, incarnation: int, files: list[str], last: int, cache: Cache
) -> list[Stored]:
    if not {prefix + BASE, prefix + COMPLETE} <= set(files):
        return (
            [Stored(name, incarnation, -1, -1, unknown=True) for name in files] if incarnation < last else []
        )
    try:
        base, lowest = _base(store, prefix, cache), _lowest(store, prefix, cache)
        spans = SparkFolder(store, prefix, cache, files).spans(live=incarnation == last)
    except StoreError:
        if incarnation < last:
            return []  # nothing will start from it, so failing to clean it up must not end a run
        raise
    states = []
    for name, (first, until) in spans.items():
        end = until + base + 1 if until < FOREVER else FOREVER
        states.append(Stored(prefix + name, incarnation, min(max(first + base + 1, lowest), end), end))
    return states


def _forget(cache: Cache, prefix: str, names: set[str]) -> None:
    """Drop files that are gone from the cache."""
    kinds: Iterable[dict[str, object]] = vars(cache).values()
    for known in kinds:
        for name in list(known):
            if name.startswith(prefix) and name not in names and not name.endswith("/"):
                known.pop(name, None)
