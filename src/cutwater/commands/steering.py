"""Commands that steer a running pipeline from another terminal, or its store when none runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from cutwater.commands.clustering import Peer, Secret, peer_config
from cutwater.commands.output import AsJson, StoreUrl, Timeout, command, show, waiting
from cutwater.durations import readable, seconds
from cutwater.mailbox import answered, ask_through, check_savepoint_name, new_id
from cutwater.offline import carry_out, read_journal, resolve
from cutwater.protocol.errors import UserError
from cutwater.protocol.wire import Request, RequestKind
from cutwater.restoring import finder, restore_before_start, whole_checkpoint
from cutwater.status import Status, read_status, stale_after
from cutwater.stores import Store, open_store

if TYPE_CHECKING:
    from cutwater.cluster.config import ClusterConfig

WAIT = "10m"


class EndedMeanwhile(UserError):
    """The pipeline ended before it answered."""


def running(store: Store) -> Status | None:
    """The member that runs on this store now, as far as one can tell."""
    stale = stale_after(store)
    return next((s for s in read_status(store) if s.is_alive(stale)), None)


def ask(
    store: Store,
    request: Request,
    what: str,
    timeout: str,
    as_json: bool,
    cluster: ClusterConfig | None = None,
) -> int | None:
    """Asks the running pipeline and waits; the epoch. Raises `UserError` if none runs or it says no."""
    there = running(store)
    if there is None:
        raise UserError(
            f"no pipeline runs on {store.url}, so nobody can be asked to {what}; start it with `cutwater run "
            f"FILE --store {store.url}`"
        )
    patience = seconds(timeout, "timeout")
    asking = f"asking {there.pipeline} (process {there.pid} on {there.host}) to {what}"
    with waiting(asking, as_json), _hinting(cluster, there.pipeline) as hint:
        reply = ask_through(store, request, patience, lambda: running(store) is not None, hint)
    if reply is not None:
        return answered(reply, request.kind)
    if running(store) is None:
        raise EndedMeanwhile(
            f"the pipeline ended before it answered; see `cutwater status --store {store.url}` for how, and "
            "`cutwater checkpoints` for what is committed"
        )
    raise UserError(
        f"no answer within {readable(patience)}, and the request is withdrawn; it may still come about if it "
        "had begun: see `cutwater checkpoints`, and `cutwater status` for what the stages are doing"
    )


@contextmanager
def _hinting(cluster: ClusterConfig | None, pipeline: str) -> Iterator[Callable[[], None]]:
    """What has the leader look into the store at once, if a member can be reached; it would find it anyway."""
    if cluster is None:
        yield lambda: None
        return
    from cutwater.cluster.observer import Observer

    with Observer(cluster, pipeline, lambda line: None) as observer:
        yield lambda: observer.hint("requests")


@command
def checkpoint(
    store: StoreUrl = "./state",
    full: Annotated[
        bool, typer.Option("--full", help="Copy all state, so that it is self-contained.")
    ] = False,
    unaligned: Annotated[bool, typer.Option("--unaligned", help="Do not wait for rows in channels.")] = False,
    timeout: Timeout = WAIT,
    as_json: AsJson = False,
    peer: Peer = None,
    secret: Secret = "",
) -> None:
    """Takes a checkpoint now."""
    where = open_store(store)
    request = Request(RequestKind.CHECKPOINT, new_id(), full=full, unaligned=unaligned)
    epoch = ask(where, request, "take a checkpoint", timeout, as_json, peer_config(peer, secret))
    show(as_json, {"epoch": epoch}, f"epoch {epoch} is committed")


@command
def savepoint(
    name: Annotated[str, typer.Argument(help="The savepoint's name.")],
    store: StoreUrl = "./state",
    epoch: Annotated[
        str | None,
        typer.Option("--epoch", metavar="REF", help="Give the name to a kept checkpoint, or to the latest."),
    ] = None,
    forget: Annotated[
        bool, typer.Option("--forget", help="Take the name away: retention may then remove it.")
    ] = False,
    timeout: Timeout = WAIT,
    as_json: AsJson = False,
    peer: Peer = None,
    secret: Secret = "",
) -> None:
    """Takes a savepoint: a full checkpoint with a name, which retention never removes."""
    where = open_store(store)
    if forget and epoch is not None:
        raise UserError("--forget takes a name away, and --epoch gives one; use one of them")
    if forget:
        found = _name(where, name, None, timeout, as_json, peer_config(peer, secret))
        show(
            as_json,
            {"forgotten": name, "epoch": found},
            f"savepoint '{name}' is forgotten (it was epoch {found})",
        )
        return
    check_savepoint_name(name)
    if epoch is not None:
        found = _name(
            where,
            name,
            resolve(read_journal(where).state, epoch).epoch,
            timeout,
            as_json,
            peer_config(peer, secret),
        )
    elif running(where) is None:
        raise UserError(
            f"no pipeline runs on {where.url}, so no new savepoint can be taken; give the name to the newest "
            f"checkpoint with `cutwater savepoint {name} --epoch latest --store {store}`"
        )
    else:
        request = Request(RequestKind.SAVEPOINT, new_id(), name=name)
        found = ask(where, request, f"take savepoint '{name}'", timeout, as_json, peer_config(peer, secret))
    show(as_json, {"savepoint": name, "epoch": found}, f"savepoint '{name}' is epoch {found}")


def _name(
    store: Store, name: str, epoch: int | None, timeout: str, as_json: bool, cluster: ClusterConfig | None
) -> int | None:
    """Gives a name to a kept checkpoint or, without an epoch, takes it away; whether or not one runs."""
    if running(store) is not None:
        kind = RequestKind.FORGET if epoch is None else RequestKind.SAVEPOINT
        request = Request(kind, new_id(), name=name, epoch=epoch)
        return ask(store, request, f"{kind.value} '{name}'", timeout, as_json, cluster)
    kind = RequestKind.FORGET if epoch is None else RequestKind.SAVEPOINT
    request = Request(kind, new_id(), name=name, epoch=epoch)
    return answered(carry_out(store, read_journal(store), request, finder(store)), kind)


@command
def cancel(
    store: StoreUrl = "./state",
    timeout: Timeout = "1m",
    as_json: AsJson = False,
    peer: Peer = None,
    secret: Secret = "",
) -> None:
    """Calls off the checkpoint that is under way."""
    where = open_store(store)
    ask(
        where,
        Request(RequestKind.CANCEL, new_id()),
        "cancel its checkpoint",
        timeout,
        as_json,
        peer_config(peer, secret),
    )
    show(as_json, {"cancelled": True}, "cancelled; its batches belong to the next checkpoint")


@command
def drain(
    store: StoreUrl = "./state",
    timeout: Timeout = WAIT,
    as_json: AsJson = False,
    peer: Peer = None,
    secret: Secret = "",
) -> None:
    """Ends a running pipeline cleanly: every stage comes to rest, a last checkpoint, all of it published."""
    where = open_store(store)
    deadline = time.monotonic() + seconds(timeout, "timeout")
    epoch: int | None = None
    with suppress(EndedMeanwhile):
        epoch = ask(
            where, Request(RequestKind.DRAIN, new_id()), "drain", timeout, as_json, peer_config(peer, secret)
        )
    with waiting(f"epoch {epoch} is committed; publishing it", as_json):
        while running(where) is not None:
            if time.monotonic() > deadline:
                raise UserError(
                    f"epoch {epoch} is committed, but the pipeline has not ended yet; `cutwater status` "
                    "shows what it waits for"
                )
            time.sleep(0.2)
    state = next((s.state for s in read_status(where)), "gone")
    if state != "drained":
        raise UserError(
            f"the pipeline has ended without having been drained (it is {state}); what is committed is kept: "
            "start it again, and see what it said itself"
        )
    epoch = read_journal(where).state.head
    show(
        as_json,
        {"epoch": epoch, "state": state},
        f"drained: epoch {epoch} is committed and published everywhere",
    )


@command
def restore(
    ref: Annotated[str, typer.Argument(help="An epoch, a savepoint's name, or latest.")],
    store: StoreUrl = "./state",
    drop: Annotated[
        list[str] | None, typer.Option("--drop", metavar="STAGE", help="A stage that the code no longer has.")
    ] = None,
    reset: Annotated[
        list[str] | None,
        typer.Option("--reset", metavar="STAGE", help="A stage that starts without its state."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also undo what others did to the tables since.")
    ] = False,
    takeover: Annotated[
        bool, typer.Option("--takeover", help="Do not ask a process that seems to run, but end its timeline.")
    ] = False,
    timeout: Timeout = WAIT,
    as_json: AsJson = False,
    peer: Peer = None,
    secret: Secret = "",
) -> None:
    """Takes everything back to a checkpoint: a running pipeline at once, else with its next run."""
    where = open_store(store)
    there = None if takeover else running(where)
    lines: list[str] = []
    if there is not None and drop:
        raise UserError(
            f"the pipeline runs (process {there.pid} on {there.host}), and --drop needs a new start: drain it "
            f"with `cutwater drain --store {store}`, then restore"
        )
    with waiting(f"looking whether '{ref}' is whole", as_json):
        if there is not None:
            state = read_journal(where).state
            target = whole_checkpoint(where, state, ref, lines.append)
        else:
            epoch = restore_before_start(
                where, None, ref, tuple(drop or ()), tuple(reset or ()), lines.append, force
            )
    if there is not None:
        name = ref if ref in state.savepoints else None
        request = Request(
            RequestKind.RESTORE, new_id(), name, target.epoch, reset=tuple(reset or ()), force=force
        )
        found = ask(
            where, request, f"go back to epoch {target.epoch}", timeout, as_json, peer_config(peer, secret)
        )
        lines.append(f"restored epoch {found}; the pipeline goes on from there")
        show(as_json, {"epoch": found, "running": True, "news": lines}, *lines)
        return
    lines.append("the next run starts there, and takes the tables back")
    show(as_json, {"epoch": epoch, "running": False, "news": lines}, *lines)
