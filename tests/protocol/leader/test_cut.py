"""Consistent cuts: which cuts are consistent, the problems of others, and the manifest of a cut."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutwater.protocol.base import records as r
from cutwater.protocol.base.barrier import Flags
from cutwater.protocol.base.watermark import UNKNOWN, idle, known
from cutwater.protocol.leader.cut import check_cut, make_manifest, merge_reports
from tests.support.builders import (
    CHAIN,
    DIAMOND,
    Play,
    batch,
    begun,
    data_name,
    journal_of,
    manifest,
    pipeline,
    report_of,
    stage,
)
from tests.support.examples import examples

change = msgspec.structs.replace


def chain_with_a_cut() -> Play:
    """a has produced 3 batches, b has read 2 of them, and c everything from b; b is cut unaligned."""
    play = Play(CHAIN)
    for _ in range(3):
        play.batch("a")
    play.batch("b", reach=2)
    play.batch("c")
    play.cut_all(unaligned=["b"])
    return play


def problems(play: Play, reports: dict[str, r.StageReport] | None = None) -> list[str]:
    assert play.open is not None
    found = reports if reports is not None else play.reports()
    return check_cut(play.topology, play.open, found, play.stages, play.previous())


def problems_with(play: Play, name: str, **changes: Any) -> list[str]:
    reports = play.reports()
    return problems(play, {**reports, name: change(reports[name], **changes)})


def problems_with_log(play: Play, name: str, **changes: Any) -> list[str]:
    """As if log and report agreed on something else."""
    assert play.open is not None
    barriers = play.stages[name].barriers
    barriers[play.open.epoch] = change(barriers[play.open.epoch], **changes)
    return problems(play)


# The problems of a cut.


def test_a_consistent_cut_has_no_problems() -> None:
    assert problems(chain_with_a_cut()) == []


def test_a_missing_stage_is_named() -> None:
    play = chain_with_a_cut()
    reports = play.reports()
    del reports["b"]
    assert problems(play, reports) == ["stage b is missing"]


def test_a_stranger_is_named() -> None:
    play = chain_with_a_cut()
    stranger = change(play.reports()["a"], stage="zoo")
    assert problems(play, {**play.reports(), "zoo": stranger}) == ["stage zoo is not in the topology"]


def test_a_report_without_a_barrier_in_the_log_is_named() -> None:
    play = chain_with_a_cut()
    reports = play.reports()
    play.stages["a"].barriers.clear()
    assert problems(play, reports) == ["stage a has no barrier of checkpoint 3 in its log"]


def test_a_barrier_of_another_checkpoint_with_the_same_epoch_does_not_count() -> None:
    play = chain_with_a_cut()
    assert problems_with_log(play, "a", checkpoint_id=2) == [
        "stage a has no barrier of checkpoint 3 in its log"
    ]


def test_a_batch_other_than_the_barriers_is_named() -> None:
    assert problems_with(chain_with_a_cut(), "a", batch=1) == ["stage a reports batch 1, its log says 2"]


def test_positions_other_than_the_barriers_are_named() -> None:
    assert problems_with(chain_with_a_cut(), "b", consumed={"a": 0}) == [
        "stage b reports consumed {'a': 0}, its log says {'a': 1}"
    ]


def test_an_alignment_other_than_the_barriers_is_named() -> None:
    assert problems_with(chain_with_a_cut(), "b", unaligned=False) == [
        "stage b reports unaligned False, its log says True"
    ]


def test_more_consumed_than_produced_is_named() -> None:
    assert problems_with_log(chain_with_a_cut(), "b", consumed={"a": 3}) == [
        "channel a → b: consumed 3, but only 2 were produced at the cut"
    ]


def test_an_aligned_reader_with_unread_rows_is_named() -> None:
    assert problems_with_log(chain_with_a_cut(), "b", unaligned=False) == [
        "channel a → b: cut as aligned at 1, but rows up to 2 were not consumed"
    ]


def test_an_aligned_reader_may_leave_empty_batches() -> None:
    play = Play(CHAIN)
    play.batch("a")
    play.batch("b")
    play.batch("a", rows=False)
    play.cut_all()
    assert play.reports()["b"].consumed == {"a": 0}
    assert play.reports()["a"].batch == 1
    assert problems(play) == []


def test_a_channel_without_a_position_is_named() -> None:
    assert problems_with_log(chain_with_a_cut(), "b", consumed={}) == ["channel a → b: no position reported"]


def test_all_problems_are_reported_together() -> None:
    play = chain_with_a_cut()
    reports = play.reports()
    del reports["c"]
    wrong = {**reports, "zoo": reports["a"], "b": change(reports["b"], batch=7)}
    assert problems(play, wrong) == [
        "stage c is missing",
        "stage zoo is not in the topology",
        "stage b reports batch 7, its log says 0",
    ]


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"offsets": {"source": 99}}, id="source offsets"),
        pytest.param({"watermark": known(99)}, id="watermark"),
        pytest.param({"incarnation": 99}, id="incarnation"),
    ],
)
def test_a_report_must_agree_with_the_log_in_everything(changes: dict[str, Any]) -> None:
    assert problems_with(chain_with_a_cut(), "a", **changes) != []


def test_a_stage_that_a_member_reports_without_hosting_it_is_named() -> None:
    reports = chain_with_a_cut().reports()
    parts = parts_of(reports)
    parts["m1"]["a"] = change(reports["a"], state={"another": "file"})
    assert merge_reports(CHAIN, parts)[1] == ["stage a is reported by m1, but m0 hosts it"]


def parts_of(reports: dict[str, r.StageReport]) -> dict[str, dict[str, r.StageReport]]:
    """Every member's part of a cut of the chain."""
    return {m: {s: reports[s] for s in CHAIN.hosted(m)} for m in CHAIN.members()}


# Properties.


@st.composite
def cuts(draw: st.DrawFn) -> Play:
    """A cut of a random run of a chain or a diamond, maybe not its first one."""
    play = Play(draw(st.sampled_from([CHAIN, DIAMOND])))
    names = list(play.topology.stages)
    for _ in range(draw(st.integers(0, 2))):
        _run_on(draw, play, names)
        play.cut_all(draw(st.sets(st.sampled_from(names))))
        play.commit()
    _run_on(draw, play, names)
    play.begin()
    _run_on(draw, play, names)
    play.cut_all(draw(st.sets(st.sampled_from(names))))
    return play


def _run_on(draw: st.DrawFn, play: Play, names: list[str]) -> None:
    for name in draw(st.lists(st.sampled_from(names), max_size=8)):
        play.batch(name, draw(st.integers(0, 3)), draw(st.booleans()))
        play.cut(name, draw(st.integers(0, 3)) == 0)


@given(cuts())
@examples(150)
def test_every_cut_that_follows_the_rules_is_consistent(play: Play) -> None:
    assert problems(play) == []


@pytest.mark.slow
@given(cuts(), st.data())
@examples(150)
def test_any_single_inconsistency_is_reported(play: Play, data: st.DataObject) -> None:
    reports = play.reports()
    name = data.draw(st.sampled_from(sorted(reports)))
    reader = data.draw(st.sampled_from([s for s, spec in play.topology.stages.items() if spec.inputs]))
    producer = data.draw(st.sampled_from(play.topology.stages[reader].inputs))
    report = reports[reader]
    match data.draw(st.sampled_from(["missing", "stranger", "batch", "report", "beyond", "rows left"])):
        case "missing":
            del reports[name]
        case "stranger":
            reports["zoo"] = change(report, stage="zoo")
        case "batch":
            off = data.draw(st.sampled_from([-1, 1, 5]))
            reports[name] = change(reports[name], batch=reports[name].batch + off)
        case "report":
            moved = {**report.consumed, producer: report.consumed[producer] + 1}
            reports[reader] = change(report, consumed=moved)
        case "beyond":
            beyond = {**report.consumed, producer: reports[producer].batch + 1}
            assert problems_with_log(play, reader, consumed=beyond)
            return
        case _:
            files = play.stages[producer].batches
            rows = [b for b in range(reports[producer].batch + 1) if files[b].files]
            if not rows:
                return
            left = {**report.consumed, producer: rows[-1] - 1}
            assert problems_with_log(play, reader, consumed=left, unaligned=False)
            return
    assert problems(play, reports)


@given(cuts())
@examples(80)
def test_the_manifest_has_exactly_the_batches_between_position_and_barrier_in_flight(play: Play) -> None:
    reports = play.reports()
    found = play.commit()
    expected = {}
    for reader, spec in play.topology.stages.items():
        for producer in spec.inputs:
            between = range(reports[reader].consumed[producer] + 1, reports[producer].batch + 1)
            files = {b: play.stages[producer].batches[b].files for b in between}
            if files:
                expected[producer, reader] = files
    assert {(f.producer, f.reader): f.batches for f in found.in_flight} == expected
    assert all(reports[f.reader].unaligned for f in found.in_flight if any(f.batches.values()))


# The manifest.


def test_the_manifest_names_the_in_flight_range_and_its_files() -> None:
    (flight,) = chain_with_a_cut().commit().in_flight
    assert flight == r.InFlight("a", "b", 1, 2, {2: (data_name("a", 2),)}, {}, r.columns(None))


def test_the_manifest_identifies_its_checkpoint() -> None:
    play = Play(CHAIN)
    play.begin(int(Flags.FULL_SNAPSHOT), "before-the-deploy")
    play.cut_all()
    found = play.commit()
    assert (found.epoch, found.checkpoint_id, found.generation, found.term) == (1, 3, 1, 1)
    assert (found.flags, found.savepoint) == (1, "before-the-deploy")
    assert found.topology_hash == play.state.topology_hash
    assert found.stages.keys() == CHAIN.stages.keys()


def test_carried_over_unread_batches_are_still_in_flight() -> None:
    """Batches from before a fork are in no log of this generation."""
    two = pipeline(stage("a"), stage("b", "a"))
    forked = {name: r.StageState(1, 4, consumed={"a": 2} if name == "b" else {}) for name in two.stages}
    for name, state in forked.items():
        state.barriers[2] = r.BarrierAt(
            1, 2, 9, 1, 4, name == "b", consumed=state.consumed, offsets={}, watermark=UNKNOWN
        )
    reports = {name: report_of(name, state.barriers[2]) for name, state in forked.items()}
    previous = manifest(1, 3, in_flight=[r.InFlight("a", "b", 2, 4, {3: ("x",), 4: ("y",)})])
    journal = r.JournalState(topology=two, head=1, head_cuts={"a": 4, "b": 4})
    assert check_cut(two, begun(2, 9), reports, forked, previous) == []
    found = make_manifest(journal, begun(2, 9), reports, forked, previous)
    assert found.in_flight == (r.InFlight("a", "b", 2, 4, {3: ("x",), 4: ("y",)}, {}, r.columns(None)),)
    assert found.objects().keys() == {"x", "y"}


SINGLE = pipeline(stage("a", sinks=[r.SinkSpec("now"), r.SinkSpec("closed", final=True)]))


def staged(name: str, end: int | None = None) -> tuple[r.StagedFile, ...]:
    return (r.StagedFile(name, end),)


def single_cut(
    watermark: Any, before: int | None = None, held: tuple[r.StagedFile, ...] = (), since: int = -1
) -> r.Manifest:
    """One stage with two batches, cut after both; the second sink shows only closed windows."""
    at = r.BarrierAt(1, 2, 9, 1, 1, False, consumed={}, offsets={}, watermark=watermark)
    batches = {
        0: batch(0, sinks={"now": staged("n0"), "closed": staged("c0", 10)}),
        1: batch(1, sinks={"now": staged("n1"), "closed": staged("c1", 20)}),
    }
    log = r.StageState(1, 1, batches=batches, barriers={2: at})
    state = journal_of(r.Leader(1, "m0"), r.TopologySet(1, 1, "h", SINGLE))
    state.watermark = before
    state.head_cuts = {"a": since} if since >= 0 else {}
    previous = manifest(1, 3, held={"closed": held}) if held else None
    return make_manifest(state, begun(2, 9), {"a": report_of("a", at)}, {"a": log}, previous)


def test_an_epoch_releases_the_batches_since_the_previous_cut_in_order() -> None:
    assert single_cut(UNKNOWN).release["now"] == ("n0", "n1")
    assert single_cut(UNKNOWN, since=0).release["now"] == ("n1",)
    assert single_cut(UNKNOWN, since=1).release["now"] == ()


def test_a_final_sink_releases_closed_windows_and_lists_what_it_holds_back() -> None:
    found = single_cut(known(15))
    assert found.watermark == 15
    assert found.release["closed"] == ("c0",)
    assert found.held == {"closed": staged("c1", 20)}
    assert "c1" in found.objects()


def test_rows_that_the_previous_checkpoint_held_back_are_released_first() -> None:
    found = single_cut(known(20), held=staged("old", 5), since=0)
    assert found.release["closed"] == ("old", "c1")
    assert found.held == {}


def test_the_watermark_of_the_pipeline_advances_with_the_reports_and_never_moves_back() -> None:
    assert single_cut(known(15), before=12).watermark == 15
    assert single_cut(known(15), before=18).watermark == 18
    assert single_cut(UNKNOWN, before=18).watermark == 18
    assert single_cut(idle(99), before=18).watermark == 99, "there is no other stage to wait for"
    assert single_cut(idle(9), before=18).watermark == 18
    assert single_cut(UNKNOWN).watermark is None


def test_parts_are_merged_by_stage() -> None:
    reports = chain_with_a_cut().reports()
    assert merge_reports(CHAIN, parts_of(reports)) == (reports, [])
