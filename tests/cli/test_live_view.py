"""The live view of `cutwater run`, and captured Spark output."""

from __future__ import annotations

import io
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console

from cutwater.cli.live_view import NEWS, LiveView, view
from cutwater.cli.stderr_capture import capture_stderr
from cutwater.store.contract import Store
from cutwater.store.figures import count
from cutwater.store.stage_status import RuleStatus, SourceLag, StageStatus
from cutwater.store.status import Status
from tests.support.spark_helpers import await_that
from tests.support.written import Written, put_status

NOW = 1_000_000.0
STAGE = StageStatus("a", "running", 7, 0.0, 0.0, 0, 0, None, "none")
STATUS = Status(
    pipeline="shop", member="main", boot="b", host="h", pid=1, state="running", started_at=NOW - 90,
    updated_at=NOW, generation=3, term=1, epoch=None, epoch_at=None, epoch_s=None, open_epoch=None, open_since=None,
    watermark=None, every_s=5.0, stages=(STAGE,), unpublished={},
)  # fmt: skip


def shown(status: Status, width: int = 120, news: tuple[str, ...] = ()) -> list[str]:
    screen = Console(width=width, file=io.StringIO(), record=True)
    screen.print(view(status, "/state", NOW, list(news), width))
    return [line.rstrip() for line in screen.export_text().splitlines()]


def checkpoint(**says: Any) -> str:
    return shown(replace(STATUS, **says))[1]


def row(**says: Any) -> list[str]:
    lines = shown(replace(STATUS, stages=(replace(STAGE, **says),)))
    at = next(n for n, line in enumerate(lines) if line.startswith("stage"))
    return [cell for cell in lines[at + 1].split("  ") if cell]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    play = Written()
    play.checkpoint()
    play.checkpoint()
    return play.write(tmp_path / "state")


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
    live.add_line("a first line")
    await_that("it is said that it starts", lambda: "starting chain" in file.getvalue(), 10)
    known.append(put_status(store))
    await_that("the status is shown", lambda: "running" in file.getvalue(), 10)
    live.close("drained")
    last = file.getvalue()[file.getvalue().rindex("chain") :]
    assert "drained" in last
    assert "a first line" in last


def test_the_first_line_says_who_it_is_and_since_when() -> None:
    assert shown(STATUS)[0] == "shop  running for 1 min 30 s  generation 3  /state"
    assert shown(replace(STATUS, member="b"))[0].startswith("shop · b  running")
    assert shown(replace(STATUS, member="b", leads=True))[0].startswith("shop · b leads  running")
    assert shown(replace(STATUS, leads=True))[0].startswith("shop  running"), "there is nobody else to lead"
    assert "running for 0.00 s" in shown(replace(STATUS, started_at=NOW + 5))[0], "clocks differ"


@pytest.mark.parametrize(
    ("says", "line"),
    [
        ({}, "no checkpoint yet"),
        ({"epoch": 0}, "epoch 0"),
        ({"epoch": 4, "epoch_s": 0.5}, "epoch 4, took 0.50 s"),
        ({"epoch": 4, "epoch_at": NOW - 2}, "epoch 4 2.0 s ago  next in 3.0 s"),
        ({"epoch": 4, "epoch_at": NOW - 8}, "epoch 4 8.0 s ago  next in 0.00 s"),
        ({"epoch": 4, "epoch_at": NOW + 1}, "epoch 4 0.00 s ago  next in 6.0 s"),
        ({"epoch": 4, "epoch_at": NOW - 2, "state": "draining"}, "epoch 4 2.0 s ago"),
        ({"open_epoch": 5}, "no checkpoint yet  epoch 5 in progress"),
        ({"open_epoch": 5, "open_since": NOW - 3}, "no checkpoint yet  epoch 5 in progress for 3.0 s"),
        ({"open_epoch": 5, "open_since": NOW + 3}, "no checkpoint yet  epoch 5 in progress for 0.00 s"),
        ({"epoch": 4, "epoch_at": NOW - 2, "open_epoch": 5}, "epoch 4 2.0 s ago  epoch 5 in progress"),
    ],
)
def test_the_second_line_says_when_the_last_and_the_next_checkpoint_is(
    says: dict[str, Any], line: str
) -> None:
    assert checkpoint(**says) == line


def test_a_watermark_is_a_moment_with_its_date_unless_that_is_today() -> None:
    moment = time.mktime((2025, 3, 4, 5, 6, 7, 0, 0, -1))
    assert checkpoint(watermark=int(moment * 1000)) == "no checkpoint yet  watermark 25-03-04 05:06:07"
    now = time.time()
    today = time.strftime("%H:%M:%S", time.localtime(now))
    assert row(watermark=int(now * 1000), watermark_kind="at")[-1].strip() == today


@pytest.mark.parametrize(
    ("says", "cells"),
    [
        ({}, ["a", "running", "7", "-", "-", "-", "-"]),
        ({"batch": 0}, ["a", "running", "0", "-", "-", "-", "-"]),
        ({"batch": -1}, ["a", "running", "-", "-", "-", "-", "-"]),
        ({"rows_per_s": 1233.6, "batch_s": 0.5}, ["a", "running", "7", "1,234", "0.50 s", "-", "-"]),
        ({"lag_rows": 12_000, "lag_batches": 2}, ["a", "running", "7", "-", "-", "12k rows", "-"]),
        ({"lag_batches": 2}, ["a", "running", "7", "-", "-", "2 batches", "-"]),
        ({"watermark_kind": "unknown"}, ["a", "running", "7", "-", "-", "-", "no event yet"]),
        ({"watermark_kind": "final"}, ["a", "running", "7", "-", "-", "-", "final"]),
        ({"restarts": 2, "state": "restarting"}, ["a", "restarting (2)", "7", "-", "-", "-", "-"]),
        ({"restarts": 2, "waits_for": "b"}, ["a", "holds b", "7", "-", "-", "-", "-"]),
    ],
)
def test_a_stage_has_a_line_of_its_own(says: dict[str, Any], cells: list[str]) -> None:
    assert [cell.strip() for cell in row(**says)] == cells


def test_errors_and_waits_are_shown() -> None:
    stages = (replace(STAGE, error="no disk"), replace(STAGE, name="b"))
    lines = shown(
        replace(STATUS, trouble="no answer\n  at x\x1b[31m", unpublished={"out": 2, "all": 1}, stages=stages),
        news=("one", "two"),
    )
    assert lines[2:5] == ["not yet published in all (1), out (2)", "trouble: no answer at x\u241b[31m", ""]
    assert lines[-4:] == ["", "a: no disk", "one", "two"]


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (9_999, "9,999"),
        (10_000, "10k"),
        (9_999_499, "9,999k"),
        (10_000_000, "10M"),
        (1_234_567_890, "1,235M"),
    ],
)
def test_many_rows_are_shown_in_few_characters(number: int, said: str) -> None:
    assert count(number) == said


def test_the_view_keeps_the_last_news_and_the_last_status() -> None:
    known: list[Status | None] = [None]
    screen = Console(width=120, file=io.StringIO(), record=True)
    live = LiveView(screen, "/state", "shop", lambda: known[-1])
    for number in range(NEWS + 1):
        live.add_line(f"news {number}")

    def picture() -> str:
        screen.print(live.__rich__())
        return screen.export_text()

    starting = picture()
    assert "starting shop" in starting
    assert "news 0" not in starting
    assert f"news {NEWS}" in starting
    known.append(STATUS)
    assert "shop  running" in picture()
    known.append(None)
    assert "shop  running" in picture(), "nothing is heard for a moment"
    known.append(replace(STATUS, state="draining"))
    picture()
    live.close()
    assert "shop  draining" in picture()
    live.close("drained")
    assert "shop  drained" in picture(), "whatever is said now"


def test_a_view_that_is_closed_before_anything_is_known_says_only_that_it_was_starting() -> None:
    screen = Console(width=120, file=io.StringIO(), record=True)
    live = LiveView(screen, "/state", "shop", lambda: None)
    live.close("failed")
    screen.print(live.__rich__())
    assert "starting shop" in screen.export_text()


def test_spark_output_is_captured_line_by_line_without_notices() -> None:
    heard: list[str] = []
    code = "import os; os.write(2, b'WARNING: Using incubator modules: x\\n12:00:00 spark ERROR x\\n')"
    with capture_stderr(heard.append):
        subprocess.run([sys.executable, "-c", code], check=True)
        await_that("it is heard", lambda: heard, 10)
    assert heard == ["spark ERROR x"]


def test_output_of_python_itself_is_not_captured(capfd: pytest.CaptureFixture[str]) -> None:
    heard: list[str] = []
    sys.stderr.write("before, ")
    with capture_stderr(heard.append):
        sys.stderr.write("meanwhile, ")
    sys.stderr.write("and after")
    sys.stderr.flush()
    assert capfd.readouterr().err == "before, meanwhile, and after"
    assert heard == []


def test_a_stage_in_its_first_batch_says_so() -> None:
    assert row(batch=-1, first_batch_s=40.0)[1] == "in its first batch for 40 s"
    narrow = "\n".join(shown(replace(STATUS, stages=(replace(STAGE, batch=-1, first_batch_s=40.0),)), 80))
    assert "1st batch 40 s" in narrow


def test_a_stage_shows_how_far_it_is_behind_its_own_sources() -> None:
    partitions = {f"orders-{n}": n for n in range(8)}
    kafka = SourceLag("KafkaV2[Subscribe[orders]]", 28, partitions=partitions)
    assert "28 rows" in row(sources=(kafka,))
    lines = shown(replace(STATUS, stages=(replace(STAGE, sources=(kafka,)),)))
    assert "a is behind orders-7 7, orders-6 6, orders-5 5, orders-4 4, orders-3 3, 2 more" in lines
    files = SourceLag("FileStreamSource[/in]", files=1200, bytes=3_400_000)
    assert "1,200 files" in row(sources=(files,))
    assert "a is behind FileStreamSource[/in] by 1,200 files, 3.4 MB" in shown(
        replace(STATUS, stages=(replace(STAGE, sources=(files,)),))
    )
    assert "3.4 MB" in row(sources=(replace(files, files=None),))
    assert "41 s" in row(sources=(SourceLag("RateStreamV2[", seconds=41.0),))
    idle = SourceLag("KafkaV2[Subscribe[orders]]", 0, partitions={"orders-0": 0})
    assert not any(
        "is behind" in line for line in shown(replace(STATUS, stages=(replace(STAGE, sources=(idle,)),)))
    )


def test_rules_that_were_violated_are_shown_below_the_stages() -> None:
    rules = RuleStatus("positive", 1, 12_000), RuleStatus("known", 0, 3), RuleStatus("fine", 0, 0)
    for what, where in (("drop", "dropped"), ("bad", "in quarantine bad")):
        lines = shown(replace(STATUS, stages=(replace(STAGE, rules=rules, on_violation=what),)), 120)
        said = "'positive' by 1 row (12k in all), 'known' by 0 rows (3 in all)"
        assert f"a: rules violated in the newest epoch: {said}; {where}" in lines
    fine = replace(STATUS, stages=(replace(STAGE, rules=rules[2:], on_violation="drop"),))
    assert not any("rules" in line for line in shown(fine))


def test_ignored_messages_are_shown() -> None:
    assert "3 messages ignored; the log says whose" in shown(replace(STATUS, ignored=3))
    assert not any("ignored" in line for line in shown(STATUS))
