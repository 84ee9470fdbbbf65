"""Commits the positions of committed epochs to Kafka's consumer groups, for tools that show lag.

Nothing is read back: positions come from the checkpoint. So a failure to commit them is only a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import assert_never

from cutwater.protocol.base import events as ev
from cutwater.protocol.base.records import StageReport
from cutwater.spark.internals.kafka import what_kafka_says

Reports = Callable[[int], Mapping[str, StageReport] | None]
Commit = Callable[[str, str, StageReport], None]


class KafkaGroups:
    """Observes epochs. `groups`: by stage, its consumer group. `reports` returns the stages' parts of an epoch, or `None`
    if it is not the newest; `commit` commits the positions in a stage's report to a group."""

    def __init__(
        self, groups: Mapping[str, str], reports: Reports, commit: Commit, log: Callable[[str], None]
    ) -> None:
        self._groups = groups
        self._reports = reports
        self._commit = commit
        self._log = log
        self._failing: set[str] = set()

    def __call__(self, at_s: float, event: ev.Event) -> None:
        match event:
            case ev.EpochCommitted():
                self._commit_epoch(event.epoch)
            case ev.EpochBegun() | ev.EpochAborted() | ev.EpochCaptured() | ev.StageCut() | ev.BatchLogged():
                pass
            case (
                ev.AlignmentBegun()
                | ev.StageStarted()
                | ev.StageFailed()
                | ev.StageGivenUp()
                | ev.PipelineRestored()
            ):
                pass
            case ev.CaughtUp() | ev.CatchingUp() | ev.LeaderChanged() | ev.LeadershipLost():
                pass
            case ev.TablePublished() | ev.TableRewound() | ev.SinkNotRewound():
                pass
            case ev.ManifestWritten() | ev.ManifestUnreadable() | ev.RequestsRefused() | ev.OperationFailed():
                pass
            case ev.ObjectRejected() | ev.RequestForsaken() | ev.SecondProcess():
                pass
            case _:
                assert_never(event)

    def _commit_epoch(self, epoch: int) -> None:
        reports = self._reports(epoch)
        for stage, group in self._groups.items():
            if reports is None or stage not in reports:
                continue
            try:
                self._commit(stage, group, reports[stage])
                self._failing.discard(stage)
            except Exception as error:
                if stage not in self._failing:
                    self._failing.add(stage)
                    self._log(
                        f"the positions of stage '{stage}' cannot be committed to Kafka's consumer group '{group}', so "
                        f"tools that show its lag are wrong; the pipeline is not affected: {what_kafka_says(error)[:300]}"
                    )
