"""What a query's plan reads, leaf by leaf, in the order in which Spark writes positions down.

Spark knows a position only by its place in that order. So a record of what stood where lies beside the checkpoint
(`cutwater/sources.json`, and travels with it), and a query goes on only if each position is used for what it is of.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from cutwater.offsets import position_in
from cutwater.protocol.errors import StoreError

SOURCES = "cutwater/sources.json"

PLACES = (
    "path", "table", "subscribe", "subscribepattern", "assign", "topic", "topics", "stream", "streamname", "queue",
    "host", "port", "dbtable",
)  # fmt: skip
"""The options that say where a source's rows come from, and give no secret away. Others may change."""


class Leaf(msgspec.Struct, frozen=True, omit_defaults=True):
    """A channel, or a native source: its format, its place (empty if no option tells it), a digest of all its options,
    and the number of its own log in `sources/`. What a plan reads twice has one log."""

    channel: str | None = None
    format: str = ""
    place: str = ""
    options: str = ""
    log: int | None = None

    def __str__(self) -> str:
        if self.channel is not None:
            return f"the channel '{self.channel}'"
        return f"the source {self.format}" + (f" ({self.place})" if self.place else "")


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
        found = position_in(position) if position is not None else None
        before = f"the channel '{found[0]}'" if found is not None else "a source that is no channel"
        if recorded is not None:
            same, before = _is_same(recorded, present, number), str(recorded[number])
        else:
            same = leaf.channel == (found[0] if found is not None else None)
        if not same:
            raise SourcesChanged(
                f"it now reads {leaf} where its position is one of {before} (number {number + 1} of {len(present)} in "
                "its plan): rows would be skipped, or read twice"
            )


def _is_same(recorded: Sequence[Leaf], present: Sequence[Leaf], number: int) -> bool:
    before, now = recorded[number], present[number]
    if (before.channel, before.format, before.place) != (now.channel, now.format, now.place):
        return False
    if before.channel is not None or before.place:
        return before.log == now.log
    # No option says where its rows come from: with others of its kind beside it, all must be as they were.
    alone = all(Counter(leaf.format for leaf in leaves)[now.format] == 1 for leaves in (recorded, present))
    return before.log == now.log and (alone or before.options == now.options)
