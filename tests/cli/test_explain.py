"""`cutwater explain`."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from cutwater.cli.explain import _heading
from cutwater.documents.explained import _fate, steps_of, watermark_hints
from cutwater.protocol.base import records as r
from cutwater.protocol.base.barrier import Flags
from cutwater.protocol.base.paths import notes_name
from cutwater.protocol.base.watermark import Watermark, WatermarkKind
from cutwater.protocol.member.journal import Fate
from cutwater.runtime.timings import EpochTimes, RuleRows, StageTime, read_times
from cutwater.store.opening import open_store
from tests.support.builders import manifest, pipeline, stage
from tests.support.command_helpers import call, document
from tests.support.written import Written


def test_explain_shows_where_the_time_went(folder: Path) -> None:
    text = call("explain", "1", "--store", folder).stdout
    lines = text.splitlines()
    assert lines[0].startswith("epoch 1  committed in 12 s")
    stages = [line.split()[0] for line in lines if "cut at batch" in line]
    assert stages == ["a", "b", "c"]
    assert "10 s after b" in text
    assert "hint: stage 'c' took most of the time" in text
    steps = {s["step"]: s for s in document("explain", "1", "--store", folder)["steps"]}
    assert (steps["c"]["from_s"], steps["c"]["to_s"]) == (2.0, 12.0)
    assert steps["in out"]["to_s"] == 12.5


def test_explain_says_why_an_epoch_failed_and_what_to_do(folder: Path) -> None:
    text = call("explain", "4", "--store", folder).stdout
    assert "epoch 4  aborted" in text
    assert "why:    deadline" in text
    assert "Give checkpoints more time" in text
    assert document("explain", "4", "--store", folder)["reason"] == "deadline"


def test_explain_refuses_an_epoch_that_never_began(folder: Path) -> None:
    assert "the last one that began is 4" in call("explain", "9", "--store", folder).stderr


def test_explain_accepts_the_name_of_a_savepoint_and_latest(folder: Path) -> None:
    assert document("explain", "before-deploy", "--store", folder)["epoch"] == 2
    assert document("explain", "latest", "--store", folder)["epoch"] == 3
    assert "there is no checkpoint 'nope'" in call("explain", "nope", "--store", folder).stderr


@pytest.mark.usefixtures("utc")
def test_the_heading_of_an_epoch_that_has_expired_says_both() -> None:
    times = EpochTimes(1, 1, 0.0, 0, committed_s=1.2)
    what = _fate(Fate.OVER, times, None)
    assert what == "committed, expired since"
    assert (
        _heading(1, what, times).plain
        == "epoch 1  committed in 1.2 s, expired since, begun 1970-01-01 00:00:00"
    )


@pytest.mark.usefixtures("utc")
def test_explain_draws_a_timeline(folder: Path) -> None:
    shown = call("explain", "2", "--store", folder).stdout
    assert [line.rstrip() for line in shown.splitlines()[:10]] == [
        "epoch 2  committed in 12 s, begun 2026-01-01 00:00:00  (full)",
        "",
        "              at",
        "a          1.0 s  ━━······················  cut at batch 1",
        "b          2.0 s  ··━━····················  cut at batch 1, 1.0 s after a",
        "c           12 s  ····━━━━━━━━━━━━━━━━━━━·  cut at batch 1, 10 s after b",
        "captured    12 s  ·······················━",
        "manifest    12 s  ·······················━",
        "committed   12 s  ·······················━",
        "in out      12 s  ·······················━  published",
    ]
    assert shown.splitlines()[11].startswith("hint: stage 'c' took most of the time, processing the rows")
    found = document("explain", "2", "--store", folder)
    assert [hint.partition(",")[0] for hint in found["hints"]] == ["stage 'c' took most of the time"]
    steps = found["steps"]
    assert [(s["from_s"], s["to_s"]) for s in steps] == [
        (0.0, 1.0), (1.0, 2.0), (2.0, 12.0), (12.0, 12.1), (12.1, 12.2), (12.2, 12.3), (12.3, 12.5),
    ]  # fmt: skip


def test_explain_counts_the_rows_that_violated_rules(folder: Path) -> None:
    store = open_store(str(folder))
    times = read_times(store, 2)
    assert times is not None
    times.violations = {"a": {"positive": RuleRows(3, 40), "known": RuleRows(0, 2)}}
    store.put(notes_name(2), msgspec.json.encode(times))
    lines = call("explain", "2", "--store", folder).stdout.splitlines()
    assert [line for line in lines if "bad rows" in line] == ["bad rows: 3 rows of a violated 'positive'"]
    assert document("explain", "2", "--store", folder)["violations"]["a"]["known"] == {"rows": 0, "total": 2}
    assert "bad rows" not in call("explain", "1", "--store", folder).stdout


def test_explain_says_that_timings_are_missing(folder: Path) -> None:
    open_store(str(folder)).delete([notes_name(2)])
    text = call("explain", "2", "--store", folder).stdout
    assert "no timings: they were not recorded, or are gone" in text
    assert "no timings" not in call("explain", "4", "--store", folder).stdout, "it was aborted, and says why"


def test_hints_name_the_stages_that_hold_back_the_watermark() -> None:
    marks = {
        "known": Watermark(WatermarkKind.KNOWN, 5), "none": Watermark(WatermarkKind.NONE),
        "late": Watermark(WatermarkKind.UNKNOWN), "resting": Watermark(WatermarkKind.IDLE, 7),
    }  # fmt: skip
    found = manifest(
        1,
        1,
        [
            r.StageReport(n, 1, 0, False, consumed={}, offsets={}, watermark=mark, state={})
            for n, mark in marks.items()
        ],
    )
    unknown, idle = watermark_hints(found)
    assert unknown.startswith("no event time seen yet by late: ")
    assert idle == "idle, so not holding back the watermark: resting"
    drained = msgspec.structs.replace(found, flags=int(Flags.DRAIN))
    assert watermark_hints(drained) == [unknown]


def test_of_stages_cut_at_the_same_time_inputs_come_first() -> None:
    stages = {name: StageTime(1.0, 0, False) for name in "dcba"}
    stages["a"] = StageTime(3.0, 0, False)
    times = EpochTimes(1, 1, 0.0, 0, stages=stages, committed_s=8.0)
    graph = pipeline(stage("d"), stage("b", "d"), stage("c"), stage("a", "b c"))
    assert [step[:3] for step in steps_of(times, graph)] == [
        ("c", 0.0, 1.0), ("d", 0.0, 1.0), ("b", 1.0, 1.0), ("a", 1.0, 3.0), ("committed", 3.0, 8.0),
    ]  # fmt: skip


def test_explain_marks_unaligned_cuts_and_names_the_savepoint(tmp_path: Path, history: Written) -> None:
    store = history.write(tmp_path)
    times = history.times(2)
    times.savepoint = "before-deploy"
    times.stages["b"] = StageTime(2.0, 1, True)
    store.put(notes_name(2), msgspec.json.encode(times))
    shown = call("explain", "2", "--store", tmp_path).stdout
    assert "savepoint 'before-deploy'" in shown
    assert "cut at batch 1, unaligned" in shown


def test_only_stages_are_blamed_for_a_checkpoint_that_took_long(tmp_path: Path, history: Written) -> None:
    store = history.write(tmp_path)
    times = history.times(2)
    times.captured_s, times.manifest_s, times.committed_s = 12.1, 40.0, 40.1
    store.put(notes_name(2), msgspec.json.encode(times))
    assert document("explain", "2", "--store", tmp_path)["hints"] == []


def test_a_stage_is_shown_from_its_first_barrier_where_that_was_recorded() -> None:
    stages = {
        "a": StageTime(0.5, 7, False, 0.2),
        "slow": StageTime(4.0, 7, False, 0.1),
        "both": StageTime(4.25, 7, False, 0.6),
        "late": StageTime(4.5, 7, False, 9.0),
        "old": StageTime(5.0, 7, False),
    }
    graph = pipeline(
        stage("a"), stage("slow"), stage("both", "a slow"), stage("late", "both"), stage("old", "both")
    )
    steps = steps_of(EpochTimes(1, 1, 0.0, 0, stages=stages), graph)
    assert {name: (start, end) for name, start, end, _ in steps} == {
        "a": (0.2, 0.5),
        "slow": (0.1, 4.0),
        "both": (0.6, 4.25),
        "late": (4.5, 4.5),
        "old": (4.25, 5.0),
    }
    assert next(note for name, _, _, note in steps if name == "both") == "cut at batch 7, 0.25 s after slow"


def test_a_stage_that_waits_for_a_slow_input_is_not_called_slow(tmp_path: Path, history: Written) -> None:
    store = history.write(tmp_path)
    times = history.times(2)
    cuts = {"a": StageTime(10.0, 1, False, 0.0), "b": StageTime(11.0, 1, False, 0.0)}
    times.stages = {**cuts, "c": StageTime(11.1, 1, False, 0.0)}
    store.put(notes_name(2), msgspec.json.encode(times))
    assert "stage 'a' took most of the time" in " ".join(
        call("explain", "2", "--store", tmp_path).stdout.split()
    )
