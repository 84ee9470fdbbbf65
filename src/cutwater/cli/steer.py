"""Commands that steer a running pipeline from another terminal, or its store when none runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cutwater.cli.ask import ask, running
from cutwater.cli.cluster_options import Peer, Secret, peer_config
from cutwater.cli.output import AsJson, StoreUrl, Timeout, command, show, waiting
from cutwater.protocol.base.errors import UserError
from cutwater.protocol.base.wire import Request, RequestKind
from cutwater.runtime.mailbox import answered, check_savepoint_name, new_id
from cutwater.runtime.restore import finder, restore_before_start, whole_checkpoint
from cutwater.store.at_rest import carry_out, read_journal, resolve
from cutwater.store.contract import Store
from cutwater.store.opening import open_store

if TYPE_CHECKING:
    from cutwater.cluster.config import ClusterConfig

WAIT = "10m"


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
    elif (there := running(where, as_json, peer_config(peer, secret))) is None:
        raise UserError(
            f"no pipeline runs on {where.url}, so no new savepoint can be taken; give the name to the newest "
            f"checkpoint with `cutwater savepoint {name} --epoch latest --store {store}`"
        )
    else:
        request = Request(RequestKind.SAVEPOINT, new_id(), name=name)
        found = ask(
            where, request, f"take savepoint '{name}'", timeout, as_json, peer_config(peer, secret), there
        )
    show(as_json, {"savepoint": name, "epoch": found}, f"savepoint '{name}' is epoch {found}")


def _name(
    store: Store, name: str, epoch: int | None, timeout: str, as_json: bool, cluster: ClusterConfig | None
) -> int | None:
    """Gives a name to a kept checkpoint or, without an epoch, takes it away; whether or not one runs."""
    kind = RequestKind.FORGET if epoch is None else RequestKind.SAVEPOINT
    request = Request(kind, new_id(), name=name, epoch=epoch)
    there = running(store, as_json, cluster)
    if there is not None:
        return ask(store, request, f"{kind.value} '{name}'", timeout, as_json, cluster, there)
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
    cluster = peer_config(peer, secret)
    there = None if takeover else running(where, as_json, cluster)
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
        found = ask(where, request, f"go back to epoch {target.epoch}", timeout, as_json, cluster, there)
        lines.append(f"restored epoch {found}; the pipeline goes on from there")
        show(as_json, {"epoch": found, "running": True, "news": lines}, *lines)
        return
    lines.append("the next run starts there, and takes the tables back")
    show(as_json, {"epoch": epoch, "running": False, "news": lines}, *lines)
