"""Requests to a running pipeline: what all commands that control one share."""

from __future__ import annotations

import functools
import inspect
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from typing import TYPE_CHECKING, Any

from cutwater.cli.cluster_options import Peer, Secret, peer_config
from cutwater.cli.output import AsJson, StoreUrl, Timeout, command, waiting, waiting_if_slow
from cutwater.protocol.base.durations import readable, seconds
from cutwater.protocol.base.errors import UserError
from cutwater.protocol.base.wire import Request
from cutwater.runtime.store_requests import Unanswered, answered, ask_through
from cutwater.store.contract import Store
from cutwater.store.opening import open_store
from cutwater.store.presence import Presence, Watch
from cutwater.store.status import Status, read_status

if TYPE_CHECKING:
    from cutwater.cluster.config import ClusterConfig
    from cutwater.cluster.observer import Observer

CHECKING = "checking whether the pipeline is running"
MAY_BE_DONE = (
    "it may have been carried out anyway: check `cutwater checkpoints --store {store}` for what is committed and "
    "`cutwater status --store {store}` for what the stages are doing before you ask again"
)


class PipelineEnded(UserError):
    """The pipeline ended before it answered."""


class Client:
    """Sends requests to the pipeline on a store. `timeout` is a duration; with `cluster`, members are also reached over
    the network."""

    def __init__(
        self, store: Store, timeout: str = "10m", as_json: bool = False, cluster: ClusterConfig | None = None
    ) -> None:
        self.store = store
        self.as_json = as_json
        self._timeout = timeout
        self._cluster = cluster
        self._watch: Watch | None = None

    @property
    def timeout_s(self) -> float:
        return seconds(self._timeout, "timeout")

    @property
    def watch(self) -> Watch:
        """One watch for all queries: it knows more the longer it runs."""
        if self._watch is None:
            self._watch = Watch(self.store)
        return self._watch

    def running_member(self) -> Status | None:
        """A member that is running on the store: it answers over the network, or its status changes while we watch."""
        self.watch.look()
        if self._cluster is not None:
            member = self._reachable_member(self._cluster)
            if member is not None:
                return member
        with waiting_if_slow(CHECKING, self.as_json) as tick:
            return self.watch.running(tick)

    def ask(self, request: Request, what: str, member: Status | None = None) -> int | None:
        """Send a request and wait for the answer, an epoch. `member` is one that is known to be running. Raises
        `UserError` if none is running, if the request is refused or not answered in time, and `PipelineEnded` if the
        pipeline ends first."""
        member = member or self.running_member()
        if member is None:
            raise not_running(self, what)
        timeout_s = self.timeout_s
        asking = f"asking {member.pipeline} (process {member.pid} on {member.host}) to {what}"
        try:
            with (
                _interruptible(),
                waiting(asking, self.as_json),
                _observer(self._cluster, member.pipeline) as observer,
            ):

                def is_running() -> bool:
                    return bool(observer and observer.members()) or self._may_be_running()

                hint = (lambda: observer.hint("requests")) if observer is not None else (lambda: None)
                reply = ask_through(self.store, request, timeout_s, is_running, hint)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"interrupted; the request was withdrawn, but {self._may_be_done}"
            ) from None
        match reply:
            case Unanswered.NOBODY_THERE:
                raise PipelineEnded(
                    f"the pipeline ended before it answered, and the request was withdrawn; {self._may_be_done}"
                )
            case Unanswered.TIMED_OUT:
                raise UserError(
                    f"no answer within {readable(timeout_s)}, and the request was withdrawn; {self._may_be_done}. To "
                    "wait longer, use --timeout"
                )
            case Unanswered.VANISHED:
                raise UserError(
                    "the request disappeared from the store without an answer: somebody removed it, or this command was "
                    f"paused for so long that its request or the answer was cleaned up; {self._may_be_done}"
                )
            case Unanswered.UNREADABLE:
                raise UserError(
                    "the answer cannot be read: it is damaged, or the pipeline runs with another version of Cutwater; "
                    f"{self._may_be_done}"
                )
            case _:
                return answered(reply, request.kind)

    def _may_be_running(self) -> bool:
        return any(seen.presence in (Presence.RUNNING, Presence.UNKNOWN) for seen in self.watch.look())

    @property
    def _may_be_done(self) -> str:
        return MAY_BE_DONE.format(store=self.store.url)

    def _reachable_member(self, cluster: ClusterConfig) -> Status | None:
        """The status of a member that answers at the given peers, preferably the leader; `None` if nobody answers."""
        known = {status.member: status for status in read_status(self.store)}
        if not known:
            return None
        pipeline = next(iter(known.values())).pipeline
        try:
            with waiting("asking the members", self.as_json), _observer(cluster, pipeline) as observer:
                assert observer is not None
                known |= {status.member: status for status in observer.statuses()}
                reachable = [known[name] for name in observer.members() if name in known]
        except UserError:
            return None  # the status in the store decides
        return next((status for status in reachable if status.leads), reachable[0] if reachable else None)


def client_command(*, timeout: str = "10m") -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function with a `Client` as its first parameter a command. Adds the options that all of them have."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(
            *, store: str, timeout: str, as_json: bool, peer: list[str] | None, secret: str, **options: Any
        ) -> None:
            function(Client(open_store(store), timeout, as_json, peer_config(peer, secret)), **options)

        def option(name: str, kind: Any, default: object) -> inspect.Parameter:
            return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)

        _, *own = inspect.signature(function, eval_str=True).parameters.values()
        parameters = [
            option("store", StoreUrl, "./state"),
            *(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own),
            option("timeout", Timeout, timeout),
            option("as_json", AsJson, False),
            option("peer", Peer, None),
            option("secret", Secret, ""),
        ]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return command(run)

    return decorate


def not_running(client: Client, what: str) -> UserError:
    """The error for a request that needs a running pipeline."""
    return UserError(
        f"cannot {what}: {client.watch.absence()}. `cutwater status --store {client.store.url}` shows what it last "
        f"reported; `cutwater run FILE --store {client.store.url}` starts it"
    )


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM, and SIGHUP unless it is ignored (`nohup`), end a wait as Ctrl-C does: the request is withdrawn, so no
    later run acts on it."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    if current_thread() is not main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    caught = {n: handler for n, handler in before.items() if handler is not signal.SIG_IGN}
    for number in caught:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in caught.items():
            signal.signal(number, handler)


@contextmanager
def _observer(cluster: ClusterConfig | None, pipeline: str) -> Iterator[Observer | None]:
    """Links to the members, if the command was given the address of one."""
    if cluster is None:
        yield None
        return
    from cutwater.cluster.observer import Observer

    with Observer(cluster, pipeline, lambda line: None) as observer:
        yield observer
