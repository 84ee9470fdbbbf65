"""Checks before a campaign that the journal is whole: lost entries must never look like a fresh start."""

from __future__ import annotations

from cutwater.protocol.base.effects import List, Procedure, insist
from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.base.log import follow
from cutwater.protocol.base.paths import CHECKPOINT_PREFIX, MARK_PREFIX, STAGE_PREFIX, mark_name
from cutwater.protocol.base.records import settled
from cutwater.protocol.member.journal import Journal


def expect_empty_store(journal: Journal) -> Procedure[None]:
    """An empty journal means a new pipeline only if the store has nothing else. Raises `StoreError` otherwise."""
    for prefix in (CHECKPOINT_PREFIX, MARK_PREFIX, STAGE_PREFIX):
        names = yield from insist(List(prefix))
        if names:
            yield from follow(journal.view)
            if journal.index == 0:
                raise StoreError(
                    f"the journal is empty, but the store holds {names[0]}: the journal was lost. "
                    "Restore it from a copy, or choose an empty store to start afresh"
                )
            return


def expect_whole_journal(journal: Journal) -> Procedure[bool]:
    """A log does not show that its newest entry was lost, but the marks do. Raises `StoreError` in that case: a committed
    epoch must not be committed again. `False` if the journal has grown in the meantime."""
    view = journal.view
    known = view.last
    marks = settled((yield from insist(List(MARK_PREFIX))))
    newest = max(marks.values(), default=0)
    if newest <= known:
        return True
    yield from follow(view)
    if newest > view.last:
        mark = next(mark_name(newest, sink) for sink, index in marks.items() if index == newest)
        raise StoreError(
            f"the journal ends at entry {view.last}, but {mark} is of a later one: the newest entries of the journal "
            "were lost. Recover them from a copy of the store"
        )
    return False
