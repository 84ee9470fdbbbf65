"""Spark's checkpoint folders in the store: made, looked into, reported and cleaned up.

Every start of a stage's query has a folder of its own, `stages/<stage>/<generation>/spark/<incarnation>/`.
Beside what Spark writes there lie `prepared/<batch>.json` (what a batch did, written before Spark commits
it), `cutwater/base.json` (a folder that was begun without state at the log's batch `base` numbers its
batches from there; how far its sources had been read is in it all the same, see `sparkfolder.py`) and
`cutwater/complete` (created last). Batches are those of the stage's log here.
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
from cutwater.spark.checkpoint.folder import OPERATOR, Cache, SparkFolder, is_lasting
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
    "committed",
    "find_state",
    "find_stored",
    "list_folders",
    "make_folder",
    "write_prepared",
]

_SIDE_BY_SIDE = 16
IDENTITY = ("metadata", SOURCES)
"""The files that say which query it is, and what it reads."""

T = TypeVar("T")
R = TypeVar("R")


class Base(msgspec.Struct, frozen=True):
    """Spark's batch 0 is the log's batch `base` + 1."""

    base: int


class Complete(msgspec.Struct, frozen=True):
    """The mark of a complete folder: the last batch that was in it when it was made, and the first at which
    the stage can be cut with what is in it. `checksums` vouches for what it was made of, by name: for each file that
    was copied or written anew, except state files of which nobody knew the checksum. `folder` is the one it is of."""

    batch: int
    lowest: int
    checksums: dict[str, str] = {}
    folder: str = ""


def list_folders(store: Store, stage: str, generation: int) -> list[int]:
    """The incarnations whose folder is complete."""
    files = (spark_file_of(name) for name in store.list(spark_folders_prefix(stage, generation)))
    return sorted(file.incarnation for file in files if file is not None and file.file == COMPLETE)


def base_of(store: Store, stage: str, generation: int, incarnation: int, cache: Cache | None = None) -> int:
    """What to add, and one more, to Spark's number of a batch to get the log's."""
    return _base(store, spark_prefix(stage, generation, incarnation), cache or Cache())


def _base(store: Store, prefix: str, cache: Cache) -> int:
    if prefix not in cache.bases:
        cache.bases[prefix] = _read(store, prefix + BASE, Base).base
    return cache.bases[prefix]


def _lowest(store: Store, prefix: str, cache: Cache) -> int:
    """The first batch at which the stage can be cut with what is in a folder."""
    if prefix not in cache.lowest:
        cache.lowest[prefix] = _mark(prefix, _read(store, prefix + COMPLETE, Complete)).lowest
    return cache.lowest[prefix]


def _read(store: Store, name: str, kind: type[T]) -> T:
    data = store.read(name)
    if data is None:
        raise StoreError(f"{name} is gone, without which its folder cannot be used; restore a checkpoint")
    return decode(name, data, kind)


def _mark(prefix: str, mark: Complete) -> Complete:
    """Raises `StoreError` if a mark is not that of the folder in which it lies."""
    if mark.folder not in ("", prefix):  # there was a time when marks did not say so
        raise StoreError(
            f"{prefix}{COMPLETE} is the mark of {mark.folder}: objects of the store were mixed up; restore the newest "
            "checkpoint that `cutwater verify` finds whole"
        )
    return mark


# --- batches ----------------------------------------------------------------------------------------


def write_prepared(
    store: Store, stage: str, generation: int, incarnation: int, record: Prepared, cache: Cache | None = None
) -> None:
    """Makes the record of a batch durable; to be called before Spark commits the batch."""
    base = base_of(store, stage, generation, incarnation, cache)
    folder = spark_prefix(stage, generation, incarnation)
    name = folder + batch_file_name("prepared", record.batch - base - 1)
    data = seal(record)
    if not store.create(name, data) and store.read(name) != data:
        raise StoreError(
            f"{name} exists already: two queries work in the same Spark folder; stop one of them"
        )
    if cache is not None:
        cache.prepared[name] = record


def committed(
    store: Store, stage: str, generation: int, incarnation: int, batch: int, cache: Cache | None = None
) -> Prepared | None:
    """The prepared record of a batch that the log does not have yet, if Spark has committed the batch. With the cache
    of who wrote the record, it is not read again."""
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
            return None  # superseded, and cleaned up after
        record = decode(name, data, Prepared) if data is not None else None
    if record is None or record.batch != batch:
        raise StoreError(
            f"Spark has committed batch {batch} of stage {stage}, and the record of what it did, {name}, "
            f"is {'gone' if record is None else f'of batch {record.batch}'}; restore the newest checkpoint"
        )
    watermark = record.watermark
    if watermark.kind is not WatermarkKind.NONE and not _has_state(store, prefix, cache):
        # Without state nothing waits for a watermark: the one that this batch leaves behind holds already.
        reached_ms = parse_commit(commit_name, commit).watermark_ms
        watermark = Watermark(WatermarkKind.KNOWN, reached_ms) if reached_ms > 0 else watermark
    return msgspec.structs.replace(record, commit=digest(commit), watermark=watermark)


def _has_state(store: Store, prefix: str, cache: Cache | None) -> bool:
    """Whether the query of a folder keeps state. Asked when it has committed a batch: Spark has written state by then."""
    known_already = cache.stateful if cache is not None else {}
    if prefix not in known_already:
        known_already[prefix] = bool(store.list(f"{prefix}state/"))
    return known_already[prefix]


# --- sources ---------------------------------------------------------------------------------------------


def claim_sources(
    store: Store, stage: str, generation: int, incarnation: int, leaves: Sequence[Leaf]
) -> None:
    """Says what the plan of a query reads that is about to start in its folder. Raises `SourcesChanged` if the
    positions in there are of something else."""
    prefix = spark_prefix(stage, generation, incarnation)
    folder = SparkFolder(store, prefix, Cache())
    recorded = folder.recorded_leaves()
    positions = folder.positions()
    if positions is not None:
        refuse_changed(recorded, positions, leaves)
    if recorded is None:
        store.create(prefix + SOURCES, msgspec.json.encode(leaves))


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
) -> None:
    """Makes an incarnation's folder: from the folder of incarnation `source`, up to the last batch that Spark
    has committed there; or, without one, from the files that `report` names; or empty. With `reset` nothing is taken
    over of these files but how far the stage's own sources were read.

    `last` is the last batch in the stage's log, if it is known, and `commit` the checksum of Spark's commit of it:
    nothing is taken over that only earlier batches need. `log_interval` is Spark's setting, see `sourcelogs.py`.
    What an earlier try has left behind is removed first.
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
                f"{gone[0]} is gone, which batch {mark.batch} needs; restore the newest checkpoint"
            )
    elif report is not None and report.state and not reset:
        known = {_name_in_folder(name): checksum for name, checksum in report.state.items()}
        mark = Complete(report.batch, report.batch)
        there = _rebuild(store, report, prefix, log_interval)
    else:
        batch = report.batch if report is not None else -1
        known, mark, there = {}, Complete(batch, batch), {BASE}
        if report is not None and report.offsets:
            there |= _rebuild(store, report, prefix, log_interval, reset=True)
        store.create(prefix + BASE, seal(Base(batch)))
    vouched = _vouched(store, prefix, there, known)
    failpoints.reach("during folder", stage)
    store.create(prefix + COMPLETE, seal(msgspec.structs.replace(mark, checksums=vouched, folder=prefix)))


def _vouched(store: Store, prefix: str, names: Iterable[str], known: Mapping[str, str]) -> dict[str, str]:
    """The checksums of the files of a new folder, which are durable then. State, which may be large, is not read for
    it: what is known of it still holds, and Spark has checksums of its own."""
    names = list(names)
    small = sorted(name for name in names if _is_small(name))
    vouched = {name: known[name] for name in names if not _is_small(name) and name in known}
    for name, found in zip(small, store.checksum_many([prefix + name for name in small]), strict=True):
        if found is None:
            raise StoreUnavailable(f"{prefix}{name} was just written, and is gone")
        vouched[name] = found
    return dict(sorted(vouched.items()))


def _is_small(name: str) -> bool:
    """Whether a file in a Spark folder is small enough to be read at every start: all but state is."""
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
    """The names in this incarnation's folder that the next one would take over, and for which nobody but Spark
    vouches. Raises `StoreError` if it could not take them over."""
    origin = spark_prefix(stage, generation, incarnation)
    names, known, _ = _to_take_over(store, origin, last, report, commit)
    for name, found in zip(
        names, _side_by_side(store.exists, [origin + name for name in names]), strict=True
    ):
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
    """The files of a folder that its successor needs, the checksums that are known of them, and the successor's
    mark. Spark's files are read anew, whatever is known of them: the successor starts from what is there."""
    cache = Cache()
    made = _mark(origin, _read(store, origin + COMPLETE, Complete))
    lasting = (origin + name for name in made.checksums if is_lasting(name))
    folder = SparkFolder(store, origin, cache, {*store.list(origin), *lasting})
    base = _base(store, origin, known_before or cache)
    start = made.batch - base - 1
    upto = folder.last_committed(start)
    if last is not None and upto + base + 1 < last:
        raise StoreError(
            f"Spark's files in {origin} end at batch {upto + base + 1}, and the stage's log has "
            f"batch {last}: what Spark wrote last is lost. Restore the newest checkpoint"
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
    known |= made.checksums  # last: what was written anew here is not what a record from before says
    for name in names:
        if (of := batch_file_of(name)) is not None and of.kind == "commits":
            parse_commit(origin + name, store.read(origin + name) or b"")
    names |= {name for name in made.checksums if name.endswith(".crc") and name.removesuffix(".crc") in names}
    small = [name for name in names if _is_small(name) and name in known]
    _refuse_damaged(store, {origin + name: known[name] for name in small})
    return sorted(names), known, Complete(upto + base + 1, lowest + base + 1)


def _refuse_damaged(store: Store, known: Mapping[str, str]) -> None:
    """Raises `StoreError` if one of these files has not the checksum that is known of it."""
    names = sorted(known)
    for name, found in zip(names, store.checksum_many(names), strict=True):
        if found != known[name]:
            raise StoreError(
                f"{name} is {'gone' if found is None else 'damaged (its checksum differs)'}; restore the newest "
                "checkpoint that `cutwater verify` finds whole"
            )


def _rebuild(
    store: Store, report: StageReport, prefix: str, log_interval: int, reset: bool = False
) -> set[str]:
    """Makes a folder of the files that `report` names; answers what is in it."""
    files = {_name_in_folder(name): name for name in report.state}
    gone, there = _fill(store, prefix, files, log_interval, report.consumed if reset else None)
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
) -> tuple[list[str], set[str]]:
    """Copies files of one folder into another one, at `prefix`, by name there, and ensures that Spark starts with
    their source logs, and with the batch that is due. With `consumed`, the positions on channels, only the sources'
    files are copied, and Spark starts without state. Answers files that are gone, and what is there now."""
    gone: list[str] = []

    def copy(name: str) -> None:
        try:
            _copy(store, files[name], prefix, name)
        except OSError:
            if store.exists(files[name]):
                raise
            gone.append(files[name])

    origin = next((source.removesuffix(name) for name, source in files.items()), "")
    folder = SparkFolder(store, origin, Cache(), files.values())
    replaced, written = folder.logs_written_anew(log_interval)
    if consumed is None:
        written |= folder.due_plan(int(time.time() * 1000))
    else:
        written |= folder.first_plan(consumed)
        replaced |= {
            name for name in files if not (name in IDENTITY or name.startswith(source_logs_prefix()))
        }
    copied = files.keys() - replaced
    _side_by_side(copy, sorted(copied))
    for name, data in written.items():
        store.create(prefix + name, data)
    return sorted(gone), {*copied, *written}


def _copy(store: Store, source: str, prefix: str, name: str) -> None:
    """Copies one file into the folder at `prefix`, to go by `name` there."""
    if OPERATOR.fullmatch(name) is None:
        store.copy(source, prefix + name)
        return
    data = store.read(source)
    if data is None:
        raise FileNotFoundError(f"nothing to copy: there is no {source}")
    store.create(prefix + name, moved_metadata(source, data, store.spark_url(prefix.rstrip("/"))))


def _name_in_folder(name: str) -> str:
    of = spark_file_of(name) or state_copy_of(name)
    if of is None:
        raise StoreError(f"{name} is listed as a state file, and is not below a Spark folder or a checkpoint")
    return of.file


def _side_by_side(act: Callable[[T], R], items: Sequence[T]) -> list[R]:
    with ThreadPoolExecutor(_SIDE_BY_SIDE) as pool:
        return list(pool.map(act, items))


# --- what a checkpoint names ----------------------------------------------------------------------------


def find_state(
    store: Store,
    stage: str,
    generation: int,
    incarnation: int,
    batch: int,
    copy_to: str | None,
    cache: Cache,
) -> dict[str, str] | None:
    """Names and checksums of the files from which a folder can be rebuilt that goes on after `batch`; `None`
    if some are gone. With `copy_to` they are copied below that prefix, and the copies are answered."""
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
        _side_by_side(lambda name: store.copy(prefix + name, copy_to + name), names)
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


# --- what may be deleted --------------------------------------------------------------------------------


def find_stored(
    store: Store, stage: str, generation: int, last_incarnation: int, cache: Cache
) -> tuple[list[Stored], list[Stored]]:
    """What lies below a stage's folder: its channel files, and its state files with the batches that need
    them. `cache` must be the same in every call of a process: it knows since when a snapshot is there."""
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
            return []  # nobody will start from it: that it cannot be cleaned up must not end a run
        raise
    states = []
    for name, (first, until) in spans.items():
        end = until + base + 1 if until < FOREVER else FOREVER
        states.append(Stored(prefix + name, incarnation, min(max(first + base + 1, lowest), end), end))
    return states


def _forget(cache: Cache, prefix: str, names: set[str]) -> None:
    """Drops from the cache what is known of files that are gone."""
    kinds: Iterable[dict[str, object]] = vars(cache).values()
    for known in kinds:
        for name in list(known):
            if name.startswith(prefix) and name not in names and not name.endswith("/"):
                known.pop(name, None)
