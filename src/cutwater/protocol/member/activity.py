"""What the query of one incarnation is doing, and whether the stage is therefore idle or quiet.

The host of the query reports facts; nothing here asks Spark. *Idle* is for watermarks: a stage that has been silent for
long holds nobody back. *Quiet* is for drains: the query has taken all of its input, Spark has found nothing more to do,
and everything that it did is in the log.
"""

from __future__ import annotations

from enum import Enum

from cutwater.protocol.base.transitions import Table


class RestPhase(Enum):
    GOING = "going"
    SETTLING = "settling"
    QUIET = "quiet"


REST = Table(
    "rest",
    "Coming to rest of one query, for a drain",
    RestPhase.GOING,
    {
        (RestPhase.GOING, "inputs_done"): RestPhase.SETTLING,
        (RestPhase.SETTLING, "nothing_to_do"): RestPhase.QUIET,
        (RestPhase.SETTLING, "inputs_open"): RestPhase.GOING,
        (RestPhase.SETTLING, "query_lost"): RestPhase.GOING,
        (RestPhase.SETTLING, "drain_over"): RestPhase.GOING,
        (RestPhase.QUIET, "batch_began"): RestPhase.SETTLING,
        (RestPhase.QUIET, "inputs_open"): RestPhase.GOING,
        (RestPhase.QUIET, "query_lost"): RestPhase.GOING,
        (RestPhase.QUIET, "drain_over"): RestPhase.GOING,
    },
)


class Activity:
    """What is known of one query. Batches are numbered as in the stage's log; `last` is the last one in the log."""

    def __init__(self) -> None:
        self.rest = REST.start
        self.idle = False
        self.took_all = False
        """Whether the query has read everything that was available, and ended by itself."""
        self.settling_ms = 0
        """When the inputs were complete, and the query began to settle."""
        self._begun = -1
        self._nothing_after: int | None = None
        self._active_ms = 0

    # --- facts ----------------------------------------------------------------------------------------

    def started(self, now_ms: int) -> None:
        self._active_ms = now_ms

    def batch_began(self, batch: int, now_ms: int) -> None:
        """A batch has begun, so what Spark found before is outdated."""
        self._begun, self._active_ms, self._nothing_after = batch, now_ms, None
        self.idle = False
        self._step_if("batch_began")

    def batch_logged(self, now_ms: int) -> None:
        self._active_ms = now_ms
        self.idle = self.took_all

    def found_nothing(self, after: int) -> None:
        """Spark has found nothing to do after batch `after`. This is outdated if a later batch has begun since."""
        if self._begun <= after:
            self._nothing_after = after

    def has_taken_all(self, last: int) -> None:
        """The query has read everything that was available, and ended; `last` is its last batch."""
        self.took_all = self.idle = True
        self._nothing_after = last

    def lost_query(self) -> None:
        self._nothing_after = None
        self._step_if("query_lost")

    # --- what follows ---------------------------------------------------------------------------------

    def is_busy(self, last: int) -> bool:
        """Whether a batch is in progress: it has begun, and is not in the log."""
        return self._begun > last

    def is_silent(self, last: int, now_ms: int, for_ms: int) -> bool:
        return now_ms - self._active_ms > for_ms and not self.is_busy(last)

    def busy_ms(self, last: int, now_ms: int) -> int | None:
        """How long the batch in progress has been running; `None` if there is none."""
        return now_ms - self._active_ms if self.is_busy(last) else None

    @property
    def asks_for_rest(self) -> bool:
        """Whether the host should report when Spark finds nothing more to do."""
        return self.rest is RestPhase.SETTLING and self._nothing_after is None

    def settle(self, inputs_done: bool, last: int, now_ms: int) -> None:
        """Takes the steps that are due while a drain is open. `inputs_done`: whether all inputs are cut and read."""
        if not inputs_done:
            if not self.took_all:
                self._nothing_after = None
            self._step_if("inputs_open")
            return
        if self.rest is RestPhase.GOING:
            self._step_if("inputs_done")
            self.settling_ms = now_ms
        if self._nothing_after is not None and not self.is_busy(last) and last >= self._nothing_after:
            self._step_if("nothing_to_do")

    def drain_over(self) -> None:
        """The drain is over: none is open now."""
        if not self.took_all:
            self._nothing_after = None
        if self.rest is not RestPhase.GOING:
            self._step_if("drain_over")

    def _step_if(self, event: str) -> None:
        if REST.allows(self.rest, event):
            self.rest = REST.next(self.rest, event)
