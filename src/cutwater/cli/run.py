"""`cutwater run`: a pipeline in this process, with a live view on a terminal and plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from threading import Thread
from typing import Annotated, Any, Protocol

import msgspec
import typer

from cutwater.api.config import MEMBERS, RunConfig, options_of
from cutwater.api.log_lines import lines_to
from cutwater.cli.cluster_options import (
    Listen,
    Multicast,
    Peer,
    Secret,
    TlsCa,
    TlsCert,
    TlsKey,
    cluster_config,
)
from cutwater.cli.output import StoreUrl, command, console, fail, iso
from cutwater.cli.spark_output import hearing
from cutwater.protocol.base.errors import CutwaterError, UserError
from cutwater.store.status import Status

STOPPED_AT_ONCE = 130


class Teller(Protocol):
    """Who shows what happens."""

    def start(self) -> None: ...

    def tell(self, line: str) -> None: ...

    def close(self, state: str | None = None) -> None: ...


class Lines:
    """A line for everything that happens."""

    def start(self) -> None:
        self.tell("starting Spark, then the stages")

    def tell(self, line: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)

    def close(self, state: str | None = None) -> None:
        if state is not None:
            self.tell(state)


class Events:
    """A JSON object for everything that happens, and one for every checkpoint."""

    def __init__(self, status: Callable[[], Status | None]) -> None:
        self._status = status
        self._epoch: int | None = None

    def start(self) -> None:
        self._put("starting")

    def tell(self, line: str) -> None:
        self._put("news", text=line)

    def tick(self) -> None:
        status = self._status()
        if status is not None and status.epoch != self._epoch and status.epoch_s is not None:
            self._epoch = status.epoch
            at = iso(status.epoch_at)
            self._put("committed", epoch=status.epoch, committed_at=at, took_s=status.epoch_s)

    def close(self, state: str | None = None) -> None:
        self._put("ended", state=state or "failed")

    def _put(self, event: str, **what: Any) -> None:
        sys.stdout.write(
            msgspec.json.encode({"at": iso(time.time()), "event": event, **what}).decode() + "\n"
        )
        sys.stdout.flush()


OPTIONS = options_of(RunConfig)
DEFAULTS = RunConfig()


def _flag(name: str, metavar: str | None = None, min: int | None = None) -> Any:
    """The flag of an option of `RunConfig`, with the help text that it has there."""
    option = OPTIONS[name]
    panel = option.group if option.group == MEMBERS else None
    return typer.Option(option.flag, metavar=metavar, min=min, help=option.summary, rich_help_panel=panel)


@command
def run(
    target: Annotated[
        str, typer.Argument(metavar="FILE[:NAME]", help="The pipeline's file, and its variable there.")
    ],
    store: StoreUrl = "./state",
    every: Annotated[str, _flag("every")] = str(DEFAULTS.every),
    min_pause: Annotated[str, _flag("min_pause")] = str(DEFAULTS.min_pause),
    max_concurrent: Annotated[int, _flag("max_concurrent", min=1)] = DEFAULTS.max_concurrent,
    once: Annotated[bool, _flag("once")] = DEFAULTS.once,
    restore: Annotated[str | None, _flag("restore", "REF")] = None,
    drop: Annotated[list[str] | None, _flag("drop", "STAGE")] = None,
    reset: Annotated[list[str] | None, _flag("reset", "STAGE")] = None,
    force: Annotated[bool, _flag("force")] = DEFAULTS.force,
    takeover: Annotated[bool, _flag("takeover")] = DEFAULTS.takeover,
    unaligned: Annotated[bool, _flag("unaligned")] = DEFAULTS.unaligned,
    timeout: Annotated[str, _flag("timeout")] = str(DEFAULTS.timeout),
    alignment_timeout: Annotated[str | None, _flag("alignment_timeout")] = None,
    retained: Annotated[int, _flag("retained", min=1)] = DEFAULTS.retained,
    full_every: Annotated[int | None, _flag("full_every", min=1)] = None,
    tolerated_failures: Annotated[int | None, _flag("tolerated_failures")] = DEFAULTS.tolerated_failures,
    restarts: Annotated[int, _flag("restarts")] = DEFAULTS.restarts,
    idle_after: Annotated[str, _flag("idle_after")] = str(DEFAULTS.idle_after),
    master: Annotated[str | None, _flag("master")] = None,
    conf: Annotated[list[str] | None, _flag("conf", "KEY=VALUE")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object per line.")] = False,
    member: Annotated[str | None, _flag("member", "NAME")] = None,
    wait_for: Annotated[list[str] | None, _flag("wait_for", "NAME")] = None,
    listen: Listen = None,
    peer: Peer = None,
    secret: Secret = "",
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    multicast: Multicast = False,
    leader_timeout: Annotated[str, _flag("leader_timeout")] = str(DEFAULTS.leader_timeout),
) -> None:
    """Runs a pipeline, or one member of it, until it is drained: by Ctrl-C (twice stops at once), `cutwater
    drain`, or --once. Ctrl-C ends one member of several at once, and the others wait for it."""
    from cutwater.cli.load import load

    cluster = cluster_config(listen, peer, secret, tls_ca, tls_cert, tls_key, multicast)
    if cluster is not None and member is None:
        raise UserError(
            "--listen and --peer are for one member of several: give it a name with --member NAME"
        )
    config = RunConfig(
        every=every, min_pause=min_pause, max_concurrent=max_concurrent, full_every=full_every, once=once,
        restore=restore, drop=tuple(drop or ()), reset=tuple(reset or ()), force=force,
        takeover=takeover, unaligned=unaligned, timeout=timeout, alignment_timeout=alignment_timeout,
        retained=retained, tolerated_failures=tolerated_failures, restarts=restarts, idle_after=idle_after,
        master=master, conf=_settings(conf or []), member=member, wait_for=tuple(wait_for or ()), cluster=cluster,
        leader_timeout=leader_timeout,
    )  # fmt: skip
    pipeline = load(target)

    def status() -> Status | None:
        try:
            return pipeline.status()
        except UserError:
            return None

    teller, tick = _teller(as_json, store, pipeline.name, status)
    teller.start()
    try:
        with hearing(teller.tell), lines_to(teller.tell):
            _beside(lambda: pipeline.start(store, config))
            drained = pipeline.stay(tick)
    except (CutwaterError, OSError) as error:
        teller.close()
        fail(str(error), as_json)
    except BaseException:
        teller.close()
        pipeline.stop()
        raise
    teller.close("drained" if drained else "stopped")
    if not drained:
        raise typer.Exit(STOPPED_AT_ONCE)


def _beside(work: Callable[[], object]) -> None:
    """Does something in a thread of its own and waits: a Spark session that is made in the main thread takes
    Ctrl-C for itself, calls Spark from within the call that it interrupts, and pages of errors come of that."""
    failed: list[BaseException] = []

    def do() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = Thread(target=do, name="cutwater-start", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.2)
    if failed:
        raise failed[0]


def _teller(
    as_json: bool, store: str, name: str, status: Callable[[], Status | None]
) -> tuple[Teller, Callable[[], None] | None]:
    if as_json:
        events = Events(status)
        return events, events.tick
    screen = console()
    if screen.is_terminal:
        from cutwater.cli.live import LiveView

        return LiveView(screen, store, name, status), None
    return Lines(), None


def _settings(pairs: list[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UserError(f"--conf {pair}: write KEY=VALUE, for example spark.driver.memory=4g")
        found[key] = value
    return found
