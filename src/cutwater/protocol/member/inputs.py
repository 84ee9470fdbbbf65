"""The inputs of one stage: the contents of their logs, what the stage may read of them, and what it has not read."""

from __future__ import annotations

from typing import Protocol

from cutwater.protocol.base.barrier import Barrier, Flags
from cutwater.protocol.base.records import Begun, Manifest, StageSpec, StageState
from cutwater.protocol.member import channel
from cutwater.protocol.member.aligner import Aligner
from cutwater.protocol.member.channel import BatchUnknown, Channel, carried_batches
from cutwater.protocol.member.journal import Journal
from cutwater.protocol.member.stage_log import StageLog


class KnownLogs(Protocol):
    """What the inputs of a stage are derived from: the journal, the newest manifest, and the stages' logs."""

    journal: Journal
    manifest: Manifest | None
    now_ms: int

    def log(self, stage: str) -> StageLog: ...


class Inputs:
    """The inputs of the stage `spec`, whose own log is `log`, as far as their logs are known here."""

    def __init__(self, known: KnownLogs, spec: StageSpec, log: StageLog) -> None:
        self._known = known
        self._spec = spec
        self._log = log

    def producer(self, name: str) -> StageState:
        """The log of an input."""
        return self._known.log(name).state

    def channel(self, name: str) -> Channel:
        """The channel from an input to this stage."""
        return Channel(self.producer(name), carried_batches(self._known.manifest, self._spec.name, name))

    def readable(self, name: str) -> int:
        """The batch of an input up to which the query may read now (the hold rule)."""
        return channel.readable(self._known.journal.state, self._log.state, self.producer(name))

    def has_unread(self) -> bool:
        """Whether an input has rows that no logged batch of this stage has read."""
        consumed = self._log.state.consumed
        return any(
            self._rows_between(name, consumed.get(name, -1), self.producer(name).last)
            for name in self._spec.inputs
        )

    def are_done(self) -> bool:
        """Whether every input is cut for an open drain, and nothing is left to read before that."""
        opened = self._known.journal.state.open
        drains = [e for e, begun in opened.items() if begun.flags & Flags.DRAIN]
        cut = all(any(e in self.producer(name).barriers for e in drains) for name in self._spec.inputs)
        return cut and not self.has_unread()

    def aligner(self, begun: Begun, unaligned: bool) -> Aligner:
        """An aligner for a checkpoint, which knows where the stage is, and the barriers that are in its inputs' logs.
        `unaligned`: the stage need not wait for the others."""
        positions = {name: self._log.state.consumed[name] for name in self._spec.inputs}
        barrier = Barrier(begun.checkpoint_id, begun.epoch, Flags(begun.flags))
        aligner = Aligner(self._spec.inputs, barrier, positions, self._rows_between)
        if unaligned:
            aligner.turn_unaligned()
        for name in self._spec.inputs:
            at = self.producer(name).barriers.get(begun.epoch)
            if at is not None:
                aligner.on_barrier(name, Barrier(at.checkpoint_id, at.epoch), at.batch)
        return aligner

    def _rows_between(self, name: str, after: int, upto: int) -> bool:
        if after >= upto:
            return False
        try:
            return bool(self.channel(name).unread(after, upto))
        except BatchUnknown:  # this process is a zombie: a batch that it does not know may have rows
            return True
