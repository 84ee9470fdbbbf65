"""Requests from outside: which of those in the store are carried out, and when the leader is given one.

A request is an object in the store, or comes from this process. The leader is given each once per term, so that no
request is lost with a term. If another member leads, the requests of this process go to the store, where the leader
finds them.

A request that a process did not see arrive, because it was there at the start or had been renewed before it was first
read, may be that of a command that was killed. Somebody waits for it once the process has seen it renewed, and nobody
does if that does not happen for a while. No clock of another machine is read for that.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

from cutwater.protocol.base.wire import Request
from cutwater.protocol.leader.leader import Leader, LeaderPhase

FORSAKEN_S = 60.0
"""A request that this process did not see arrive is removed if nobody renews it for so long."""
LOOKED_AWAY_S = 10.0
"""After a longer pause between two looks, of this process or of the store, that time begins again."""


class Verdict(Enum):
    """What becomes of a request in the store. `ANSWERED`: its leader ended after the answer, before it removed the
    request. `DOUBTFUL`: it stays there, as somebody may wait for the answer. `FORSAKEN`: nobody does."""

    CARRY_OUT = "carry out"
    ANSWERED = "answered"
    UNREADABLE = "unreadable"
    DOUBTFUL = "doubtful"
    FORSAKEN = "forsaken"


class Arrivals:
    """The requests that one process has seen in the store, by id. One thread uses it."""

    def __init__(self) -> None:
        self._at_start: set[str] | None = None
        self.doubtful: dict[str, tuple[int, float]] = {}
        """Per request that this process did not see arrive: how often it was renewed, and since when nobody has renewed
        it."""
        self.looked_s = 0.0
        """When it last looked."""

    @property
    def is_ready(self) -> bool:
        """Whether it is known which requests were there at the start."""
        return self._at_start is not None

    def look_first(self, requests: Collection[str]) -> None:
        """These requests were in the store when the process started."""
        self._at_start = set(requests)

    def look(self, requests: Collection[str], now_s: float) -> None:
        """These requests are in the store now."""
        looked_away = now_s - self.looked_s > LOOKED_AWAY_S
        self.looked_s = now_s
        self.doubtful = {
            request: (renewed, now_s if looked_away else since)
            for request, (renewed, since) in self.doubtful.items()
            if request in requests
        }

    def judge(self, request_id: str, request: Request | None, is_answered: bool, now_s: float) -> Verdict:
        """What becomes of a request with this name. `request` is its content, `None` if that cannot be read."""
        if is_answered:
            return Verdict.ANSWERED
        if request is None or request.request_id != request_id:
            return Verdict.UNREADABLE
        return self._whether_forsaken(request_id, request.renewed, now_s)

    def _whether_forsaken(self, request_id: str, renewals: int, now_s: float) -> Verdict:
        assert self._at_start is not None
        if request_id not in self._at_start and renewals == 0:
            return Verdict.CARRY_OUT
        before, since = self.doubtful.setdefault(request_id, (renewals, now_s))
        if renewals != before:
            self._at_start.discard(request_id)
            del self.doubtful[request_id]
            return Verdict.CARRY_OUT
        return Verdict.FORSAKEN if now_s - since >= FORSAKEN_S else Verdict.DOUBTFUL


class Inbox:
    """The requests of one process that have no answer yet. Everything here is called in a turn."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self._pending: dict[str, Request] = {}
        self._given: dict[str, int] = {}
        """Per request: the term in which the leader was given it."""
        self._from_store: set[str] = set()
        """The requests that this member handles as leader and whose answers are not durable yet."""
        self._forwarded: set[str] = set()
        """The requests of this process that are in the store, for another member."""

    @property
    def leads(self) -> bool:
        """Whether this member handles the requests in the store."""
        return self._leader.phase is LeaderPhase.LEADING

    @property
    def is_empty(self) -> bool:
        """Whether no request waits, so that `deliver` has nothing to do."""
        return not self._pending

    @property
    def known(self) -> set[str]:
        """The requests in the store that need no look: they are handled, or are of this process."""
        return self._from_store | self._forwarded

    @property
    def forwarded(self) -> dict[str, Request]:
        """The requests of this process that another member is to carry out: they must be renewed."""
        return {i: self._pending[i] for i in sorted(self._forwarded)}

    def post(self, request: Request) -> None:
        """Takes a request of this process."""
        self._pending[request.request_id] = request

    def take(self, request: Request) -> None:
        """Takes a request from the store, which is to be carried out."""
        if request.request_id not in self.known:
            self._from_store.add(request.request_id)
            self._pending[request.request_id] = request

    def deliver(self) -> list[Request]:
        """Gives the leader the requests that it has not been given in this term. If another member leads, returns the
        requests to write to the store."""
        leader, term = self._leader, self._leader.member.journal.state.term
        if leader.phase is LeaderPhase.LEADING and leader.coordinator is not None:
            for request_id, request in list(self._pending.items()):
                if self._given.get(request_id) != term:
                    self._given[request_id] = term
                    leader.on_message(request)
        elif leader.phase is LeaderPhase.FOLLOWING and self._others_lead():
            return self._hand_over()
        return []

    def _others_lead(self) -> bool:
        member = self._leader.member
        return member.journal.state.leader in set(member.topology.members()) - {member.name}

    def _hand_over(self) -> list[Request]:
        for request_id in self._from_store & self._pending.keys():  # the new leader finds it in the store
            self._forget(request_id)
            self._from_store.discard(request_id)
        fresh = [r for i, r in self._pending.items() if i not in self._forwarded]
        self._forwarded |= {r.request_id for r in fresh}
        return fresh

    def is_from_store(self, request_id: str) -> bool:
        """Whether the answer to this request must be written to the store (then call `answer_written`)."""
        return request_id in self._from_store

    def answer_written(self, request_id: str) -> None:
        """The answer is durable, and the request is removed."""
        self._from_store.discard(request_id)

    def withdraw(self, request_id: str) -> bool:
        """The request is answered, or nobody of this process waits for it any more. Returns whether this process has
        written it to the store, and must remove it."""
        self._forget(request_id)
        was_forwarded = request_id in self._forwarded
        self._forwarded.discard(request_id)
        return was_forwarded

    def _forget(self, request_id: str) -> None:
        self._pending.pop(request_id, None)
        self._given.pop(request_id, None)
