"""What is wrong with the things in a store that the next run reads, and that no checkpoint vouches for.

A checkpoint's own objects have checksums in its manifest. A run that goes on reads more: the logs as they stand,
Spark's newest folders, and the rows in channels that nobody has read yet. All of it is looked at here as a run
would look at it, and nothing is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.base.log import follow
from cutwater.protocol.base.paths import (
    BASE,
    CHECKPOINT_PREFIX,
    COMPLETE,
    MARK_PREFIX,
    STAGE_PREFIX,
    batch_file_name,
    checkpoint_of,
    generation_of,
    mark_name,
    mark_of,
    spark_file_of,
    spark_prefix,
)
from cutwater.protocol.base.records import (
    Batch,
    JournalState,
    Manifest,
    StageState,
    Topology,
    decode,
    decode_mark,
)
from cutwater.protocol.member.channel import BatchUnknown, Channel, carried_batches
from cutwater.protocol.member.journal import Journal, timeline
from cutwater.protocol.member.retention import named_objects
from cutwater.protocol.member.stage_log import StageLog
from cutwater.sinks.footers import check_pages
from cutwater.spark.checkpoint import incarnations as folders
from cutwater.spark.checkpoint.folder import Cache
from cutwater.spark.checkpoint.offsets import parse_offsets, position_in
from cutwater.store.at_rest import drive
from cutwater.store.contract import Store

Problems = dict[str, str]
"""By what is damaged, why."""


def journal_problems(store: Store, journal: Journal) -> Problems:
    """What is in the store and later than the journal's end: then its newest entries were lost."""
    marks = {name: found.index for name in store.list(MARK_PREFIX) if (found := mark_of(name))}
    later = {name: index for name, index in marks.items() if index > journal.index}
    for name in store.list(CHECKPOINT_PREFIX):
        of = checkpoint_of(name)
        if of is not None and of.checkpoint_id > journal.index:
            later[name] = of.checkpoint_id
    for name in store.list(STAGE_PREFIX):
        generation = generation_of(name)
        if generation is not None and generation > journal.state.generation:
            return {
                "journal": f"{name} is of a generation that the journal does not know: its newest entries were lost"
            }
    if not later:
        return {}
    first = min(later)
    return {
        "journal": f"{first} is of entry {later[first]}, and the journal ends at {journal.index}: entries were lost"
    }


def mark_problems(store: Store, state: JournalState) -> Problems:
    """The marks that cannot be read or say something else than their name or the journal does."""
    names = [name for name in store.list(MARK_PREFIX) if mark_of(name)]
    wrong: Problems = {}
    for name, data in zip(names, store.read_many(names), strict=True):
        try:
            if data is not None:
                decode_mark(name, data)
        except StoreError as error:
            wrong[name] = str(error)
    for sink in state.topology.sinks() if state.topology is not None else ():
        indexes = [of.index for name in names if (of := mark_of(name)) and of.sink == sink]
        for checkpoint in timeline(state):
            name = mark_name(checkpoint.index, sink)
            if name not in names and min(indexes, default=0) < checkpoint.index < max(indexes, default=0):
                wrong[name] = (
                    f"is missing: sink '{sink}' has gone past epoch {checkpoint.epoch}, which is kept"
                )
    return wrong


def folder_problems(store: Store, manifests: Iterable[Manifest]) -> Problems:
    """The marks that are gone from Spark folders in which files of kept checkpoints lie. Such a folder is not cleaned
    up as long as one of them is kept."""
    of = (spark_file_of(name) for name in named_objects(manifests))
    folders = sorted({spark_prefix(f.stage, f.generation, f.incarnation) for f in of if f is not None})
    wrong: Problems = {}
    for folder in folders:
        names = [folder + BASE, folder + COMPLETE]
        found = [store.exists(name) for name in names]
        if any(found) and not all(found):
            wrong[names[found.index(False)]] = (
                "is missing: nothing of its folder is deleted before the checkpoints expire that need it, and no run "
                "goes on from it"
            )
    return wrong


def graph_problems(store: Store, kinds: Mapping[str, Callable[[str], type | None]]) -> Problems:
    """The objects below these prefixes that cannot be read; what each is, its name says. Others are none of ours."""
    wrong: Problems = {}
    for prefix, kind_of in kinds.items():
        names = store.list(prefix)
        for name, data in zip(names, store.read_many(names), strict=True):
            try:
                kind = kind_of(name)
                if data is not None and kind is not None:
                    decode(name, data, kind)
            except StoreError as error:
                wrong[name] = str(error)
    return wrong


class NextRun:
    """What a run that goes on would read."""

    def __init__(self, store: Store, state: JournalState, newest: Manifest | None) -> None:
        self._store = store
        self._state = state
        self._newest = newest
        self._topology = state.topology or Topology({})
        self._logs: dict[str, StageState] = {}
        self.problems: Problems = {}

    def look(self, tell: Callable[[str], None]) -> Problems:
        """What is wrong with it."""
        for name in self._topology.stages:
            tell(f"reading the log of stage {name}")
            log = StageLog(name, self._state.generation)
            self._try(f"log of stage '{name}'", lambda log=log: drive(self._store, follow(log.view)))  # type: ignore[misc]
            self._logs[name] = log.state
        for name in self._topology.stages:
            tell(f"reading the Spark folder of stage {name}")
            self._try(f"stage '{name}'", lambda name=name: self._look_at_folder(name))  # type: ignore[misc]
        for name, spec in self._topology.stages.items():
            for producer in spec.inputs:
                what = f"channel '{producer}' → '{name}'"
                tell(f"reading {what}")
                self._try(what, lambda n=name, p=producer: self._look_at_channel(n, p))  # type: ignore[misc]
        return self.problems

    def _try(self, what: str, look: Callable[[], object]) -> None:
        try:
            look()
        except (StoreError, BatchUnknown) as error:
            self.problems[what] = str(error)

    # --- Spark's folders ------------------------------------------------------------------------------

    def _look_at_folder(self, stage: str) -> None:
        store, log, generation = self._store, self._logs[stage], self._state.generation
        report = self._newest.stages.get(stage) if self._newest is not None else None
        known = folders.list_folders(store, stage, generation)
        cut = report.batch if report is not None else -1
        if log.incarnation == 0 and (
            known or (report and self._newest and self._newest.generation == generation)
        ):
            raise StoreError(f"the log of stage {stage} is empty, and it has run: its entries were lost")
        if not known:
            if log.last > cut:
                raise StoreError(
                    f"the Spark folders of stage {stage} are gone; restore the newest checkpoint"
                )
            return
        if max(known) > log.incarnation:
            raise StoreError(
                f"it has a Spark folder of incarnation {max(known)}, and its log knows {log.incarnation}: the newest "
                "entries of the log were lost"
            )
        if log.last < cut and self._newest is not None and self._newest.generation == generation:
            raise StoreError(
                f"its log ends at batch {log.last}, and the newest checkpoint is of batch {cut}: the newest entries of "
                "the log were lost"
            )
        prefix = spark_prefix(stage, generation, max(known))
        unvouched = folders.check_newest(store, stage, generation, max(known), log.last, report, log.commit)
        check_state(store, [prefix + name for name in unvouched])
        self._look_at_plan(prefix, stage, max(known))

    def _look_at_plan(self, prefix: str, stage: str, incarnation: int) -> None:
        """Whether Spark's plan of the last batch says what the stage's log does."""
        log = self._logs[stage]
        cache = Cache()
        base = folders.base_of(self._store, stage, self._state.generation, incarnation, cache)
        number = log.last - base - 1
        if number < 0:
            return
        name = prefix + batch_file_name("offsets", number)
        data = self._store.read(name)
        if data is None:
            raise StoreError(f"{name} is gone; restore the newest checkpoint")
        consumed: dict[str, int] = {}
        native: list[str] = []
        for text in parse_offsets(name, data).sources:
            position = position_in(text) if text is not None else None
            if position is not None:
                consumed[position[0]] = position[1]
            elif text is not None:
                native.append(text)
        if consumed != log.consumed or sorted(native) != sorted(str(o) for o in log.offsets.values()):
            raise StoreError(
                f"{name} says other positions than the stage's log; restore the newest checkpoint"
            )

    # --- channels -------------------------------------------------------------------------------------

    def _look_at_channel(self, reader: str, producer: str) -> None:
        """Whether the rows are there and whole that the reader has still to read."""
        log = self._logs[producer]
        position = self._logs[reader].consumed.get(producer, -1)
        if position > log.last:
            raise StoreError(
                f"{reader} has read up to batch {position}, and the log of {producer} ends at {log.last}: its newest "
                "entries were lost"
            )
        if self._logs[reader].incarnation == 0:
            return  # it starts at the newest checkpoint, which is looked at by itself
        channel = Channel(log, carried_batches(self._newest, reader, producer))
        for batch, files in channel.unread(position, log.last).items():
            check_rows(self._store, files, log.batches.get(batch))


class FileChecksum(msgspec.Struct, frozen=True):
    """What Spark writes beside a state file."""

    algorithm: str
    value: int
    size: int = msgspec.field(name="mainFileSize")


def check_state(store: Store, names: list[str]) -> None:
    """Raises `StoreError` if a state file is not what Spark's own checksum beside it says."""
    for name in names:
        if not name.endswith(".crc"):
            continue
        file = name.removesuffix(".crc")
        said = decode(name, store.read(name) or b"", FileChecksum)
        data = store.read(file)
        if data is None:
            raise StoreError(f"{file} is missing; restore the newest checkpoint")
        if said.algorithm == "CRC32C" and (len(data), crc32c(data)) != (said.size, said.value % 2**32):
            raise StoreError(f"{file} is damaged (its checksum differs); restore the newest checkpoint")


def crc32c(data: bytes) -> int:
    """The checksum that Spark takes. Python has none; what is asked for is what came after a checkpoint."""
    found = 0xFFFFFFFF
    for byte in data:
        found = _CRC32C[(found ^ byte) & 0xFF] ^ (found >> 8)
    return found ^ 0xFFFFFFFF


def _crc32c_of(byte: int) -> int:
    for _ in range(8):
        byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_CRC32C = [_crc32c_of(byte) for byte in range(256)]


def check_rows(store: Store, files: Iterable[str], batch: Batch | None) -> None:
    """Raises `StoreError` if Parquet files are gone or damaged, or hold other rows than the batch's record says."""
    rows = size = 0
    for name in files:
        rows += check_pages(store, name)
        size += store.size(name) or 0
    if batch is not None and (rows, size) != (batch.rows, batch.size):
        raise StoreError(
            f"the files of batch {batch.batch} have {rows} rows in {size} bytes, and the log says {batch.rows} in "
            f"{batch.size}; restore the newest checkpoint"
        )
