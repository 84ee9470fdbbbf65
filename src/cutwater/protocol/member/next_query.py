"""Whether a stage needs another query, when that one starts, and at which pace.

A query is replaced when it has ended too early, when a drain needs another pace, and when the stage goes on after a
drain. Each query is another incarnation of its stage, so the member starts the stage again.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, Protocol

from cutwater.protocol.base.effects import Pace
from cutwater.protocol.base.records import StageSpec
from cutwater.protocol.member.activity import Activity, RestPhase
from cutwater.protocol.member.config import MemberConfig, StagePlan
from cutwater.protocol.member.inputs import Inputs
from cutwater.protocol.member.stage_log import StageLog


class QueryEnd(Enum):
    """How a query ended before it read everything. `ASKED`: it was asked to stop (`stops_batches`). `STOPPED`: without an
    error, so somebody else has stopped it. `OVERLOADED`: the machine was too busy, which is temporary. `HOPELESS`: the
    next query would fail in the same way. `REFUSED`: Spark refuses the plan or an option; or a catalog has failed, if
    the same has worked before. `UNFIT`: Spark lacks code, or has that of another version."""

    ASKED = "asked"
    STOPPED = "stopped"
    FAILED = "failed"
    OVERLOADED = "overloaded"
    HOPELESS = "hopeless"
    REFUSED = "refused"
    UNFIT = "unfit"


class Misconfigured(NamedTuple):
    """Why a run cannot go on: the queries of a stage will never work with this configuration."""

    stage: str
    end: QueryEnd
    error: str


class Circumstances(Protocol):
    """What decisions about queries depend on, besides the queries: the time, the options, and the stages' plans."""

    config: MemberConfig
    now_ms: int
    plans: dict[str, StagePlan]

    def wake(self, actor: str) -> None: ...
    def query_ended(self, name: str, end: QueryEnd, error: str) -> int | None: ...


class NextQuery:
    """Decides about the next query from what the current one does (`activity`). `pace` is that of the current query,
    `None` for the usual one."""

    def __init__(
        self,
        around: Circumstances,
        spec: StageSpec,
        log: StageLog,
        inputs: Inputs,
        activity: Activity,
        pace: Pace | None,
    ) -> None:
        self._around = around
        self._spec = spec
        self._plan = around.plans[spec.name]
        self._log = log
        self._inputs = inputs
        self._activity = activity
        self.present_pace = pace if pace is not None else self._usual_pace
        self.pace = self.present_pace
        """The pace of the next query."""
        self.due_ms: int | None = None
        """When the next query starts; `None` while none is needed."""
        self.stops_batches = False
        """Whether the current query must not begin another batch."""
        self._has_query = True
        self._is_given_up = False

    @property
    def _usual_pace(self) -> Pace:
        if not self._around.config.once:
            return Pace.OWN
        return Pace.QUICK if self._spec.inputs else Pace.TAKE_ALL

    @property
    def _is_native(self) -> bool:
        return not self._spec.inputs or self._plan.has_native_source

    # --- what happens to the current query --------------------------------------------------------------

    def on_rest(self) -> None:
        """The stage is at rest, and a native source may have new rows for the query."""
        self.stops_batches = self._is_native and not self._activity.took_all

    def on_end(self, end: QueryEnd, error: str, is_needed: bool) -> int | None:
        """The query has ended before it read everything. Returns in how many ms the next one starts, or `None` if none
        does for now: the stage is given up, or is at rest and needs none unless its drain is aborted."""
        self._has_query = False
        if not is_needed:
            return None
        asked = end is QueryEnd.ASKED
        after_ms = 0 if asked else self._around.query_ended(self._spec.name, end, error)
        if after_ms is None:
            self._is_given_up = True
            self._activity.lost_query()
        else:
            self._start(after_ms, self._usual_pace if asked else self.present_pace)
        return after_ms

    # --- what follows -----------------------------------------------------------------------------------

    @property
    def is_given_up(self) -> bool:
        """Whether the stage gets no other query in this generation."""
        return self._is_given_up

    @property
    def is_undecided(self) -> bool:
        """Whether it may still turn out that another query is needed."""
        return self.due_ms is None and not self._is_given_up

    def settle(self, draining: bool) -> None:
        """Steps towards rest while a drain is open, and back to normal work when none is."""
        activity, now_ms = self._activity, self._around.now_ms
        needs_query = (
            self.stops_batches or not self._has_query or (activity.took_all and self._inputs.has_unread())
        )
        if not draining:
            activity.drain_over()
            needs_query |= self.present_pace is not self._usual_pace
        if needs_query:
            self._start(0, self._usual_pace)
        elif draining and (self._is_too_slow() or self._must_stop_ticking()):
            self._start(0, Pace.QUICK)
        elif draining:
            activity.settle(self._inputs.are_done(), self._log.state.last, now_ms)
            take_all_ms = self.take_all_ms()
            if take_all_ms is not None and now_ms >= take_all_ms:
                self._start(0, Pace.TAKE_ALL)

    def take_all_ms(self) -> int | None:
        """When a running stage stops waiting for a native source that may never become silent, and takes what is
        available; `None` if it does not wait for one."""
        if not self._may_take_all():
            return None
        return self._activity.settling_ms + self._around.config.rest_within_ms

    def _may_take_all(self) -> bool:
        settles = self._activity.rest is RestPhase.SETTLING
        return settles and self._is_native and self.present_pace is not Pace.TAKE_ALL

    def _is_too_slow(self) -> bool:
        """Whether the query's trigger interval is longer than a drain waits."""
        is_slow = self._plan.trigger_ms > self._around.config.rest_within_ms
        quiet = self._activity.rest is RestPhase.QUIET
        waits = bool(self._spec.inputs) and not quiet and not self._activity.is_busy(self._log.state.last)
        return is_slow and waits and self.present_pace is Pace.OWN

    def _must_stop_ticking(self) -> bool:
        """Whether only the clock gives the query something to do, which happens only with its own trigger."""
        ticks = self._plan.ticks and self.present_pace is Pace.OWN
        return ticks and bool(self._spec.inputs) and self._inputs.are_done()

    def _start(self, after_ms: int, pace: Pace) -> None:
        self.due_ms, self.pace = self._around.now_ms + after_ms, pace
        self._activity.lost_query()
        self._around.wake(f"stage {self._spec.name}")
