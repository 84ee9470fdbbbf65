"""Whether a member is running, judged by changes and by proof, never by a clock."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner, Result

from cutwater.cli.client import Client
from cutwater.cli.main import app
from cutwater.cluster.config import ClusterConfig
from cutwater.protocol.base.errors import UserError
from cutwater.runtime import second_process
from cutwater.runtime.second_process import ensure_not_running
from cutwater.store import presence
from cutwater.store import process_identity as identity
from cutwater.store.contract import Store
from cutwater.store.local import LocalStore
from cutwater.store.opening import open_store
from cutwater.store.presence import SLACK_S, Presence, Watch, silence_s
from cutwater.store.process_identity import ProcessId, exists, this_process
from cutwater.store.status import REPORT_REMOTE_S, REPORT_S, read_status
from tests.support.cluster_helpers import free_endpoint
from tests.support.live_member import members
from tests.support.spark_helpers import await_that
from tests.support.written import beating, put_status

needs_proc = pytest.mark.skipif(
    not Path("/proc/self/ns/pid").is_symlink(), reason="there is no /proc that tells who a process is"
)
WHO_AM_I = (
    "import sys, msgspec; from cutwater.store.process_identity import this_process\n"
    "sys.stdout.buffer.write(msgspec.json.encode(this_process())); sys.stdout.flush(); sys.stdin.read()"
)


class Clock:
    """The observer's monotonic clock."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "state"), create=True)


# --- watching -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("skew_s", [0.0, -12.0, 12.0, -7 * 3600.0, 7 * 3600.0])
def test_a_reporting_member_is_detected_whatever_its_clock_says(store: Store, skew_s: float) -> None:
    with beating(store, clock_s=skew_s):
        assert Client(store, as_json=True).running_member() is not None
        with pytest.raises(UserError, match="is already running on this store: process 4711 on elsewhere"):
            ensure_not_running(store, "chain", "main", False, print)


@pytest.mark.slow
@pytest.mark.parametrize("skew_s", [0.0, -3600.0, 3600.0])
def test_a_member_killed_elsewhere_does_not_count_as_running_however_recent_its_status(
    store: Store, skew_s: float
) -> None:
    put_status(store, clock_s=skew_s)
    log_lines: list[str] = []
    assert Client(store, as_json=True).running_member() is None
    ensure_not_running(store, "chain", "main", False, log_lines.append)
    assert "process 4711 on elsewhere ran pipeline 'chain'. It has not reported its end" in log_lines[0]


def test_a_member_is_unknown_until_it_was_watched_for_long_enough(store: Store) -> None:
    clock = Clock()
    watch = Watch(store, clock)
    status = put_status(store)
    assert [s.presence for s in watch.look()] == [Presence.UNKNOWN]
    clock.now += silence_s(status) - 0.01
    assert [s.presence for s in watch.look()] == [Presence.UNKNOWN]
    put_status(store, beat=1)
    assert [s.presence for s in watch.look()] == [Presence.RUNNING]
    clock.now += silence_s(status) - 0.01
    assert [s.presence for s in watch.look()] == [Presence.RUNNING]
    clock.now += 0.02
    assert [s.presence for s in watch.look()] == [Presence.SILENT]
    put_status(store, beat=2, state="drained")
    assert [(s.presence, s.is_news) for s in watch.look()] == [(Presence.ENDED, True)]


def test_a_member_with_an_unchanged_status_is_silent_after_the_time_limit(store: Store) -> None:
    clock = Clock()
    watch = Watch(store, clock)
    status = put_status(store, beat=1)
    watch.look()
    clock.now += silence_s(status)
    assert [(s.presence, s.is_news) for s in watch.look()] == [(Presence.SILENT, False)]


def test_a_status_that_appears_while_watching_belongs_to_a_running_member(store: Store) -> None:
    watch = Watch(store)
    assert watch.look() == []
    put_status(store)
    assert [s.presence for s in watch.look()] == [Presence.RUNNING]


def test_silence_is_about_two_of_the_intervals_in_the_status(store: Store) -> None:
    assert silence_s(put_status(store, report_s=REPORT_S)) == 4.0
    assert silence_s(put_status(store, report_s=REPORT_REMOTE_S)) == 12.0
    assert (
        silence_s(put_status(store, report_s=1e9)) <= 150
    )  # a nonsensical interval does not cause an endless wait
    assert silence_s(put_status(store, report_s=-5.0)) == 2.0


@needs_proc
def test_a_process_that_is_known_to_exist_may_be_silent_for_longer(store: Store) -> None:
    here = this_process()
    assert silence_s(put_status(store, process=here, report_s=0.1)) == presence.STUCK_S
    assert silence_s(put_status(store, process=here, report_s=50.0)) == 2 * 50 + SLACK_S
    assert silence_s(put_status(store, process=None, report_s=0.1)) == 2 * 0.1 + SLACK_S


def test_a_start_that_waits_says_so_once_and_not_at_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_status(store, report_s=0.1)
    told: list[float] = []
    clock = Clock()

    class Patience:
        """A watch that is not sure for ten looks, one a second."""

        every_s = 0.0
        looks = 0

        def look(self) -> list[presence.Seen]:
            self.looks += 1
            clock.now += 0.9
            kind = Presence.UNKNOWN if self.looks <= 10 else Presence.SILENT
            return [presence.Seen(status, kind, False) for status in read_status(store)]

    watch = Patience()
    monkeypatch.setattr(second_process, "Watch", lambda store: watch)
    monkeypatch.setattr(second_process, "time", SimpleNamespace(monotonic=clock, sleep=lambda s: None))
    ensure_not_running(store, "chain", "main", False, lambda line: told.append(watch.looks))
    assert told == [2]


def test_a_changing_status_of_another_version_is_not_ignored(store: Store) -> None:
    store.put("status/main.json", b'{"of": "another version"}')
    watch = Watch(store)
    assert watch.look() == []
    store.put("status/main.json", b'{"of": "another version", "beat": 2}')
    with pytest.raises(UserError, match="being written by another version"):
        watch.look()


def test_damaged_statuses_are_ignored(store: Store) -> None:
    for number, data in enumerate((b"", b'{"pipeline":"\xff"}', b"[" * 100_000, b"{}")):
        store.put(f"status/m{number}.json", data)
    assert read_status(store) == []


@pytest.mark.slow
def test_a_long_wait_is_shown(store: Store) -> None:
    put_status(store)
    shown = CliRunner().invoke(app, ["gc", "--store", store.url])
    assert shown.stderr.startswith("checking whether the pipeline is running ...\n")
    shown = CliRunner().invoke(app, ["gc", "--json", "--store", store.url])
    assert shown.stderr == ""


def test_tick_is_called_before_each_further_look(store: Store) -> None:
    put_status(store)
    for look, nobody in ((Watch.running, None), (Watch.settle, [Presence.SILENT])):
        moments = itertools.count(0.0, SLACK_S / 2)
        watch = Watch(store, lambda moments=moments: next(moments))  # type: ignore[misc]
        watch.every_s = 0.0
        ticks: list[int] = []
        found: Any = look(watch, lambda ticks=ticks: ticks.append(1))  # type: ignore[misc]
        assert (found and [one.presence for one in found]) == nobody
        assert len(ticks) >= 2
        assert next(moments) == (len(ticks) + 1) * SLACK_S / 2, "one look more than ticks"


def test_the_leader_is_preferred_among_running_members(store: Store) -> None:
    with beating(store, member="a"), beating(store, member="b", leads=True):
        watch = Watch(store)
        await_that("both are seen", lambda: all(s.presence is Presence.RUNNING for s in watch.look()), 10)
        found = watch.running()
    assert found is not None
    assert found.member == "b"


def test_the_store_of_another_pipeline_is_refused(store: Store) -> None:
    put_status(store, state="drained")
    with pytest.raises(UserError, match="belongs to pipeline 'chain', and this one is 'shop'"):
        ensure_not_running(store, "shop", "main", False, print)


def test_a_takeover_waits_for_nobody(store: Store) -> None:
    with beating(store):
        ensure_not_running(store, "chain", "main", True, pytest.fail)


def test_another_member_does_not_prevent_a_start(store: Store) -> None:
    with beating(store, member="other"):
        ensure_not_running(store, "chain", "main", False, pytest.fail)


# --- process identity -----------------------------------------------------------------------------------


def child(*prefix: str) -> tuple[subprocess.Popen[bytes], ProcessId]:
    """A process that waits until its input is closed, and its own identity."""
    process = subprocess.Popen(
        [*prefix, sys.executable, "-c", WHO_AM_I], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    data, out = b"", process.stdout.fileno()
    while not data.endswith(b"}"):
        more = os.read(out, 4096)
        if not more:
            pytest.skip(f"{' '.join(prefix)} does not work here")
        data += more
    return process, msgspec.json.decode(data, type=ProcessId)


def end(process: subprocess.Popen[bytes]) -> None:
    process.communicate()


@needs_proc
def test_a_process_on_this_machine_is_known_to_exist_or_to_have_ended(store: Store) -> None:
    process, who = child()
    assert exists(who) is True
    end(process)
    assert exists(who) is False
    put_status(store, process=who)
    assert Client(store, as_json=True).running_member() is None
    ensure_not_running(store, "chain", "main", False, pytest.fail)  # at once


@needs_proc
def test_a_reused_pid_is_not_the_same_process() -> None:
    who = this_process()
    assert who is not None
    assert exists(who) is True
    assert exists(msgspec.structs.replace(who, began=who.began - 1)) is False


@needs_proc
@pytest.mark.parametrize("field", ["host", "kernel", "pid_namespace", "time_namespace"])
def test_nothing_is_known_about_a_process_in_another_place(field: str) -> None:
    process, who = child()
    end(process)
    other: Any = {field: "another"}
    assert exists(msgspec.structs.replace(who, **other)) is None


def test_without_proc_nothing_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    here = this_process()
    monkeypatch.setattr(identity, "PROC", tmp_path)
    assert this_process() is None
    assert exists(here) is None


def test_a_process_is_identified_on_a_kernel_without_time_namespaces(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").write_text("boot\n")
    (tmp_path / "self/ns").mkdir(parents=True)
    (tmp_path / "self/ns/pid").symlink_to("pid:[1]")
    fields = " ".join(str(n) for n in range(50))
    (tmp_path / "self/stat").write_text(f"7 (a name) with) {fields}")
    monkeypatch.setattr(identity, "PROC", tmp_path)
    assert this_process() == ProcessId(socket.gethostname(), "boot", "pid:[1]", "", os.getpid(), 19)


@needs_proc
@pytest.mark.parametrize("options", [("--mount-proc",), ()], ids=["with its own proc", "with ours"])
def test_a_container_with_the_same_host_name_proves_nothing(store: Store, options: tuple[str, ...]) -> None:
    if shutil.which("unshare") is None or os.geteuid() != 0:
        pytest.skip("another pid namespace needs root and unshare")
    process, who = child("unshare", "--pid", "--fork", *options)
    try:
        assert (who.host, who.pid) == (socket.gethostname(), 1)
        assert exists(who) is None
        here = this_process()
        code = (
            "import sys, msgspec; from cutwater.store.process_identity import *\n"
            f"sys.exit(exists(msgspec.json.decode({msgspec.json.encode(here)!r}, type=ProcessId)) is not None)"
        )
        inside = ["unshare", "--pid", "--fork", *options, sys.executable, "-c", code]
        assert subprocess.run(inside, check=False).returncode == 0
        with beating(store, process=who, host=who.host, pid=2**22 + 7), pytest.raises(UserError):
            ensure_not_running(store, "chain", "main", False, print)
    finally:
        end(process)
    assert exists(who) is None


@needs_proc
@pytest.mark.parametrize(("options", "found"), [(("--mount-proc",), True), ((), None)], ids=["own", "ours"])
def test_a_proc_of_another_namespace_proves_nothing(options: tuple[str, ...], found: bool | None) -> None:
    if shutil.which("unshare") is None or os.geteuid() != 0:
        pytest.skip("another pid namespace needs root and unshare")
    code = "from cutwater.store.process_identity import *; print(exists(this_process()))"
    command = ["unshare", "--pid", "--fork", *options, sys.executable, "-c", code]
    said = subprocess.run(command, capture_output=True, check=True, text=True)
    assert said.stdout == f"{found}\n"


@pytest.mark.slow
@needs_proc
def test_a_paused_process_is_given_more_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "STUCK_S", 3.0)
    assert silence_s(put_status(store, process=this_process())) == 3.0
    log_lines: list[str] = []
    ensure_not_running(store, "chain", "main", False, log_lines.append)
    assert "It exists, but has not reported since this start" in log_lines[0]


# --- asking the members themselves -----------------------------------------------------------------------


class Unreported(LocalStore):
    """A store to which members can write their status only once."""

    def put(self, name: str, data: bytes) -> None:
        if name.startswith("status/") and self.exists(name):
            raise OSError("the quota is used up")
        super().put(name, data)


@pytest.mark.slow
def test_a_member_that_answers_is_running_whatever_the_store_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "STUCK_S", 0.0)
    (tmp_path / "state").mkdir()
    store = Unreported(tmp_path / "state")
    endpoint = free_endpoint()

    def call(*words: str) -> Result:
        return CliRunner().invoke(app, [*words, "--json", "--store", store.url])

    with members(store) as up:
        made = up.start("main", config=ClusterConfig(listen=(endpoint,)))
        await_that("it has a checkpoint", lambda: made.member.journal.state.head, 30)
        alone = call("checkpoint")
        assert alone.exit_code == 1
        assert (
            f"process {os.getpid()} on {socket.gethostname()} runs a pipeline on {store.url}" in alone.stdout
        )
        assert "cannot write to the store, whose disk may be full" in alone.stdout
        found = call("status", "--peer", endpoint)
        assert json.loads(found.stdout)["running"] is True, found.output
        asked = call("checkpoint", "--peer", endpoint, "--timeout", "60s")
        assert json.loads(asked.stdout) == {"epoch": 2}, asked.output
        named = call("savepoint", "good", "--epoch", "1", "--peer", endpoint)
        assert json.loads(named.stdout) == {"savepoint": "good", "epoch": 1}
        assert made.member.journal.state.term == 1  # nobody took the lead from it for that


# --- the real reporter ----------------------------------------------------------------------------------


def test_a_running_member_reports_its_identity_and_a_growing_beat(store: Store) -> None:
    with members(store) as running_members:
        running_members.start("main")
        watch = Watch(store)
        first = await_that("it reports", watch.look, 10)[0].status
        assert first.process == this_process()
        assert first.report_s == 0.1
        later = await_that(
            "it beats", lambda: [s.status for s in watch.look() if s.presence is Presence.RUNNING], 10
        )[0]
        assert later.beat > first.beat
        assert later.boot == first.boot
    assert [s.presence for s in Watch(store).look()] == [Presence.ENDED]


def test_reporting_continues_after_a_failed_report(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with members(store) as running_members:
        made = running_members.start("main")
        await_that("it reports", lambda: read_status(store), 10)
        with monkeypatch.context() as broken:
            broken.setattr(made.reporter, "_build", lambda report: 1 / 0)
            await_that("a report fails", lambda: "ZeroDivisionError" in made.facts.trouble, 10)
        assert Watch(store).running() is not None


def test_a_hanging_query_does_not_stop_the_status_from_changing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with members(store) as running_members:
        made = running_members.start("main")
        asked = []

        def hang() -> None:
            asked.append(1)
            made.done.wait(30)

        monkeypatch.setitem(made.reporter._measures, "s", hang)
        await_that("Spark is asked, and hangs", lambda: asked, 10)
        assert Watch(store).running() is not None
        made.done.set()


def test_the_last_status_of_a_member_does_not_replace_that_of_its_successor(store: Store) -> None:
    with members(store) as running_members:
        running_members.start("main")
        await_that("it reports", lambda: read_status(store), 10)
        successor = put_status(store, pipeline="shop", member="main", boot="another")
        running_members.up["main"].reporter._stopped.set()
        await_that(
            "nothing is reported any more",
            lambda: not any(t.is_alive() for t in running_members.up["main"].reporter._threads),
            10,
        )
        store.put("status/main.json", msgspec.json.encode(successor))
    assert [s.boot for s in read_status(store)] == ["another"]


def test_the_status_of_a_failed_member_says_why(store: Store) -> None:
    with members(store) as running_members:
        made = running_members.start("main")
        await_that("it reports", lambda: read_status(store), 10)
        made.shell.call(lambda: (_ for _ in ()).throw(UserError("the disk is full")))
        await_that("it has failed", lambda: made.failure, 10)
    (status,) = read_status(store)
    assert (status.state, status.trouble) == ("failed", "the disk is full")
