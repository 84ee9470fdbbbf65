"""The checker accepts recordings of the simulator and of a running shell, and names every violated rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cutwater.sim import __main__ as command
from cutwater.sim.checker import RULES, check_recording
from cutwater.sim.oracle import Oracle, Violation
from cutwater.sim.world import World
from tests.support.broken_traces import PLANTS, Plant
from tests.support.broken_traces.journal import a_committed_epoch_is_also_aborted
from tests.support.broken_traces.lookups import announced
from tests.support.planted import BUGS
from tests.support.traces import Edit, recorded

pytestmark = pytest.mark.slow

RICH = 48
"""A schedule with restores, commands, several terms, aborted and void epochs, and savepoints."""
OTHERS = (3137, 4045, 66, 22, 7)
"""More schedules, with compaction, for changes that the first one does not allow."""

# --- correct traces are accepted -------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [*range(6), RICH, 158])
def test_recordings_of_the_simulator_are_accepted(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(recorded(seed))
    report = check_recording(path)
    assert report.problems == []
    assert report.not_recorded == {}
    assert report.counts["epochs committed"] >= 10
    assert report.counts["publishes"] > 0


def test_a_schedule_is_the_same_whether_it_is_recorded_or_not() -> None:
    plain: list[str] = []
    watched: list[str] = []
    World(RICH, tracer=plain.append).run()
    World(RICH, tracer=watched.append, record=lambda line: None).run()
    assert plain == watched


def test_the_traces_used_here_have_events_of_every_kind(tmp_path: Path) -> None:
    seen: set[str] = set()
    for seed in (RICH, *OTHERS, *range(100)):
        counts = Edit(seed).check_as_is(tmp_path).counts
        seen |= {what for what, count in counts.items() if count}
        missing = counts.keys() - seen - {"processes that reported their end"}
        if not missing:
            break
    assert not missing


def test_resealing_an_unchanged_trace_changes_nothing(tmp_path: Path) -> None:
    edit = Edit(RICH)
    edit.reseal()
    edit.renumber()
    assert edit.bytes() == recorded(RICH)


# --- gaps in a recording are not problems ----------------------------------------------------------------


@pytest.mark.parametrize("seed", [RICH, 158])
def test_a_process_without_a_recording_violates_no_rule(seed: int, tmp_path: Path) -> None:
    for process in {line["process"] for line in Edit(seed).lines}:
        edit = Edit(seed)
        edit.lines = [line for line in edit.lines if line["process"] != process]
        report = edit.check_as_is(tmp_path)
        assert report.problems == [], process
        assert report.not_recorded["process that wrote an entry"] == 1


def test_the_last_line_of_a_killed_process_may_be_missing_or_cut_in_half(tmp_path: Path) -> None:
    names = sorted({line["process"] for line in Edit(RICH).lines})
    for process in names:
        edit = Edit(RICH)
        last = [line for line in edit.lines if line["process"] == process][-1]
        edit.drop(last)
        assert edit.check_as_is(tmp_path).problems == [], process
    path = tmp_path / "half.jsonl"
    path.write_bytes(recorded(RICH)[:-10])
    assert check_recording(path).problems == []


def test_a_folder_of_files_is_one_trace(tmp_path: Path) -> None:
    edit = Edit(RICH)
    for process in {line["process"] for line in edit.lines}:
        part = Edit(RICH)
        part.lines = [line for line in part.lines if line["process"] == process]
        (tmp_path / f"{process}.jsonl").write_bytes(part.bytes())
    whole = Edit(RICH).check_as_is(tmp_path / ".." / tmp_path.name)
    (tmp_path / "trace.jsonl").unlink()
    report = check_recording(tmp_path)
    assert report.problems == []
    assert report.counts == whole.counts


def test_a_late_write_to_a_compacted_place_violates_no_rule(tmp_path: Path) -> None:
    edit = Edit(OTHERS[0])
    place, snapshot = edit.entries(kind="TOPOLOGY")[0], edit.entries(kind="SNAPSHOT")[-1]
    writers = {line["record"]["nonce"].rpartition("-")[0] for line in edit.entries()}
    sleeper = next(line["process"] for line in edit.lines if line["process"] not in writers)
    record = {**place["record"], "nonce": f"{sleeper}-9999"}
    landed = edit.add(
        sleeper, type="create", name=place["name"], hash="late", answer="created", record=record
    )
    assert edit.check(tmp_path).problems == []
    edit.lines = [line for line in edit.lines if line.get("name") != place["name"] or line is landed]
    edit.add(sleeper, type="read", name=snapshot["name"], hash=snapshot["hash"], record=snapshot["record"])
    report = edit.check(tmp_path)  # also if nobody recorded the entry that was there before
    assert report.problems == []
    assert report.not_recorded["log entry"] == 1


def test_a_leader_without_recorded_messages_has_no_problems(tmp_path: Path) -> None:
    edit = Edit(RICH)
    edit.drop(*edit.of("received"))
    report = edit.check(tmp_path)
    assert report.problems == []
    assert report.not_recorded["messages that a leader received"] > 0


# --- the trace itself ------------------------------------------------------------------------------------


def test_a_line_missing_in_the_middle_is_found(tmp_path: Path) -> None:
    edit = Edit(RICH)
    process = edit.lines[100]["process"]
    edit.drop(edit.lines[100])
    (problem,) = {p.what: p for p in edit.check_as_is(tmp_path).problems if p.rule == "trace"}.values()
    assert process in problem.what


def test_swapped_lines_are_found(tmp_path: Path) -> None:
    edit = Edit(RICH)
    own = [line for line in edit.lines if line["process"] == edit.lines[100]["process"]]
    edit.move(own[30], before=own[29])
    assert "trace" in {p.rule for p in edit.check_as_is(tmp_path).problems}


def test_an_unreadable_line_is_found(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"what?\n" + recorded(RICH))
    assert [p.rule for p in check_recording(path).problems] == ["trace"]


@pytest.mark.parametrize(
    ("phase", "kind"), [("prepare", "BEGUN"), ("commit", "COMMITTED"), ("abort", "ABORTED")]
)
def test_an_announcement_before_its_entry_is_found(phase: str, kind: str, tmp_path: Path) -> None:
    edit = Edit(RICH)
    for sent in edit.of("sent", kind="announcement"):
        checkpoint_id = announced(sent).checkpoint_id
        if sent["message"]["phase"] == phase:
            break
    entry = next(e for e in edit.entries(kind=kind) if e["record"]["body"]["checkpoint_id"] == checkpoint_id)
    edit.move(sent, before=next(edit.of("create", name=entry["name"], process=sent["process"])))
    assert {problem.rule for problem in edit.check(tmp_path).problems} == {"announced"}


# --- all of them -----------------------------------------------------------------------------------------


def planted(plant: Plant) -> Iterator[Edit]:
    """Traces with this change. In some schedules it may violate nothing."""
    for seed in (RICH, *OTHERS):
        edit = Edit(seed)
        with suppress(StopIteration, IndexError):
            plant(edit)
            yield edit


@pytest.mark.parametrize(("rule", "plant"), PLANTS, ids=[plant.__name__ for _, plant in PLANTS])
def test_a_violated_rule_is_named_and_shown(rule: str, plant: Plant, tmp_path: Path) -> None:
    for edit in planted(plant):
        found = [problem for problem in edit.check(tmp_path).problems if problem.rule == rule]
        if found:
            break
    else:
        raise AssertionError(f"{plant.__name__} was not found")
    touched = {(line["process"], line["n"]) for line in edit.touched}
    shown = {(at.line.process, at.line.n) for problem in found for at in problem.lines}
    assert touched & shown, f"the lines that show it are not among {shown}"


def test_every_rule_is_violated_by_some_test() -> None:
    assert {rule for rule, _ in PLANTS} == set(RULES)


@pytest.mark.parametrize(
    ("bug", "rule"),
    [
        ("rule_1_different_bytes_are_put_at_the_same_index_after_an_error", "one-writer"),
        ("rule_3_prepare_is_announced_before_begun_is_durable", "announced"),
        ("the_decision_is_durable_only_after_its_announcement", "announced"),
        ("objects_are_deleted_before_their_expiry_is_durable", "deleted"),
    ],
)
def test_a_protocol_bug_is_found_in_its_trace(
    bug: str, rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oracle is disabled, so the bug must be found in what the processes recorded."""
    BUGS[bug](monkeypatch)
    for name in ("created", "sending", "deleting", "check_journal"):
        monkeypatch.setattr(Oracle, name, disabled(getattr(Oracle, name)))
    path = tmp_path / "trace.jsonl"
    found: set[str] = set()
    for seed in range(2):
        with path.open("wb") as file:
            World(seed, record=file.write).run()
        found |= {problem.rule for problem in check_recording(path).problems}
    assert rule in found


def disabled(check_: Callable[..., Any]) -> Callable[..., Any]:
    def quiet(*arguments: Any) -> None:
        with suppress(Violation, KeyError):
            check_(*arguments)

    return quiet


# --- the command -----------------------------------------------------------------------------------------


def test_the_command_records_and_checks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.jsonl"
    assert command.record(RICH, None, path) == 0
    assert path.read_bytes() == recorded(RICH)
    assert command.check_trace(path) == 0
    assert f"no problems: {len(RULES)} rules hold" in capsys.readouterr().out


def test_the_command_names_problems_with_file_and_line_and_exits_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit = Edit(RICH)
    a_committed_epoch_is_also_aborted(edit)
    edit.check(tmp_path)
    assert command.check_trace(tmp_path / "trace.jsonl") == 1
    out = capsys.readouterr().out
    line = edit.touched[0]
    assert f"trace.jsonl: {line['process']} n {line['n']}" in out
    assert out.rstrip().splitlines()[-1] == "1 problems: one-fate"


def test_the_command_reports_a_missing_trace_and_exits_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.check_trace(tmp_path / "nothing") == 2
    assert command.check_trace(tmp_path) == 2
    assert "contains no trace" in capsys.readouterr().err
