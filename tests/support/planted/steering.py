"""Catching up, steering, and what a power cut leaves."""

from __future__ import annotations

from typing import Any

import msgspec

from cutwater.protocol.base import effects as fx
from cutwater.protocol.base import log, paths
from cutwater.protocol.base import records as r
from cutwater.protocol.base.log import AppendPhase
from cutwater.protocol.base.wire import Reply, RequestKind
from cutwater.protocol.leader import (
    campaign,
    in_flight,
    requests,
    restore_tables,
    steering,
)
from cutwater.protocol.leader.refusal import Refusal
from cutwater.protocol.member import (
    catchup,
    journal,
    member,
)
from cutwater.protocol.replay import pieces, session, sources
from cutwater.protocol.replay.messages import Anchor
from tests.support.planted.registry import Patch, bug

# --- catching up -----------------------------------------------------------------------------------------


@bug
def a_late_replay_answer_is_accepted(patch: Patch) -> None:
    """Any message of a peer is taken as the answer to the last question."""

    def answered(self: Any, request_id: int, *kinds: Any) -> Any:
        request, self.request = self.request, None
        return request if request is not None and request.kind in kinds else None

    patch.setattr(sources.Source, "answered", answered)


@bug
def a_hole_in_what_a_catch_up_has_received_is_passed_over(patch: Patch) -> None:
    """What is proven is delivered, also the live entries behind those that are still missing."""

    def take(self: Any, index: int) -> Any:
        proven = [piece for piece in self.items if piece.proven and piece.first >= index]
        self.remove(proven)
        return [sealed for piece in proven for sealed in piece.entries]

    patch.setattr(pieces.Pieces, "take", take)


@bug
def a_live_entry_is_believed_because_it_was_announced(patch: Patch) -> None:
    """Nobody asks the store whether it has it."""
    real = session.ReplaySession.on_live

    def on_live(self: Any, entries: Any, now_ms: int) -> Any:
        actions = real(self, entries, now_ms)
        for piece in self.pieces.items:
            piece.proven |= piece.sender == session.LIVE
        return actions

    patch.setattr(session.ReplaySession, "on_live", on_live)


@bug
def a_catch_up_moves_its_target_to_what_is_announced(patch: Patch) -> None:
    """The announced entry is taken for the journal's end, without a look into the store."""

    def move_target(self: Any, session: Any) -> Any:
        self._heard, live = 0, [p for p in session.pieces.items if p.sender == ""]
        if not live or live[-1].last <= session.target.index:
            return []
        yield fx.Sleep(1)
        return session.retarget(Anchor(live[-1].last, live[-1].entries[-1].hash), self._now_ms())

    patch.setattr(catchup.CatchUp, "_move_target", move_target)


@bug
def a_member_acts_before_it_has_caught_up(patch: Patch) -> None:
    """It acts on every entry as it reads it, beginning with the first."""

    def follow_journal(self: Any) -> Any:
        while True:
            name = paths.entry_name(paths.JOURNAL_PREFIX, self.journal.index + 1)
            data = yield from fx.insist(fx.Read(name))
            if data is None:
                yield from log.follow(self.journal.view)
            else:
                self.journal.view.push(self.journal.view.open(name, data))
            yield from self.take_effect()
            yield fx.Wait(30)

    patch.setattr(member.Member, "follow_journal", follow_journal)


# --- steering: one door to the journal -------------------------------------------------------------------


@bug
def a_command_validates_only_before_it_leads(patch: Patch) -> None:
    """What was valid before may no longer be valid after somebody else led, expired or restored."""

    def command(journal: Any, name: str, nonce: Any, request: Any) -> Any:
        yield from log.follow(journal.view)
        lead = steering._Command(journal, 0, nonce)
        try:
            if request.kind is RequestKind.RESTORE:
                body: Any = yield from steering._restored(lead, request)
            else:
                body = steering._savepoint(lead, request, ())
        except Refusal as refusal:
            return Reply(request.request_id, False, None, None, refusal.detail)
        while True:
            yield from log.follow(journal.view)
            lead = steering._Command(journal, journal.state.term + 1, nonce)
            entry = r.Leader(lead.term, name, resumes=False)
            if (yield from log.append(journal.view, journal.view.seal(entry, nonce()))) is AppendPhase.MINE:
                generation = journal.state.generation + isinstance(body, r.Restored)
                late = msgspec.structs.replace(body, term=lead.term, generation=generation)
                if (yield from lead.record(lambda _, late=late: late)):  # type: ignore[misc]
                    return Reply(request.request_id, True, body.epoch)

    patch.setattr("cutwater.sim.commands.command", command)


@bug
def a_sent_entry_is_assumed_to_be_in_the_journal(patch: Patch) -> None:
    """The lead may be lost in between: then somebody else's entry is there, or none."""

    def record(self: Any, make: Any) -> Any:
        view = self.journal.view
        body = make(0)
        yield from log.append(view, view.seal(body, self._nonce()))
        self.journal.state.answers[body.request] = body.epoch
        return True

    patch.setattr(steering._Command, "record", record)


@bug
def a_request_is_carried_out_as_often_as_it_is_received(patch: Patch) -> None:
    def steer(writer: Any, request: Any, coming: Any = ()) -> Any:
        known = dict(writer.journal.state.answers)
        writer.journal.state.answers.clear()
        reply = yield from real(writer, request, coming)
        writer.journal.state.answers.update(known)
        return reply

    def answer_again(self: Any, request: Any) -> Any:
        return False
        yield

    real = steering.steer
    patch.setattr(requests, "steer", steer)
    patch.setattr(requests.Requests, "answer_again", answer_again)


@bug
def a_new_graph_is_written_in_a_separate_entry(patch: Patch) -> None:
    real = steering._Command.record

    def record(self: Any, make: Any) -> Any:
        body = make(0)
        if isinstance(body, r.Restored) and body.topology is not None:
            state = self.journal.state
            graph = r.TopologySet(self.term, state.generation, body.topology_hash, body.topology)
            yield from real(self, lambda _: graph)
        return (yield from real(self, make))

    patch.setattr(steering._Command, "record", record)


@bug
def a_command_restarts_a_drained_pipeline(patch: Patch) -> None:
    patch.setattr(steering, "Leader", lambda term, name, resumes: r.Leader(term, name))


@bug
def a_stage_is_dropped_without_being_named(patch: Patch) -> None:
    patch.setattr(steering, "check_stages", lambda *_: None)


@bug
def an_epoch_that_is_in_no_table_is_restored(patch: Patch) -> None:
    def check(*_: Any) -> Any:
        return
        yield

    patch.setattr(steering, "check_tables", check)


@bug
def changes_by_others_to_a_table_are_silently_undone(patch: Patch) -> None:
    def check(*_: Any) -> Any:
        return None
        yield

    patch.setattr(restore_tables, "_check_history", check)


@bug
def the_name_of_a_savepoint_is_taken_away(patch: Patch) -> None:
    patch.setattr(steering, "may_name", lambda state, body: True)
    patch.setattr(journal, "may_name", lambda state, body: True)


# --- what a power cut leaves ------------------------------------------------------------------------------


@bug
def a_restore_does_not_answer_the_requests_that_it_ends(patch: Patch) -> None:
    def drop_all(self: Any, coordinator: Any) -> Any:
        self.of_epoch.clear()
        return
        yield

    patch.setattr(requests.Requests, "drop_all", drop_all)


@bug
def a_candidate_uses_a_stale_term(patch: Patch) -> None:
    patch.setattr(campaign.Campaign, "_is_next", lambda self, term: True)


@bug
def an_entry_is_accepted_from_anyone_who_announces_it(patch: Patch) -> None:
    def on_announcement(self: Any, sender: str, announcement: Any) -> None:
        genuine(self, self.journal.state.leader, announcement)

    genuine = member.Member.on_announcement
    patch.setattr(member.Member, "on_announcement", on_announcement)


@bug
def in_flight_rows_are_committed_without_being_made_durable(patch: Patch) -> None:
    def secured(manifest: Any, previous: Any) -> Any:
        return manifest
        yield

    patch.setattr(in_flight, "secured", secured)
