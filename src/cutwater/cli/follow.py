"""`cutwater follow`: prints every published epoch, or runs a command for each."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated

import msgspec
import typer

from cutwater.cli.cluster_options import Peer, Secret, peer_config
from cutwater.cli.output import StoreUrl, command, console
from cutwater.documents.timestamps import iso_ms
from cutwater.protocol.base.durations import readable
from cutwater.protocol.base.errors import UserError
from cutwater.protocol.follower.followed import Followed

FIRST_RETRY_S, LONGEST_RETRY_S = 1.0, 60.0
COMMAND_ENDS_S = 10.0
"""How long a command may take to end after SIGTERM."""
GROUP_LOOK_S = 0.05
"""How often to look whether all that a command has started has ended."""


@command
def follow(
    store: StoreUrl = "./state",
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="Keep the position in the store under this name; go on there."),
    ] = None,
    after: Annotated[
        str | None,
        typer.Option(
            "--after", metavar="REF",
            help="Where a follower without a position starts: after this. An epoch's number, a savepoint's name, or "
            "latest; by default with the oldest kept epoch.",
        ),
    ] = None,
    execute: Annotated[
        str | None,
        typer.Option(
            "--exec", metavar="CMD",
            help="Run this command for each epoch, with its JSON on stdin, until it succeeds.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object per line.")] = False,
    peer: Peer = None,
    secret: Secret = "",
) -> None:  # fmt: skip
    """Print every published epoch of a pipeline in order, once, and when a restore has gone back. Runs until it is
    interrupted; it needs only the store, and learns of new epochs sooner from a member (--peer)."""
    from cutwater.api.follow import follow as follow_epochs

    if execute is not None and not execute.strip():
        raise UserError("--exec needs a command")
    with (
        ending_on_sigterm(),
        follow_epochs(store, peers=peer_config(peer, secret) or (), name=name, after=after) as epochs,
    ):
        for epoch in epochs:
            _print(epoch, as_json)
            if execute is not None:
                _run(execute, epoch)


def _print(epoch: Followed, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(msgspec.json.encode(epoch).decode() + "\n")
        sys.stdout.flush()
        return
    tables = ", ".join(f"{t} {'?' if v is None else v}" for t, v in epoch.tables.items())
    what = f"rewound to epoch {epoch.epoch}" if epoch.rewound else f"epoch {epoch.epoch}"
    watermark = f" · watermark {iso_ms(epoch.watermark)}" if epoch.watermark is not None else ""
    gap = " · epochs before it have expired and were not given" if epoch.after_gap else ""
    console().print(
        f"{what} · generation {epoch.generation} · {tables or 'no tables'}{watermark}{gap}", soft_wrap=True
    )


def _run(execute: str, epoch: Followed) -> None:
    """Run the command until it succeeds."""
    document = msgspec.json.encode(epoch) + b"\n"
    pause_s = FIRST_RETRY_S
    while (code := run_once(execute, document)) != 0:
        typer.echo(
            f"the command for epoch {epoch.epoch} has ended with {code}; it runs again in {readable(pause_s)}",
            err=True,
        )
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_RETRY_S)


def run_once(execute: str, document: bytes) -> int:
    """Run the command and return its exit code. If this process is asked to end meanwhile, the command is, too, with all
    that it has started: the next follower would run it a second time beside it."""
    process = None
    try:
        with _holding_signals():
            process = subprocess.Popen(execute, shell=True, stdin=subprocess.PIPE, start_new_session=True)
        process.communicate(document)
    except BaseException:
        if process is not None:
            _end_group(process)
        raise
    return process.returncode


@contextmanager
def _holding_signals() -> Iterator[None]:
    """A signal that ends this process does so when the block is over: a command that has begun, and is not known yet,
    would not be ended."""
    arrived: list[int] = []
    before = {
        one: signal.signal(one, lambda number, _: arrived.append(number)) or signal.SIG_DFL
        for one in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
    for number in arrived:
        signal.raise_signal(number)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End a command and all that it has started: what still runs after a while is killed, also if the command itself has
    ended."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + COMMAND_ENDS_S
        while time.monotonic() < deadline:
            process.poll()  # else it counts as one of its group
            os.killpg(process.pid, 0)
            time.sleep(GROUP_LOOK_S)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextmanager
def ending_on_sigterm() -> Iterator[None]:
    """SIGTERM ends this process as an exception does, so that a command is ended first."""

    def end(*_: object) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
