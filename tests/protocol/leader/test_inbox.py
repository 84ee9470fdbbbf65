"""Which requests from outside are carried out, and how often the leader is given one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from cutwater.protocol.base.wire import Request, RequestKind
from cutwater.protocol.leader.inbox import FORSAKEN_S, LOOKED_AWAY_S, Arrivals, Inbox, Verdict
from cutwater.protocol.leader.leader import LeaderPhase


def asked(request_id: str = "r", renewed: int = 0) -> Request:
    return Request(RequestKind.CHECKPOINT, request_id, renewed=renewed)


def arrivals(*at_start: str) -> Arrivals:
    seen = Arrivals()
    assert not seen.is_ready
    seen.look_first(at_start)
    assert seen.is_ready
    return seen


def look(seen: Arrivals, now_s: float, renewed: int = 0, is_answered: bool = False) -> Verdict:
    seen.look(["r"], now_s)
    return seen.judge("r", asked(renewed=renewed), is_answered, now_s)


def look_for_long(seen: Arrivals, now_s: float, renewed: int = 0) -> Verdict:
    """Looks until a request that nobody renews is given up."""
    end_s = now_s + FORSAKEN_S
    while now_s < end_s:
        assert look(seen, now_s, renewed) is Verdict.DOUBTFUL
        now_s += LOOKED_AWAY_S
    return look(seen, now_s, renewed)


def test_a_request_that_arrives_is_carried_out_at_once() -> None:
    assert look(arrivals(), 5.0) is Verdict.CARRY_OUT


def test_a_request_that_was_there_at_the_start_counts_once_it_is_renewed() -> None:
    seen = arrivals("r")
    assert look(seen, 5.0, renewed=3) is Verdict.DOUBTFUL
    assert look(seen, 6.0, renewed=4) is Verdict.CARRY_OUT


def test_a_request_that_was_renewed_before_it_was_first_read_is_doubtful() -> None:
    seen = arrivals()
    assert look(seen, 5.0, renewed=1) is Verdict.DOUBTFUL
    assert look(seen, 6.0, renewed=2) is Verdict.CARRY_OUT


def test_a_request_that_nobody_renews_is_forsaken() -> None:
    assert look_for_long(arrivals("r"), 5.0) is Verdict.FORSAKEN
    assert look_for_long(arrivals(), 5.0, renewed=1) is Verdict.FORSAKEN


def test_time_in_which_nobody_looked_does_not_count() -> None:
    seen = arrivals("r")
    assert look(seen, 5.0) is Verdict.DOUBTFUL
    assert look(seen, 5.0 + 10 * FORSAKEN_S) is Verdict.DOUBTFUL
    assert look_for_long(seen, 6.0 + 10 * FORSAKEN_S) is Verdict.FORSAKEN


def test_a_request_that_has_gone_is_forgotten() -> None:
    seen = arrivals("r")
    look(seen, 5.0)
    seen.look([], 6.0)
    assert seen.doubtful == {}


def test_an_answered_request_is_not_carried_out_again() -> None:
    assert look(arrivals(), 5.0, is_answered=True) is Verdict.ANSWERED
    assert arrivals().judge("r", None, True, 5.0) is Verdict.ANSWERED


def test_a_request_that_cannot_be_read_or_has_another_name_is_refused() -> None:
    assert arrivals().judge("r", None, False, 5.0) is Verdict.UNREADABLE
    assert arrivals().judge("r", asked("other"), False, 5.0) is Verdict.UNREADABLE


class Leading:
    """A leader that collects the requests that it is given."""

    def __init__(self) -> None:
        self.phase = LeaderPhase.LEADING
        self.coordinator: Any = object()
        self.heard: list[str] = []
        state = SimpleNamespace(term=1, leader="me")
        topology = SimpleNamespace(members=lambda: ("me", "you"))
        self.member = SimpleNamespace(name="me", topology=topology, journal=SimpleNamespace(state=state))

    def on_message(self, request: Request) -> None:
        self.heard.append(request.request_id)

    def follow(self, leader: str | None) -> None:
        self.phase, self.coordinator = LeaderPhase.FOLLOWING, None
        self.member.journal.state.leader = leader

    def lead(self, term: int) -> None:
        self.phase, self.coordinator = LeaderPhase.LEADING, object()
        self.member.journal.state.term = term


def inbox() -> tuple[Inbox, Any]:
    leader: Any = Leading()
    return Inbox(leader), leader


def test_the_leader_is_given_a_request_once_per_term() -> None:
    box, leader = inbox()
    box.take(asked())
    assert box.deliver() == box.deliver() == []
    assert leader.heard == ["r"]
    leader.lead(2)
    box.deliver()
    assert leader.heard == ["r", "r"]


def test_a_leader_without_a_coordinator_is_given_nothing_yet() -> None:
    box, leader = inbox()
    box.post(asked())
    leader.coordinator = None
    box.deliver()
    assert leader.heard == []
    leader.lead(1)
    box.deliver()
    assert leader.heard == ["r"]


def test_a_request_that_is_found_twice_is_taken_once() -> None:
    box, leader = inbox()
    box.take(asked())
    box.deliver()
    assert not box.withdraw("r")
    box.take(asked())  # the answer is not durable yet
    assert box.is_empty
    assert box.is_from_store("r")
    box.answer_written("r")
    assert box.known == set()
    box.take(asked())
    box.deliver()
    assert leader.heard == ["r", "r"]


def test_requests_of_this_process_go_to_the_store_if_another_member_leads() -> None:
    box, leader = inbox()
    leader.follow("you")
    box.post(asked())
    assert box.deliver() == [asked()]
    assert box.deliver() == []
    assert (box.forwarded, box.known) == ({"r": asked()}, {"r"})
    assert box.withdraw("r")
    assert box.forwarded == {}
    assert box.is_empty
    assert not box.withdraw("r")


def test_a_request_is_kept_while_nobody_leads_or_a_stranger_does() -> None:
    box, leader = inbox()
    box.post(asked())
    for name in (None, "me", "command-1"):
        leader.follow(name)
        assert box.deliver() == []
    assert not box.is_empty
    assert box.known == set()


def test_a_former_leader_leaves_what_it_found_in_the_store_to_the_next() -> None:
    box, leader = inbox()
    box.take(asked())
    box.deliver()
    leader.follow("you")
    assert box.deliver() == []
    assert box.is_empty
    assert box.known == set()
    leader.lead(3)
    box.take(asked())
    box.deliver()
    assert leader.heard == ["r", "r"]


def test_only_a_leader_looks_for_requests() -> None:
    box, leader = inbox()
    assert box.leads
    leader.follow("you")
    assert not box.leads
