"""A store that is older than its tables: a copy that somebody put back."""

from __future__ import annotations

from collections.abc import Iterable

from cutwater.protocol.base.errors import UserError
from cutwater.protocol.base.failures import FailureReason
from cutwater.protocol.leader.restore_tables import older_store
from cutwater.sinks.contract import Sink
from cutwater.store.at_rest import read_journal
from cutwater.store.contract import Store


def refuse_older_store(store: Store, sinks: Iterable[Sink]) -> None:
    """Raises `UserError` if the table of a bound sink has the result of a later journal entry than the store's last. This
    is checked before a start writes anything: the journal would grow past that entry, with other contents. If there is no
    journal at all, nobody leads before it is clear that there never was one (`leader/whole_journal.py`)."""
    index = read_journal(store, must_exist=False).index
    for sink in sinks if index > 0 else ():
        transaction = sink.head().transaction
        if transaction > index:  # another member may have published meanwhile
            index = read_journal(store, must_exist=False).index
        if transaction > index:
            raise UserError(
                f"{older_store(index, sink.name, transaction)}. {FailureReason.JOURNAL_BEHIND.advice}"
            )
