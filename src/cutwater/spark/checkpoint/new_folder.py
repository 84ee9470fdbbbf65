"""Creates the Spark folder of an incarnation, from its predecessor's or from a checkpoint; and checks what that needs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.base.paths import (
    BASE,
    COMPLETE,
    SOURCES,
    batch_file_name,
    batch_file_of,
    source_logs_prefix,
    spark_file_of,
    spark_prefix,
    state_copy_of,
)
from cutwater.protocol.base.records import Prepared, StageReport, seal
from cutwater.spark.checkpoint.first_positions import first_positions, keep_first_positions
from cutwater.spark.checkpoint.folder import OPERATOR, Cache, Move, SparkFolder, is_lasting
from cutwater.spark.checkpoint.incarnations import Base, Complete, base_at, mark_at, read_record
from cutwater.spark.checkpoint.leaves import Leaf, refuse_changed
from cutwater.spark.checkpoint.moved_files import refuse_moved
from cutwater.spark.checkpoint.offsets import parse_commit
from cutwater.spark.checkpoint.parallel import in_parallel
from cutwater.spark.checkpoint.same_source import share_rows
from cutwater.spark.checkpoint.source_logs import DEFAULT_INTERVAL
from cutwater.spark.checkpoint.state_files import moved_metadata, split_name
from cutwater.store import failpoints
from cutwater.store.contract import Store, StoreUnavailable

IDENTITY = ("metadata", SOURCES)
"""The files that identify the query and its sources."""


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
    for name, found in zip(names, in_parallel(store.exists, [origin + name for name in names]), strict=True):
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
    made = mark_at(store, origin)
    lasting = (origin + name for name in made.checksums if is_lasting(name))
    folder = SparkFolder(store, origin, cache, {*store.list(origin), *lasting})
    base = base_at(store, origin, known_before or cache)
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
        known |= read_record(store, origin + batch_file_name("prepared", batch), Prepared).checksums
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
    files = files_of_report(report)
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
    in_parallel(copy, sorted(copied))
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


def folder_of_report(store: Store, report: StageReport) -> SparkFolder:
    """The folder that consists of the state files of a stage at a checkpoint."""
    return _folder_of(store, files_of_report(report))


def files_of_report(report: StageReport) -> dict[str, str]:
    """The state files of a checkpoint, by their names in a folder."""
    return {_name_in_folder(name): name for name in report.state}


def _name_in_folder(name: str) -> str:
    of = spark_file_of(name) or state_copy_of(name)
    if of is None:
        raise StoreError(f"{name} is listed as a state file, but is not in a Spark folder or a checkpoint")
    return of.file


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
    If it has no positions, its Kafka sources begin where those of its predecessors did. Raises `SourcesChanged` if the
    positions there are of other sources."""
    prefix = spark_prefix(stage, generation, incarnation)
    folder = SparkFolder(store, prefix, Cache())
    _refuse_other_sources(folder, leaves)
    if folder.recorded_leaves() is None:
        leaves = identified() if identified is not None else leaves
        if folder.positions() is None:
            keep_first_positions(store, stage, generation, incarnation, leaves)
        store.create(prefix + SOURCES, msgspec.json.encode(leaves))


class Claimed(msgspec.Struct, frozen=True):
    """The recorded sources of a folder, and the positions in them from which its query reads on, by leaf. `has_read`:
    its committed batches have read up to there; else they are where Kafka sources began, as far as that is known."""

    leaves: Sequence[Leaf] | None
    positions: Sequence[str | None]
    has_read: bool


def claimed_positions(store: Store, stage: str, generation: int, incarnation: int) -> Claimed:
    """The positions in the sources that an incarnation has claimed."""
    prefix = spark_prefix(stage, generation, incarnation)
    folder = SparkFolder(store, prefix, Cache())
    leaves, done = folder.recorded_leaves(), folder.done_positions()
    if done is not None:
        return Claimed(leaves, done, has_read=True)
    return Claimed(leaves, first_positions(store, prefix, leaves or ()), has_read=False)


def refuse_other_sources(store: Store, report: StageReport, leaves: Sequence[Leaf], reset: bool) -> None:
    """Raises `SourcesChanged` if `claim_sources` would, in the folder that `make_folder` makes from `report`."""
    if report.offsets or not reset:
        _refuse_other_sources(folder_of_report(store, report), leaves)


def refuse_moved_files(store: Store, report: StageReport, leaves: Sequence[Leaf]) -> None:
    """Raises `FilesMoved` if a stage that continues after `report` would read its files again under other paths."""
    refuse_moved(folder_of_report(store, report), leaves)


def recorded_sources(store: Store, report: StageReport) -> Sequence[Leaf]:
    """What a stage read at a checkpoint; nothing if it has no record of it."""
    return folder_of_report(store, report).recorded_leaves() or ()


def newly_read(store: Store, report: StageReport, leaves: Sequence[Leaf]) -> list[Leaf]:
    """The sources that a stage, reset to `report`, would read from their beginning although it has run: it did not read
    them before. If it has positions in sources, they are those of its present ones (`refuse_other_sources`)."""
    native = [leaf for leaf in leaves if leaf.channel is None]
    if report.batch < 0 or report.offsets or not native:
        return []
    recorded = recorded_sources(store, report)
    return [leaf for leaf in native if not any(share_rows(leaf, before) for before in recorded)]


def _refuse_other_sources(folder: SparkFolder, leaves: Sequence[Leaf]) -> None:
    positions = folder.positions()
    if positions is not None:
        refuse_changed(folder.recorded_leaves(), positions, leaves)
        refuse_moved(folder, leaves)
