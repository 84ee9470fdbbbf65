"""Leadership: who leads, and what the leader does.

Leadership is a journal entry (rule 2): the member that wrote the latest LEADER leads. Heartbeats only decide when to
try. A leader whose term is over finds its next place in the journal taken, reads why, and stops. Nothing that it had
begun can still commit, because the new LEADER entry made it void.

The leader's actor is sequential: it performs one action of the coordinator after the other, and announces each only when
it is durable.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import assert_never

import msgspec

from cutwater.protocol.base.barrier import Barrier, Flags
from cutwater.protocol.base.chain import digest
from cutwater.protocol.base.effects import Procedure, Send, Wait
from cutwater.protocol.base.events import LeadershipLost, ManifestWritten
from cutwater.protocol.base.log import AppendPhase, append, follow
from cutwater.protocol.base.records import (
    Aborted,
    Begun,
    Committed,
    JournalBody,
    TopologySet,
    encode,
)
from cutwater.protocol.base.transitions import Table
from cutwater.protocol.base.wire import (
    NO_ENTRY,
    Ack,
    Announcement,
    Heartbeat,
    Phase,
    Request,
    RequestKind,
    SourcesDone,
)
from cutwater.protocol.leader.campaign import Campaign
from cutwater.protocol.leader.coordinator import Coordinator
from cutwater.protocol.leader.coordinator_actions import (
    Abort,
    Action,
    Begin,
    CoordinatorConfig,
    Decide,
    Refuse,
    TurnUnaligned,
)
from cutwater.protocol.leader.decision import write_manifest
from cutwater.protocol.leader.housekeeping import Housekeeper
from cutwater.protocol.leader.refusal import Refusal
from cutwater.protocol.leader.requests import Requests, is_steering
from cutwater.protocol.leader.sources import Sources
from cutwater.protocol.member.journal import since_full
from cutwater.protocol.member.member import Member

MAX_INBOX = 10_000
"""How many messages may be queued for a leader; further acks are sent again, further requests must be repeated."""

SOURCES_RESENDS = 10
"""For how many resend intervals a member's message that its sources are exhausted is valid."""

STUCK_TIMEOUTS = 10
"""After so many leader timeouts in one step, a leader stops sending heartbeats."""


class LeaderPhase(Enum):
    FOLLOWING = "following"
    CAMPAIGNING = "campaigning"
    LEADING = "leading"


LEADERSHIP = Table(
    "leadership",
    "Leadership of one member",
    LeaderPhase.FOLLOWING,
    {
        (LeaderPhase.FOLLOWING, "leader_silent"): LeaderPhase.CAMPAIGNING,
        (LeaderPhase.CAMPAIGNING, "entry_is_mine"): LeaderPhase.LEADING,
        (LeaderPhase.CAMPAIGNING, "place_taken"): LeaderPhase.FOLLOWING,
        (LeaderPhase.LEADING, "term_over"): LeaderPhase.FOLLOWING,
    },
)


class LeaderConfig(msgspec.Struct, frozen=True):
    """`timeout_ms`: silence after which a member tries to lead; members later in the order of names wait a little
    longer, so that not all try at once. `heartbeat_ms`: how often a leader sends heartbeats."""

    timeout_ms: int
    heartbeat_ms: int
    coordinator: CoordinatorConfig


class Leader:
    """The leadership of one member: the actor `run`, and the messages for it."""

    def __init__(self, member: Member, config: LeaderConfig) -> None:
        self.member = member
        self.config = config
        self.phase = LEADERSHIP.start
        self.coordinator: Coordinator | None = None
        self._requests = Requests(self, 0)
        self._sources = Sources(SOURCES_RESENDS * member.config.resend_ms)
        self._inbox: dict[tuple[object, ...], Ack | Request] = {}
        self._campaign = Campaign(member, config.timeout_ms, config.heartbeat_ms)
        self._round_ms = 0

    # --- messages -------------------------------------------------------------------------------------

    def on_message(self, message: Ack | Request) -> None:
        """Queues an ack or a request for the actor, once however often it is sent. Ignored if this member does not
        lead."""
        if self.phase is LeaderPhase.LEADING and len(self._inbox) < MAX_INBOX:
            match message:
                case Ack():
                    what: tuple[object, ...] = (
                        message.member,
                        message.boot,
                        message.checkpoint_id,
                        message.term,
                    )
                case Request():
                    what = (message.request_id,)
                case _:
                    assert_never(message)
            self._inbox.setdefault(what, message)
            self.member.wake("lead")

    def on_sources_done(self, message: SourcesDone) -> None:
        """With `once`: the sources of another member are exhausted."""
        self._sources.hear(message, self.member.now_ms)
        self.member.wake("lead")

    def on_heartbeat(self, heartbeat: Heartbeat) -> None:
        """Handles a heartbeat, which shows that there is a leader."""
        self._campaign.on_heartbeat(heartbeat)

    # --- following and campaigning ----------------------------------------------------------------------

    def run(self) -> Procedure[None]:
        """The actor: waits while another member leads, campaigns when none does, leads."""
        self._campaign.wait_anew()
        while True:
            if not self._campaign.is_due:
                yield from self._campaign.listen()
                continue
            self._step("leader_silent")
            term = yield from self._campaign.run()
            self._campaign.wait_anew()
            if term is None:
                self._step("place_taken")
                continue
            self._step("entry_is_mine")
            self._round_ms = self.member.now_ms
            self.member.wake("beat")
            yield from self._lead(term)
            self.member.observe(LeadershipLost(term, self.member.journal.state.leader or ""))
            self._step("term_over")
            self._campaign.wait_anew()

    def _step(self, event: str) -> None:
        self.phase = LEADERSHIP.next(self.phase, event)

    # --- leading --------------------------------------------------------------------------------------

    def _lead(self, term: int) -> Procedure[None]:
        self._inbox.clear()
        self._requests = Requests(self, term)
        if not (yield from self._set_topology(term)):
            return
        coordinator = self._new_coordinator(term)
        housekeeper = Housekeeper(self, term, self.config.coordinator.retained)
        while self.leads(term):
            self._round_ms = self.member.now_ms
            actions: list[Action] = coordinator.tick(self.member.now_ms)
            if self.member.wants_rest or self._sources_are_done():
                actions += coordinator.want_drain(self.member.now_ms)
            while self._inbox and not actions:
                message = self._inbox.pop(next(iter(self._inbox)))
                if isinstance(message, Ack):
                    actions = coordinator.on_ack(message, self.member.now_ms)[1]
                elif (yield from self._requests.answer_again(message)):
                    continue
                elif is_steering(message):
                    done = yield from self._requests.steer(message, coordinator)
                    if done and message.kind is RequestKind.RESTORE:
                        yield from self._requests.drop_all(coordinator)
                        coordinator = self._new_coordinator(term)
                elif message.kind is RequestKind.SAVEPOINT and self._requests.is_taken(message, coordinator):
                    yield from self._requests.refuse_name(message)
                else:
                    actions = self._request(coordinator, message)
                    if message.kind is RequestKind.CANCEL:
                        self.member.wants_rest = False
                        yield from self._requests.grant_cancel(message, actions)
            if actions:
                yield from self._perform_all(term, coordinator, actions)
            else:
                yield from housekeeper.do_next()
                yield Wait(self._rest_ms(coordinator))
        self.coordinator = None

    def _sources_are_done(self) -> bool:
        """With `once`: whether all sources are exhausted, so that the pipeline should be drained."""
        member = self.member
        others = [name for name in member.topology.members() if name != member.name]
        generation = member.journal.state.generation
        return member.sources_done and self._sources.all_done(others, generation, member.now_ms)

    def _rest_ms(self, coordinator: Coordinator) -> int:
        """The time until the next checkpoint is due or one in progress is late, but at most the poll interval."""
        next_ms = coordinator.next_ms()
        due_ms = self.member.config.poll_ms if next_ms is None else next_ms - self.member.now_ms
        return max(1, min(due_ms, self.member.config.poll_ms))

    def leads(self, term: int) -> bool:
        return self.member.journal.state.term == term

    def _new_coordinator(self, term: int) -> Coordinator:
        state = self.member.journal.state
        self.coordinator = Coordinator(
            self.config.coordinator,
            self.member.topology.members(),
            term,
            self.member.now_ms,
            since_full=since_full(state),
            drained=state.drained,
        )
        return self.coordinator

    def record(self, term: int, make: Callable[[int], JournalBody]) -> Procedure[bool]:
        """Appends what `make` returns for the next place; `False` if this term is over.

        Only this leader writes in its term, so what it has decided stays valid until it is written.
        """
        view = self.member.journal.view
        while self.leads(term):
            body = make(view.last + 1)
            if (yield from append(view, view.seal(body, self.member.nonce()))) is AppendPhase.MINE:
                yield from self.member.take_effect()
                return True
            yield from follow(view)
        return False

    def _set_topology(self, term: int) -> Procedure[bool]:
        topology = self.member.topology
        wanted = digest(encode(topology))
        state = self.member.journal.state
        if state.topology is not None:
            return True
        generation = state.generation
        return (yield from self.record(term, lambda _: TopologySet(term, generation, wanted, topology)))

    def beat(self) -> Procedure[None]:
        """The actor that sends heartbeats, and open epochs again in case an announcement was lost. It is separate from
        `run`, so that a leader that waits for a slow store is not taken for dead; but one that is stuck for long stops
        sending heartbeats, and others may try."""
        member = self.member
        while True:
            if self._is_in_charge():
                term, index = member.journal.state.term, member.journal.index
                yield Send(None, Heartbeat(member.name, member.boot, term, index))
                for begun in list(member.journal.state.open.values()):
                    yield from self._announce(begun, Phase.PREPARE)
                yield Wait(self.config.heartbeat_ms)
            else:
                yield Wait(self.config.timeout_ms)

    def _is_in_charge(self) -> bool:
        stuck = self.member.now_ms - self._round_ms > STUCK_TIMEOUTS * self.config.timeout_ms
        leads = self.phase is LeaderPhase.LEADING and self.member.journal.state.leader == self.member.name
        return leads and not stuck

    def _announce(
        self,
        begun: Begun,
        phase: Phase,
        flags: int = 0,
        watermark: int | None = None,
        reason: str | None = None,
    ) -> Procedure[None]:
        """Announces something that is durable to all members, including this one."""
        newest = self.member.journal.view.entries[-1]
        is_snapshot = newest.entry.snapshot == newest.entry.index  # large, and nobody waits for it
        flags |= begun.flags
        if phase is Phase.PREPARE and begun.checkpoint_id in self.member.unaligned:
            flags |= Flags.UNALIGNED
        announcement = Announcement(
            phase,
            Barrier(begun.checkpoint_id, begun.epoch, Flags(flags)).pack(),
            begun.term,
            begun.generation,
            self.member.journal.index,
            watermark,
            reason,
            NO_ENTRY if is_snapshot else msgspec.Raw(newest.data),
        )
        self.member.on_announcement(self.member.name, announcement)
        yield Send(None, announcement)

    # --- the coordinator's actions ----------------------------------------------------------------------

    def _request(self, coordinator: Coordinator, request: Request) -> list[Action]:
        now_ms = self.member.now_ms
        match request.kind:
            case RequestKind.SAVEPOINT:
                name = request.name or request.request_id
                return coordinator.request_savepoint(name, now_ms, request.request_id)
            case RequestKind.DRAIN:
                return coordinator.request_drain(now_ms, request.request_id)
            case RequestKind.CANCEL:
                return coordinator.cancel(now_ms, request.request_id)
            case _:
                return coordinator.request_checkpoint(
                    now_ms, request.request_id, request.full, request.unaligned
                )

    def _perform_all(self, term: int, coordinator: Coordinator, actions: list[Action]) -> Procedure[None]:
        queue = list(actions)
        while queue and self.leads(term):
            action = queue.pop(0)
            match action:
                case Begin():
                    queue += yield from self._begin(term, coordinator, action)
                case TurnUnaligned():
                    begun = self.member.journal.state.open.get(action.epoch)
                    if begun is not None:
                        self.member.unaligned.add(begun.checkpoint_id)
                        yield from self._announce(begun, Phase.PREPARE)
                case Decide():
                    queue += yield from self._decide(term, coordinator, action)
                case Abort():
                    queue += yield from self._abort(term, coordinator, action)
                case Refuse():
                    yield from self._requests.refuse((action.request_id,), action.reason, action.detail)
                case _:
                    assert_never(action)

    def _begin(self, term: int, coordinator: Coordinator, begin: Begin) -> Procedure[list[Action]]:
        """BEGUN is durable before PREPARE is announced, so numbers are never reused (rule 3)."""
        state = self.member.journal.state
        epoch, generation, topology_hash = state.next_epoch, state.generation, state.topology_hash

        def body(index: int) -> Begun:
            return Begun(
                term,
                generation,
                epoch,
                index,
                int(begin.flags),
                topology_hash,
                begin.savepoint,
                begin.requests,
            )

        if not (yield from self.record(term, body)):
            return []
        begun = self.member.journal.state.open.get(epoch)
        if begun is None:  # the entry of another leader follows it
            return []
        self._requests.of_epoch[epoch] = begin.requests
        actions = coordinator.begun(epoch, begun.checkpoint_id, self.member.now_ms)
        if not any(isinstance(a, Abort) and a.epoch == epoch for a in actions):
            yield from self._announce(begun, Phase.PREPARE)
        return actions

    def _abort(self, term: int, coordinator: Coordinator, abort: Abort) -> Procedure[list[Action]]:
        epoch, reason, detail, request = abort.epoch, abort.reason, abort.detail, abort.request
        begun = self.member.journal.state.open.get(epoch)
        if begun is None:  # this term is over, and so is the epoch
            return []
        body = Aborted(
            term, begun.generation, epoch, begun.checkpoint_id, reason.value, detail, request, abort.late
        )
        if not (yield from self.record(term, lambda _: body)):
            return []
        yield from self._announce(begun, Phase.ABORT, int(abort.flags), reason=reason.value)
        if coordinator.stays_asked(epoch, reason):
            self._requests.of_epoch.pop(epoch, None)
        else:
            yield from self._requests.refuse_epoch(epoch, reason, detail)
        if request:
            yield from self._requests.grant(request)
        return coordinator.aborted(epoch, self.member.now_ms, reason, detail)

    def _decide(self, term: int, coordinator: Coordinator, decide: Decide) -> Procedure[list[Action]]:
        """Commits, if the acks form a consistent cut: creating COMMITTED is the commit."""
        member = self.member
        begun = member.journal.state.open.get(decide.epoch)
        if begun is None:
            return []
        try:
            written = yield from write_manifest(member, begun, decide.acks, lambda: self.leads(term))
        except Refusal as why:
            abort = Abort(decide.epoch, decide.checkpoint_id, why.reason, why.detail)
            return (yield from self._abort(term, coordinator, abort))
        if written is None:
            return []
        manifest, data = written
        member.observe(ManifestWritten(begun.epoch))
        body = Committed(
            term,
            begun.generation,
            begun.epoch,
            begun.checkpoint_id,
            digest(data),
            manifest.watermark,
            {name: report.batch for name, report in manifest.stages.items()},
        )
        if not (yield from self.record(term, lambda _: body)):
            return []
        if member.journal.state.head == begun.epoch:
            member.manifest = manifest
        yield from self._announce(begun, Phase.COMMIT, watermark=manifest.watermark)
        yield from self._requests.grant_epoch(begun.epoch)
        return coordinator.committed(begun.epoch, member.now_ms)
