"""Where a Kafka source began, for a stage that has not logged a batch yet.

Spark resolves `startingOffsets` once, for a query without positions, and records the result in `sources/N/0`. A stage
without a logged batch starts again in an empty folder, and so does one that is restored to a checkpoint from before its
first batch. Without that record `latest` would be resolved again, and the records that came since would be skipped.
"""

from __future__ import annotations

from collections.abc import Sequence

from cutwater.protocol.base.paths import SOURCES, source_log_name, spark_file_of, spark_prefix, stage_prefix
from cutwater.spark.checkpoint.leaves import Leaf, parse_leaves
from cutwater.store.contract import Store


def keep_first_positions(
    store: Store, stage: str, generation: int, incarnation: int, leaves: Sequence[Leaf]
) -> None:
    """Copy Spark's record of where each Kafka source began to the folder of an incarnation that has no positions, from
    the newest other folder of the stage that has it."""
    wanted = [leaf for leaf in leaves if leaf.format == "kafka" and leaf.log is not None]
    if not wanted:
        return
    mine = spark_prefix(stage, generation, incarnation)
    for folder in _folders(store, stage):
        if folder == mine or not wanted:
            continue
        recorded = store.read(folder + SOURCES)
        for known in parse_leaves(folder + SOURCES, recorded) if recorded is not None else ():
            for leaf in [one for one in wanted if _is_same(one, known)]:
                begun = _begun(store, folder, known)
                if begun is not None:
                    store.create(mine + source_log_name(leaf.log or 0, 0), begun)
                    wanted.remove(leaf)


def _folders(store: Store, stage: str) -> list[str]:
    """The Spark folders of a stage that have a record of their sources, newest first."""
    files = (spark_file_of(name) for name in store.list(stage_prefix(stage)) if name.endswith(SOURCES))
    found = {(of.generation, of.incarnation) for of in files if of is not None and of.file == SOURCES}
    return [spark_prefix(stage, *place) for place in sorted(found, reverse=True)]


def _is_same(leaf: Leaf, known: Leaf) -> bool:
    is_same_topic = None in (leaf.topics, known.topics) or leaf.topics == known.topics
    is_same = (known.format, known.place, known.stage) == (leaf.format, leaf.place, leaf.stage)
    return is_same and is_same_topic


def _begun(store: Store, folder: str, leaf: Leaf) -> bytes | None:
    return store.read(folder + source_log_name(leaf.log, 0)) if leaf.log is not None else None
