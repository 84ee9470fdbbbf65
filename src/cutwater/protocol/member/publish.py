"""Publishing: what an epoch of a sink consists of, and what a sink still has to do (rule 8).

Both are functions of the records, so any process that hosts the stage can publish, any number of times. A table has one
transaction id per sink, permanently; its version is the journal index of what the sink did last. Indexes only grow, so
nothing is skipped and nothing is done twice. An epoch without rows makes no table commit, only its mark: the table at
an epoch is the version with the highest transaction up to its index.

A table may forget its transactions (`delta.setTransactionRetentionDuration`), so the marks are evidence as well: what
has a mark is never published again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeVar

import msgspec

from cutwater.protocol.base.chain import digest
from cutwater.protocol.base.effects import (
    FAILED,
    Delete,
    Failed,
    FindTableVersion,
    List,
    Procedure,
    PublishTable,
    Read,
    ReadTable,
    ReadTableHistory,
    RewindTable,
    Sleep,
    TableHead,
    TableOperation,
    ask,
    backoff_ms,
    insist,
    put,
)
from cutwater.protocol.base.errors import VERIFY_FIRST, PublishingFailed, StoreError
from cutwater.protocol.base.failures import FailureReason
from cutwater.protocol.base.log import follow
from cutwater.protocol.base.paths import manifest_name, mark_name, mark_of, mark_prefix
from cutwater.protocol.base.records import (
    Batch,
    Checkpoint,
    JournalState,
    Manifest,
    Published,
    SinkSpec,
    StagedFile,
    Topology,
    decode,
    decode_mark,
    seal,
)
from cutwater.protocol.member.journal import Journal, timeline


def contents(
    batches: Iterable[Batch], sink: SinkSpec, held: tuple[StagedFile, ...], watermark: int | None
) -> tuple[tuple[str, ...], tuple[StagedFile, ...]]:
    """What an epoch publishes to a sink, and what it still holds back.

    `batches` are those after the previous committed cut up to this one, in order; `held` is what the previous one held
    back. A file without an end is published; one with an end only when the pipeline-wide watermark has reached that
    end. A sink that was final, and no longer is, publishes everything: no watermark may be left to wait for.
    """
    released: list[str] = []
    kept: list[StagedFile] = []
    staged = [*held, *(file for batch in batches for file in batch.sinks.get(sink.name, ()))]
    for file in staged:
        is_closed = file.end is None or (watermark is not None and file.end <= watermark)
        if is_closed or not sink.final:
            released.append(file.name)
        else:
            kept.append(file)
    return tuple(released), tuple(kept)


class CommitPermit(msgspec.Struct, frozen=True):
    """The right to publish one epoch. Only a COMMITTED entry in the journal gives it."""

    epoch: int
    index: int
    checkpoint: Checkpoint


class RewindOrder(msgspec.Struct, frozen=True):
    """The duty to take a sink back to an epoch; with `force`, even if that undoes what others did since."""

    epoch: int
    index: int
    transaction: int
    force: bool = False


Duty = CommitPermit | RewindOrder


def duties(state: JournalState, transaction: int) -> list[Duty]:
    """What a sink whose table has `transaction` still has to do, in order.

    It follows the timeline that leads to the head: each generation's rewind, then its commits. Commits of abandoned
    timelines are skipped.
    """
    line = timeline(state)
    found: list[Duty] = [CommitPermit(c.epoch, c.index, c) for c in line if c.index > transaction]
    number: int | None = state.generation
    while number is not None and number in state.generations:
        generation = state.generations[number]
        if generation.epoch is not None and generation.index > transaction:
            found.append(
                RewindOrder(generation.epoch, generation.index, generation.transaction, generation.force)
            )
        number = generation.parent
    return sorted(found, key=lambda duty: duty.index)


def oldest_needed(state: JournalState, transaction: int) -> int | None:
    """The oldest transaction to which a sink whose table has `transaction` may have to go back: for any kept checkpoint,
    or for a restore that it has not performed yet. `None` if there is nothing to go back to."""
    kept = [checkpoint.index for checkpoint in state.committed.values()]
    ordered = [d.transaction for d in duties(state, transaction) if isinstance(d, RewindOrder)]
    return min([*kept, *ordered], default=None)


def stranded(
    manifest: Manifest,
    target: Checkpoint,
    before: Topology,
    after: Topology,
    settled: Mapping[str, int],
    dropped: Collection[str],
) -> list[str]:
    """Descriptions of what would be lost with sinks that the graph after a restore no longer has; empty if nothing.

    Rows that wait for a watermark are held under the name of their sink, like rows that are committed but not published
    yet: no other sink shows them. `dropped` names the stages and sinks that the user removes on purpose; `settled` is
    the highest journal index that the marks of each sink name.
    """
    found: list[str] = []
    stages = before.sinks()
    for sink in sorted(manifest.release.keys() - after.sinks().keys()):
        if sink in dropped or stages.get(sink) in dropped:
            continue
        advice = f"name it {sink!r} again (name={sink!r}), or discard its rows with `--drop {sink}`"
        if manifest.held.get(sink):
            found.append(
                f"sink {sink!r}, which the code no longer has, holds {len(manifest.held[sink])} files with rows of "
                f"windows that are not closed yet at epoch {target.epoch}: {advice}"
            )
        elif settled.get(sink, 0) < target.index:
            found.append(
                f"sink {sink!r}, which the code no longer has, has not published everything up to epoch "
                f"{target.epoch} yet: {advice}"
            )
    return found


A = TypeVar("A")


class Patience:
    """How often operations on a table may fail in a row. While the pipeline runs there is no limit: outages end, and
    nothing is lost in the meantime. When it `is_over`, so that only publishing is left, an operation is retried `most`
    times, after `backoff_ms` and then after twice as long each time (`None`: any number)."""

    def __init__(
        self, is_over: Callable[[], bool] = lambda: False, most: int | None = None, backoff_ms: int = 0
    ) -> None:
        self._is_over = is_over
        self._most = most
        self._backoff_ms = backoff_ms
        self._failed: dict[type, int] = {}

    def insist(self, operation: TableOperation[A]) -> Procedure[A]:
        """Repeats an operation until it does not fail; returns its answer. Raises `PublishingFailed`."""
        attempt = 0
        while True:
            answer = yield from self.ask(operation, attempt)
            if answer is not FAILED:
                return answer
            attempt += 1

    def ask(self, operation: TableOperation[A], attempt: int) -> Procedure[A | Failed]:
        """Performs an operation for the `attempt`-th time; returns its answer, or `FAILED` when it may be tried again.
        Raises `PublishingFailed` when it may not."""
        answer = yield from ask(operation)
        kind = type(operation)
        if answer is not FAILED:
            self._failed.pop(kind, None)
        elif self._most is None or not self._is_over():
            yield Sleep(backoff_ms(attempt))
        else:
            failed = self._failed[kind] = self._failed.get(kind, 0) + 1
            if failed > self._most:
                raise PublishingFailed(operation.sink, failed)
            yield Sleep(self._backoff_ms << min(failed - 1, 6))
        return answer


def begin(sink: str, journal: Journal, patience: Patience | None = None) -> Procedure[int]:
    """The journal index up to which a sink has done everything, according to its marks and its table.

    Raises `StoreError` if the two contradict each other: the table is not the one that the marks describe, or it has
    forgotten Cutwater's transactions, so that nobody can say whether it has an epoch without a mark.
    """
    patience = patience or Patience()
    known = journal.index
    # The marks are read before the table, which is then at least as far.
    newest, mark = yield from newest_mark(sink)
    head = yield from patience.insist(ReadTable(sink))
    if head.transaction > journal.index:
        yield from follow(journal.view)
    if head.transaction > journal.index:
        raise StoreError(
            f"the journal ends at entry {journal.index}, but the table of sink {sink} has the result of entry "
            f"{head.transaction}: the newest entries of the journal are missing, as in an older copy of the store. "
            f"{FailureReason.JOURNAL_BEHIND.advice}"
        )
    if mark is not None:
        yield from _check_own(sink, journal.state, head, mark, patience)
    unclear = [d for d in duties(journal.state, newest) if d.index <= known] if head.forgetful else []
    if unclear:
        raise StoreError(
            f"it is unknown whether epoch {unclear[0].epoch} is in the table of sink {sink}: it has no mark, and the "
            "table has forgotten Cutwater's transactions (delta.setTransactionRetentionDuration) and the commits "
            f"that held them. Check the table; then give the sink another name and path and start with "
            f"`--restore latest --drop {sink}`: the new table begins at that checkpoint"
        )
    if newest > (mark.index if mark is not None else 0) and not head.forgetful:
        yield from _mark_anew(sink, newest, journal.state, patience)
    return max(head.transaction - 1, newest)  # the last thing in the table may still lack its mark


def _check_own(
    sink: str, state: JournalState, head: TableHead, mark: Published, patience: Patience
) -> Procedure[None]:
    """Raises `StoreError` if the table no longer has the sink's newest commit, which the mark describes. That does not
    matter if a restore takes the table back to before it (the table was checked before the restore), and cannot be
    checked if the table's log was cleaned up."""
    back = any(isinstance(d, RewindOrder) and d.transaction < mark.index for d in duties(state, mark.index))
    if mark.transaction > 0 and back:
        return
    if head.version < mark.version:
        raise StoreError(
            f"the table of sink {sink} is at version {head.version}, and was at version {mark.version} when epoch "
            f"{mark.epoch} was in it: it was removed or replaced. Bring it back; or give the sink another name "
            f"and path and start with `--restore latest --drop {sink}`: the new table begins at that checkpoint"
        )
    if mark.transaction == 0:
        return
    history = yield from patience.insist(ReadTableHistory(sink, mark.transaction))
    if history is None or (history.transaction == mark.transaction and history.files >= mark.files):
        return
    raise StoreError(
        f"version {mark.version} of the table of sink {sink} no longer has what the sink put there up to epoch "
        f"{mark.epoch}: another writer has put its own commit in that place (one that checks first and then writes, "
        "instead of creating commits with a conditional put), or the table was replaced. Bring it back. Or stop that "
        "writer and restore a checkpoint from before that, with `--force` if what it wrote may go: the rows come again. "
        f"Or give the sink another name and path and start with `--restore latest --drop {sink}`"
    )


def newest_mark(sink: str) -> Procedure[tuple[int, Published | None]]:
    """The journal index up to which a sink is settled, 0 if it has no marks; and the newest mark that can be read. (The
    name of a mark says that its entry is settled, even if its content is damaged.)"""
    while True:
        names = [name for name in (yield from insist(List(mark_prefix(sink)))) if mark_of(name)]
        for name in reversed(names):
            data = yield from insist(Read(name))
            if data is None and name == names[-1]:
                break  # retention has removed it, because there is a newer one by now
            try:
                return _index(names[-1]), decode_mark(name, data or b"")
            except StoreError:
                continue
        else:
            return _index(names[-1]) if names else 0, None


def _index(name: str) -> int:
    found = mark_of(name)
    assert found is not None
    return found.index


def _mark_anew(sink: str, index: int, state: JournalState, patience: Patience) -> Procedure[None]:
    """Replaces a damaged mark by what the table says. If the process ends in between, the mark is missing; then the
    table's transaction says what is done, and the duty writes the mark."""
    epochs = {c.index: c.epoch for c in state.committed.values()}
    epochs |= {g.index: g.epoch for g in state.generations.values() if g.epoch is not None}
    version = yield from patience.insist(FindTableVersion(sink, index))
    if index not in epochs or version is None:
        return
    yield from insist(Delete((mark_name(index, sink),)))
    yield from put(mark_name(index, sink), seal(Published(epochs[index], sink, index, version)))


def is_settled(sink: str, index: int) -> Procedure[bool]:
    """Whether a mark says that a sink has done what the journal requires at `index`, or more."""
    names = yield from insist(List(mark_prefix(sink), mark_name(index - 1, sink)))
    return any(mark_of(name) for name in names)


def perform(sink: str, duty: Duty, patience: Patience | None = None) -> Procedure[Published | None]:
    """Does one duty on a table, once, and returns the mark that it wrote; `None` if another process has done it. Raises
    `PublishingFailed` when it runs out of patience.

    If the table already has this transaction (from before a crash, or from a zombie), only the mark is written; if it
    has a later one, a successor has continued and nothing is written. The marks are read *after* the table: a process
    that has done the duty since then has changed the table's version.
    """
    patience = patience or Patience()
    attempt = 0
    files: int | None = None
    missing = False
    while True:
        head = yield from patience.insist(ReadTable(sink))
        if head.transaction > duty.index:
            return None
        if head.transaction == duty.index:
            # Others may have committed to the table after us: the head need not be our version.
            version = yield from patience.insist(FindTableVersion(sink, duty.index))
            found = head.version if version is None else version
            if files is None:  # it was in the table before
                files = yield from _count_files(sink, duty)
            mark = Published(duty.epoch, sink, duty.index, found, duty.index, files)
            return mark if (yield from put(mark_name(duty.index, sink), seal(mark))) else None
        if (yield from is_settled(sink, duty.index)):
            return None  # it had no rows, or the table has forgotten it
        effect = yield from _table_commit(sink, duty, head, patience)
        if effect is None:
            if missing:  # and the table was read again since: nobody has settled the epoch
                raise StoreError(
                    f"the manifest of epoch {duty.epoch} is missing, and sink {sink} has not published it; "
                    f"{VERIFY_FIRST}restore an older checkpoint"
                )
            missing = True
        elif isinstance(effect, PublishTable) and not effect.files:
            mark = Published(duty.epoch, sink, duty.index, head.version, head.transaction)
            return mark if (yield from put(mark_name(duty.index, sink), seal(mark))) else None
        else:
            files = len(effect.files) if isinstance(effect, PublishTable) else 0
            if (yield from patience.ask(effect, attempt)) is FAILED:
                attempt += 1


def _count_files(sink: str, duty: Duty) -> Procedure[int]:
    """How many files a duty adds to a table; 0 if that is no longer known."""
    manifest = (yield from read_manifest(duty.checkpoint)) if isinstance(duty, CommitPermit) else None
    return len(manifest.release.get(sink, ())) if manifest is not None else 0


def _table_commit(
    sink: str, duty: Duty, head: TableHead, patience: Patience
) -> Procedure[PublishTable | RewindTable | None]:
    """The table commit that does the duty, on top of `head`; `None` if there is no manifest: either it is lost, or
    another process has settled the epoch meanwhile, which the table shows."""
    if isinstance(duty, CommitPermit):
        manifest = yield from read_manifest(duty.checkpoint)
        if manifest is None:
            return None
        return PublishTable(sink, head.version, duty.index, manifest.release.get(sink, ()), duty.epoch)
    version = yield from patience.insist(FindTableVersion(sink, duty.transaction))
    if version is None:
        raise StoreError(
            f"sink {sink} cannot go back to epoch {duty.epoch}: the table's history, or files of that version, were "
            "removed. Restore a newer checkpoint if there is one; or give the sink another name and path and restore "
            f"with `--drop {sink}`: the new table begins at the checkpoint"
        )
    return RewindTable(sink, head.version, duty.index, version, duty.force)


def in_force(manifest: Manifest, state: JournalState) -> Manifest:
    """The manifest of the newest checkpoint as the current generation begins with it, if it does."""
    ours = state.generations.get(state.generation)
    if ours is None or state.topology is None or manifest.generation == state.generation:
        return manifest
    return manifest.with_moved(ours.moved, state.topology)


def read_manifest(checkpoint: Checkpoint) -> Procedure[Manifest | None]:
    """The manifest of a committed epoch, checked against the hash in the journal; `None` if there is none. Raises
    `StoreError` if it is damaged."""
    name = manifest_name(checkpoint.epoch, checkpoint.checkpoint_id)
    data = yield from insist(Read(name))
    if data is None:
        return None
    if digest(data) != checkpoint.manifest:
        raise StoreError(
            f"{name} is not the manifest that epoch {checkpoint.epoch} was committed with (its hash "
            f"differs); {VERIFY_FIRST}restore an older checkpoint"
        )
    return decode(name, data, Manifest)
