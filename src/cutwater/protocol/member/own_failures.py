"""The checkpoints that have failed because of one member, and whether they are too many for it to go on.

Every member counts its own: a bad stage ends its own member, not one leader after the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from cutwater.protocol.base.failures import FailureReason
from cutwater.protocol.base.records import Aborted, Topology
from cutwater.protocol.base.wire import Ack
from cutwater.protocol.member.config import MemberConfig
from cutwater.protocol.member.journal import Journal
from cutwater.protocol.member.stage_log import StageLog


class Judged(Protocol):
    """The member that is judged. `hopeless`: one of its stages would always fail again."""

    name: str
    topology: Topology
    config: MemberConfig
    journal: Journal
    generation: int
    hopeless: bool

    def log(self, stage: str) -> StageLog: ...


class OwnFailures:
    """The failed checkpoints in a row that a member is to blame for, since it started."""

    def __init__(self, member: Judged) -> None:
        self._member = member
        self._judged = 0
        self._failed: list[Aborted] = []

    def start(self) -> None:
        """Passes over everything that is in the journal by now."""
        self._judged = self._member.journal.index

    def judge(self, acks: Mapping[int, Ack]) -> str | None:
        """Judges the checkpoints that have failed since the last call; `acks` are what the member has answered. Returns
        why the member should end, if it should."""
        state = self._member.journal.state
        head = state.committed.get(state.head) if state.head is not None else None
        since = state.generations[state.generation].index
        if head is not None and head.generation == state.generation:
            since = max(since, head.checkpoint_id)  # a commit resets the count
        for aborted in state.aborted:
            if aborted.checkpoint_id > self._judged:
                self._judged = aborted.checkpoint_id
                if self._is_to_blame(aborted, acks.get(aborted.checkpoint_id)):
                    self._failed.append(aborted)
        failed = self._failed = [a for a in self._failed if a.checkpoint_id > since]
        tolerated = self._member.config.tolerated_failures
        if tolerated is None or len(failed) <= (0 if self._member.hopeless else tolerated):
            return None
        last = f"the last with {failed[-1].reason}: {failed[-1].detail}"
        return f"{len(failed)} checkpoints in a row have failed because of this member, {last}"

    def _is_to_blame(self, aborted: Aborted, ack: Ack | None) -> bool:
        reason = FailureReason[aborted.reason.upper()]
        if reason is FailureReason.MEMBER_REFUSED:
            return ack is not None and not ack.ok
        if reason is FailureReason.DEADLINE:
            return ack is None and self._was_late(aborted)
        return reason.counts  # the store is damaged, for all members alike

    def _was_late(self, aborted: Aborted) -> bool:
        """Whether the others waited for this member: nobody under its name had acked by the deadline, and a stage of
        its own could have been cut without waiting for another stage's barrier."""
        member = self._member
        if member.name not in aborted.late or aborted.generation != member.generation:
            return False
        epoch, stages = aborted.epoch, member.topology.stages
        uncut = [n for n in member.topology.hosted(member.name) if epoch not in member.log(n).state.barriers]
        ready = [n for n in uncut if all(epoch in member.log(i).state.barriers for i in stages[n].inputs)]
        return not uncut or bool(ready)
