"""What a member's runtime does around its queries: cleanup, reports, timings. With a model of Spark."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from cutwater.cluster.links import Hint, Presence
from cutwater.protocol.base.barrier import Barrier
from cutwater.protocol.base.errors import PublishingFailed, StoreError, UserError
from cutwater.protocol.base.replay_wire import AskRange, Compacted, EntriesChunk, FetchEntries, HaveRange
from cutwater.protocol.base.watermark import NONE, WatermarkKind
from cutwater.protocol.base.wire import (
    Ack,
    Announcement,
    Heartbeat,
    LogGrown,
    Phase,
    Reply,
    Request,
    RequestKind,
    SourcesDone,
)
from cutwater.protocol.member.config import StagePlan
from cutwater.runtime import runtime
from cutwater.runtime.timings import read_times
from cutwater.sinks import parquet_files
from cutwater.store.at_rest import load_manifest
from tests.support.hosted_pipeline import HostedPipeline, has_read, has_rows
from tests.support.spark_helpers import await_that


def test_a_run_logs_its_epochs_and_stores_the_time_of_every_step(shop: HostedPipeline) -> None:
    made = shop.start(every_ms=3_600_000)
    await_that("the first rows", lambda: has_rows(shop), 30)
    epoch = shop.ask(RequestKind.CHECKPOINT).epoch
    assert epoch is not None
    shop.await_shown(3)
    await_that("its mark is written", lambda: not made.reporter.status().unpublished, 30)
    made.stop()
    status = made.reporter.status()
    times = read_times(shop.store, epoch)
    assert times is not None
    assert sorted(times.stages, key=lambda name: times.stages[name].cut_s) == ["source", "copied"]
    steps = [times.stages["copied"].cut_s, times.captured_s, times.manifest_s, times.committed_s]
    assert None not in steps
    assert [*steps, times.published_s["out"]] == sorted(filter(None, [*steps, times.published_s["out"]]))
    assert times.committed_s == status.epoch_s
    assert status.epoch_at == pytest.approx(times.begun_at + (times.committed_s or 0), abs=0.1)
    commits = [line for line in shop.log_lines if " committed in " in line]
    assert [line.partition(" committed in ")[0] for line in commits] == [
        f"epoch {e}" for e in range(1, epoch + 1)
    ]


def test_staged_files_of_failed_attempts_are_removed_and_published_ones_stay(
    shop: HostedPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "DISCARD_FIRST_S", 0.2)
    monkeypatch.setattr(runtime, "DISCARD_EVERY_S", 0.2)
    shop.start()
    shop.await_shown(3)
    (attempt,) = {Path(file).parent for file in parquet_files(str(shop.table))}
    over = attempt.with_name(f"1-1-0-{'0' * 8}")
    over.mkdir()
    (over / "part-0.parquet").write_bytes(b"x")
    to_come = attempt.with_name(f"1-1-999-{'0' * 8}")
    to_come.mkdir()
    (to_come / "part-0.parquet").write_bytes(b"x")
    shop.numbers.available = 5
    await_that("the old attempt is removed", lambda: not over.exists(), 30)
    shop.await_shown(5)
    assert to_come.exists()
    later = attempt.with_name(f"1-1-0-{'1' * 8}")
    later.mkdir()
    (later / "part-0.parquet").write_bytes(b"x")
    await_that("and again the next time", lambda: not later.exists(), 30)


def test_a_second_process_of_a_member_is_reported_once(shop: HostedPipeline) -> None:
    made = shop.start()
    shop.await_shown(3)
    made._on_message("other", Heartbeat("other", "boot1", 0, 0))
    made.links.alive = lambda: {"main": ("boot1", "boot9")}  # type: ignore[method-assign]
    for _ in range(2):
        made._on_message("other", Heartbeat("other", "boot1", 0, 0))
    await_that("a line", lambda: [t for t in shop.log_lines if "is running 2 times" in t], 30)
    looked = Event()
    made.shell.call(looked.set)
    assert looked.wait(30), "both messages are taken"
    made.stop()
    assert len([t for t in shop.log_lines if "member 'main' is running 2 times" in t]) == 1


def test_trouble_with_the_store_is_reported_but_not_repeatedly(shop: HostedPipeline) -> None:
    made = shop.start()
    shop.await_shown(3)

    for number in range(2):
        made.troubles.failed("Read", f"no disk {number}", "an object")
    assert made.reporter.status().trouble == "Read: no disk 1"
    made.troubles.worked("Read", "an object")
    assert made.reporter.status().trouble == ""
    made.stop()
    assert [t for t in shop.log_lines if "will be retried: " in t] == [
        "an operation failed and will be retried: Read: no disk 0"
    ]


def test_every_version_of_a_table_names_its_epoch(shop: HostedPipeline) -> None:
    made = shop.start(every_ms=3_600_000)
    await_that("rows to cut behind", lambda: has_rows(shop), 30)
    epochs = [shop.ask(RequestKind.CHECKPOINT).epoch]
    shop.await_shown(3)
    shop.numbers.available = 6
    await_that("further rows", lambda: has_read(shop, 6), 30)
    epochs.append(shop.ask(RequestKind.CHECKPOINT).epoch)
    shop.await_shown(6)
    found = [
        made.sinks["out"]._files.read(name) for name in made.sinks["out"]._files.list("_cutwater/versions/")
    ]
    assert [json.loads(data or b"")["epoch"] for data in found] == epochs


def test_only_stages_with_a_watermark_report_one(shop: HostedPipeline) -> None:
    shop.with_watermark = {"copied"}
    made = shop.start(every_ms=3_600_000)
    await_that("rows to cut behind", lambda: has_rows(shop), 30)
    epoch = shop.ask(RequestKind.CHECKPOINT).epoch
    assert epoch is not None
    found = load_manifest(shop.store, made.member.journal.state.committed[epoch])
    kinds = {name: report.watermark.kind for name, report in found.stages.items()}
    assert kinds == {"source": WatermarkKind.NONE, "copied": WatermarkKind.UNKNOWN}


def test_an_ack_is_passed_on_each_time(shop: HostedPipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    made = shop.start(every_ms=3_600_000)
    await_that("the first rows", lambda: has_rows(shop), 30)
    own: list[Any] = []
    sent: list[Any] = []
    monkeypatch.setattr(made.leader, "on_message", own.append)
    monkeypatch.setattr(made.links, "send", lambda to, message: sent.append((to, message)))
    part = Ack("main", "boot1", 90, 1_000, 1, True, None, NONE, {})
    refusal = Ack("main", "boot1", 91, 1_001, 1, False, "no", NONE, {})
    later = Ack("main", "boot1", 91, 1_001, 1, True, None, NONE, {})
    for to, ack in (("main", part), ("other", part), ("other", refusal), ("other", later)):
        made._acknowledge(to, ack)
    assert own == [part]
    assert sent == [("other", part), ("other", refusal), ("other", later)]


REPLAY = (AskRange(1), HaveRange(1, 2, 3), FetchEntries(1, 2, 3, 4), EntriesChunk(1, 2, []), Compacted(1, 2))


@pytest.mark.parametrize(
    ("message", "heard"),
    [
        (Announcement(Phase.COMMIT, Barrier(1_000, 1).pack(), 1, 1, 5), ["on_announcement"]),
        (Heartbeat("b", "boot", 1, 2), ["on_heartbeat", "lead_on_heartbeat"]),
        (LogGrown("s", 1, 2), ["on_log_grown"]),
        (Ack("b", "boot", 1, 1_000, 1, True, None, NONE, {}), ["lead_on_message"]),
        (SourcesDone("b", "boot", 1), ["lead_on_sources_done"]),
        *((message, ["on_replay"]) for message in REPLAY),
        (Request(RequestKind.DRAIN, "r"), []),
        (Reply("r", True), []),
        (Hint("requests"), ["look"]),
    ],
)
def test_a_message_reaches_whom_it_is_for(
    shop: HostedPipeline, monkeypatch: pytest.MonkeyPatch, message: Any, heard: list[str]
) -> None:
    made = shop.make()
    calls: list[tuple[str, Any]] = []

    def watch(thing: object, name: str, shown: str) -> None:
        monkeypatch.setattr(thing, name, lambda *what: calls.append((shown, what[-1] if what else message)))

    for name in ("on_announcement", "on_heartbeat", "on_log_grown", "on_replay"):
        watch(made.member, name, name)
    for name in ("on_message", "on_heartbeat", "on_sources_done"):
        watch(made.leader, name, f"lead_{name}")
    watch(made.mailbox, "look", "look")
    made._take("b", message)
    assert calls == [(name, message) for name in heard]


@pytest.mark.parametrize("is_present", [False, True])
def test_a_member_hears_who_comes_and_goes(
    shop: HostedPipeline, monkeypatch: pytest.MonkeyPatch, is_present: bool
) -> None:
    made = shop.make()
    calls: list[tuple[str, bool]] = []
    monkeypatch.setattr(made.member, "on_presence", lambda *what: calls.append(what))
    made._take("b", Presence(is_present))
    assert calls == [("b", is_present)]


def test_a_member_knows_of_its_stages_what_their_plans_say(shop: HostedPipeline) -> None:
    shop.with_watermark = {"copied"}
    made = shop.make(once=True, idle_after_s=1.5)
    assert made.member.plans == {
        "source": StagePlan(has_event_time=False, has_native_source=True),
        "copied": StagePlan(),
    }
    assert (made.member.config.once, made.member.config.idle_after_ms) == (True, 1_500)
    assert made.hosts.keys() == {"source", "copied"}
    assert not made.wait(0)


def test_the_first_error_is_the_one_that_ended_a_run(shop: HostedPipeline) -> None:
    made = shop.make()
    first = StoreError("no manifest")
    made._on_failure(first)
    made._on_failure(ValueError("after that"))
    assert made.failure is first
    assert made.wait(0)
    gone = shop.make()
    gone._on_failure(ConnectionRefusedError("no JVM"))
    assert isinstance(gone.failure, UserError)
    assert "Spark's process has ended during this run (no JVM)" in str(gone.failure)


def test_a_sink_that_could_not_publish_the_last_epochs_is_named_with_its_error(shop: HostedPipeline) -> None:
    made = shop.make()
    made._performer.table_errors["out"] = "its function failed on epoch 2: ValueError: no such table"
    made._on_failure(PublishingFailed("out", 6))
    assert isinstance(made.failure, UserError)
    assert "sink 'out' could not publish the last epochs" in str(made.failure)
    assert "ValueError: no such table. The run ends" in str(made.failure)


@pytest.mark.parametrize(
    ("is_hopeless", "failures", "expected"),
    [
        (
            True,
            {"b": "y", "a": "x"},
            "no checkpoint can be taken, so the run ends. stage 'a' failed: x; stage 'b' failed: y",
        ),
        (False, {}, "too many checkpoints in a row have failed, so the run ends. late"),
    ],
)
def test_a_run_that_gives_up_says_why(
    shop: HostedPipeline, is_hopeless: bool, failures: dict[str, str], expected: str
) -> None:
    made = shop.make()
    made.member.hopeless, made.member.failures = is_hopeless, failures
    assert made._why_given_up("late") == expected


def test_a_run_is_ended_once(shop: HostedPipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    made = shop.start()
    closed: list[str] = []
    monkeypatch.setattr(made.links, "close", lambda: closed.append("links"))
    made.stop()
    made.stop()
    assert closed == ["links"]
    assert made.wait(0)
