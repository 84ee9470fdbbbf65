"""A process that observes a cluster without being a member, for commands on a machine where no member runs.

It reads the journal from the members and uses the store only to verify it, receives the status of each member, and can
prompt the leader to look for requests.
"""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Callable
from threading import Event
from typing import Any, TypeVar

import msgspec

from cutwater.cluster.config import ClusterConfig
from cutwater.cluster.kv import COMMAND
from cutwater.cluster.links import Heard, Links, Presence
from cutwater.cluster.zenoh_kv import ZenohKv
from cutwater.protocol.base import effects as fx
from cutwater.protocol.base.errors import UserError
from cutwater.protocol.base.performer import Performer, perform
from cutwater.protocol.base.replay_wire import Message as ReplayMessage
from cutwater.protocol.base.wire import Announcement, Heartbeat
from cutwater.protocol.member.catchup import CatchUp
from cutwater.protocol.member.journal import Journal
from cutwater.protocol.replay.messages import ReplayConfig
from cutwater.store.contract import Store
from cutwater.store.perform import MemberlessPerformer
from cutwater.store.status import Status

JOIN_S = 10.0
SMALL_GAP = 8
STATUS = "status"
MAX_HEARD = 10_000
"""Messages that are kept while nobody takes them; older ones are dropped, as if they were lost."""
R = TypeVar("R")

ForCatchUp = ReplayMessage | Announcement | Heartbeat | Presence


class Observer:
    """The links of a process that is not a member. Raises `UserError` if it finds no member, unless it `may_be_alone`:
    then it continues without one, and notices members that appear later."""

    def __init__(
        self, config: ClusterConfig, pipeline: str, notify: Callable[[str], None], may_be_alone: bool = False
    ) -> None:
        self._notify = notify
        self._news = Event()
        self._heard: deque[tuple[str, ForCatchUp]] = deque(maxlen=MAX_HEARD)
        self.name = f"{COMMAND}{uuid.uuid4().hex[:8]}"
        self.links = Links(ZenohKv(config, pipeline, self.name, "1", notify), notify)
        self.links.start(self._on_message)
        deadline = time.monotonic() + JOIN_S
        while not self.members() and time.monotonic() < deadline:
            self._news.wait(0.05)
        if not self.members() and not may_be_alone:
            self.close()
            raise UserError(
                f"no member of '{pipeline}' answered at {', '.join(config.peers)} within {JOIN_S:g} s: check that one "
                "listens there and has the same secret (--secret @FILE or CUTWATER_SECRET)"
            )

    def __enter__(self) -> Observer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.links.close()

    def members(self) -> list[str]:
        """The members that are present."""
        return [name for name in self.links.alive() if not name.startswith(COMMAND)]

    def hint(self, topic: str) -> None:
        self.links.hint(topic)

    def statuses(self) -> list[Status]:
        """The members' current status."""
        found = []
        for data in self.links.scan(STATUS).values():
            try:
                found.append(msgspec.json.decode(data, type=Status))
            except ValueError:
                continue
        return sorted(found, key=lambda s: s.member)

    def read_journal(self, store: Store) -> Journal:
        """Reads the journal, as far as possible from the members. Reports its progress."""
        journal = Journal()
        catch_up = CatchUp(journal, self.members(), ReplayConfig(), SMALL_GAP, now_ms)

        def tell(sender: str, message: ForCatchUp) -> None:
            _tell(catch_up, sender, message)
            if catch_up.session is not None:
                self._notify(str(catch_up.session.progress()))

        self.drive(store, catch_up.run(), tell)
        return journal

    def drive(self, store: Store, procedure: fx.Procedure[R], tell: Callable[[str, ForCatchUp], None]) -> R:
        """Runs a procedure that needs the store and the members. `tell` is called between two effects with each message
        and its sender; a wait ends when there is one."""
        performer = MemberlessPerformer(store)
        answer: Any = None
        while True:
            for sender, message in self._take():
                tell(sender, message)
            try:
                effect = procedure.send(answer)
            except StopIteration as end:
                result: R = end.value
                return result
            answer = self._perform(performer, effect)

    def _perform(self, performer: Performer, effect: fx.Effect) -> Any:
        match effect:
            case fx.Send():
                assert effect.to is not None
                return self.links.send(effect.to, effect.message)
            case fx.Wait():
                self._news.wait(effect.ms / 1000)
                return None
            case fx.Sleep():
                time.sleep(effect.ms / 1000)
                return None
            case _:
                try:
                    return perform(performer, effect)
                except OSError:
                    return fx.FAILED

    def _on_message(self, sender: str, message: Heard) -> None:
        """Keeps only what a catch-up needs: the rest is for members."""
        if isinstance(message, ForCatchUp):
            self._heard.append((sender, message))
        self._news.set()

    def _take(self) -> list[tuple[str, ForCatchUp]]:
        self._news.clear()
        heard, self._heard = self._heard, deque(maxlen=MAX_HEARD)
        return list(heard)


def _tell(catch_up: CatchUp, sender: str, message: ForCatchUp) -> None:
    match message:
        case Announcement():
            catch_up.on_announcement(sender, message)
        case Heartbeat():
            catch_up.on_heartbeat(message)
        case Presence():
            catch_up.on_presence(sender, message.is_present)
        case _:
            catch_up.on_message(sender, message)


def now_ms() -> int:
    return int(time.monotonic() * 1000)
