"""The sources that the stages of a pipeline have read, by their locations or by what else identifies them.

A stage that a checkpoint does not have reads its own sources from the beginning. If the pipeline has read a source
before, in a stage that was renamed or dropped since, the tables downstream may already have its rows
(`leader/restore_tables.py` decides). The same applies to a Kafka topic that is added to the list of a stage. So the store
records every source that a stage has ever read, from the moment its start was accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from cutwater.protocol.base.chain import digest
from cutwater.protocol.base.errors import StoreError, UserError
from cutwater.protocol.base.paths import SOURCE_PREFIX, source_name, source_of
from cutwater.protocol.base.records import WRITTEN_AGAIN, StageReport, decode, seal
from cutwater.spark.checkpoint.leaves import Leaf
from cutwater.spark.checkpoint.same_source import (
    identifying,
    is_rereadable,
    may_share_rows,
    normal_place,
    share_place,
)
from cutwater.spark.checkpoint.topics import KAFKA, begun_topics, reads_all
from cutwater.store.at_rest import read_journal
from cutwater.store.contract import Store


class KnownSource(msgspec.Struct, frozen=True, omit_defaults=True):
    """A source that `stage` was the first to read. `since` is how far the journal went then. `place` is in its normal
    form, except in records of older versions. If it is empty, `digests` are those of the options that may identify the
    source."""

    format: str
    place: str
    stage: str
    since: int
    digests: dict[str, str] | None = None

    @property
    def leaf(self) -> Leaf:
        return Leaf(None, self.format, self.place, self.digests)


def register_sources(stages: Mapping[str, Iterable[Leaf]], store: Store) -> None:
    """Records in the store the sources that these stages read."""
    known = set(store.list(SOURCE_PREFIX))
    wanted = {
        name: (leaf, leaf.stage or stage)
        for stage, leaves in stages.items()
        for leaf in leaves
        if (name := _name(leaf)) is not None and name not in known
    }
    if not wanted:
        return
    since = read_journal(store, must_exist=False).index
    for name, (leaf, stage) in wanted.items():
        store.create(name, seal(_source(leaf, stage, since)))


def known_before(
    store: Store,
    stages: Mapping[str, Iterable[Leaf]],
    index: int,
    recorded: Mapping[str, Iterable[Leaf]] | None = None,
) -> dict[str, str]:
    """The stages that read a source, or part of one, that the pipeline has read before the journal entry at `index`, or
    that nothing tells apart from such a source; and by stage which. `recorded`: what stages read at the checkpoint there,
    by their own records. (Older versions did not register sources without a place.)"""
    known = [(source.leaf, source.stage) for source in _known(store, index)]
    known += [
        (leaf, stage) for stage, leaves in (recorded or {}).items() for leaf in leaves if is_rereadable(leaf)
    ]
    found: dict[str, str] = {}
    for stage, leaves in stages.items():
        for leaf in filter(is_rereadable, leaves):
            same = next(((source, by) for source, by in known if may_share_rows(leaf, source)), None)
            if same is not None:
                found.setdefault(stage, _explained(leaf, *same))
    return found


def _explained(leaf: Leaf, source: Leaf, stage: str) -> str:
    if leaf.place and source.place:
        return f"it reads {leaf}, which stage '{stage}' has read before"
    return (
        f"it reads {leaf}, and nothing tells that apart from what stage '{stage}' has read before: Cutwater does not "
        "know which options of this format say where the rows come from, and no option that both have differs"
    )


def refuse_known_topics(
    store: Store, reports: Mapping[str, StageReport], stages: Mapping[str, Sequence[Leaf]], index: int
) -> None:
    """Raises `UserError` if a stage has positions in Kafka, and begins to read a topic that another source of the
    pipeline has read before the journal entry at `index`."""
    begun = [
        (stage, leaf, position, topics)
        for stage, leaves in stages.items()
        if stage in reports
        for leaf, position in _positions(reports[stage], leaves)
        if (topics := begun_topics(position, leaf.place)) is not None
    ]
    known = _known(store, index) if begun else []
    for stage, leaf, position, topics in begun:
        for source in known:
            # The stage itself may have registered its longer list at a start, and not have read more than before yet.
            is_own = source.stage == (leaf.stage or stage) and reads_all(source.place, position)
            if not is_own and share_place(KAFKA, topics, source.format, source.place):
                raise UserError(
                    f"stage '{stage}' now reads {leaf}. It has no position in {topics}, and would read that from the "
                    f"beginning, but stage '{source.stage}' has already read {source.place}: tables could have rows "
                    "twice. Nothing was changed. Bring the old list back; or read the topics in a new stage, into new "
                    "tables"
                )


def adds_topics(report: StageReport | None, leaves: Sequence[Leaf]) -> bool:
    """Whether a stage has positions in Kafka, and lists topics in which it has none."""
    found = _positions(report, leaves) if report is not None else ()
    return any(begun_topics(position, leaf.place) is not None for leaf, position in found)


def _positions(report: StageReport, leaves: Sequence[Leaf]) -> Iterator[tuple[Leaf, str]]:
    """The Kafka sources of a stage that have a position."""
    for number, leaf in enumerate(leaves):
        if leaf.format == KAFKA and str(number) in report.offsets:
            yield leaf, str(report.offsets[str(number)])


def source_problems(store: Store) -> dict[str, str]:
    """The records that cannot be read, or describe another source than their name says."""
    wrong: dict[str, str] = {}
    for name, data in _records(store):
        try:
            _read(name, data)
        except StoreError as error:
            wrong[name] = str(error)
    return wrong


def _known(store: Store, index: int) -> list[KnownSource]:
    """The sources that were read before the journal entry at `index`."""
    return [found for name, data in _records(store) if (found := _read(name, data)).since < index]


def _records(store: Store) -> Iterator[tuple[str, bytes]]:
    names = [name for name in store.list(SOURCE_PREFIX) if source_of(name) is not None]
    found = zip(names, store.read_many(names), strict=True)
    return ((name, data) for name, data in found if data is not None)


def _read(name: str, data: bytes) -> KnownSource:
    found = decode(name, data, KnownSource, WRITTEN_AGAIN)
    if _named(found) != name:
        raise StoreError(f"{name} describes the source {found.format} ({found.place}); {WRITTEN_AGAIN}")
    return found


def _name(leaf: Leaf) -> str | None:
    """The object for a native source; `None` if it gives every reader rows of its own."""
    return _named(_source(leaf, "", 0)) if is_rereadable(leaf) else None


def _source(leaf: Leaf, stage: str, since: int) -> KnownSource:
    digests = dict(sorted(identifying(leaf).items())) if not leaf.place else None
    place = normal_place(leaf.place) if leaf.place else ""
    return KnownSource(leaf.format, place, stage, since, digests)


def _named(source: KnownSource) -> str:
    place = source.place or ", ".join(f"{name}={value}" for name, value in (source.digests or {}).items())
    return source_name(digest(f"{source.format} {place}".encode())[:32])
