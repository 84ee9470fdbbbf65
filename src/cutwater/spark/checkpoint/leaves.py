"""What a query's plan reads, leaf by leaf, in the order in which Spark writes positions down.

Spark knows a position only by its place in that order. So a record of what stood where lies beside the checkpoint
(`cutwater/sources.json`, and travels with it), and a query goes on only if each position is used for what it is of.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from cutwater.protocol.base.chain import digest
from cutwater.protocol.base.errors import StoreError
from cutwater.spark.checkpoint.offsets import position_in

PLACES = (
    "path", "table", "subscribe", "subscribepattern", "assign", "topic", "topics", "stream", "streamname", "queue",
    "host", "port", "dbtable",
)  # fmt: skip
"""The options that say where a source's rows come from, and give no secret away: together they are its place."""

BESIDE_PLACE = frozenset({"url", "uri", "connection.uri", "region", "database", "collection"})
"""The options that make one place another. (`kafka.bootstrap.servers` and `endpoint` do not: servers move.)"""

PACE = frozenset({
    "maxfilespertrigger", "maxbytespertrigger", "maxoffsetspertrigger", "minoffsetspertrigger", "maxtriggerdelay",
    "maxrecordsperpartition", "minpartitions", "numpartitions", "latestfirst", "maxfileage", "maxcachedfiles",
    "discardcachedinputratio", "startingoffsets", "startingoffsetsbytimestamp", "startingtimestamp",
    "startingoffsetsbytimestampstrategy", "startingversion", "startingposition", "initialposition", "failondataloss",
    "kafka.group.id", "groupidprefix", "kafkaconsumer.polltimeoutms", "fetchoffset.numretries",
    "fetchoffset.retryintervalms",
})  # fmt: skip
"""The options that say how a source is read, or from where if there is no position yet, and not which rows it has."""

_SECRET = re.compile("password|passwd|secret|token|credential|api.?key|access.?key|jaas|sasl|ssl")
"""What is found in the names of options that are never written down, and may change."""


class Leaf(msgspec.Struct, frozen=True, omit_defaults=True):
    """A channel, or a native source: its format, its place (empty if no option tells it), its other options by name, each
    with a digest of its value (`None` in a record of old), and the number of its own log in `sources/`. What a plan
    reads twice has one log."""

    channel: str | None = None
    format: str = ""
    place: str = ""
    digests: dict[str, str] | None = None
    log: int | None = None

    def __str__(self) -> str:
        if self.channel is not None:
            return f"the channel '{self.channel}'"
        return f"the source {self.format}" + (f" ({self.place})" if self.place else "")


def native_leaf(format: str, options: Sequence[tuple[str, str]], tables: Sequence[str], log: int) -> Leaf:
    """The leaf of a native source with these options (names in lower case), given by the name of a table perhaps."""
    place = [f"{name}={_plain_path(value)}" for name, value in options if name in PLACES]
    others = {
        name: digest(value.encode())[:16]
        for name, value in options
        if name not in PLACES and not _SECRET.search(name)
    }
    return Leaf(None, format, ", ".join([*place, *tables]), others, log)


def _plain_path(value: str) -> str:
    plain = value.removeprefix("file:")
    return (f"/{plain.lstrip('/')}" if plain != value else value).rstrip("/")


class SourcesChanged(Exception):
    """A query would use positions for what they are not of."""


def parse_leaves(name: str, data: bytes) -> tuple[Leaf, ...]:
    """The contents of `cutwater/sources.json`."""
    try:
        return msgspec.json.decode(data, type=tuple[Leaf, ...])
    except ValueError as error:
        raise StoreError(f"{name} cannot be read ({error}); restore the newest checkpoint") from error


def refuse_changed(
    recorded: Sequence[Leaf] | None, positions: Sequence[str | None], present: Sequence[Leaf]
) -> None:
    """Raises `SourcesChanged` if a plan does not read what its positions are of. `recorded` is `None` in a store that
    knows of no record: then only channels, whose positions name them, can be told apart."""
    if len(positions) != len(present):
        before = ", ".join(map(str, recorded)) if recorded is not None else f"{len(positions)} sources"
        raise SourcesChanged(
            f"it has positions for {before}, and now reads {', '.join(map(str, present))}: sources cannot be added to "
            "or taken from a stage that has run"
        )
    for number, (position, leaf) in enumerate(zip(positions, present, strict=True)):
        if recorded is not None:
            _refuse_other(recorded, present, number)
            continue
        found = position_in(position) if position is not None else None
        if leaf.channel != (found[0] if found is not None else None):
            before = f"the channel '{found[0]}'" if found is not None else "a source that is no channel"
            raise _changed(f"{leaf} where its position is one of {before}", number, present)


def _changed(what: str, number: int, present: Sequence[Leaf]) -> SourcesChanged:
    return SourcesChanged(
        f"it now reads {what} (number {number + 1} of {len(present)} in its plan): rows would be skipped, or read twice"
    )


def _refuse_other(recorded: Sequence[Leaf], present: Sequence[Leaf], number: int) -> None:
    before, now = recorded[number], present[number]
    if _identity(before) != _identity(now) or before.log != now.log:
        raise _changed(f"{now} where its position is one of {before}", number, present)
    if now.channel is not None:
        return
    alike = [[leaf for leaf in leaves if _identity(leaf) == _identity(now)] for leaves in (recorded, present)]
    are_many = any(len({leaf.log for leaf in leaves}) > 1 for leaves in alike)
    if before.digests is None or now.digests is None:
        if are_many:
            raise SourcesChanged(
                f"it reads {now} more than once, and what is written beside its positions, by an older version, does not "
                "tell which of them is of which"
            )
        return
    names = {
        n for n in before.digests.keys() | now.digests.keys() if before.digests.get(n) != now.digests.get(n)
    }
    if are_many:
        # What says which rows there are tells them apart; if it does not, all the rest must be as it was.
        names -= PACE if all(map(_are_told_apart, alike)) else set()
    elif now.place:
        names &= BESIDE_PLACE
    else:
        names -= PACE
    if names:
        raise _changed(
            f"{now} with another {' and '.join(sorted(names))} than its position is of", number, present
        )


def _identity(leaf: Leaf) -> tuple[str | None, str, str]:
    return leaf.channel, leaf.format, leaf.place


def _are_told_apart(leaves: Sequence[Leaf]) -> bool:
    rows = {(leaf.log, _rows(leaf)) for leaf in leaves}
    return len({which for _, which in rows}) == len(rows)


def _rows(leaf: Leaf) -> frozenset[tuple[str, str]]:
    return frozenset((name, value) for name, value in (leaf.digests or {}).items() if name not in PACE)
