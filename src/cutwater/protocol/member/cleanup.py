"""How a stage removes what is no longer kept: its files, and the old entries of its log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from cutwater.protocol.base.effects import FAILED, Delete, FindStored, List, Procedure, ask, insist
from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.base.log import compact
from cutwater.protocol.base.paths import generation_of, stage_prefix
from cutwater.protocol.base.records import StageSnapshot
from cutwater.protocol.member.config import MemberConfig
from cutwater.protocol.member.journal import Fate, Journal, fate
from cutwater.protocol.member.publish import read_manifest
from cutwater.protocol.member.retention import deletable_data, deletable_states
from cutwater.protocol.member.stage_log import StageLog, trimmed


class Keeper(Protocol):
    """The member whose journal says what is kept."""

    config: MemberConfig
    journal: Journal

    def nonce(self) -> str: ...


class Cleanup:
    """Cleans up after a stage, as its open incarnation, until it `is_fenced`."""

    def __init__(self, member: Keeper, log: StageLog, is_fenced: Callable[[], bool]) -> None:
        self._member = member
        self._log = log
        self._is_fenced = is_fenced
        self._collected: object = None
        self._collected_at = 0
        """The journal index at which nothing more was due."""

    def run(self, incarnation: int) -> Procedure[None]:
        """Deletes what retention no longer keeps of the stage, and compacts its log."""
        yield from self._collect(incarnation)
        yield from self._compact(incarnation)

    def _collect(self, incarnation: int) -> Procedure[None]:
        index = self._member.journal.index
        if index == self._collected_at:
            return
        log, state = self._log, self._member.journal.state
        due = state.floors, tuple(state.committed), tuple(state.generations)
        if due == self._collected:
            self._collected_at = index
            return
        if self._is_fenced() or state.generation != log.generation:
            return
        self._collected, self._collected_at = due, index
        answer = yield from ask(FindStored(log.stage, log.generation, incarnation))
        if answer is FAILED or self._is_fenced():
            return
        data, states = answer
        named = (yield from self._named()) if any(file.unknown for file in states) else None
        state = self._member.journal.state
        if self._is_fenced() or state.generation != log.generation:
            return
        gone = deletable_data(state, log.stage, log.state, data)
        gone += deletable_states(state, log.stage, log.generation, log.state, states, named)
        if log.generation > 1:
            names = yield from insist(List(stage_prefix(log.stage)))
            gone += [
                n
                for n in names
                if (g := generation_of(n)) and g not in state.generations and g < log.generation
            ]
        if gone:
            yield from insist(Delete(tuple(gone)))

    def _named(self) -> Procedure[set[str] | None]:
        """What the manifests of all kept checkpoints name; `None` if one of them cannot be read."""
        kept = dict(self._member.journal.state.committed)
        names: set[str] = set()
        for checkpoint in kept.values():
            try:
                manifest = yield from read_manifest(checkpoint)
            except StoreError:  # damaged: it may still be repaired
                return None
            if manifest is None:
                return None
            names.update(manifest.objects())
        return names if kept.keys() == self._member.journal.state.committed.keys() else None

    def _compact(self, incarnation: int) -> Procedure[None]:
        """Compacts the log when it has grown by `compact_after` entries, or by half as many as it has batches: then
        writing snapshots costs no more, in total, than writing the entries did."""
        log, journal = self._log, self._member.journal.state
        grown = len(log.view.entries)
        if grown <= max(self._member.config.compact_after, len(log.state.batches) // 2):
            return
        needed = {e for e in log.state.barriers if fate(journal, e) is not Fate.OVER}
        if self._is_fenced():
            return
        kept = trimmed(log.state, journal.floors.get(log.stage, -1), needed)
        yield from compact(log.view, StageSnapshot(incarnation, kept), self._member.nonce())
        self._is_fenced()
