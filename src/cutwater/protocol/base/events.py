"""What happens in a member, as typed events: a closed union, each emitted once.

The core emits what it decides or applies, the runtime what only it sees: errors of storage and links. Log lines, the
timings behind `explain` and parts of the status are observers of these events. Nothing is decided by an event, and
nobody waits for an observer, so losing one loses nothing but a line or a number.

A member emits the events of the journal only once it has caught up: what was decided before is history, not news.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec


class _Event(msgspec.Struct, frozen=True):
    """Base of all events."""


# --- the journal ------------------------------------------------------------------------------------------


class CaughtUp(_Event, frozen=True):
    """This member knows the journal up to `index`, the newest entry when it looked."""

    index: int


class LeaderChanged(_Event, frozen=True):
    """A member has begun to lead."""

    term: int
    leader: str


class LeadershipLost(_Event, frozen=True):
    """This member led in `term`, and `leader` leads now."""

    term: int
    leader: str


class EpochBegun(_Event, frozen=True):
    """A checkpoint has begun, or was in progress when this member caught up."""

    epoch: int
    checkpoint_id: int
    flags: int
    savepoint: str | None
    leader: str


class EpochCommitted(_Event, frozen=True):
    """A checkpoint is committed. `watermark` is the pipeline-wide one, in ms."""

    epoch: int
    watermark: int | None


class EpochAborted(_Event, frozen=True):
    """A checkpoint has failed. `is_void`: no leader aborted it; a new leader, graph or restore ended it."""

    epoch: int
    reason: str
    detail: str
    is_void: bool


class PipelineRestored(_Event, frozen=True):
    """The pipeline has gone back to `epoch`, and `generation` begins there."""

    epoch: int
    generation: int


# --- stages and sinks of this member ------------------------------------------------------------------------


class StageStarted(_Event, frozen=True):
    """A new incarnation of a stage is open, and its query is being started."""

    stage: str
    generation: int
    incarnation: int


class StageFailed(_Event, frozen=True):
    """The query of a stage has ended and is restarted: restart `attempt` of `attempts`, in `restart_ms`. `was_stopped`:
    it ended without an error, so somebody else has stopped it."""

    stage: str
    error: str
    was_stopped: bool
    attempt: int
    attempts: int
    restart_ms: int


class StageGivenUp(_Event, frozen=True):
    """The query of a stage has ended and is not restarted in this generation, after so many tries."""

    stage: str
    error: str
    tries: int


class BatchLogged(_Event, frozen=True):
    """A batch of a stage is in its log."""

    stage: str
    batch: int
    rows: int


class AlignmentBegun(_Event, frozen=True):
    """A stage has seen the first barrier of a checkpoint; one without inputs, the order to cut."""

    stage: str
    epoch: int


class StageCut(_Event, frozen=True):
    """A stage is cut for a checkpoint, after `batch`."""

    stage: str
    epoch: int
    batch: int
    unaligned: bool


class EpochCaptured(_Event, frozen=True):
    """All stages of this member are cut for a checkpoint, and their state is found."""

    epoch: int


class TablePublished(_Event, frozen=True):
    """A sink of this member shows an epoch."""

    sink: str
    epoch: int
    version: int


class TableRewound(_Event, frozen=True):
    """A sink of this member is back at an epoch, after a restore."""

    sink: str
    epoch: int
    version: int


class SinkNotRewound(_Event, frozen=True):
    """The pipeline is restored, but this sink cannot undo the calls that it has made."""

    sink: str


# --- the leader ---------------------------------------------------------------------------------------------


class ManifestWritten(_Event, frozen=True):
    """The manifest of a checkpoint is in the store; the checkpoint is not committed yet."""

    epoch: int


class ManifestUnreadable(_Event, frozen=True):
    """The manifest of a kept checkpoint cannot be read, so the objects that it names are kept."""

    epoch: int
    error: str


class RequestsRefused(_Event, frozen=True):
    """The leader has refused requests."""

    requests: tuple[str, ...]
    reason: str
    detail: str


# --- the process ----------------------------------------------------------------------------------------------


class CatchingUp(_Event, frozen=True):
    """A catch-up takes long: `done` of `total` missing entries, from `peers` other members."""

    done: int
    total: int
    peers: int


class OperationFailed(_Event, frozen=True):
    """Something failed in storage, a table or a link, and will be retried."""

    operation: str
    error: str


class ObjectRejected(_Event, frozen=True):
    """An object in the store is not what its name says. `start` has its first bytes."""

    name: str
    problem: str
    start: bytes


class RequestForsaken(_Event, frozen=True):
    """A request from before this process started was removed: nobody has waited for its answer for `seconds`."""

    request_id: str
    kind: str
    seconds: float


class SecondProcess(_Event, frozen=True):
    """Several processes of this member are running."""

    processes: int


Event = (
    CaughtUp
    | LeaderChanged
    | LeadershipLost
    | EpochBegun
    | EpochCommitted
    | EpochAborted
    | PipelineRestored
    | StageStarted
    | StageFailed
    | StageGivenUp
    | BatchLogged
    | AlignmentBegun
    | StageCut
    | EpochCaptured
    | TablePublished
    | TableRewound
    | SinkNotRewound
    | ManifestWritten
    | ManifestUnreadable
    | RequestsRefused
    | CatchingUp
    | OperationFailed
    | ObjectRejected
    | RequestForsaken
    | SecondProcess
)

Observe = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Observes nothing."""
