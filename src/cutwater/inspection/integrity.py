"""Checks the parts of a store that the next run will read and that no checkpoint covers.

A checkpoint's own objects have checksums in its manifest. A run that continues reads more: the current logs, Spark's
newest folders, and the unread rows in channels. All of this is checked here in the way that a run would read it, and
nothing is changed.
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
from cutwater.protocol.member.publish import in_force
from cutwater.protocol.member.retention import named_objects
from cutwater.protocol.member.stage_log import StageLog
from cutwater.sinks.footers import check_pages
from cutwater.spark.checkpoint import incarnations, new_folder
from cutwater.spark.checkpoint.folder import Cache
from cutwater.spark.checkpoint.offsets import parse_offsets, position_in
from cutwater.store.at_rest import drive
from cutwater.store.contract import Store

Problems = dict[str, str]
"""What is wrong, by the name of the damaged thing."""


def journal_problems(store: Store, journal: Journal) -> Problems:
    """Finds objects that are newer than the end of the journal: then its newest entries were lost."""
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
                "journal": f"{name} has a generation that the journal does not know: its newest entries were lost"
            }
    if not later:
        return {}
    first = min(later)
    return {
        "journal": f"{first} belongs to entry {later[first]}, but the journal ends at {journal.index}: entries were lost"
    }


def mark_problems(store: Store, state: JournalState) -> Problems:
    """The marks that are missing, unreadable, or contradict their name."""
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
                    f"is missing: sink '{sink}' has moved past epoch {checkpoint.epoch}, which is retained"
                )
    return wrong


def folder_problems(store: Store, manifests: Iterable[Manifest]) -> Problems:
    """The marks missing from Spark folders that contain files of retained checkpoints. Such a folder is not cleaned up
    while one of these checkpoints is retained."""
    of = (spark_file_of(name) for name in named_objects(manifests))
    folders = sorted({spark_prefix(f.stage, f.generation, f.incarnation) for f in of if f is not None})
    wrong: Problems = {}
    for folder in folders:
        names = [folder + BASE, folder + COMPLETE]
        found = [store.exists(name) for name in names]
        if any(found) and not all(found):
            wrong[names[found.index(False)]] = (
                "is missing: its folder is not cleaned up until the checkpoints that need it expire, and no run can "
                "continue from it"
            )
    return wrong


def graph_problems(store: Store, kinds: Mapping[str, Callable[[str], type | None]]) -> Problems:
    """The unreadable objects below these prefixes. The object's name determines its type; those without one are not
    Cutwater's, and are skipped."""
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
    """Checks what a run that continues from this store would read."""

    def __init__(self, store: Store, state: JournalState, newest: Manifest | None) -> None:
        self._store = store
        self._state = state
        self._newest = in_force(newest, state) if newest is not None else None
        self._topology = state.topology or Topology({})
        self._logs: dict[str, StageState] = {}
        self.problems: Problems = {}

    def check(self, report_progress: Callable[[str], None]) -> Problems:
        """The problems found. `report_progress` is called with a line of text per step."""
        for name in self._topology.stages:
            report_progress(f"reading the log of stage {name}")
            log = StageLog(name, self._state.generation)
            self._record(f"log of stage '{name}'", lambda log=log: drive(self._store, follow(log.view)))  # type: ignore[misc]
            self._logs[name] = log.state
        for name in self._topology.stages:
            report_progress(f"reading the Spark folder of stage {name}")
            self._record(f"stage '{name}'", lambda name=name: self._check_folder(name))  # type: ignore[misc]
        for name, spec in self._topology.stages.items():
            for producer in spec.inputs:
                what = f"channel '{producer}' → '{name}'"
                report_progress(f"reading {what}")
                self._record(what, lambda n=name, p=producer: self._check_channel(n, p))  # type: ignore[misc]
        return self.problems

    def _record(self, what: str, check: Callable[[], object]) -> None:
        try:
            check()
        except (StoreError, BatchUnknown) as error:
            self.problems[what] = str(error)

    # --- Spark's folders ------------------------------------------------------------------------------

    def _check_folder(self, stage: str) -> None:
        store, log, generation = self._store, self._logs[stage], self._state.generation
        report = self._newest.stages.get(stage) if self._newest is not None else None
        known = incarnations.list_folders(store, stage, generation)
        cut = report.batch if report is not None else -1
        if log.incarnation == 0 and (
            known or (report and self._newest and self._newest.generation == generation)
        ):
            raise StoreError(
                f"the log of stage {stage} is empty although the stage has run: its entries were lost"
            )
        if not known:
            if log.last > cut:
                raise StoreError(
                    f"the Spark folders of stage {stage} are gone; restore the newest checkpoint"
                )
            return
        if max(known) > log.incarnation:
            raise StoreError(
                f"it has a Spark folder of incarnation {max(known)}, but its log ends at incarnation {log.incarnation}: "
                "the newest entries of the log were lost"
            )
        if log.last < cut and self._newest is not None and self._newest.generation == generation:
            raise StoreError(
                f"its log ends at batch {log.last}, but the newest checkpoint is at batch {cut}: the newest entries of "
                "the log were lost"
            )
        prefix = spark_prefix(stage, generation, max(known))
        unvouched = new_folder.check_newest(
            store, stage, generation, max(known), log.last, report, log.commit
        )
        check_state(store, [prefix + name for name in unvouched])
        self._check_offsets(prefix, stage, max(known))

    def _check_offsets(self, prefix: str, stage: str, incarnation: int) -> None:
        """Checks that Spark's offsets of the last batch agree with the stage's log."""
        log = self._logs[stage]
        cache = Cache()
        base = incarnations.base_of(self._store, stage, self._state.generation, incarnation, cache)
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
                f"{name} has different positions than the stage's log; restore the newest checkpoint"
            )

    # --- channels -------------------------------------------------------------------------------------

    def _check_channel(self, reader: str, producer: str) -> None:
        """Checks that the rows that the reader has not read yet are present and undamaged."""
        log = self._logs[producer]
        position = self._logs[reader].consumed.get(producer, -1)
        if position > log.last:
            raise StoreError(
                f"{reader} has read up to batch {position}, but the log of {producer} ends at {log.last}: its newest "
                "entries were lost"
            )
        if self._logs[reader].incarnation == 0:
            return  # it starts from the newest checkpoint, which is checked separately
        channel = Channel(log, carried_batches(self._newest, reader, producer))
        for batch, files in channel.unread(position, log.last).items():
            check_rows(self._store, files, log.batches.get(batch))


class FileChecksum(msgspec.Struct, frozen=True):
    """The checksum file that Spark writes next to a state file."""

    algorithm: str
    value: int
    size: int = msgspec.field(name="mainFileSize")


def check_state(store: Store, names: list[str]) -> None:
    """Raises `StoreError` if a state file does not match Spark's own checksum file."""
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
    """CRC-32C, which Spark uses and Python does not provide. Slow, but only files newer than a checkpoint need it."""
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
    """Raises `StoreError` if Parquet files are missing or damaged, or do not match the batch's record."""
    rows = size = 0
    for name in files:
        rows += check_pages(store, name)
        size += store.size(name) or 0
    if batch is not None and (rows, size) != (batch.rows, batch.size):
        raise StoreError(
            f"the files of batch {batch.batch} have {rows} rows in {size} bytes, but the log says {batch.rows} in "
            f"{batch.size}; restore the newest checkpoint"
        )
