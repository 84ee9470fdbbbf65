"""The part of a member's status that comes from events: the latest checkpoints, errors of stages, storage problems."""

from __future__ import annotations

import time
from typing import assert_never

import msgspec

from cutwater.protocol.base import events as ev
from cutwater.runtime.troubles import Troubles


class LastCommit(msgspec.Struct, frozen=True):
    """The newest checkpoint that this process saw begin and commit: when, in wall-clock time, and how long it took."""

    at: float
    duration_s: float


class StatusFacts:
    """Collects what the status shows. Other threads only read it."""

    def __init__(self, troubles: Troubles | None = None) -> None:
        self._troubles = troubles or Troubles()
        self.last_commit: LastCommit | None = None
        self.stage_errors: dict[str, str] = {}
        """Per stage, why its query last ended."""
        self._begun_s: dict[int, float] = {}

    @property
    def trouble(self) -> str:
        """What fails in storage, a table or a link, and is retried; empty if nothing does."""
        return self._troubles.latest

    def open_since(self, epoch: int) -> float | None:
        """When a checkpoint in progress was begun, in wall-clock time."""
        begun_s = self._begun_s.get(epoch)
        return None if begun_s is None else _wall_clock(begun_s)

    def __call__(self, at_s: float, event: ev.Event) -> None:
        match event:
            case ev.EpochBegun():
                self._begun_s[event.epoch] = at_s
            case ev.EpochCommitted():
                begun_s = self._begun_s.pop(event.epoch, None)
                if begun_s is not None:
                    self.last_commit = LastCommit(_wall_clock(at_s), round(at_s - begun_s, 3))
            case ev.EpochAborted():
                self._begun_s.pop(event.epoch, None)
            case ev.StageFailed() | ev.StageGivenUp():
                self.stage_errors[event.stage] = event.error
            case ev.OperationFailed():
                pass  # `Troubles` knows it, and when it has succeeded
            case ev.CaughtUp() | ev.CatchingUp() | ev.LeaderChanged() | ev.LeadershipLost():
                pass
            case (
                ev.PipelineRestored()
                | ev.StageStarted()
                | ev.BatchLogged()
                | ev.AlignmentBegun()
                | ev.StageCut()
                | ev.EpochCaptured()
            ):
                pass
            case ev.TablePublished() | ev.TableRewound() | ev.SinkNotRewound():
                pass
            case ev.ManifestWritten() | ev.ManifestUnreadable() | ev.RequestsRefused():
                pass
            case ev.ObjectRejected() | ev.RequestForsaken() | ev.SecondProcess():
                pass
            case _:
                assert_never(event)


def _wall_clock(at_s: float) -> float:
    return time.time() - (time.monotonic() - at_s)
