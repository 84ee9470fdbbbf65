"""The leaves of a query's plan, which are its sources and channels, in the order in which Spark records positions.

Spark identifies a position only by its place in that order. So a record of the leaves is kept with the checkpoint
(`cutwater/sources.json`), and a query continues only if each position is used for the leaf that it belongs to.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from cutwater.protocol.base.chain import digest
from cutwater.protocol.base.errors import StoreError
from cutwater.spark.checkpoint.offsets import position_in
from cutwater.spark.checkpoint.topics import KAFKA, SERVERS, lost_topics, topics_at

GENERATED = {"rate", "rate-micro-batch", "socket", "memory"}
"""Sources that give every reader rows of its own, so two stages may read "the same"."""

PLACES = (
    "path", "table", "subscribe", "subscribepattern", "assign", "topic", "topics", "stream", "streamname", "queue",
    "host", "port", "dbtable",
)  # fmt: skip
"""The options that say where a source's rows come from and contain no secrets. Together they are its place."""

BESIDE_PLACE = frozenset({
    "url", "uri", "connection.uri", "region", "database", "collection", "catalog", "schema", "warehouse", "project",
    "projectid", "account", "namespace", "dataset", "bucket", "keyspace", "vhost", "virtualhost", "subscription",
})  # fmt: skip
"""Other options that make a source a different one. (`kafka.bootstrap.servers` and `endpoint` do not: servers move.)"""

PACE = frozenset({
    "maxfilespertrigger", "maxbytespertrigger", "maxoffsetspertrigger", "minoffsetspertrigger", "maxtriggerdelay",
    "maxrecordsperpartition", "minpartitions", "numpartitions", "latestfirst", "maxfileage", "maxcachedfiles",
    "discardcachedinputratio", "startingoffsets", "startingoffsetsbytimestamp", "startingtimestamp",
    "startingoffsetsbytimestampstrategy", "startingversion", "startingposition", "initialposition", "failondataloss",
    "kafka.group.id", "groupidprefix", "kafkaconsumer.polltimeoutms", "fetchoffset.numretries",
    "fetchoffset.retryintervalms", "cleansource", "sourcearchivedir",
})  # fmt: skip
"""The options that say how a source is read, or from where if it has no position yet, but not which rows it has."""

_SECRET = re.compile("password|passwd|secret|token|credential|api.?key|access.?key|jaas|sasl|ssl")
"""Matches the names of options that are never recorded, and may change."""


class Leaf(msgspec.Struct, frozen=True, omit_defaults=True):
    """A channel or a native source: its format, its place (empty if no option gives it), digests of its other options by
    name (`None` in old records), and the number of its log in `sources/`. A source that a plan reads twice has one
    log. `topics`: the ids of Kafka's topics when the record was made. `servers`: a digest of each of Kafka's servers.
    `absolute`: the path of a source of files as Spark completes it; empty if its place says the same, and in old
    records. `stage`: the chained stage that reads it; empty if it is the stage whose query this is. `by_border`: that
    was read from borders which only we make. Older records have no stages of channels, and for native sources maybe the
    name of something that the user observes."""

    channel: str | None = None
    format: str = ""
    place: str = ""
    digests: dict[str, str] | None = None
    log: int | None = None
    topics: dict[str, str] | None = None
    servers: tuple[str, ...] = ()
    absolute: str = ""
    stage: str = ""
    by_border: bool = False

    def __str__(self) -> str:
        place = f" ({self.place})" if self.place else ""
        what = (
            f"the channel '{self.channel}'"
            if self.channel is not None
            else f"the source {self.format}{place}"
        )
        return what + (
            f" {'of' if self.channel is None else 'in'} stage '{self.stage}'" if self.stage else ""
        )


def native_leaf(
    format: str, options: Sequence[tuple[str, str]], tables: Sequence[str], log: int, absolute: str = ""
) -> Leaf:
    """The leaf of a native source with these options (names in lower case), or with the name of a table. `absolute`: its
    path as Spark completes it."""
    place = [f"{name}={_plain_path(value)}" for name, value in options if name in PLACES]
    others = {
        name: digest(value.encode())[:16]
        for name, value in options
        if name not in PLACES and not _SECRET.search(name)
    }
    listed = dict(options).get(SERVERS, "").split(",") if format == KAFKA else []
    servers = tuple(sorted({digest(s.strip().lower().encode())[:16] for s in listed if s.strip()}))
    return Leaf(None, format, ", ".join([*place, *tables]), others, log, servers=servers, absolute=absolute)


def _plain_path(value: str) -> str:
    plain = value.removeprefix("file:")
    return (f"/{plain.lstrip('/')}" if plain != value else value).rstrip("/")


class SourcesChanged(Exception):
    """A query would use positions for other sources than those that they belong to. `reset_helps`: whether it is known
    that the stage can be reset instead. It cannot if native sources are among them, before or now: a reset keeps
    positions in those that have one, and reads the others from their start."""

    def __init__(self, what: str, reset_helps: bool = False) -> None:
        super().__init__(what)
        self.reset_helps = reset_helps

    def advice(self, stage: str, ref: str = "REF") -> str:
        """What to do about it; `ref`: the checkpoint from which the stage was to start."""
        return sources_advice(stage, self.reset_helps, ref)


def sources_advice(stage: str, reset_helps: bool, ref: str = "REF") -> str:
    """What to do about a stage that no longer reads what its positions belong to."""
    if reset_helps:
        return f"Bring the old code back, or start with --restore {ref} --reset {stage}, which drops the stage's state"
    return (
        "A reset does not help: it keeps the positions in sources, and reads a new source from its start, into "
        "tables that may already have its rows. Bring the old code back; or give the stage, all stages downstream of it, "
        f"and their sinks new names and paths, and start with --restore {ref} --drop {stage} (and --drop for each of the "
        "others): the new stages read their sources from the start, into new tables"
    )


def parse_leaves(name: str, data: bytes) -> tuple[Leaf, ...]:
    """The contents of `cutwater/sources.json`."""
    try:
        return msgspec.json.decode(data, type=tuple[Leaf, ...])
    except ValueError as error:
        raise StoreError(f"{name} cannot be read ({error}); restore the newest checkpoint") from error


def with_stages(recorded: Sequence[Leaf], present: Sequence[Leaf]) -> tuple[Leaf, ...]:
    """The record of a query's sources. If it is an older one, leaves of which it does not say which stage reads them have
    the stage that they have now: the graph says that the query runs the same stages as before."""
    stages = {leaf.stage for leaf in present}

    def completed(leaf: Leaf, number: int) -> Leaf:
        lacks_stage = leaf.channel is not None and not leaf.stage
        is_known = leaf.by_border or (leaf.stage in stages and not lacks_stage)
        if is_known or number >= len(present):
            return leaf
        return msgspec.structs.replace(leaf, stage=present[number].stage)

    return tuple(completed(leaf, number) for number, leaf in enumerate(recorded))


def refuse_changed(
    recorded: Sequence[Leaf] | None, positions: Sequence[str | None], present: Sequence[Leaf]
) -> None:
    """Raises `SourcesChanged` if a plan does not read what its positions belong to. `recorded` is `None` in old stores:
    then only channels can be distinguished, since their positions name them."""
    recorded = with_stages(recorded, present) if recorded is not None else None
    what = _change(recorded, positions, present)
    if what is None:
        return
    before = (leaf.channel for leaf in recorded) if recorded is not None else map(_channel_of, positions)
    raise SourcesChanged(what, None not in {*before, *(leaf.channel for leaf in present)})


def _change(
    recorded: Sequence[Leaf] | None, positions: Sequence[str | None], present: Sequence[Leaf]
) -> str | None:
    if len(positions) != len(present):
        before = ", ".join(map(str, recorded)) if recorded is not None else f"{len(positions)} sources"
        return (
            f"it has positions for {before}, but now reads {', '.join(map(str, present))}: sources cannot be added to or "
            "removed from a stage that has run"
        )
    for number, (position, leaf) in enumerate(zip(positions, present, strict=True)):
        if recorded is not None:
            other = _other(recorded, present, number, position)
            if other is not None:
                return other
        elif leaf.channel != (channel := _channel_of(position)):
            before = f"the channel '{channel}'" if channel is not None else "a source that is not a channel"
            return _moved(f"{leaf}, but its position is that of {before}", number, present)
    return None


def _channel_of(position: str | None) -> str | None:
    """The channel that a position belongs to, `None` if it is that of a native source."""
    found = position_in(position) if position is not None else None
    return found[0] if found is not None else None


def _moved(
    what: str, number: int, present: Sequence[Leaf], harm: str = "rows would be skipped, or read twice"
) -> str:
    place = f"number {number + 1} of {len(present)} in its plan"
    return f"it now reads {what} ({place}): {harm}"


def _other(
    recorded: Sequence[Leaf], present: Sequence[Leaf], number: int, position: str | None
) -> str | None:
    """How a leaf differs from the recorded one, if it is another source."""
    before, now = recorded[number], present[number]
    lost: list[str] | None = [] if is_same_place(before, now) else None
    if before.format == now.format == KAFKA and before.stage == now.stage:
        lost = lost_topics(before.place, position, now.place)
    if lost is None or before.log != now.log:
        change = f"{now}, but its position is that of {before}"
        if before.log == now.log and is_same_place(msgspec.structs.replace(before, stage=now.stage), now):
            return _moved(change, number, present, "state of the one would be used for the other")
        return _moved(change, number, present)
    if lost:
        return (
            f"it has read {', '.join(lost)} in Kafka, and now reads {now} without: topics can be added to a stage that "
            "has run, but not removed"
        )
    if now.channel is not None:
        return None
    alike = [
        [leaf for leaf in leaves if _identity(leaf) == _identity(own)]
        for leaves, own in ((recorded, before), (present, now))
    ]
    are_many = any(len({leaf.log for leaf in leaves}) > 1 for leaves in alike)
    if before.digests is None or now.digests is None:
        if not are_many:
            return None
        return (
            f"it reads {now} more than once, and the record of its sources, which an older version wrote, does not say "
            "which position belongs to which of them"
        )
    names = {
        n for n in before.digests.keys() | now.digests.keys() if before.digests.get(n) != now.digests.get(n)
    }
    if are_many:
        # Options that select rows distinguish them. If they do not, all other options must be the same as before.
        names -= PACE if all(map(_are_distinct, alike)) else set()
    elif now.place:
        names &= BESIDE_PLACE
    else:
        names -= PACE
    if not names:
        return None
    return _moved(
        f"{now} with another {' and '.join(sorted(names))} than its position belongs to", number, present
    )


def is_same_place(before: Leaf, now: Leaf) -> bool:
    """Whether two leaves are the same channel, or in the same place. A path may be spelled in another way if Spark makes
    the same of both. A record of an older version has only the spelling; whether it means the same path is up to the
    source's log (`moved_files.py`)."""
    if _identity(before) == _identity(now):
        return True
    spelled = [leaf.place.removeprefix("path=") for leaf in (before, now) if _is_path(leaf.place)]
    is_other = before.format != now.format or before.stage != now.stage
    if is_other or len(spelled) < 2 or not now.absolute:
        return False
    if before.absolute:
        return before.absolute == now.absolute
    return now.absolute.endswith("/" + spelled[0].removeprefix("./").lstrip("/"))


def _is_path(place: str) -> bool:
    """Whether a place is a path and nothing else."""
    return place.startswith("path=") and ", table=" not in place


def _identity(leaf: Leaf) -> tuple[str | None, str, str, str]:
    topics = topics_at(leaf.place) if leaf.format == KAFKA else None
    place = f"{topics.kind}={topics.value}" if topics is not None else leaf.place
    return leaf.channel, leaf.format, place, leaf.stage


def _are_distinct(leaves: Sequence[Leaf]) -> bool:
    rows = {(leaf.log, _rows(leaf)) for leaf in leaves}
    return len({which for _, which in rows}) == len(rows)


def _rows(leaf: Leaf) -> frozenset[tuple[str, str]]:
    return frozenset((name, value) for name, value in (leaf.digests or {}).items() if name not in PACE)
