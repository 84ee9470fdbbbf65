"""Whoever asks a running pipeline for something through the store, and may be killed before the answer.

Each process decides with the product's own `Arrivals` and `Inbox` what becomes of a request, at every look into the
store. Time is compressed: `SECONDS_PER_MS` of a process's time pass in a virtual millisecond, for requests only.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import assert_never

import msgspec

from cutwater.protocol.base.wire import Reply, Request
from cutwater.protocol.leader.inbox import Verdict
from cutwater.sim.oracle import WatchedScene
from cutwater.sim.scene import ProcessView

SECONDS_PER_MS = 0.02
"""So a request that nobody renews is removed after 3,000 ms, and a process that has not looked for 500 ms begins to
count anew."""
LOOK_MS = (50, 400)
"""How often a leader looks for a request, and whoever waits renews it."""


class Askers:
    """The requests in the store, and who waits for their answers."""

    def __init__(self, world: WatchedScene) -> None:
        self.world = world
        self.unanswered: dict[str, Request] = {}
        """The requests without an answer; `renewed` counts how often each was renewed."""
        self.dead_ms: dict[str, int] = {}
        """Per request whose asker was killed: when."""
        self._members: dict[str, ProcessView] = {}
        """The requests that a process of the pipeline has made, and not written to the store."""
        self._given: set[tuple[ProcessView, int, str]] = set()
        """The processes that have given a request to their leaders since they last answered it, and in which term."""
        self._fates = Random(world.seed)

    # --- who asks -------------------------------------------------------------------------------------

    def ask(self, request: Request, may_die: bool) -> None:
        """Somebody asks: a command, through the store, or a process of the pipeline. Then the leaders look for the
        request until it is answered, withdrawn or removed."""
        request_id = request.request_id
        self.unanswered[request_id] = self.world.requests[request_id] = request
        if may_die and self._fates.random() < self.world.faults.asker_dies:
            running = [p for p in self.world.processes if not p.paused]
            if running and self._fates.random() < 0.4:
                asker = self._members[request_id] = self._fates.choice(running)
                asker.inbox.post(request)
            else:
                self.world.schedule(self._fates.randint(1, 400), self._die, request_id)
        self._look(request_id)

    def withdraw(self, request_id: str) -> None:
        """Whoever asks stops waiting, and removes the request. The dead remove nothing."""
        if request_id not in self.dead_ms:
            self._remove(request_id)

    def keep(self, request_ids: Iterable[str]) -> None:
        """Removes all requests but these, also from those who would carry them out when they lead again."""
        kept = set(request_ids)
        for request_id in set(self.unanswered) - kept:
            self._remove(request_id)
        for process in self.world.processes:
            for request_id in self.world.requests.keys() - kept:
                process.inbox.withdraw(request_id)
                process.inbox.answer_written(request_id)

    def _die(self, request_id: str) -> None:
        if request_id in self.unanswered:
            self.world.fault(f"whoever asks for {request_id} is killed")
            self.dead_ms.setdefault(request_id, self.world.now_ms)

    def _remove(self, request_id: str) -> None:
        self.unanswered.pop(request_id, None)
        asker = self._members.pop(request_id, None)
        if asker is not None:
            asker.inbox.withdraw(request_id)

    # --- the store ------------------------------------------------------------------------------------

    @property
    def stored(self) -> list[str]:
        """The requests that are in the store."""
        return [i for i in self.unanswered if i not in self._members or self._is_forwarded(i)]

    def _is_forwarded(self, request_id: str) -> bool:
        return request_id in self._members[request_id].inbox.forwarded

    def _renew(self, request_id: str) -> None:
        request = self.unanswered[request_id]
        self.unanswered[request_id] = msgspec.structs.replace(request, renewed=request.renewed + 1)

    # --- the looks of processes -------------------------------------------------------------------------

    def _look(self, request_id: str) -> None:
        if request_id not in self.unanswered:
            return
        asker = self._members.get(request_id)
        if asker is not None:
            self._attend_asker(asker, request_id)
        for process in self.world.leaders():
            if not process.paused:
                self.world.schedule(1, self._look_from, process, request_id)
        self.world.schedule(self.world.rng.randint(*LOOK_MS), self._look_again, request_id)

    def _look_again(self, request_id: str) -> None:
        if request_id in self.unanswered and request_id not in self.dead_ms:
            self._renew(request_id)
        self._look(request_id)

    def _attend_asker(self, asker: ProcessView, request_id: str) -> None:
        """A process of the pipeline waits: it gives the request to its own leader, or writes it to the store."""
        if asker.alive:
            if not asker.paused:
                asker.turn(asker.inbox.deliver)
            return
        if self._is_forwarded(request_id):
            self._die(request_id)
        else:
            self.unanswered.pop(request_id)
        del self._members[request_id]

    def _look_from(self, process: ProcessView, request_id: str) -> None:
        """A process that leads looks into the store."""
        if not process.alive or process.paused or not process.inbox.leads:
            return
        now_s, stored = self.world.now_ms * SECONDS_PER_MS, self.stored
        process.arrivals.look(stored, now_s)
        if request_id in stored and request_id not in process.inbox.known:
            request = self.unanswered[request_id]
            match process.arrivals.judge(request_id, request, False, now_s):
                case Verdict.CARRY_OUT:
                    process.inbox.take(request)
                case Verdict.FORSAKEN:
                    self.world.trace(process, f"removes {request_id}, for which nobody waits")
                    self.world.oracle.check_forsaken(process, request_id in self.dead_ms)
                    self.unanswered.pop(request_id)
                case Verdict.DOUBTFUL | Verdict.ANSWERED | Verdict.UNREADABLE:
                    pass
                case other:
                    assert_never(other)
        process.turn(process.inbox.deliver)

    def on_delivery(self, process: ProcessView, request_id: str) -> None:
        """A process gives its leader a request."""
        given = process, process.member.journal.state.term, request_id
        self.world.oracle.check_delivery(
            process, request_id, given in self._given, self.dead_ms.get(request_id)
        )
        self._given.add(given)

    def on_reply(self, process: ProcessView, reply: Reply) -> None:
        """A leader has answered. On its way to another process the answer may be lost, and then the request remains."""
        request_id = reply.request_id
        process.inbox.withdraw(request_id)
        process.inbox.answer_written(request_id)
        self._given = {given for given in self._given if given[0] is not process or given[2] != request_id}
        is_lost = self.world.rng.random() < self.world.faults.reply_lost
        if is_lost and self._members.get(request_id) is not process:
            self.world.fault("reply lost")
        else:
            self._remove(request_id)
