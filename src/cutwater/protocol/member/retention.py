"""Retention: what is kept, and what may be deleted, as functions of the journal and the manifests.

Retention keeps the newest N committed checkpoints, every savepoint, the head of the timeline (after a restore, its
target until the next commit, and until every stage has read what was in flight there), and every epoch that some sink
has not settled. EXPIRED is in the journal before anything
is deleted, and nothing is deleted that a kept manifest names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from cutwater.protocol.base.effects import Stored
from cutwater.protocol.base.paths import channel_file_of, checkpoint_of, generation_of
from cutwater.protocol.base.records import Expired, JournalState, Manifest, StageState
from cutwater.protocol.member.journal import Fate, fate


def kept_epochs(state: JournalState, retained: int, settled: Mapping[str, int]) -> set[int]:
    """The epochs that must stay. `settled`: per sink the highest journal index that its marks name; an
    epoch is settled in a sink once that index has passed it (published, or abandoned before it was)."""
    by_age = sorted(state.committed.values(), key=lambda c: c.index)
    kept = {c.epoch for c in by_age[-retained:]}
    kept.update(state.savepoints.values())
    if state.head is not None:
        kept.add(state.head)
    kept.update(c.epoch for c in by_age if not is_settled(state, c.index, settled))
    return kept & state.committed.keys()


def is_settled(state: JournalState, index: int, settled: Mapping[str, int]) -> bool:
    """Whether every sink has passed the journal entry at `index`."""
    sinks = state.topology.sinks() if state.topology is not None else {}
    return all(settled.get(sink, 0) >= index for sink in sinks)


def expire(
    state: JournalState, retained: int, settled: Mapping[str, int], manifests: Mapping[int, Manifest]
) -> Expired | None:
    """The EXPIRED entry that is due; `None` if there is nothing to expire.

    `manifests` holds every manifest of a committed epoch that can be read. One that cannot be read keeps nothing alive,
    because its checkpoint cannot be restored.
    """
    kept = kept_epochs(state, retained, settled) | _still_read(state, manifests)
    gone = tuple(sorted(state.committed.keys() - kept))
    if not gone or state.head is None:
        return None
    head = state.committed[state.head]
    named = named_objects(manifests[epoch] for epoch in sorted(kept & manifests.keys()))
    at_head = manifests.get(state.head) if head.generation == state.generation else None
    floors = stage_floors(state, at_head) if at_head is not None else {}
    generations = tuple(
        sorted(
            number
            for number, generation in state.generations.items()
            if number != state.generation
            and not any(state.committed[epoch].generation == number for epoch in kept)
            and not any(generation_of(name) == number for name in named)
            and is_settled(state, generation.index, settled)
        )
    )
    rows = {name: found for name in named if (found := channel_file_of(name)) is not None}
    pinned = tuple(sorted(name for name, file in rows.items() if file.generation == state.generation))
    return Expired(state.term, state.generation, gone, generations, floors, pinned)


def _still_read(state: JournalState, manifests: Mapping[int, Manifest]) -> set[int]:
    """The epoch with which the generation began, if a stage has not read at the head what was in flight there. A full
    checkpoint has copies of that, but a stage goes on reading the files that were there when it started."""
    base, head = state.generations[state.generation].epoch, state.head
    if base is None or head is None or base not in state.committed or not {base, head} <= manifests.keys():
        return set()
    now = manifests[head].stages
    waiting = [f for f in manifests[base].in_flight if any(f.batches.values()) and f.reader in now]
    is_read = all(now[f.reader].consumed.get(f.producer, f.upto) >= f.upto for f in waiting)
    return set() if is_read else {base}


def stage_floors(state: JournalState, head: Manifest) -> dict[str, int]:
    """Per stage, the batch up to which nobody will read its channel again: the lowest position of its readers at the
    newest checkpoint, which every live reader has passed."""
    assert state.topology is not None
    floors: dict[str, int] = {}
    for name in head.stages:  # a stage that was added since has no floor yet, and reads from the cut on
        readers = [head.stages[r] for r in state.topology.readers(name) if r in head.stages]
        floors[name] = min(
            [head.stages[name].batch, *(r.consumed[name] for r in readers if name in r.consumed)]
        )
    return floors


def named_objects(manifests: Iterable[Manifest]) -> set[str]:
    """Every object that these manifests name."""
    names: set[str] = set()
    for manifest in manifests:
        names.update(manifest.objects())
    return names


def deletable_data(state: JournalState, stage: str, log: StageState, found: Iterable[Stored]) -> list[str]:
    """Those of the `found` channel files of a stage that nobody will read again: batches up to the floor (unless
    pinned), and attempts at a logged batch other than the logged one. Attempts at batches that are not logged yet stay:
    the next incarnation may take them over."""
    floor = state.floors.get(stage, -1)
    pinned = set(state.pinned)
    gone: list[str] = []
    for stored in found:
        logged = log.batches.get(stored.batch)
        if stored.batch <= floor:
            if stored.name not in pinned:
                gone.append(stored.name)
        elif logged is not None and stored.name not in logged.files:
            gone.append(stored.name)
    return gone


def deletable_states(
    state: JournalState,
    stage: str,
    generation: int,
    log: StageState,
    found: Iterable[Stored],
    named: Collection[str] | None = None,
) -> list[str]:
    """Those of the `found` state files of a stage that no checkpoint and no restart can need: files of batches before
    the last one, at which neither a kept checkpoint nor a barrier that may still commit was cut. Outdated knowledge of
    the journal keeps more, never less. Files of unknown batches are deletable if no kept manifest names them; `named` is
    what these manifests name, `None` if that is not known."""
    kept = [c.cuts for c in state.committed.values() if c.generation == generation]
    needed = {cuts[stage] for cuts in kept if stage in cuts} | {log.last}
    undecided = any(fate(state, epoch) in (Fate.OPEN, Fate.UNKNOWN) for epoch in log.barriers)
    needed.update(b.batch for e, b in log.barriers.items() if fate(state, e) is not Fate.OVER)
    gone: list[str] = []
    for file in found:
        if file.unknown:
            if named is not None and not undecided and file.name not in named:
                gone.append(file.name)
            continue
        until = file.batch if file.until is None else file.until
        if until < log.last and not any(file.batch <= batch <= until for batch in needed):
            gone.append(file.name)
    return gone


def is_leftover(state: JournalState, name: str) -> bool:
    """Whether an object may be deleted because it belongs to a checkpoint that is over and not kept. Objects that are
    not Cutwater's are never deleted."""
    found = checkpoint_of(name)
    return found is not None and fate(state, found.epoch) is Fate.OVER
