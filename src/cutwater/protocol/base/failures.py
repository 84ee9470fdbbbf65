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
        "Check that the named members are running, and which of their stages is slow (`cutwater explain`). Give"
        " checkpoints more time (--timeout), or let slow ones turn unaligned (--alignment-timeout).",
    )
    MEMBER_REFUSED = (
        "member_refused",
        True,
        True,
        "Fix the cause of the member's error, which is quoted; the next checkpoint tries again.",
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
        "Check that the named object is still in the store and that the leader may read it; `cutwater verify`"
        " shows what else is damaged. If it cannot be repaired, restore an older checkpoint.",
    )
    CANCELLED = (
        "cancelled",
        True,
        False,
        "A user cancelled it. Nothing to do: its batches belong to the next checkpoint that commits.",
    )
    LEADER_CHANGED = (
        "leader_changed",
        True,
        False,
        "Nothing to do: the new leader begins its own checkpoint. If this was a savepoint, request it again.",
    )
    RESTORED = (
        "restored",
        True,
        False,
        "Nothing to do: a restore ended this timeline. If this was a savepoint, request it again.",
    )
    TOPOLOGY_CHANGED = (
        "topology_changed",
        True,
        False,
        "Nothing to do: the next checkpoint uses the pipeline's new graph.",
    )

    # No checkpoint had begun.
    ALREADY_IN_PROGRESS = (
        "already_in_progress",
        False,
        False,
        "Wait for the savepoint in progress (`cutwater status` shows it), or choose another name.",
    )
    QUEUE_FULL = (
        "queue_full",
        False,
        False,
        "Wait until the earlier requests are done, then try again; `cutwater status` shows them.",
    )
    NOTHING_TO_CANCEL = (
        "nothing_to_cancel",
        False,
        False,
        "Nothing to do: no checkpoint can be cancelled now; `cutwater status` shows what is in progress.",
    )
    DRAINING = (
        "draining",
        False,
        False,
        "Wait for the drain to commit, or cancel it and try again.",
    )
    DRAINED = (
        "drained",
        False,
        False,
        "The pipeline is drained; start it again to take further checkpoints.",
    )
    NAME_TAKEN = (
        "name_taken",
        False,
        False,
        "Choose another name, or remove the old one first: `cutwater savepoint NAME --forget`.",
    )
    NO_SUCH_CHECKPOINT = (
        "no_such_checkpoint",
        False,
        False,
        "Choose one that `cutwater checkpoints` lists. Expired checkpoints are gone, and one that a restore abandoned"
        " before every sink had published it cannot be restored.",
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
        "Name every stage that you want to remove with --drop, or put it back into the code.",
    )
    STILL_READ = (
        "still_read",
        False,
        False,
        "Nothing was changed. Keep the stage in the code; or drop its reader too, with `cutwater restore REF --drop"
        " STAGE --drop READER`, and add the reader again with changed code, with `cutwater run FILE --restore latest"
        " --reset READER`.",
    )
    INPUTS_CHANGED = (
        "inputs_changed",
        False,
        False,
        "Nothing was changed. Reset the stage (--reset STAGE), or change its inputs back.",
    )
    CHAINING_CHANGED = (
        "chaining_changed",
        False,
        False,
        "Nothing was changed. Stop the pipeline, and start it with --restore REF: a start moves positions and state.",
    )
    GRAPH_CHANGED = (
        "graph_changed",
        False,
        False,
        "Start again: the graph is then assembled from the pipeline's current one.",
    )
    NO_POSITIONS = (
        "no_positions",
        False,
        False,
        "Nothing was changed. Keep the stage's old name, restore a checkpoint that has the stage, or give the sinks that"
        " get its rows new names (name=) and paths.",
    )
    SINK_RETURNS = (
        "sink_returns",
        False,
        False,
        "Nothing was changed. Give the sink a new name (name=) and path: the new table begins at the checkpoint. Or"
        " restore a checkpoint that has the sink.",
    )
    JOURNAL_BEHIND = (
        "journal_behind",
        False,
        False,
        "Nothing was changed. Bring the newest store back. If it is lost, give each such sink a new name (name=) and"
        " path, and start with --restore latest --drop SINK: the new table begins at that checkpoint.",
    )
    ROWS_IN_FLIGHT = (
        "rows_in_flight",
        False,
        False,
        "Nothing was changed. Restore an aligned checkpoint instead, such as a savepoint, or change the code back.",
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
        "Nothing was changed. Bring back what was removed from the table; or restore a newer checkpoint, if there is one"
        " that the table can still go back to; or give the sink another name and path and restore with `--drop SINK`,"
        " its old name: the new table begins at the checkpoint.",
    )
    TABLE_CHANGED = (
        "table_changed",
        False,
        False,
        "Nothing was changed. Restore a checkpoint from after these changes; or save the changes that you need, and undo"
        " them all with --force (force=True).",
    )
    TABLE_UNAVAILABLE = (
        "table_unavailable",
        False,
        False,
        "Nothing was changed. Check that the table can be reached from here, then try again.",
    )
    NOT_LEADER = (
        "not_leader",
        False,
        False,
        "Try again: the process that got the request is not the leader, or no longer is. If a command loses the lead each"
        " time, let the running pipeline do it (without --takeover), or stop the pipeline first.",
    )
