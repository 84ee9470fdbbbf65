"""Publishing: what an epoch of a sink consists of, and what a sink has still to do. Rule 8.

Both are functions of the records, so whoever hosts the stage now can do it, any number of times. A table
carries one transaction id per sink for ever, whose version is the journal index of what it did last;
indexes only grow, so nothing is skipped and nothing is done twice. An epoch without rows makes no table
commit, just its mark: the table at an epoch is the version with the highest transaction up to its index.

A table may forget its transactions (`delta.setTransactionRetentionDuration`), so the marks are evidence as well:
what one of them says is published is never published again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from cutwater.protocol.base.chain import digest
from cutwater.protocol.base.effects import (
    FAILED,
    Delete,
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
    ask,
    backoff_ms,
    insist,
    put,
)
from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.base.log import follow
from cutwater.protocol.base.paths import manifest_name, mark_name, mark_of, mark_prefix
from cutwater.protocol.base.records import (
    Batch,
    Checkpoint,
    JournalState,
    Manifest,
    Published,
    StagedFile,
    Topology,
    decode,
    decode_mark,
    seal,
)
from cutwater.protocol.member.journal import Journal, timeline


def contents(
    batches: Iterable[Batch], sink: str, held: tuple[StagedFile, ...], watermark: int | None
) -> tuple[tuple[str, ...], tuple[StagedFile, ...]]:
    """What an epoch publishes to a sink, and what it still holds back.

    `batches` are those after the previous committed cut up to this one, in order; `held` is what the
    previous one held back. A file without an end is published; one with an end only when the
    pipeline-wide watermark has reached that end.
    """
    released: list[str] = []
    kept: list[StagedFile] = []
    staged = [*held, *(file for batch in batches for file in batch.sinks.get(sink, ()))]
    for file in staged:
        if file.end is None or (watermark is not None and file.end <= watermark):
            released.append(file.name)
        else:
            kept.append(file)
    return tuple(released), tuple(kept)


class CommitPermit(msgspec.Struct, frozen=True):
    """The right to publish one epoch. Only a committed entry in the journal hands it out."""

    epoch: int
    index: int
    checkpoint: Checkpoint


class RewindOrder(msgspec.Struct, frozen=True):
    """The duty to bring a sink back to what it was at an epoch; with `force` over what others did since."""

    epoch: int
    index: int
    transaction: int
    force: bool = False


Duty = CommitPermit | RewindOrder


def duties(state: JournalState, transaction: int) -> list[Duty]:
    """What a sink whose table carries `transaction` has still to do, in order.

    It follows the timeline that the present grew out of: each generation's rewind, then its commits.
    Commits of abandoned timelines are passed over.
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
    """The oldest transaction to which a sink may have to go back whose table carries `transaction`: for any kept
    checkpoint, or for a restore that it has not followed yet. `None` if there is nothing to go back to."""
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
    """What sinks would leave behind that the graph after a restore no longer has, in words; empty if nothing.

    What waits for a watermark is held under the name of its sink, and so is what is committed and not published
    yet: nobody else shows it. `dropped` names the stages and sinks that are meant to go; `settled` is the highest
    journal index that the marks of each sink name.
    """
    found: list[str] = []
    stages = before.sinks()
    for sink in sorted(manifest.release.keys() - after.sinks().keys()):
        if sink in dropped or stages.get(sink) in dropped:
            continue
        advice = f"call it {sink!r} again (name={sink!r}), or let its rows go with `--drop {sink}`"
        if manifest.held.get(sink):
            found.append(
                f"sink {sink!r}, which is gone, holds {len(manifest.held[sink])} files with rows of windows that are "
                f"not closed yet at epoch {target.epoch}: {advice}"
            )
        elif settled.get(sink, 0) < target.index:
            found.append(
                f"sink {sink!r}, which is gone, has not published everything up to epoch {target.epoch} yet: {advice}"
            )
    return found


def begin(sink: str, journal: Journal) -> Procedure[int]:
    """The journal index up to which a sink has nothing left to do, by its marks and its table.

    Raises `StoreError` if the two do not fit together: the table is not the one that the marks tell of, or it
    has forgotten us and nobody can say whether an epoch without a mark is in it.
    """
    known = journal.index
    # The marks before the table, which is then at least as far.
    newest, mark = yield from newest_mark(sink)
    head = yield from insist(ReadTable(sink))
    if head.transaction > journal.index:
        yield from follow(journal.view)
    if head.transaction > journal.index:
        raise StoreError(
            f"the journal ends at entry {journal.index}, but the table of sink {sink} has what entry {head.transaction} "
            "ordered: the newest entries of the journal were lost. Bring them back from a copy of the store"
        )
    if mark is not None:
        yield from _check_own(sink, journal.state, head, mark)
    unclear = [d for d in duties(journal.state, newest) if d.index <= known] if head.forgetful else []
    if unclear:
        raise StoreError(
            f"nobody can say whether epoch {unclear[0].epoch} is in the table of sink {sink}: it has no mark, and the "
            "table has forgotten Cutwater's transactions (delta.setTransactionRetentionDuration) and the commits "
            f"that held them. Look into the table; then give the sink another name and path and start with "
            f"`--restore latest --drop {sink}`: the new table begins at that checkpoint"
        )
    if newest > (mark.index if mark is not None else 0) and not head.forgetful:
        yield from _mark_anew(sink, newest, journal.state)
    return max(head.transaction - 1, newest)  # the last thing in the table may still lack its mark


def _check_own(sink: str, state: JournalState, head: TableHead, mark: Published) -> Procedure[None]:
    """Raises `StoreError` if the table no longer has the sink's newest commit, of which the mark tells. It does not
    matter if the table is about to go back to before that, to where it was found whole before the restore stood; and
    a log that was cleaned up says nothing."""
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
    history = yield from insist(ReadTableHistory(sink, mark.transaction))
    if history is None or (history.transaction == mark.transaction and history.files >= mark.files):
        return
    raise StoreError(
        f"version {mark.version} of the table of sink {sink} no longer has what the sink put there up to epoch "
        f"{mark.epoch}: another writer has put its own commit in that place (one that looks first and then writes, "
        "instead of creating commits with a conditional put), or the table was replaced. Bring it back. Or stop that "
        "writer and restore a checkpoint from before that, with `--force` if what it wrote may go: the rows come again. "
        f"Or give the sink another name and path and start with `--restore latest --drop {sink}`"
    )


def newest_mark(sink: str) -> Procedure[tuple[int, Published | None]]:
    """The journal index of the last thing that was done in a sink, 0 if nothing was: all up to it is settled. And the
    newest mark that can be read. (That a mark is there says that its entry is settled, whatever is in it.)"""
    while True:
        names = [name for name in (yield from insist(List(mark_prefix(sink)))) if mark_of(name)]
        for name in reversed(names):
            data = yield from insist(Read(name))
            if data is None and name == names[-1]:
                break  # there is a newer one by now, and retention took this one
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


def _mark_anew(sink: str, index: int, state: JournalState) -> Procedure[None]:
    """Replaces a mark that cannot be read by what the table says. Should we die in between, the mark is missing: then
    the table's transaction tells what is done, and the duty writes it."""
    epochs = {c.index: c.epoch for c in state.committed.values()}
    epochs |= {g.index: g.epoch for g in state.generations.values() if g.epoch is not None}
    version = yield from insist(FindTableVersion(sink, index))
    if index not in epochs or version is None:
        return
    yield from insist(Delete((mark_name(index, sink),)))
    yield from put(mark_name(index, sink), seal(Published(epochs[index], sink, index, version)))


def is_settled(sink: str, index: int) -> Procedure[bool]:
    """Whether a mark says that a sink has done what the journal ordered at `index`, or gone beyond it."""
    names = yield from insist(List(mark_prefix(sink), mark_name(index - 1, sink)))
    return any(mark_of(name) for name in names)


def perform(sink: str, duty: Duty) -> Procedure[Published | None]:
    """Does one duty on a table, once, and leaves its mark; `None` if another process has done so.

    If the table already carries this transaction (our own from before a crash, or that of a zombie), only
    the mark is written; if it carries a later one, a successor has gone on and nothing is. The marks are
    asked *after* the table: who has done it since then has moved the table on from that version.
    """
    attempt = 0
    files: int | None = None
    missing = False
    while True:
        head = yield from insist(ReadTable(sink))
        if head.transaction > duty.index:
            return None
        if head.transaction == duty.index:
            # Others may have committed to the table right behind us: the head need not be our version.
            version = yield from insist(FindTableVersion(sink, duty.index))
            found = head.version if version is None else version
            if files is None:  # it was in the table before we came
                files = yield from _count_files(sink, duty)
            mark = Published(duty.epoch, sink, duty.index, found, duty.index, files)
            return mark if (yield from put(mark_name(duty.index, sink), seal(mark))) else None
        if (yield from is_settled(sink, duty.index)):
            return None  # it had no rows, or the table has forgotten it
        effect = yield from _table_commit(sink, duty, head)
        if effect is None:
            if missing:  # and the table has been asked again since: nobody has settled the epoch
                raise StoreError(
                    f"the manifest of epoch {duty.epoch} is missing, and sink {sink} has not published it; "
                    "run `cutwater verify`, then restore an older checkpoint"
                )
            missing = True
        elif isinstance(effect, PublishTable) and not effect.files:
            mark = Published(duty.epoch, sink, duty.index, head.version, head.transaction)
            return mark if (yield from put(mark_name(duty.index, sink), seal(mark))) else None
        else:
            files = len(effect.files) if isinstance(effect, PublishTable) else 0
            if (yield from ask(effect)) is FAILED:
                yield Sleep(backoff_ms(attempt))
                attempt += 1


def _count_files(sink: str, duty: Duty) -> Procedure[int]:
    """How many files a duty adds to a table; 0 if nobody knows any more."""
    manifest = (yield from read_manifest(duty.checkpoint)) if isinstance(duty, CommitPermit) else None
    return len(manifest.release.get(sink, ())) if manifest is not None else 0


def _table_commit(sink: str, duty: Duty, head: TableHead) -> Procedure[PublishTable | RewindTable | None]:
    """The table commit that does the duty, on top of `head`; `None` if the manifest is not there: unless
    it is lost, somebody has settled the epoch meanwhile, and the table will tell."""
    if isinstance(duty, CommitPermit):
        manifest = yield from read_manifest(duty.checkpoint)
        if manifest is None:
            return None
        return PublishTable(sink, head.version, duty.index, manifest.release.get(sink, ()), duty.epoch)
    version = yield from insist(FindTableVersion(sink, duty.transaction))
    if version is None:
        raise StoreError(
            f"sink {sink} cannot go back to epoch {duty.epoch}: the table's history, or files of that version, were "
            "removed. Restore a newer checkpoint; or give the sink another name and path and restore with "
            f"`--drop {sink}`: the new table begins at the checkpoint"
        )
    return RewindTable(sink, head.version, duty.index, version, duty.force)


def read_manifest(checkpoint: Checkpoint) -> Procedure[Manifest | None]:
    """The manifest of a committed epoch, checked against the hash in the journal; `None` if it is gone."""
    name = manifest_name(checkpoint.epoch, checkpoint.checkpoint_id)
    data = yield from insist(Read(name))
    if data is None:
        return None
    if digest(data) != checkpoint.manifest:
        raise StoreError(
            f"{name} is not the manifest that epoch {checkpoint.epoch} was committed with (its hash "
            "differs); run `cutwater verify`, then restore an older checkpoint"
        )
    return decode(name, data, Manifest)
