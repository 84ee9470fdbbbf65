"""How many rows violate each rule of a stage: per epoch, and in all epochs up to it.

The record of a batch has the counts of the batch (`spark/checkpoint/prepared.py`). Those of an epoch are their sum over
the batches between two cuts, so they are the same after a crash, and a restore goes back to those of its epoch. The notes
on an epoch keep them (`timings.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import assert_never

import msgspec

from cutwater.protocol.base import events as ev
from cutwater.protocol.member.member import Member
from cutwater.runtime.timings import EpochViolations, RuleRows, read_times
from cutwater.spark.checkpoint.folder import Cache
from cutwater.spark.checkpoint.prepared import violations_of
from cutwater.store.contract import Store

KEPT = 50
"""How many epochs to remember, so that their notes need not be read."""


class Known(msgspec.Struct, frozen=True):
    """What the member knows of an epoch's timeline: the epochs up to it with the cut of each stage, newest first, and for
    each stage, of the batches that its log still has, the incarnations whose folders may have the record: the one that
    has written it, and the newest, which has taken over the records of its predecessors. `parent`: the epoch before the
    oldest one, which has expired. `last`: up to which batch it knows the log of each stage."""

    generation: int
    timeline: tuple[tuple[int, dict[str, int]], ...]
    batches: dict[str, dict[int, tuple[int, ...]]]
    last: dict[str, int]
    parent: int | None = None


class Violations:
    """Observes the epochs of a member, and counts. `rules`: the names of each stage's rules. `look` is called with an
    epoch, `None` for the newest, and returns `None` if there is no such epoch."""

    def __init__(
        self,
        store: Store,
        rules: Mapping[str, tuple[str, ...]],
        look: Callable[[int | None], Known | None],
        caches: Mapping[str, Cache],
    ) -> None:
        self._store = store
        self._rules = rules
        self._look = look
        self._caches = caches
        self._found: dict[int, EpochViolations] = {}
        self._cuts: dict[int, dict[str, int]] = {}
        self._lock = Lock()
        self.latest: EpochViolations = {}
        """Those of the newest epoch."""

    def __call__(self, at_s: float, event: ev.Event) -> None:
        match event:
            case ev.EpochCommitted() | ev.PipelineRestored():
                self.latest = self.at(event.epoch)
            case ev.CaughtUp():
                self.latest = self.at(None)
            case (
                ev.EpochBegun() | ev.EpochAborted() | ev.EpochCaptured() | ev.AlignmentBegun() | ev.StageCut()
            ):
                pass
            case ev.LeaderChanged() | ev.LeadershipLost() | ev.RequestsRefused():
                pass
            case ev.StageStarted() | ev.StageFailed() | ev.StageGivenUp() | ev.BatchLogged():
                pass
            case ev.TablePublished() | ev.TableRewound() | ev.SinkNotRewound():
                pass
            case ev.ManifestWritten() | ev.ManifestUnreadable():
                pass
            case (
                ev.CatchingUp()
                | ev.OperationFailed()
                | ev.ObjectRejected()
                | ev.RequestForsaken()
                | ev.SecondProcess()
            ):
                pass
            case _:
                assert_never(event)

    def at(self, epoch: int | None) -> EpochViolations:
        """The counts of an epoch, by stage and rule; of the newest if it is `None`."""
        known = self._look(epoch) if self._rules else None
        if known is None or not known.timeline:
            return {}
        with self._lock:
            return self._count(known)

    def _count(self, known: Known) -> EpochViolations:
        timeline = list(known.timeline)
        if known.parent in self._cuts:
            timeline.append((known.parent, self._cuts[known.parent]))
        number, cuts = timeline[0]
        counted = dict(self._noted(number))
        for stage, rules in self._rules.items():
            if stage not in counted and known.last.get(stage, -1) >= cuts.get(stage, -1):
                total, after = self._before(timeline, stage)
                cut, before = cuts.get(stage, -1), timeline[1][1] if timeline[1:] else {stage: after}
                own, new = (
                    self._sum(known, stage, before.get(stage, -1), cut),
                    self._sum(known, stage, after, cut),
                )
                counted[stage] = {
                    rule: RuleRows(own.get(rule, 0), total.get(rule, 0) + new.get(rule, 0)) for rule in rules
                }
        self._found[number], self._cuts[number] = counted, cuts
        for old in sorted(self._found)[:-KEPT]:
            self._found.pop(old)
            self._cuts.pop(old, None)
        return counted

    def _before(
        self, timeline: Sequence[tuple[int, dict[str, int]]], stage: str
    ) -> tuple[dict[str, int], int]:
        """The sums up to the newest earlier epoch that was counted, and the stage's cut there."""
        for epoch, cuts in timeline[1:]:
            noted = self._noted(epoch).get(stage)
            if noted is not None and stage in cuts:
                return {rule: rows.total for rule, rows in noted.items()}, cuts[stage]
        return {}, -1

    def _noted(self, epoch: int) -> EpochViolations:
        if epoch not in self._found:
            times = read_times(self._store, epoch)
            self._found[epoch] = times.violations if times is not None else {}
        return self._found[epoch]

    def _sum(self, known: Known, stage: str, after: int, upto: int) -> dict[str, int]:
        """How many rows violate each rule in the batches `after` < b <= `upto`."""
        found: dict[str, int] = {}
        for batch, incarnations in known.batches.get(stage, {}).items():
            if after < batch <= upto:
                for rule, rows in self._of_batch(known.generation, stage, batch, incarnations).items():
                    found[rule] = found.get(rule, 0) + rows
        return found

    def _of_batch(
        self, generation: int, stage: str, batch: int, incarnations: tuple[int, ...]
    ) -> dict[str, int]:
        for incarnation in incarnations:
            found = violations_of(self._store, stage, generation, incarnation, batch, self._caches[stage])
            if found is not None:
                return found.get(stage, {})
        return {}


def known_of(member: Member, epoch: int | None) -> Known | None:
    """What a member knows of an epoch; of the newest if it is `None`. The caller must keep turns from happening."""
    state = member.journal.state
    at = state.head if epoch is None else epoch
    timeline = []
    while at is not None and (checkpoint := state.committed.get(at)) is not None:
        timeline.append((at, dict(checkpoint.cuts)))
        at = checkpoint.parent
    batches: dict[str, dict[int, tuple[int, ...]]] = {}
    last = {}
    for name in member.topology.hosted(member.name):
        log = member.log(name).state
        batches[name] = {
            number: (batch.incarnation, log.incarnation) for number, batch in log.batches.items()
        }
        last[name] = log.last
    return Known(state.generation, tuple(timeline), batches, last, at)
