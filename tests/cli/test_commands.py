"""Commands that meet a running pipeline: loading it, steering it from elsewhere, looking at it live."""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from cutwater.api.config import RunConfig
from cutwater.cli.live import LiveView, view
from cutwater.cli.load import load
from cutwater.cli.main import app
from cutwater.cli.run import Lines
from cutwater.cli.spark_output import hearing
from cutwater.protocol.base.errors import UserError
from cutwater.protocol.base.failures import FailureReason
from cutwater.protocol.base.paths import REPLY_PREFIX, REQUEST_PREFIX
from cutwater.protocol.base.wire import Reply, Request, RequestKind, encode
from cutwater.runtime.mailbox import understood
from cutwater.store.contract import Store
from cutwater.store.opening import open_store
from cutwater.store.status import Status
from tests.support.live_member import members
from tests.support.spark_helpers import await_that, deliver, numbers, rows_of
from tests.support.written import Written, beating, put_status

PIPELINE = """
import cutwater as cw
from pyspark.sql import functions as F
from helper import BIG

pipeline = cw.Pipeline("sums")

def double(amount):
    return 2 * amount

@pipeline.stage(sinks=[cw.delta("out/doubled")])
def doubled(spark):
    rows = spark.readStream.schema("id long, amount double, ts timestamp").parquet("in")
    return rows.where(F.col("amount") < BIG).withColumn("twice", F.udf(double, "double")("amount"))
"""


def call(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


# --- loading ------------------------------------------------------------------------------------------


@pytest.fixture
def clean_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """What loading changes is undone."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))


def written(folder: Path, text: str) -> str:
    (folder / "mine.py").write_text("import cutwater as cw\n" + text)
    return str(folder / "mine.py")


@pytest.mark.usefixtures("clean_path")
def test_the_one_pipeline_of_a_file_needs_no_name(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("NAME = 'shop'")
    assert load(written(tmp_path, "from beside import NAME\np = cw.Pipeline(NAME)\nsame = p")).name == "shop"


@pytest.mark.usefixtures("clean_path")
def test_what_lies_beside_a_file_is_imported_before_what_lies_elsewhere(tmp_path: Path) -> None:
    for folder in ("own", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "beside.py").write_text(f"NAME = '{folder}'")
    sys.path.insert(0, str(tmp_path / "other"))
    assert load(written(tmp_path / "own", "from beside import NAME\np = cw.Pipeline(NAME)")).name == "own"
    assert os.environ["PYTHONPATH"].split(os.pathsep)[0] == str(tmp_path / "own"), "for Spark's workers"


@pytest.mark.usefixtures("clean_path")
def test_one_of_several_pipelines_is_named(tmp_path: Path) -> None:
    file = written(tmp_path, "p = cw.Pipeline('x')\nq = cw.Pipeline('y')")
    assert load(f"{file}:q").name == "y"
    with pytest.raises(UserError, match=r"several pipelines \(p, q\).*mine.py:p"):
        load(file)
    with pytest.raises(UserError, match="no pipeline named z; it has: p, q"):
        load(f"{file}:z")


@pytest.mark.usefixtures("clean_path")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1", "has no pipeline: write"),
        ("x = 1\ny = x +", r"line 3: SyntaxError: invalid syntax\n    y = x \+"),
        ("def f():\n    return 1 / 0\nf()", r"line 3: ZeroDivisionError: division by zero\n    return 1 / 0"),
        ("p = cw.Pipeline('a b')", "line 2: 'a b' cannot name a pipeline"),
        ("import sys\nsys.exit(3)", "line 3: SystemExit: 3"),
    ],
    ids=["none", "syntax", "raises", "misused", "exits"],
)
def test_a_file_that_cannot_be_used_is_explained_by_its_own_line(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(UserError, match=said):
        load(written(tmp_path, text))


@pytest.mark.usefixtures("clean_path")
def test_ctrl_c_while_a_file_is_loaded_is_no_error_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        load(written(tmp_path, "raise KeyboardInterrupt"))


def test_a_run_of_a_file_that_is_not_there_is_an_error() -> None:
    shown = call("run", "nowhere.py")
    assert shown.exit_code == 1
    assert "there is no file nowhere.py" in shown.stderr


def test_a_setting_without_a_value_is_an_error() -> None:
    assert "write KEY=VALUE" in call("run", "x.py", "--conf", "spark.thing").stderr


def test_wrong_usage_has_an_exit_code_of_its_own() -> None:
    assert call("run").exit_code == 2
    assert call("explain", "many").exit_code == 2


# --- steering -----------------------------------------------------------------------------------------


@contextmanager
def answering(store: Store, *replies: dict[str, Any]) -> Iterator[list[Request]]:
    """A running pipeline, as far as the store tells: it answers one request after the other."""
    heard: list[Request] = []

    def answer() -> None:
        while not over.wait(0.01):
            for name in store.list(REQUEST_PREFIX):
                request = understood(store.read(name), Request)
                if request is not None and request not in heard:
                    heard.append(request)
                    reply = Reply(request.request_id, **replies[len(heard) - 1])
                    store.put(f"{REPLY_PREFIX}{request.request_id}.json", encode(reply))

    with beating(store) as over:
        thread = Thread(target=answer)
        thread.start()
        try:
            yield heard
        finally:
            over.set()
            thread.join()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    play = Written()
    play.checkpoint()
    play.checkpoint()
    return play.write(tmp_path / "state")


def test_requests_reach_the_running_pipeline_and_answers_come_back(store: Store) -> None:
    where = ("--store", store.url)
    with answering(store, *({"ok": True, "epoch": n} for n in (7, 8, 2, 8, 2))) as heard:
        assert call("checkpoint", "--full", "--unaligned", *where).stdout == "epoch 7 is committed\n"
        assert json.loads(call("savepoint", "x", "--json", *where).stdout) == {"savepoint": "x", "epoch": 8}
        assert call("savepoint", "y", "--epoch", "latest", *where).exit_code == 0
        assert call("savepoint", "x", "--forget", *where).exit_code == 0
        assert "goes on from there" in call("restore", "latest", "--reset", "b", *where).stdout
    kinds = [request.kind for request in heard]
    assert kinds == [
        RequestKind.CHECKPOINT, RequestKind.SAVEPOINT, RequestKind.SAVEPOINT, RequestKind.FORGET,
        RequestKind.RESTORE,
    ]  # fmt: skip
    assert (heard[0].full, heard[0].unaligned) == (True, True)
    assert (heard[2].name, heard[2].epoch) == ("y", 2)
    assert (heard[4].epoch, heard[4].reset) == (2, ("b",))
    assert store.list(REQUEST_PREFIX) == store.list(REPLY_PREFIX) == []


def test_a_restore_reaches_a_running_pipeline_with_all_that_was_said(store: Store) -> None:
    where = ("--store", store.url)
    assert call("savepoint", "good", "--epoch", "1", *where).exit_code == 0
    with answering(store, *({"ok": True, "epoch": 1} for _ in range(2))) as heard:
        told = json.loads(call("restore", "good", "--force", "--json", *where).stdout)
        assert call("restore", "1", "--reset", "b", "--reset", "c", *where).exit_code == 0
    assert told == {
        "epoch": 1, "running": True, "news": ["restored epoch 1; the pipeline goes on from there"],
    }  # fmt: skip
    assert [(r.name, r.epoch, r.force, r.reset) for r in heard] == [
        ("good", 1, True, ()), (None, 1, False, ("b", "c")),
    ]  # fmt: skip


def test_a_takeover_does_not_ask_who_runs(store: Store) -> None:
    with beating(store):
        told = json.loads(call("restore", "1", "--takeover", "--json", "--store", store.url).stdout)
        assert (told["epoch"], told["running"]) == (1, False)
        assert store.list(REQUEST_PREFIX) == []


def test_programs_are_told_what_was_cancelled_and_forgotten(store: Store) -> None:
    where = ("--json", "--store", store.url)
    with answering(store, {"ok": True}, {"ok": True, "epoch": 2}, {"ok": True, "epoch": 3}):
        assert json.loads(call("cancel", *where).stdout) == {"cancelled": True}
        assert json.loads(call("savepoint", "x", "--forget", *where).stdout) == {"forgotten": "x", "epoch": 2}
        assert json.loads(call("checkpoint", *where).stdout) == {"epoch": 3}


def test_a_refusal_says_why_and_what_to_do(store: Store) -> None:
    reason = FailureReason.NOTHING_TO_CANCEL
    with answering(store, {"ok": False, "reason": reason.value, "detail": "none is in flight"}):
        shown = call("cancel", "--store", store.url)
    assert shown.exit_code == 1
    assert f"none is in flight. {reason.advice}" in shown.stderr


def test_a_request_that_nobody_answers_is_withdrawn(store: Store) -> None:
    with beating(store):
        shown = call("checkpoint", "--timeout", "300ms", "--store", store.url)
    assert shown.exit_code == 1
    assert "no answer within 0.30 s" in shown.stderr
    assert store.list(REQUEST_PREFIX) == []


def test_a_pipeline_that_ends_meanwhile_is_not_waited_for(store: Store) -> None:
    with beating(store) as over:

        def end_when_asked() -> None:
            await_that("it asks", lambda: store.list(REQUEST_PREFIX))
            over.set()

        asked = Thread(target=end_when_asked)
        asked.start()
        shown = call("checkpoint", "--store", store.url)
        asked.join()
    assert shown.exit_code == 1
    assert "ended before it answered" in shown.stderr
    assert store.list(REQUEST_PREFIX) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("option", [(), ("--json",)], ids=["text", "json"])
def test_whoever_is_interrupted_while_it_waits_withdraws_and_says_so(
    store: Store, option: tuple[str, ...], number: signal.Signals
) -> None:
    command = [sys.executable, "-m", "cutwater", "checkpoint", "--store", store.url, *option]
    with beating(store):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        await_that("it asks", lambda: store.list(REQUEST_PREFIX))
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    said = json.loads(out)["error"] if option else err
    assert "interrupted; the request is withdrawn, but it may have been begun or even done" in said
    assert "Traceback" not in out + err
    assert store.list(REQUEST_PREFIX) == []


def test_a_request_that_vanishes_or_is_answered_in_tongues_is_told(store: Store) -> None:
    def disturb(act: Callable[[str], None]) -> Result:
        with beating(store):
            thread = Thread(target=lambda: act(await_that("it asks", lambda: store.list(REQUEST_PREFIX))[0]))
            thread.start()
            shown = call("checkpoint", "--timeout", "60s", "--store", store.url)
            thread.join()
        assert shown.exit_code == 1
        assert f"`cutwater checkpoints --store {store.url}` for what is committed" in shown.stderr
        return shown

    shown = disturb(lambda name: store.delete([name]))
    assert "the request is gone from the store, and no answer is there" in shown.stderr
    shown = disturb(lambda name: store.put(name.replace(REQUEST_PREFIX, REPLY_PREFIX), b"{}"))
    assert "the answer cannot be read" in shown.stderr
    assert store.list(REQUEST_PREFIX) + store.list(REPLY_PREFIX) == []


def test_a_changed_graph_needs_a_new_start(store: Store) -> None:
    with beating(store):
        shown = call("restore", "1", "--drop", "c", "--store", store.url)
    assert shown.exit_code == 1
    assert "--drop needs a new start" in shown.stderr


# --- looking ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [80, 120])
def test_the_live_view_fits_the_terminal(store: Store, width: int) -> None:
    status = put_status(store)
    screen = Console(width=width, file=io.StringIO(), record=True)
    screen.print(view(status, store.url, time.time(), ["12:00:00 epoch 4 committed in 0.50 s"], width))
    lines = screen.export_text().splitlines()
    assert max(map(len, lines)) <= width
    assert lines[0].startswith("chain  running for 1 min")
    assert lines[1].startswith("epoch 4 3.")
    row = next(line.split() for line in lines if line.startswith("a "))
    assert row == ["a", "running", "7", "1,234", "0.50", "s", "-", "-"]
    assert "epoch 4 committed in 0.50 s" in lines[-1]


def test_the_live_view_starts_without_a_status_and_ends_with_the_last_one(store: Store) -> None:
    known: list[Status] = []
    file = io.StringIO()
    live = LiveView(
        Console(width=80, file=file, force_terminal=True),
        "here",
        "chain",
        lambda: known[-1] if known else None,
    )
    live.start()
    live.tell("a first line")
    await_that("it is said that it starts", lambda: "starting chain" in file.getvalue(), 10)
    known.append(put_status(store))
    await_that("the status is shown", lambda: "running" in file.getvalue(), 10)
    live.close("drained")
    last = file.getvalue()[file.getvalue().rindex("chain") :]
    assert "drained" in last
    assert "a first line" in last


def test_what_spark_prints_is_heard_line_by_line_without_its_notices() -> None:
    heard: list[str] = []
    code = "import os; os.write(2, b'WARNING: Using incubator modules: x\\n12:00:00 spark ERROR x\\n')"
    with hearing(heard.append):
        subprocess.run([sys.executable, "-c", code], check=True)
        await_that("it is heard", lambda: heard, 10)
    assert heard == ["spark ERROR x"]


def test_what_python_itself_writes_goes_where_it_went_before(capfd: pytest.CaptureFixture[str]) -> None:
    heard: list[str] = []
    sys.stderr.write("before, ")
    with hearing(heard.append):
        sys.stderr.write("meanwhile, ")
    sys.stderr.write("and after")
    sys.stderr.flush()
    assert capfd.readouterr().err == "before, meanwhile, and after"
    assert heard == []


# --- a real run ---------------------------------------------------------------------------------------


@contextmanager
def started(folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """`cutwater run` in a terminal of its own, which is ended at the latest when the test is over."""
    command = [
        sys.executable,
        "-m",
        "cutwater",
        "run",
        "sums.py",
        "--every",
        "1s",
        "--master",
        "local[2]",
        *options,
    ]
    with (folder / "out.log").open("w") as out, (folder / "err.log").open("w") as err:
        process = subprocess.Popen(
            command, cwd=folder, stdout=out, stderr=err, text=True, start_new_session=True
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.fixture
def sums(tmp_path: Path) -> Path:
    (tmp_path / "sums.py").write_text(PIPELINE)
    (tmp_path / "helper.py").write_text("BIG = 1000.0\n")
    deliver(tmp_path / "in", "one", numbers(range(100)))
    return tmp_path


def output(folder: Path) -> str:
    return (folder / "out.log").read_text()


@pytest.mark.slow
def test_a_pipeline_is_run_and_steered_from_another_terminal(sums: Path) -> None:
    where = ("--store", sums / "state")
    with started(sums) as process:
        await_that("rows are published", lambda: (sums / "out/doubled/_delta_log").is_dir(), 240)
        assert json.loads(call("status", "--json", *where).stdout)["running"] is True
        taken = json.loads(call("savepoint", "good", "--json", *where).stdout)
        found = json.loads(call("checkpoints", "--json", *where).stdout)["checkpoints"]
        assert [c["savepoints"] for c in found if c["epoch"] == taken["epoch"]] == [["good"]]
        steps = json.loads(call("explain", str(taken["epoch"]), "--json", *where).stdout)["steps"]
        assert steps[0]["step"] == "doubled"
        deliver(sums / "in", "two", numbers(range(100, 150)))
        drained = call("drain", *where)
        assert drained.exit_code == 0, drained.stderr
        assert "published everywhere" in drained.stdout
        assert process.wait(120) == 0
    assert "savepoint 'good' is epoch" in output(sums)
    assert output(sums).splitlines()[-1].endswith("drained")
    assert (sums / "err.log").read_text() == ""
    assert rows_of(sums / "out/doubled", "id", "twice") == [(i, 2.0 * (i % 97)) for i in range(150)]
    assert call("verify", *where).exit_code == 0
    assert call("restore", "good", *where).exit_code == 0
    with started(sums, "--once", "--json") as process:
        assert process.wait(240) == 0, (sums / "err.log").read_text()
    events = [json.loads(line) for line in output(sums).splitlines()]
    assert events[-1]["state"] == "drained"
    assert "committed" in {event["event"] for event in events}
    assert [row[0] for row in rows_of(sums / "out/doubled", "id")] == list(range(150))


@pytest.mark.slow
def test_ctrl_c_while_spark_starts_ends_without_a_fuss(sums: Path) -> None:
    with started(sums) as process:
        await_that("it starts", lambda: "starting Spark" in output(sums), 60)
        await_that("Spark's process is there", lambda: _children(process.pid), 60)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) == 130
    said = (sums / "err.log").read_text()
    assert said.endswith("error: interrupted\n")
    assert "\tat org.apache" not in said
    assert len(output(sums).splitlines()) == 1


def _children(pid: int) -> bool:
    """Whether a process has started another program: a fork that is not that far yet is still itself."""
    own = Path(f"/proc/{pid}/cmdline").read_bytes()
    tasks = Path(f"/proc/{pid}/task")
    children = [child for task in tasks.iterdir() for child in (task / "children").read_text().split()]
    return any(Path(f"/proc/{child}/cmdline").read_bytes() not in (b"", own) for child in children)


@pytest.mark.slow
def test_ctrl_c_drains_and_a_second_one_stops_at_once(sums: Path) -> None:
    with started(sums) as process:
        await_that("a checkpoint is committed", lambda: "committed in" in output(sums), 240)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(120) == 0
    assert output(sums).splitlines()[-1].endswith("drained")
    with started(sums) as process:
        await_that("a checkpoint is committed", lambda: "committed in" in output(sums), 240)
        os.killpg(process.pid, signal.SIGINT)
        await_that("it is being drained", lambda: "draining" in output(sums), 30)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) in (0, 130)  # 0 if the drain was faster
    for text in (output(sums), (sums / "err.log").read_text()):
        assert "Traceback" not in text
        assert "\tat org.apache" not in text


# --- running, without Spark -------------------------------------------------------------------------------------


class Pretended:
    """A pipeline that does what it is told, and says what it was given."""

    name = "shop"

    def __init__(self, outcome: bool | BaseException) -> None:
        self.outcome = outcome
        self.store = ""
        self.given = RunConfig()
        self.stopped = False

    def start(self, store: str, given: RunConfig) -> None:
        self.store, self.given = store, given
        logging.getLogger("cutwater").info("it begins")
        logging.getLogger("cutwater").debug("which nobody is told")

    def stay(self, tick: Callable[[], None] | None) -> bool:
        for _ in range(2):
            if tick is not None:
                tick()
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome

    def stop(self) -> None:
        self.stopped = True

    def status(self) -> Any:
        return SimpleNamespace(epoch=4, epoch_s=0.5, epoch_at=0.0)


def run_pretended(
    monkeypatch: pytest.MonkeyPatch, outcome: bool | BaseException, *options: str
) -> tuple[Result, Pretended]:
    made = Pretended(outcome)
    monkeypatch.setattr("cutwater.cli.load.load", lambda _: made)
    return call("run", "x.py", *options), made


def test_a_run_that_was_drained_ends_well(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, made = run_pretended(
        monkeypatch, True, "--store", "s", "--conf", "a=b", "--restore", "7", "--drop", "c"
    )
    assert shown.exit_code == 0
    assert [line.split(" ", 1)[1] for line in shown.stdout.splitlines()] == [
        "starting Spark, then the stages", "it begins", "drained",
    ]  # fmt: skip
    assert made.store == "s"
    assert made.given == RunConfig(conf={"a": "b"}, restore="7", drop=("c",))
    assert not made.stopped


def test_what_spark_writes_to_the_error_output_is_told_with_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []

    class Noisy(Pretended):
        def stay(self, tick: Callable[[], None] | None) -> bool:
            os.write(2, b"no space left\n")
            await_that("it is told", lambda: "no space left" in told, 10)
            return super().stay(tick)

    monkeypatch.setattr(Lines, "tell", lambda self, line: told.append(line))
    monkeypatch.setattr("cutwater.cli.load.load", lambda _: Noisy(True))
    assert call("run", "x.py").exit_code == 0


def test_a_run_that_was_stopped_at_once_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, _ = run_pretended(monkeypatch, False)
    assert shown.exit_code == 130
    assert shown.stdout.endswith("stopped\n")


def test_a_run_that_fails_says_why_and_ends_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, _ = run_pretended(monkeypatch, UserError("no luck"))
    assert (shown.exit_code, shown.stderr) == (1, "error: no luck\n")


def test_a_run_that_is_interrupted_stops_its_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, made = run_pretended(monkeypatch, KeyboardInterrupt())
    assert shown.exit_code == 130
    assert made.stopped


def test_a_run_tells_programs_of_each_checkpoint_once(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, _ = run_pretended(monkeypatch, True, "--json")
    events = [json.loads(line) for line in shown.stdout.splitlines()]
    assert [e["event"] for e in events] == ["starting", "news", "committed", "ended"]
    assert (events[2]["epoch"], events[2]["took_s"], events[3]["state"]) == (4, 0.5, "drained")
    failed, _ = run_pretended(monkeypatch, UserError("no luck"), "--json")
    ended, error = (json.loads(line) for line in failed.stdout.splitlines()[-2:])
    assert (ended["state"], error) == ("failed", {"error": "no luck"})


def test_who_listens_for_others_must_have_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTWATER_SECRET", "a secret that is long enough for all")
    shown, made = run_pretended(monkeypatch, True, "--listen", "tcp/127.0.0.1:0")
    assert shown.exit_code == 1
    assert "give it a name with --member NAME" in shown.stderr
    assert made.store == ""


def test_a_checkpoint_that_is_under_way_can_be_called_off(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "state"), create=True)
    with members(store) as up:
        made = up.start("main")
        await_that("it leads", lambda: made.leader.coordinator is not None, 30)
        made.hosts["s"].attend = lambda stage: None  # type: ignore[method-assign]
        made.come_to_rest()
        await_that("a drain is under way", lambda: made.member.journal.state.open, 30)
        shown = call("cancel", "--store", store.url, "--json")
    assert json.loads(shown.stdout) == {"cancelled": True}
