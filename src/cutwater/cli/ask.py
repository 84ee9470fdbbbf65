"""Whether a pipeline runs on a store, and asking it for something: what all commands that steer have in common."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from typing import TYPE_CHECKING

from cutwater.cli.output import patiently, waiting
from cutwater.protocol.base.durations import readable, seconds
from cutwater.protocol.base.errors import UserError
from cutwater.protocol.base.wire import Request
from cutwater.runtime.mailbox import Unanswered, answered, ask_through
from cutwater.store.contract import Store
from cutwater.store.presence import Presence, Watch
from cutwater.store.status import Status, read_status

if TYPE_CHECKING:
    from cutwater.cluster.config import ClusterConfig
    from cutwater.cluster.observer import Observer

LOOKING = "looking whether the pipeline is running"
MAY_BE_DONE = (
    "it may have been begun or even done: see `cutwater checkpoints --store {store}` for what is committed, and "
    "`cutwater status --store {store}` for what the stages are doing, before you ask again"
)


class EndedMeanwhile(UserError):
    """The pipeline ended before it answered."""


def running(store: Store, as_json: bool = False, cluster: ClusterConfig | None = None) -> Status | None:
    """A member that runs on this store now: it answers (with `cluster`), or its status changes while we look."""
    return find_running(store, Watch(store), as_json, cluster)


def find_running(store: Store, watch: Watch, as_json: bool, cluster: ClusterConfig | None) -> Status | None:
    """The same, with a watch that goes on."""
    watch.look()
    if cluster is not None:
        there = _answering(store, cluster, as_json)
        if there is not None:
            return there
    with patiently(LOOKING, as_json) as tick:
        return watch.running(tick)


def nothing_runs(store: Store, what: str) -> UserError:
    """The error for what only a running pipeline can do."""
    return UserError(
        f"no pipeline runs on {store.url}, so nobody can be asked to {what}; start it with `cutwater run FILE --store "
        f"{store.url}`"
    )


def ask(
    store: Store,
    request: Request,
    what: str,
    timeout: str,
    as_json: bool,
    cluster: ClusterConfig | None = None,
    there: Status | None = None,
) -> int | None:
    """Asks the running pipeline and waits; the epoch. `there`: who runs it, if that is known already. Raises
    `UserError` if none runs, it says no, or no answer comes, and `EndedMeanwhile` if it ends before."""
    watch = Watch(store)
    there = there or find_running(store, watch, as_json, cluster)
    if there is None:
        raise nothing_runs(store, what)
    patience = seconds(timeout, "timeout")
    asking = f"asking {there.pipeline} (process {there.pid} on {there.host}) to {what}"
    try:
        with _interruptible(), waiting(asking, as_json), _reaching(cluster, there.pipeline) as observer:

            def is_there() -> bool:
                return bool(observer and observer.members()) or somebody_there(watch)

            hint = (lambda: observer.hint("requests")) if observer is not None else (lambda: None)
            reply = ask_through(store, request, patience, is_there, hint)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted; the request is withdrawn, but {_may_be_done(store)}") from None
    match reply:
        case Unanswered.NOBODY_THERE:
            raise EndedMeanwhile(
                f"the pipeline ended before it answered, and the request is withdrawn; {_may_be_done(store)}"
            )
        case Unanswered.TIMED_OUT:
            raise UserError(
                f"no answer within {readable(patience)}, and the request is withdrawn; {_may_be_done(store)}. Give it "
                "more time with --timeout"
            )
        case Unanswered.VANISHED:
            raise UserError(
                f"the request is gone from the store, and no answer is there: somebody removed it, or this command was "
                f"paused for so long that its request or the answer was cleared away; {_may_be_done(store)}"
            )
        case Unanswered.UNREADABLE:
            raise UserError(
                f"the answer cannot be read: it is damaged, or the pipeline is run by another version of Cutwater; "
                f"{_may_be_done(store)}"
            )
        case _:
            return answered(reply, request.kind)


def somebody_there(watch: Watch) -> bool:
    """Whether a member runs, or may do so for all that is known yet."""
    return any(seen.presence in (Presence.RUNNING, Presence.UNKNOWN) for seen in watch.look())


def _may_be_done(store: Store) -> str:
    return MAY_BE_DONE.format(store=store.url)


def _answering(store: Store, cluster: ClusterConfig, as_json: bool) -> Status | None:
    """A member that answers at the given peers, as it describes itself; `None` if nobody does."""
    last = {status.member: status for status in read_status(store)}
    if not last:
        return None
    pipeline = next(iter(last.values())).pipeline
    try:
        with waiting("asking the members", as_json), _reaching(cluster, pipeline) as observer:
            assert observer is not None
            last |= {status.member: status for status in observer.statuses()}
            there = [last[name] for name in observer.members() if name in last]
    except UserError:
        return None  # which the store has to tell then
    return next((status for status in there if status.leads), there[0] if there else None)


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM, and SIGHUP unless it is ignored (`nohup`), end a wait as Ctrl-C does: with the request withdrawn, so
    that no later run acts on it."""

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
def _reaching(cluster: ClusterConfig | None, pipeline: str) -> Iterator[Observer | None]:
    """The links to the members, if there is somebody to reach them by."""
    if cluster is None:
        yield None
        return
    from cutwater.cluster.observer import Observer

    with Observer(cluster, pipeline, lambda line: None) as observer:
        yield observer
