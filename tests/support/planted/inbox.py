"""Requests from outside: which are carried out, and how often."""

from __future__ import annotations

from typing import Any

from cutwater.protocol.leader import inbox
from tests.support.planted.registry import Patch, bug


@bug
def a_request_that_nobody_waits_for_is_carried_out(patch: Patch) -> None:
    """Every request in the store counts, also that of a command that was killed before this process started."""
    patch.setattr(inbox.Arrivals, "_whether_forsaken", lambda *_: inbox.Verdict.CARRY_OUT)


@bug
def a_request_that_nobody_waits_for_stays_for_ever(patch: Patch) -> None:
    patch.setattr(inbox, "FORSAKEN_S", float("inf"))


@bug
def a_request_is_removed_because_it_was_there_at_the_start(patch: Patch) -> None:
    """Somebody may wait for it, and renew it."""
    patch.setattr(inbox, "FORSAKEN_S", 0.0)


@bug
def a_request_is_delivered_at_every_look(patch: Patch) -> None:
    real = inbox.Inbox.deliver

    def deliver(self: Any) -> Any:
        self._given.clear()
        return real(self)

    patch.setattr(inbox.Inbox, "deliver", deliver)


@bug
def a_request_is_delivered_in_one_term_only(patch: Patch) -> None:
    """It is lost with the term."""
    real = inbox.Inbox.deliver

    def deliver(self: Any) -> Any:
        term = self._leader.member.journal.state.term
        self._given = dict.fromkeys(self._given, term)
        return real(self)

    patch.setattr(inbox.Inbox, "deliver", deliver)
