"""The staged rows that a start finds unpublished, and whether the sinks can still publish them.

Rows wait to be published for as long as a sink holds them back, fails, or is not running. Their columns are those of the
code that wrote them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from cutwater.protocol.base.errors import StoreError, UserError
from cutwater.protocol.base.log import follow
from cutwater.protocol.base.paths import MARK_PREFIX
from cutwater.protocol.base.records import Checkpoint, JournalState, Manifest, settled
from cutwater.protocol.member.journal import timeline
from cutwater.protocol.member.stage_log import StageLog
from cutwater.sinks.contract import Sink, other_columns
from cutwater.spark.checkpoint.incarnations import list_folders
from cutwater.spark.checkpoint.prepared import committed
from cutwater.store.at_rest import drive, load_manifest
from cutwater.store.contract import Store


def refuse_other_columns(
    store: Store, sinks: Sequence[tuple[str, Sink]], state: JournalState, target: Checkpoint | None = None
) -> None:
    """Raises `UserError` if a bound sink (each comes with its stage) would have to publish rows with other columns than
    its own: those that are committed or held back at `target`, the checkpoint of a restore, or, without one, those that a
    start continues with."""
    line = timeline(state)
    head = target if target is not None else line[-1] if line else None
    if head is None and state.topology is None:
        return
    if target is not None:  # what is later is abandoned
        line = [checkpoint for checkpoint in line if target in line and checkpoint.index <= target.index]
    marks = settled(store.list(MARK_PREFIX))
    newest = _manifest(store, head)
    for stage, sink in sinks:
        done = max(marks.get(sink.name, 0), sink.head().transaction)
        waiting = [
            name
            for checkpoint in line
            if checkpoint.index > done and (manifest := _manifest(store, checkpoint)) is not None
            for name in manifest.release.get(sink.name, ())
        ]
        _refuse(stage, sink, "rows that are committed but not published yet", waiting)
        held = [file.name for file in newest.held.get(sink.name, ())] if newest is not None else []
        _refuse(stage, sink, "rows that it holds back", held)
        if target is None:
            _refuse_since(store, stage, sink, state, newest)


def _manifest(store: Store, checkpoint: Checkpoint | None) -> Manifest | None:
    try:
        return load_manifest(store, checkpoint) if checkpoint is not None else None
    except StoreError:
        return None  # code that needs it reports that it is gone or damaged


def _refuse(stage: str, sink: Sink, what: str, files: Iterable[str]) -> None:
    try:
        found = sink.unfit(files)
    except StoreError:
        return  # publishing reports what is gone or damaged
    if found is not None:
        raise UserError(
            f"sink '{sink.name}' of stage '{stage}' cannot publish {what}: {other_columns(found, sink)}. "
            "Nothing was changed"
        )


def _refuse_since(store: Store, stage: str, sink: Sink, state: JournalState, newest: Manifest | None) -> None:
    """The same for the rows of batches since the newest checkpoint: they are in no checkpoint yet, so after a restore
    they are computed again."""
    try:
        found = sink.unfit(_since(store, stage, sink.name, state, newest))
    except StoreError:
        return  # the stage reports what is gone or damaged
    if found is not None:
        raise UserError(
            f"sink '{sink.name}' of stage '{stage}' has rows of batches since the newest checkpoint with the columns "
            f"{found}, and the code now has {sink.columns}. Nothing was changed. Start with `--restore latest`: these "
            "rows are computed again"
        )


def _since(
    store: Store, stage: str, sink: str, state: JournalState, newest: Manifest | None
) -> Iterator[str]:
    """The files of a sink that batches after the newest checkpoint have staged."""
    report = newest.stages.get(stage) if newest is not None else None
    log = StageLog(stage, state.generation)
    drive(store, follow(log.view))
    cut = report.batch if report is not None else -1
    for number, batch in log.state.batches.items():
        if number > cut:
            yield from (file.name for file in batch.sinks.get(sink, ()))
    incarnation = max(list_folders(store, stage, state.generation), default=None)
    number = log.state.last + 1
    while incarnation is not None and (
        record := committed(store, stage, state.generation, incarnation, number)
    ):
        yield from (file.name for file in record.sinks.get(sink, ()))
        number += 1
