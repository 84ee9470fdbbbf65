"""Rule 8: publishing is a function of the records."""

from __future__ import annotations

from typing import Any

from cutwater.protocol.base import effects as fx
from cutwater.protocol.base import paths
from cutwater.protocol.base import records as r
from cutwater.protocol.leader import (
    cut,
)
from cutwater.protocol.member import (
    member,
    publish,
)
from tests.support.planted.registry import Patch, bug, changed


@bug
def rule_8_a_table_is_not_read_before_publishing(patch: Patch) -> None:
    def perform(sink: str, duty: Any, patience: Any = None) -> Any:
        while True:
            head = yield from fx.insist(fx.ReadTable(sink))
            effect = yield from publish._table_commit(sink, duty, head, patience or publish.Patience())
            if effect is not None and isinstance((yield effect), int):
                break
        mark = r.Published(duty.epoch, sink, duty.index, head.version + 1)
        yield from fx.insist(fx.Create(paths.mark_name(duty.index, sink), r.encode(mark)))

    patch.setattr(member, "perform", perform)


@bug
def rule_8_a_zombies_older_transaction_is_not_refused(patch: Patch) -> None:
    """Neither by the table's transaction nor by the marks."""
    real = publish.perform

    def perform(sink: str, duty: Any, patience: Any = None) -> Any:
        procedure = real(sink, duty, patience)
        effect, is_older = next(procedure), False
        while True:
            answer = yield effect
            if isinstance(answer, fx.TableHead) and answer.transaction > duty.index:
                answer, is_older = fx.TableHead(answer.version, 0), True
            elif is_older and isinstance(effect, fx.List):
                answer = []
            try:
                effect = procedure.send(answer)
            except StopIteration:
                return

    patch.setattr(member, "perform", perform)


@bug
def rule_8_a_table_that_forgot_its_transactions_is_trusted(patch: Patch) -> None:
    """The marks, which say what is published, are not read."""

    def begin(sink: str, journal: Any, patience: Any) -> Any:
        head = yield from fx.insist(fx.ReadTable(sink))
        return head.transaction - 1

    def is_settled(sink: str, index: int) -> Any:
        return False
        yield

    patch.setattr(member, "begin", begin)
    patch.setattr(publish, "is_settled", is_settled)


@bug
def rule_8_a_zombie_trusts_a_table_that_forgot_its_transactions(patch: Patch) -> None:
    """The marks are read once, when a process starts, and not before each commit."""

    def is_settled(sink: str, index: int) -> Any:
        return False
        yield

    patch.setattr(publish, "is_settled", is_settled)


@bug
def an_epoch_without_rows_is_settled_without_its_mark(patch: Patch) -> None:
    real = publish.perform

    def perform(sink: str, duty: Any, patience: Any = None) -> Any:
        if isinstance(duty, publish.CommitPermit):
            found = yield from publish.read_manifest(duty.checkpoint)
            if found is not None and not found.release.get(sink):
                return
        yield from real(sink, duty, patience)

    patch.setattr(member, "perform", perform)


@bug
def epochs_are_published_out_of_order(patch: Patch) -> None:
    patch.setattr(member, "duties", lambda state, done: publish.duties(state, done)[::-1])


@bug
def held_back_rows_are_lost(patch: Patch) -> None:
    real = publish.contents
    patch.setattr(cut, "contents", lambda batches, sink, held, mark: real(batches, sink, (), mark))


@bug
def a_sink_that_is_no_longer_final_keeps_what_it_held(patch: Patch) -> None:
    real = publish.contents

    def contents(batches: Any, sink: Any, held: Any, mark: int | None) -> Any:
        return real(batches, changed(sink, final=True), held, mark)

    patch.setattr(cut, "contents", contents)


@bug
def final_rows_are_published_by_the_stages_own_watermark(patch: Patch) -> None:
    real = publish.contents

    def contents(batches: Any, sink: Any, held: Any, mark: int | None) -> Any:
        batches = list(batches)
        local = max((b.watermark.ms or 0 for b in batches), default=0)
        return real(batches, sink, held, max(mark or 0, local))

    patch.setattr(cut, "contents", contents)
