"""Where a Kafka source began, for a stage that has not logged a batch yet.

Spark resolves `startingOffsets` once, for a query without positions, and records the result in `sources/N/0`. A stage
without a logged batch starts again in an empty folder, and so does one that is restored to a checkpoint from before its
first batch. Without that record `latest` would be resolved again, and the records that came since would be skipped. The
record may be in the folder of another query, if the stage was chained into that one then, or is now into this one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cutwater.protocol.base.paths import (
    SOURCES,
    STAGE_PREFIX,
    source_log_name,
    spark_file_of,
    spark_prefix,
    stage_prefix,
)
from cutwater.spark.checkpoint.leaves import Leaf, parse_leaves
from cutwater.spark.checkpoint.same_source import may_share_rows
from cutwater.store.contract import Store


def keep_first_positions(
    store: Store, stage: str, generation: int, incarnation: int, leaves: Sequence[Leaf]
) -> None:
    """Copy Spark's record of where each Kafka source began to the folder of an incarnation that has no positions, from
    the newest other folder of a query in which the same stage has read it."""
    wanted = [leaf for leaf in leaves if leaf.format == "kafka" and leaf.log is not None]
    if not wanted:
        return
    mine = spark_prefix(stage, generation, incarnation)
    for query, folder in _folders(store, stage):
        if not wanted:
            return
        for known in _recorded(store, folder) if folder != mine else ():
            for leaf in [one for one in wanted if _is_same(one, stage, known, query)]:
                begun = _begun(store, folder, known)
                if begun is not None:
                    store.create(mine + source_log_name(leaf.log or 0, 0), begun)
                    wanted.remove(leaf)


def first_positions(store: Store, folder: str, leaves: Sequence[Leaf]) -> tuple[str | None, ...]:
    """Where Spark has recorded in a folder that the Kafka sources began, by leaf; `None` for others, and if there is no
    record yet."""
    begun = (_begun(store, folder, leaf) if leaf.format == "kafka" else None for leaf in leaves)
    # Spark writes an empty byte and a line with a version before the positions.
    return tuple(data.partition(b"\n")[2].decode() if data is not None else None for data in begun)


def is_claimed(store: Store, stage: str, leaf: Leaf) -> bool:
    """Whether a query of the pipeline was started to read a source for the same stage, which may have read nothing."""
    return any(
        may_share_rows(leaf, known) and (known.stage or query) == (leaf.stage or stage)
        for query, folder in _folders(store, stage)
        for known in _recorded(store, folder)
        if known.channel is None
    )


def _recorded(store: Store, folder: str) -> Sequence[Leaf]:
    data = store.read(folder + SOURCES)
    return parse_leaves(folder + SOURCES, data) if data is not None else ()


def _folders(store: Store, stage: str) -> Iterator[tuple[str, str]]:
    """The Spark folders that have a record of their sources, each with its query: first those of the stage itself, then
    those of others, into which it may have been chained. The newest first."""
    for prefix in (stage_prefix(stage), STAGE_PREFIX):
        files = (spark_file_of(name) for name in store.list(prefix) if name.endswith(SOURCES))
        found = {
            (of.generation, of.incarnation, of.stage) for of in files if of is not None and of.file == SOURCES
        }
        for number, of_query, query in sorted(found, reverse=True):
            if prefix != STAGE_PREFIX or query != stage:
                yield query, spark_prefix(query, number, of_query)


def _is_same(leaf: Leaf, query: str, known: Leaf, of_query: str) -> bool:
    """Whether two leaves of these queries are one source of one stage."""
    is_same_topic = None in (leaf.topics, known.topics) or leaf.topics == known.topics
    is_same = (known.format, known.place) == (leaf.format, leaf.place)
    return is_same and is_same_topic and (known.stage or of_query) == (leaf.stage or query)


def _begun(store: Store, folder: str, leaf: Leaf) -> bytes | None:
    return store.read(folder + source_log_name(leaf.log, 0)) if leaf.log is not None else None
