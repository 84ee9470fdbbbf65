"""Follows the published epochs of a pipeline, from any process that can read its store."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, TypeVar

from cutwater.cluster.config import ClusterConfig, check_name
from cutwater.cluster.links import Presence
from cutwater.cluster.observer import ForCatchUp, Observer, now_ms
from cutwater.protocol.base import effects as fx
from cutwater.protocol.base.errors import StoreError, UserError
from cutwater.protocol.base.log import is_replaced
from cutwater.protocol.base.performer import perform
from cutwater.protocol.base.wire import Announcement, Heartbeat
from cutwater.protocol.follower.followed import Followed
from cutwater.protocol.follower.follower import Follower, FollowerConfig
from cutwater.store.contract import Store
from cutwater.store.local import LocalStore
from cutwater.store.opening import open_store
from cutwater.store.perform import MemberlessPerformer
from cutwater.store.status import read_status

R = TypeVar("R")
REPLACED = (
    "the store was replaced while this follower read it: it has another journal now, which has nothing to do with what "
    "was given before. Start the follower again; a position that was kept in the old store is gone with it, so a named "
    "follower begins where a new one does (after=)"
)
POLL_FOLDER_MS, POLL_BUCKET_MS = 500, 2_000
"""How often to read the journal without members that say what is new."""
POLL_WITH_MEMBERS_MS = 10_000
MARK_POLL_FOLDER_MS, MARK_POLL_BUCKET_MS = 50, 500
"""How often to look whether what is committed is published."""


def follow(
    store: str | Store,
    *,
    peers: Sequence[str] | ClusterConfig = (),
    name: str | None = None,
    after: int | str | Followed | None = None,
) -> Following:
    """Every published epoch of a pipeline in order, once, for as long as you ask for the next one; also that a restore
    has gone back to an earlier one.

    for epoch in cutwater.follow("./state", name="cache"):
        refresh(epoch.tables)

    `name`: the position is kept in the store under this name, when you ask for the next epoch. So after a crash the
    follower continues where it was, and at most the epoch that it was processing is delivered again. Only one process
    may use a name at a time. To process each epoch exactly once, store the newest one yourself, together with your
    results, and pass it as `after` to a follower without a name.

    `after`: where a follower without a position starts: after this epoch or savepoint, after `latest`, or after one that
    was delivered before. By default it starts with the oldest kept epoch.

    `peers`: addresses of members (`tcp/HOST:PORT`). They announce new epochs at once, and send those that were missed;
    without them the store is read at intervals. Give a `ClusterConfig` if the members have a secret or certificates.

    Use it as an iterator, and close it (or use `with`) if you stop early. Raises `UserError` if it cannot follow."""
    return Following(store, peers, name, after)


class Following(Iterator[Followed]):
    """The published epochs of a pipeline, one after the other. Made by `follow`. Not for several threads."""

    def __init__(
        self,
        store: str | Store,
        peers: Sequence[str] | ClusterConfig,
        name: str | None,
        after: int | str | Followed | None,
    ) -> None:
        if name is not None:
            check_name("follower", name)
        self._store = open_store(store) if isinstance(store, str) else store
        self._after = after
        self._open = ExitStack()
        self._observer = self._connect(_cluster(peers))
        self._follower = Follower(name, uuid.uuid4().hex, self._members(), self._config(), now_ms)
        self._has_begun = False
        self._is_failing = False

    def __iter__(self) -> Following:
        return self

    def __next__(self) -> Followed:
        """The next epoch; waits for it. Acknowledges the one before."""
        if not self._has_begun:
            self._tell_absent()
            self._drive(self._follower.begin(self._after))
            self._has_begun = True
        self._check_store()  # a position in another store would stop the next process
        self.acknowledge()
        try:
            return self._drive(self._follower.next())
        except StoreError:
            self._check_store()
            raise

    def acknowledge(self) -> None:
        """Keep the position: the last epoch is processed. Asking for the next one does the same."""
        self._drive(self._follower.acknowledge())

    def close(self) -> None:
        """Stop following. If the last epoch was not acknowledged, the next process with this name gets it again."""
        self._open.close()

    def __enter__(self) -> Following:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- members ----------------------------------------------------------------------------------------

    def _connect(self, cluster: ClusterConfig | None) -> Observer | None:
        if cluster is None:
            return None
        known = read_status(self._store)
        if not known:
            raise UserError(
                f"no member has run on {self._store.url} yet, so it is unknown which pipeline the members at "
                f"{', '.join(cluster.peers)} run; follow without peers, or start the pipeline first"
            )
        observer = Observer(cluster, known[0].pipeline, _log.info, may_be_alone=True)
        return self._open.enter_context(observer)

    def _members(self) -> list[str]:
        """The members that may be asked, whether or not they are there now."""
        if self._observer is None:
            return []
        return sorted({*self._observer.members(), *(status.member for status in read_status(self._store))})

    def _tell_absent(self) -> None:
        if self._observer is not None:
            present = self._observer.members()
            for name in self._members():
                if name not in present:
                    self._follower.on_presence(name, False)

    def _config(self) -> FollowerConfig:
        is_folder = isinstance(self._store, LocalStore)
        poll_ms = POLL_FOLDER_MS if is_folder else POLL_BUCKET_MS
        return FollowerConfig(
            poll_ms=poll_ms if self._observer is None else max(poll_ms, POLL_WITH_MEMBERS_MS),
            mark_poll_ms=MARK_POLL_FOLDER_MS if is_folder else MARK_POLL_BUCKET_MS,
        )

    def _check_store(self) -> None:
        """Raises `UserError` if the store has another journal than the one that was read."""
        if self._drive(is_replaced(self._follower.journal.view)):
            raise UserError(REPLACED)

    # --- driving ----------------------------------------------------------------------------------------

    def _drive(self, procedure: fx.Procedure[R]) -> R:
        if self._observer is not None:
            return self._observer.drive(self._store, procedure, self._tell)
        performer = MemberlessPerformer(self._store)
        answer: Any = None
        while True:
            try:
                effect = procedure.send(answer)
            except StopIteration as end:
                result: R = end.value
                return result
            match effect:
                case fx.Wait() | fx.Sleep():
                    time.sleep(effect.ms / 1000)
                    answer = None
                    if isinstance(effect, fx.Wait) and effect.ms >= self._config().poll_ms:
                        self._check_store()
                case fx.Send():
                    raise AssertionError(f"{effect} has no receiver")
                case _:
                    answer = self._perform(performer, effect)

    def _perform(self, performer: MemberlessPerformer, effect: fx.AnyOperation) -> Any:
        """Performs an operation on the store. Outages end, so one that fails is tried again; the log says so once."""
        try:
            answer = perform(performer, effect)
        except OSError as error:
            if not self._is_failing:
                _log.warning("the store does not answer, and is asked again and again: %s", error)
            self._is_failing = True
            return fx.FAILED
        self._is_failing = False
        return answer

    def _tell(self, sender: str, message: ForCatchUp) -> None:
        match message:
            case Announcement():
                self._follower.on_announcement(sender, message)
            case Heartbeat():
                self._follower.on_heartbeat(message)
            case Presence():
                self._follower.on_presence(sender, message.is_present)
            case _:
                self._follower.on_replay(sender, message)


_log = logging.getLogger("cutwater")


def _cluster(peers: Sequence[str] | ClusterConfig) -> ClusterConfig | None:
    if isinstance(peers, ClusterConfig):
        peers.check()
        return peers
    if isinstance(peers, str):
        raise UserError(f"peers is a list of addresses: write peers=[{peers!r}]")
    if not peers:
        return None
    config = ClusterConfig(peers=tuple(peers))
    config.check()
    return config
