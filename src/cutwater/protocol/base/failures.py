"""Why a checkpoint or a request failed: a closed list of reasons, each with advice.

Reasons are stored in the journal, so none is ever renamed or given another meaning.
"""

from __future__ import annotations

from enum import Enum


class FailureReason(Enum):
    """One reason.

    `started`: whether a checkpoint had begun, so that an epoch number was used. `counts`: whether it counts as
    one of the tolerated failures; only failures of the pipeline do, never requests of users. `advice` is shown
    to the user.
    """

    started: bool
    counts: bool
    advice: str

    def __new__(cls, value: str, started: bool, counts: bool, advice: str) -> FailureReason:
        self = object.__new__(cls)
        self._value_ = value
        self.started = started
        self.counts = counts
        self.advice = advice
        return self

    # A checkpoint that had begun.
    DEADLINE = (
        "deadline",
        True,
        True,
        "See whether the named members run and which of their stages is slow; give checkpoints more time"
        " (timeout_ms), or let slow ones cut unaligned (alignment_timeout_ms).",
    )
    MEMBER_REFUSED = (
        "member_refused",
        True,
        True,
        "Read the member's error, which is quoted, and put its cause right; the next checkpoint tries again.",
    )
    INCONSISTENT_CUT = (
        "inconsistent_cut",
        True,
        True,
        "Nothing was committed and nothing is lost. If it happens again, report it with the output of"
        " `cutwater explain` for this epoch: it is a bug in Cutwater.",
    )
    STORE_DAMAGED = (
        "store_damaged",
        True,
        True,
        "See whether the store still holds the named object and whether the leader may read it; `cutwater verify`"
        " shows what else is missing. A restore of an older checkpoint goes back to before it.",
    )
    CANCELLED = (
        "cancelled",
        True,
        False,
        "Somebody asked for it. Nothing to do: its batches belong to the next checkpoint that commits.",
    )
    LEADER_CHANGED = (
        "leader_changed",
        True,
        False,
        "Nothing to do: the new leader begins its own checkpoint. Ask again for a savepoint that this was.",
    )
    RESTORED = (
        "restored",
        True,
        False,
        "Nothing to do: a restore put an end to this timeline. Ask again for a savepoint that this was.",
    )
    TOPOLOGY_CHANGED = (
        "topology_changed",
        True,
        False,
        "Nothing to do: the next checkpoint is taken of the pipeline's new graph.",
    )

    # No checkpoint had begun.
    ALREADY_IN_PROGRESS = (
        "already_in_progress",
        False,
        False,
        "Wait for the one that is under way (`cutwater status` shows it), or choose another name.",
    )
    QUEUE_FULL = (
        "queue_full",
        False,
        False,
        "Wait until the requests ahead of it are done, then ask again; `cutwater status` shows them.",
    )
    NOTHING_TO_CANCEL = (
        "nothing_to_cancel",
        False,
        False,
        "Nothing to do: no checkpoint can be cancelled now; `cutwater status` shows what is under way.",
    )
    DRAINING = (
        "draining",
        False,
        False,
        "Wait for the drain to commit, or cancel it and ask again.",
    )
    DRAINED = (
        "drained",
        False,
        False,
        "The pipeline has come to rest; start it again to take further checkpoints.",
    )
    NAME_TAKEN = (
        "name_taken",
        False,
        False,
        "Choose another name, or have the old savepoint forgotten first.",
    )
    NO_SUCH_CHECKPOINT = (
        "no_such_checkpoint",
        False,
        False,
        "Choose one that `cutwater checkpoints` lists: expired ones are gone, and one that was abandoned by"
        " a restore before every sink had published it cannot be gone back to.",
    )
    NO_SUCH_STAGE = (
        "no_such_stage",
        False,
        False,
        "Choose a stage that `cutwater status` lists.",
    )
    STAGE_GONE = (
        "stage_gone",
        False,
        False,
        "Name every stage that is meant to go with --drop, or bring it back into the code.",
    )
    STILL_READ = (
        "still_read",
        False,
        False,
        "Nothing was changed. Keep the stage in the code; or let its reader go too, with `cutwater restore REF --drop"
        " STAGE --drop READER`, and bring that back with changed code, with `cutwater run FILE --restore latest --reset"
        " READER`.",
    )
    INPUTS_CHANGED = (
        "inputs_changed",
        False,
        False,
        "Nothing was changed. Reset the stage, or bring its old inputs back.",
    )
    GRAPH_CHANGED = (
        "graph_changed",
        False,
        False,
        "Start again: the graph is then put together from what the pipeline is now.",
    )
    NO_POSITIONS = (
        "no_positions",
        False,
        False,
        "Nothing was changed. Keep the stage's old name, restore a checkpoint that has the stage, or give the sinks that"
        " get its rows new names (name=) and paths.",
    )
    ROWS_IN_FLIGHT = (
        "rows_in_flight",
        False,
        False,
        "Restore an aligned checkpoint (a savepoint, for one) instead, or bring the old columns back.",
    )
    SINK_GONE = (
        "sink_gone",
        False,
        False,
        "Give the sink its old name (name=), or let its windows close before the change: a later checkpoint then"
        " holds nothing.",
    )
    NOT_PUBLISHED = (
        "not_published",
        False,
        False,
        "Restore another checkpoint; `cutwater checkpoints` lists them.",
    )
    TABLE_HISTORY_GONE = (
        "table_history_gone",
        False,
        False,
        "Nothing was changed. Restore a newer checkpoint, which the table can still go back to.",
    )
    TABLE_CHANGED = (
        "table_changed",
        False,
        False,
        "Nothing was changed. Restore a checkpoint from after what they did; or save what has to stay, and undo the rest"
        " with --force (force=True).",
    )
    TABLE_UNAVAILABLE = (
        "table_unavailable",
        False,
        False,
        "Nothing was changed. See whether the table can be reached from here, then ask again.",
    )
    NOT_LEADER = (
        "not_leader",
        False,
        False,
        "Ask again: whoever was asked does not lead, or no longer leads. If a command loses the lead each time, have the"
        " running pipeline do it (without --takeover), or stop that first.",
    )
