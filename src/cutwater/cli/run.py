"""`cutwater run`: runs a pipeline in this process, with a live view on a terminal and plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Any, Protocol

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
from cutwater.cli.http_options import HttpName, HttpToken
from cutwater.cli.output import StoreUrl, command, console, fail
from cutwater.cli.serving import Http, PageBeside
from cutwater.cli.stderr_capture import capture_stderr
from cutwater.documents.timestamps import iso
from cutwater.protocol.base.errors import CutwaterError, UserError
from cutwater.store.status import Status

if TYPE_CHECKING:
    from cutwater.api.pipeline import Pipeline

STOPPED_AT_ONCE = 130


class Display(Protocol):
    """Shows the progress of a run."""

    def start(self) -> None: ...

    def add_line(self, line: str) -> None: ...

    def close(self, state: str | None = None) -> None: ...


class PlainLines:
    """Prints log lines."""

    def start(self) -> None:
        self.add_line("starting Spark, then the stages")

    def add_line(self, line: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)

    def close(self, state: str | None = None) -> None:
        if state is not None:
            self.add_line(state)


class JsonLines:
    """Prints a JSON object per log line and per checkpoint."""

    def __init__(self, status: Callable[[], Status | None]) -> None:
        self._status = status
        self._epoch: int | None = None

    def start(self) -> None:
        self._put("starting")

    def add_line(self, line: str) -> None:
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


def flag(name: str, metavar: str | None = None, min: int | None = None) -> Any:
    """The flag of an option of `RunConfig`, with its help text."""
    option = OPTIONS[name]
    panel = option.group if option.group == MEMBERS else None
    return typer.Option(option.flag, metavar=metavar, min=min, help=option.summary, rich_help_panel=panel)


@command
def run(
    target: Annotated[
        str, typer.Argument(metavar="FILE[:NAME]", help="The Python file, and the pipeline's variable in it.")
    ],
    store: StoreUrl = "./state",
    every: Annotated[str, flag("every")] = str(DEFAULTS.every),
    min_pause: Annotated[str, flag("min_pause")] = str(DEFAULTS.min_pause),
    max_concurrent: Annotated[int, flag("max_concurrent", min=1)] = DEFAULTS.max_concurrent,
    once: Annotated[bool, flag("once")] = DEFAULTS.once,
    restore: Annotated[str | None, flag("restore", "REF")] = None,
    drop: Annotated[list[str] | None, flag("drop", "STAGE")] = None,
    reset: Annotated[list[str] | None, flag("reset", "STAGE")] = None,
    rechain: Annotated[bool, flag("rechain")] = DEFAULTS.rechain,
    force: Annotated[bool, flag("force")] = DEFAULTS.force,
    takeover: Annotated[bool, flag("takeover")] = DEFAULTS.takeover,
    unaligned: Annotated[bool, flag("unaligned")] = DEFAULTS.unaligned,
    timeout: Annotated[str, flag("timeout")] = str(DEFAULTS.timeout),
    alignment_timeout: Annotated[str | None, flag("alignment_timeout")] = None,
    retained: Annotated[int, flag("retained", min=1)] = DEFAULTS.retained,
    full_every: Annotated[int | None, flag("full_every", min=1)] = None,
    tolerated_failures: Annotated[int | None, flag("tolerated_failures")] = DEFAULTS.tolerated_failures,
    restarts: Annotated[int, flag("restarts")] = DEFAULTS.restarts,
    idle_after: Annotated[str, flag("idle_after")] = str(DEFAULTS.idle_after),
    master: Annotated[str | None, flag("master")] = None,
    conf: Annotated[list[str] | None, flag("conf", "KEY=VALUE")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object per line.")] = False,
    member: Annotated[str | None, flag("member", "NAME")] = None,
    wait_for: Annotated[list[str] | None, flag("wait_for", "NAME")] = None,
    listen: Listen = None,
    peer: Peer = None,
    secret: Secret = "",
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    multicast: Multicast = False,
    leader_timeout: Annotated[str, flag("leader_timeout")] = str(DEFAULTS.leader_timeout),
    http: Http = None,
    token: HttpToken = "",
    http_name: HttpName = None,
) -> None:
    """Run a pipeline, or one member of it, until it is drained by Ctrl-C (twice stops it at once), `cutwater drain`, or
    --once. If it is one of several members, Ctrl-C stops it at once, and the others wait until it is back."""
    from cutwater.cli.load import load

    cluster = cluster_config(listen, peer, secret, tls_ca, tls_cert, tls_key, multicast)
    if cluster is not None and member is None:
        raise UserError(
            "--listen and --peer are for one member of several: give it a name with --member NAME"
        )
    config = RunConfig(
        every=every, min_pause=min_pause, max_concurrent=max_concurrent, full_every=full_every, once=once,
        restore=restore, drop=tuple(drop or ()), reset=tuple(reset or ()), rechain=rechain, force=force,
        takeover=takeover, unaligned=unaligned, timeout=timeout, alignment_timeout=alignment_timeout,
        retained=retained, tolerated_failures=tolerated_failures, restarts=restarts, idle_after=idle_after,
        master=master, conf=settings_of(conf or []), member=member, wait_for=tuple(wait_for or ()), cluster=cluster,
        leader_timeout=leader_timeout,
    )  # fmt: skip
    page = PageBeside(http, token, http_name or ()) if http is not None else None
    _play(load(target), store, config, as_json, page)


def _play(
    pipeline: Pipeline, store: str, config: RunConfig, as_json: bool, page: PageBeside | None = None
) -> None:
    """Run a pipeline to its end and show its progress. Exits with 130 if it was stopped before it was drained."""

    def status() -> Status | None:
        try:
            return pipeline.status()
        except UserError:
            return None

    display, tick = _display(as_json, store, pipeline.name, status)
    display.start()
    try:
        with capture_stderr(display.add_line), lines_to(display.add_line):
            if page is not None:
                display.add_line(f"the page is at {page.start(pipeline, store)}")
            _in_thread(lambda: pipeline.start(store, config))
            drained = pipeline.stay(tick)
    except (CutwaterError, OSError) as error:
        display.close()
        fail(str(error), as_json)
    except BaseException:
        display.close()
        pipeline.stop()
        raise
    finally:
        if page is not None:
            page.stop()
    display.close("drained" if drained else "stopped")
    if not drained:
        raise typer.Exit(STOPPED_AT_ONCE)


def _in_thread(work: Callable[[], object]) -> None:
    """Run `work` in a thread and wait for it. A Spark session created in the main thread handles Ctrl-C itself: it calls
    Spark from within the interrupted call, which prints pages of errors."""
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


def _display(
    as_json: bool, store: str, name: str, status: Callable[[], Status | None]
) -> tuple[Display, Callable[[], None] | None]:
    if as_json:
        lines = JsonLines(status)
        return lines, lines.tick
    screen = console()
    if screen.is_terminal:
        from cutwater.cli.live_view import LiveView

        return LiveView(screen, store, name, status), None
    return PlainLines(), None


def settings_of(pairs: list[str]) -> dict[str, str]:
    """The settings of `--conf` options."""
    found = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UserError(f"--conf {pair}: write KEY=VALUE, for example spark.driver.memory=4g")
        found[key] = value
    return found
