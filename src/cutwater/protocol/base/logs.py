"""Following many logs in parallel: before a decision, a leader reads the logs of all stages up to their barriers, and
reading one after the other would take too long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from cutwater.protocol.base.effects import ListMany, Procedure, ReadMany, insist
from cutwater.protocol.base.log import LogView, follow, next_names, open_all
from cutwater.protocol.base.paths import entry_name, entry_of

B = TypeVar("B")


def follow_all(views: Sequence[LogView[B]]) -> Procedure[None]:
    """Does the same as `follow` for each view. Anything but the simple case (new entries, and no new snapshot) is left
    to `follow` itself."""
    if not views:
        return
    starts = [view.last for view in views]
    listed = yield from _list(views, starts)
    grown = [
        (view, start, next_names(view, start, names))
        for view, start, names in zip(views, starts, listed, strict=True)
        if names
    ]
    if not grown:
        return
    found = yield from insist(ReadMany(tuple(name for _, _, names in grown for name in names)))
    again = yield from _list([view for view, _, _ in grown], [start for _, start, _ in grown])
    read = 0
    for (view, start, names), highest in zip(grown, again, strict=True):
        fresh = open_all(view, names, found[read : read + len(names)])
        read += len(names)
        last = fresh[-1].entry if fresh else None
        plain = last is not None and last.snapshot <= start and view.last == start
        if last is None or not plain or highest[-1:] != [entry_name(view.prefix, last.index)]:
            yield from follow(view)
            continue
        for sealed in fresh:
            view.push(sealed)


def _list(views: Sequence[LogView[B]], starts: Sequence[int]) -> Procedure[list[list[str]]]:
    places = (
        (view.prefix, entry_name(view.prefix, start)) for view, start in zip(views, starts, strict=True)
    )
    listed = yield from insist(ListMany(tuple(places)))
    return [
        [name for name in names if entry_of(view.prefix, name) is not None]
        for view, names in zip(views, listed, strict=True)
    ]
