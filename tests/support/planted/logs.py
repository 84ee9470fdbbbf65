"""Rules 1 to 3: appending, leadership, one fate per epoch."""

from __future__ import annotations

from typing import Any

import msgspec

from cutwater.protocol.base import effects as fx
from cutwater.protocol.base import log, paths
from cutwater.protocol.base import records as r
from cutwater.protocol.base.log import AppendPhase
from cutwater.protocol.base.wire import Phase
from cutwater.protocol.leader import (
    campaign,
    leader,
)
from cutwater.protocol.member import (
    journal,
)
from tests.support.planted.registry import Patch, bug, patch_append, patch_follow

# --- rule 1: an error is not an answer -------------------------------------------------------------------


@bug
def rule_1_an_errored_append_is_taken_as_failed(patch: Patch) -> None:
    def append(view: Any, sealed: Any) -> Any:
        answer = yield fx.Create(paths.entry_name(view.prefix, sealed.entry.index), sealed.data)
        if answer is fx.FAILED:
            return AppendPhase.VOID
        if answer is fx.CREATED:
            view.push(sealed)
            return AppendPhase.MINE
        yield from log.follow(view)
        return AppendPhase.TAKEN

    patch_append(patch, append)


@bug
def rule_1_an_existing_entry_is_taken_as_that_of_another(patch: Patch) -> None:
    def append(view: Any, sealed: Any) -> Any:
        while True:
            answer = yield fx.Create(paths.entry_name(view.prefix, sealed.entry.index), sealed.data)
            if answer is fx.CREATED:
                view.push(sealed)
                return AppendPhase.MINE
            if answer is fx.EXISTS:
                yield from log.follow(view)
                return AppendPhase.TAKEN

    patch_append(patch, append)


@bug
def rule_1_different_bytes_are_put_at_the_same_index_after_an_error(patch: Patch) -> None:
    """With a new nonce for every attempt, a writer no longer recognizes its own entry."""
    real = log.append

    def append(view: Any, sealed: Any) -> Any:
        procedure = real(view, sealed)
        effect = next(procedure)
        tries = 0
        while True:
            if isinstance(effect, fx.Create):
                tries += 1
                entry = msgspec.structs.replace(sealed.entry, nonce=f"{sealed.entry.nonce}-{tries}")
                effect = fx.Create(effect.name, view.codec.seal(entry).data)
            answer = yield effect
            try:
                effect = procedure.send(answer)
            except StopIteration as stop:
                return stop.value

    patch_append(patch, append)


# --- rule 2: leadership is a journal entry ---------------------------------------------------------------


@bug
def rule_2_a_former_leader_keeps_writing(patch: Patch) -> None:
    patch.setattr(leader.Leader, "leads", lambda self, term: True)


@bug
def rule_2_a_new_leader_does_not_void_open_epochs(patch: Patch) -> None:
    patch.setattr(journal, "_void_open", lambda state, reason, detail: None)


@bug
def rule_2_a_writer_does_not_look_for_a_snapshot(patch: Patch) -> None:
    def newest_snapshot(view: Any, index: int) -> Any:
        return 0
        yield

    patch.setattr(log, "newest_snapshot", newest_snapshot)


@bug
def rule_2_a_reader_does_not_look_for_a_snapshot_after_reading(patch: Patch) -> None:
    real = log.follow

    def follow(view: Any, heard: int = 0) -> Any:
        before = view.last
        while True:
            name = paths.entry_name(view.prefix, view.last + 1)
            data = yield from fx.insist(fx.Read(name))
            if data is None:
                break
            view.push(view.open(name, data))
        yield from real(view, heard)
        return view.last - before

    patch_follow(patch, follow)


@bug
def a_woken_member_mistakes_its_pause_for_silence_of_the_leader(patch: Patch) -> None:
    def listen(self: Any) -> Any:
        silent_ms = self.member.now_ms - self.seen_ms
        yield fx.Wait(max(self.member.config.poll_ms, self._patience_ms - silent_ms))

    patch.setattr(campaign.Campaign, "listen", listen)


# --- rule 3: every epoch has one fate --------------------------------------------------------------------


@bug
def rule_3_prepare_is_announced_before_begun_is_durable(patch: Patch) -> None:
    real = leader.Leader._begin

    def begin(self: Any, term: int, coordinator: Any, action: Any) -> Any:
        state = self.member.journal.state
        begun = r.Begun(
            term, state.generation, state.next_epoch, self.member.journal.index + 1, int(action.flags), ""
        )
        yield from self._announce(begun, Phase.PREPARE)
        return (yield from real(self, term, coordinator, action))

    patch.setattr(leader.Leader, "_begin", begin)


@bug
def the_decision_is_durable_only_after_its_announcement(patch: Patch) -> None:
    real = leader.Leader.record

    def record(self: Any, term: int, make: Any) -> Any:
        body = make(self.member.journal.index + 1)
        if isinstance(body, r.Committed):
            yield from self._announce(
                self.member.journal.state.open[body.epoch], Phase.COMMIT, watermark=body.watermark
            )
        return (yield from real(self, term, make))

    patch.setattr(leader.Leader, "record", record)


@bug
def a_committed_entry_of_a_void_epoch_counts(patch: Patch) -> None:
    """Epoch numbers begin again with each leader."""
    real = leader.Leader._begin

    def begin(self: Any, term: int, coordinator: Any, action: Any) -> Any:
        state = self.member.journal.state
        if state.next_epoch > 2 and not state.open and (state.next_epoch - 1) not in state.committed:
            state.next_epoch -= 1
        return (yield from real(self, term, coordinator, action))

    patch.setattr(leader.Leader, "_begin", begin)
