"""Log lines for users, made from the events of a member."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import assert_never

from cutwater.protocol.base import events as ev
from cutwater.protocol.base.barrier import Flags
from cutwater.protocol.base.durations import readable
from cutwater.protocol.replay.messages import CatchUpProgress

TROUBLE_EVERY_S = 30.0
"""How often a line reports that the store or a table fails, which may happen many times a second."""
REMEMBERED = 100
"""How many lines are remembered so that they are not repeated."""


@dataclass
class _Open:
    """A checkpoint in progress."""

    begun: ev.EpochBegun
    begun_s: float
    unaligned: list[str] = field(default_factory=list)


class EventLines:
    """Makes log lines from the events of the member with this name."""

    def __init__(self, member: str, log: Callable[[str], None]) -> None:
        self._member = member
        self._log = log
        self._open: dict[int, _Open] = {}
        self._logged: dict[str, None] = {}
        self._trouble = ""
        self._logged_trouble = ""
        self._trouble_due_s = 0.0

    def __call__(self, at_s: float, event: ev.Event) -> None:
        match event:
            case ev.EpochBegun():
                self._open[event.epoch] = _Open(event, at_s)
            case ev.StageCut():
                if event.unaligned and event.epoch in self._open:
                    self._open[event.epoch].unaligned.append(event.stage)
            case ev.EpochCommitted():
                opened = self._open.pop(event.epoch, None)
                if opened is not None:
                    self._log(_committed(opened, at_s))
            case ev.EpochAborted():
                self._open.pop(event.epoch, None)
                if not event.is_void:
                    self._log(f"epoch {event.epoch} aborted ({event.reason}): {event.detail}")
            case ev.LeadershipLost():
                self._log(f"term {event.term} is over: {event.leader} leads")
            case ev.StageFailed():
                what = "lost its query" if event.was_stopped else "failed"
                self._log(
                    f"stage '{event.stage}' {what} and restarts in {event.restart_ms / 1000:g} s "
                    f"({event.attempt} of {event.attempts}): {event.error}"
                )
            case ev.StageGivenUp():
                self._log(f"stage '{event.stage}' is given up after {event.tries} attempts: {event.error}")
            case ev.SinkNotRewound():
                self._log(f"sink '{event.sink}' cannot go back: its calls for later epochs cannot be undone")
            case ev.ManifestUnreadable():
                self._log_once(f"the manifest of epoch {event.epoch} cannot be read: {event.error}")
            case ev.RequestsRefused():
                self._log_once(event.detail)
            case ev.CatchingUp():
                self._log(str(CatchUpProgress(event.done, event.total, event.peers, 0)))
            case ev.OperationFailed():
                self._trouble = f"{event.operation}: {event.error}"
            case ev.ObjectRejected():
                self._log_once(f"{event.name} {event.problem}: {event.start!r}")
            case ev.RequestForsaken():
                self._log(
                    f"request {event.request_id} ({event.kind}) is removed and not carried out: nobody has waited for "
                    f"its answer for {readable(event.seconds)}. Ask again if it is still wanted"
                )
            case ev.SecondProcess():
                self._log(
                    f"member '{self._member}' is running {event.processes} times; the process that was started last "
                    "continues, and the others end when they next write something"
                )
            case ev.CaughtUp() | ev.LeaderChanged() | ev.PipelineRestored() | ev.EpochCaptured():
                pass
            case ev.StageStarted() | ev.BatchLogged() | ev.AlignmentBegun():
                pass
            case ev.TablePublished() | ev.TableRewound() | ev.ManifestWritten():
                pass
            case _:
                assert_never(event)
        if self._trouble != self._logged_trouble and at_s >= self._trouble_due_s:
            self._logged_trouble, self._trouble_due_s = self._trouble, at_s + TROUBLE_EVERY_S
            self._log(f"an operation failed and will be retried: {self._trouble}")

    def _log_once(self, line: str) -> None:
        if line and line not in self._logged:
            self._logged[line] = None
            for old in list(self._logged)[:-REMEMBERED]:
                del self._logged[old]
            self._log(line)


def _committed(opened: _Open, at_s: float) -> str:
    begun = opened.begun
    what = (
        f"savepoint '{begun.savepoint}' is epoch {begun.epoch},"
        if begun.savepoint
        else f"epoch {begun.epoch}"
    )
    marks = [f"{stage} unaligned" for stage in opened.unaligned]
    if begun.flags & Flags.DRAIN:
        marks.append("drain")
    more = f" ({', '.join(marks)})" if marks else ""
    return f"{what} committed in {readable(at_s - opened.begun_s)}{more}"
