"""What a store knows about its sinks: a description and an id for each."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.base.paths import (
    SINK_PREFIX,
    mark_prefix,
    sink_description_name,
    sink_description_of,
    sink_id_name,
    sink_id_of,
    staged_prefix,
)
from cutwater.protocol.base.records import WRITTEN_AGAIN, decode
from cutwater.store.contract import Store

KINDS_BEFORE = {"call": "foreach_epoch"}
"""The kinds of sinks that had other names in older versions."""


class Identity(msgspec.Struct, frozen=True):
    """The id of a sink in its store. A transaction's version is an index in that store's journal, so two stores that
    write to one table need separate transactions. `sink` is empty in records of older versions."""

    id: str
    sink: str = ""


class Description(msgspec.Struct, frozen=True):
    """What the store knows about a sink, so that commands can open its target without the user's code. `since`: the
    target's version when the sink first used it; nothing up to that version is the sink's own. `keys` and `sequence_by`
    are those of a table with keys."""

    kind: str
    url: str | None = None
    partition_by: tuple[str, ...] = ()
    final_by: str | None = None
    since: int = -1
    sink: str = ""
    keys: tuple[str, ...] = ()
    sequence_by: str | None = None


def description(store: Store, sink: str) -> Description | None:
    """What the store knows about a sink; `None` if no run has registered it yet."""
    name = sink_description_name(sink)
    data = store.read(name)
    return None if data is None else _described(name, data)


def descriptions(store: Store) -> dict[str, Description]:
    """What the store knows about all its sinks, including those that are no longer in use."""
    names = {n: sink for n in store.list(SINK_PREFIX) if (sink := sink_description_of(n)) is not None}
    found = zip(names.items(), store.read_many(list(names)), strict=True)
    return {sink: _described(name, data) for (name, sink), data in found if data is not None}


def _described(name: str, data: bytes) -> Description:
    found = decode(name, data, Description, WRITTEN_AGAIN)
    if found.sink and sink_description_name(found.sink) != name:
        raise StoreError(f"{name} describes sink {found.sink}; {WRITTEN_AGAIN}")
    return found


def kind_of(name: str) -> type[Identity] | type[Description] | None:
    """The type of an object below `sinks/`; `None` if it is not one of ours."""
    if sink_description_of(name) is not None:
        return Description
    return Identity if sink_id_of(name) is not None else None


def has_marks(store: Store, sink: str) -> bool:
    """Whether a sink has published anything."""
    return bool(store.list(mark_prefix(sink)))


def identity(store: Store, sink: str) -> str | None:
    """The id of a sink in this store, `None` if it has none yet. Raises `StoreError` if it is lost or of another sink."""
    name = sink_id_name(sink)
    data = store.read(name)
    if data is None:
        if not has_marks(store, sink):
            return None
        problem = "is gone"
    else:
        try:
            found = decode(name, data, Identity)
        except StoreError as error:
            problem = f"is damaged ({error.__cause__})"
        else:
            if found.sink in ("", sink):
                return found.id
            problem = f"is the id of sink {found.sink}"
    raise StoreError(
        f"{name} {problem}, so it is not known which transactions in the target belong to sink {sink}; restore the "
        "object from a copy of the store. Or give the sink a new name and path and start with "
        f"`--restore latest --drop {sink}`: the new target begins at that checkpoint"
    )


def record_problems(store: Store, sinks: Iterable[str]) -> dict[str, str]:
    """What is wrong with the records of sinks in the store, by object."""
    wrong = {}
    for sink in sinks:
        calls = bool(store.list(staged_prefix(sink)))
        try:
            known = description(store, sink)
            calls = known.url is None if known is not None else calls
        except StoreError as error:
            wrong[sink_description_name(sink)] = str(error)
        try:
            if not calls:
                identity(store, sink)
        except StoreError as error:
            wrong[sink_id_name(sink)] = str(error)
    return wrong
