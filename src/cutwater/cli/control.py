"""Commands that control a pipeline from another terminal, or change its store while none is running."""

from __future__ import annotations

from typing import Annotated

import typer

from cutwater.cli.client import Client, client_command
from cutwater.cli.output import REF, show, waiting
from cutwater.documents.kept_checkpoints import checkpoint_at, parse_time
from cutwater.protocol.base.errors import UserError
from cutwater.protocol.base.wire import Request, RequestKind
from cutwater.runtime.restore import finder, restore_before_start, whole_checkpoint
from cutwater.runtime.store_requests import answered, check_savepoint_name, new_id
from cutwater.store.at_rest import carry_out, read_journal, resolve


@client_command()
def checkpoint(
    client: Client,
    full: Annotated[
        bool, typer.Option("--full", help="Copy all state, so that the checkpoint is self-contained.")
    ] = False,
    unaligned: Annotated[bool, typer.Option("--unaligned", help="Do not wait for rows in channels.")] = False,
) -> None:
    """Take a checkpoint now."""
    request = Request(RequestKind.CHECKPOINT, new_id(), full=full, unaligned=unaligned)
    epoch = client.ask(request, "take a checkpoint")
    show(client.as_json, {"epoch": epoch}, f"epoch {epoch} is committed")


@client_command()
def savepoint(
    client: Client,
    name: Annotated[str, typer.Argument(help="The savepoint's name.")],
    epoch: Annotated[
        str | None,
        typer.Option("--epoch", metavar="REF", help=f"Name a checkpoint that is kept. {REF}."),
    ] = None,
    forget: Annotated[
        bool, typer.Option("--forget", help="Remove the name, so that retention may delete the checkpoint.")
    ] = False,
) -> None:
    """Take a savepoint: a full checkpoint with a name, which retention never deletes."""
    if forget and epoch is not None:
        raise UserError("--forget removes a name and --epoch gives one; use one of them")
    if forget:
        found = _set_name(client, name, None)
        text = f"savepoint '{name}' is forgotten (it was epoch {found})"
        show(client.as_json, {"forgotten": name, "epoch": found}, text)
        return
    check_savepoint_name(name)
    if epoch is not None:
        found = _set_name(client, name, resolve(read_journal(client.store).state, epoch).epoch)
    elif (member := client.running_member()) is None:
        raise UserError(
            f"cannot take a savepoint: {client.watch.absence()}; to name the newest checkpoint "
            f"instead, use `cutwater savepoint {name} --epoch latest --store {client.store.url}`"
        )
    else:
        request = Request(RequestKind.SAVEPOINT, new_id(), name=name)
        found = client.ask(request, f"take savepoint '{name}'", member)
    show(client.as_json, {"savepoint": name, "epoch": found}, f"savepoint '{name}' is epoch {found}")


def _set_name(client: Client, name: str, epoch: int | None) -> int | None:
    """Name a kept checkpoint or, without an epoch, remove the name; with or without a running pipeline."""
    kind = RequestKind.FORGET if epoch is None else RequestKind.SAVEPOINT
    request = Request(kind, new_id(), name=name, epoch=epoch)
    member = client.running_member()
    if member is not None:
        return client.ask(request, f"{kind.value} '{name}'", member)
    return answered(carry_out(client.store, read_journal(client.store), request, finder(client.store)), kind)


@client_command(timeout="1m")
def cancel(client: Client) -> None:
    """Cancel the checkpoint in progress."""
    member = client.running_member()
    if member is None:
        raise UserError(f"there is nothing to cancel: {client.watch.absence()}")
    client.ask(Request(RequestKind.CANCEL, new_id()), "cancel the checkpoint in progress", member)
    show(client.as_json, {"cancelled": True}, "cancelled; its batches belong to the next checkpoint")


@client_command()
def restore(
    client: Client,
    ref: Annotated[str | None, typer.Argument(metavar="REF", help=f"{REF}.")] = None,
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="TIME",
            help="Instead of REF: the newest checkpoint committed at or before this time, such as '2026-11-16 12:00'; "
            "in local time, unless it names an offset ('2026-11-16 12:00+01:00', '2026-11-16 12:00Z').",
        ),
    ] = None,
    drop: Annotated[
        list[str] | None,
        typer.Option("--drop", metavar="STAGE", help="A stage or a sink that the code no longer has."),
    ] = None,
    reset: Annotated[
        list[str] | None,
        typer.Option("--reset", metavar="STAGE", help="A stage to start without its state."),
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Also undo changes that others have made to the tables since then, and give up rows in flight that no "
            "stage would read.",
        ),
    ] = False,
    takeover: Annotated[
        bool,
        typer.Option(
            "--takeover", help="Restore even if another process seems to be running; that process will end."
        ),
    ] = False,
) -> None:
    """Roll everything back to a checkpoint: at once if the pipeline is running, otherwise with the next run."""
    store = client.store
    lines: list[str] = []
    if ref is not None and at is not None:
        raise UserError(f"both '{ref}' and --at {at} were given: leave out one of them")
    if ref is None and at is None:
        raise UserError(
            "say what to restore: an epoch, a savepoint's name or latest; or a time, with --at TIME"
        )
    if at is not None:
        found_at = checkpoint_at(store, read_journal(store).state, at)
        ref = str(found_at.epoch)
        lines.append(f"epoch {ref} is the newest checkpoint at {parse_time(at):%Y-%m-%d %H:%M:%S %Z}")
    assert ref is not None
    member = None if takeover else client.running_member()
    if member is not None and drop:
        raise UserError(
            f"--drop needs a restart, and the pipeline is running (process {member.pid} on {member.host}): drain it with "
            f"`cutwater drain --store {store.url}`, then restore"
        )
    with waiting(f"checking that '{ref}' can be restored", client.as_json):
        if member is not None:
            state = read_journal(store).state
            target = whole_checkpoint(store, state, ref, lines.append)
        else:
            epoch = restore_before_start(
                store, None, ref, tuple(drop or ()), tuple(reset or ()), lines.append, force
            )
    if member is not None:
        name = ref if ref in state.savepoints else None
        request = Request(
            RequestKind.RESTORE, new_id(), name, target.epoch, reset=tuple(reset or ()), force=force
        )
        found = client.ask(request, f"go back to epoch {target.epoch}", member)
        lines.append(f"restored epoch {found}; the pipeline continues from there")
        show(client.as_json, {"epoch": found, "running": True, "news": lines}, *lines)
        return
    lines.append("the next run starts there and rolls the tables back")
    show(client.as_json, {"epoch": epoch, "running": False, "news": lines}, *lines)
