"""The checker accepts recordings of the simulator and of a running shell, and names every violated rule."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cutwater.sim import __main__ as command
from cutwater.sim.checker import RULES, check
from cutwater.sim.oracle import Oracle, Violation
from cutwater.sim.world import World
from tests.support.planted import BUGS
from tests.support.traces import Edit, Object, recorded

pytestmark = pytest.mark.slow

RICH = 66
"""A schedule with restores, commands, several terms, aborted and void epochs, savepoints and compaction."""
OTHERS = (3137, 4045)
"""More schedules, for changes that the first one does not allow."""

Plant = Callable[[Edit], None]
PLANTS: list[tuple[str, Plant]] = []


def breaks(rule: str) -> Callable[[Plant], Plant]:
    """Registers a change of a trace that violates a rule."""

    def register(plant: Plant) -> Plant:
        PLANTS.append((rule, plant))
        return plant

    return register


# --- correct traces are accepted -------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [*range(6), RICH, 158])
def test_recordings_of_the_simulator_are_accepted(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(recorded(seed))
    report = check(path)
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


def test_a_rich_trace_has_events_of_every_kind(tmp_path: Path) -> None:
    counts = Edit(RICH).check_as_is(tmp_path).counts
    assert [
        what for what, count in counts.items() if not count and what != "processes that reported their end"
    ] == []


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
    assert check(path).problems == []


def test_a_folder_of_files_is_one_trace(tmp_path: Path) -> None:
    edit = Edit(RICH)
    for process in {line["process"] for line in edit.lines}:
        part = Edit(RICH)
        part.lines = [line for line in part.lines if line["process"] == process]
        (tmp_path / f"{process}.jsonl").write_bytes(part.bytes())
    whole = Edit(RICH).check_as_is(tmp_path / ".." / tmp_path.name)
    (tmp_path / "trace.jsonl").unlink()
    report = check(tmp_path)
    assert report.problems == []
    assert report.counts == whole.counts


def test_a_late_write_to_a_compacted_place_violates_no_rule(tmp_path: Path) -> None:
    edit = Edit(RICH)
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
    assert [p.rule for p in check(path).problems] == ["trace"]


@breaks("trace")
def a_record_does_not_match_its_hash(edit: Edit) -> None:
    edit.reseal = lambda: None  # type: ignore[method-assign]
    edit.alter(edit.entries(kind="ABORTED")[0], lambda record: record["body"].update(reason="another"))


# --- logs ------------------------------------------------------------------------------------------------


@breaks("one-writer")
def two_processes_create_one_entry(edit: Edit) -> None:
    last = edit.writes(edit.entries()[-1])
    other = next(line["process"] for line in edit.lines if line["process"] != last["process"])
    record = {**last["record"], "nonce": f"{other}-9999"}
    edit.add(other, type="create", name=last["name"], hash="another", answer="created", record=record)


@breaks("one-writer")
def an_entry_is_written_in_the_name_of_another_process(edit: Edit) -> None:
    edit.alter(edit.entries()[-1], lambda record: record.update(nonce="somebody-else-1"))


@breaks("one-writer")
def an_entry_is_in_the_place_of_another(edit: Edit) -> None:
    edit.alter(edit.entries()[-1], lambda record: record.update(index=1))


@breaks("chain")
def the_last_journal_entry_follows_nothing(edit: Edit) -> None:
    edit.alter(edit.entries()[-1], lambda record: record.update(prev="f" * 64))


@breaks("chain")
def an_early_journal_entry_follows_nothing(edit: Edit) -> None:
    edit.alter(edit.entries()[6], lambda record: record.update(prev="f" * 64))


@breaks("chain")
def the_first_journal_entry_has_a_predecessor(edit: Edit) -> None:
    edit.alter(edit.entries()[0], lambda record: record.update(prev="f" * 64))


@breaks("chain")
def a_stage_log_is_not_a_chain(edit: Edit) -> None:
    edit.alter(stage_entries(edit)[-1], lambda record: record.update(prev="f" * 64))


# --- the journal -----------------------------------------------------------------------------------------


@breaks("terms")
def a_term_is_reused(edit: Edit) -> None:
    last = edit.entries()[-1]["record"]
    name = last["nonce"].split("-")[0]
    edit.append({"type": "LEADER", "term": last["body"]["term"], "name": name})


@breaks("leader")
def a_process_writes_in_the_term_of_another(edit: Edit) -> None:
    last = edit.entries()[-1]["record"]
    writer = last["nonce"].rpartition("-")[0]
    other = next(line["process"] for line in edit.lines if line["process"] != writer)
    edit.append(begun(edit, 900, last["index"] + 1), process=other)


@breaks("leader")
def a_process_writes_in_a_term_that_nobody_leads(edit: Edit) -> None:
    index = edit.entries()[-1]["record"]["index"] + 1
    edit.append({**begun(edit, 900, index), "term": 77})


@breaks("leader")
def a_process_makes_another_the_leader(edit: Edit) -> None:
    edit.append({"type": "LEADER", "term": 77, "name": "nobody"})


@breaks("fenced")
def a_former_leader_keeps_writing(edit: Edit) -> None:
    edit.append({**begun(edit, 900, edit.entries()[-1]["record"]["index"] + 1), "term": 1})


@breaks("fenced")
def a_process_appends_in_a_term_that_it_has_seen_end(edit: Edit) -> None:
    """It wrote to a compacted place, so the chain does not show it."""
    first = edit.entries()[1]
    last = edit.writes(edit.entries()[-1])
    record = {**first["record"], "nonce": f"{last['process']}-9999"}
    edit.add(last["process"], type="create", name=first["name"], hash="late", answer="created", record=record)


@breaks("fenced")
def an_entry_belongs_to_an_earlier_generation(edit: Edit) -> None:
    edit.append({**begun(edit, 900, edit.entries()[-1]["record"]["index"] + 1), "generation": 1})


@breaks("checkpoint-id")
def a_checkpoint_id_is_not_the_index_of_its_begun_entry(edit: Edit) -> None:
    edit.append(begun(edit, 900, edit.entries()[-1]["record"]["index"]))


@breaks("one-fate")
def a_committed_epoch_is_also_aborted(edit: Edit) -> None:
    body = edit.entries(kind="COMMITTED")[-1]["record"]["body"]
    edit.append(aborted(edit, body))


@breaks("one-fate")
def an_epoch_is_committed_twice(edit: Edit) -> None:
    edit.append(edit.entries(kind="COMMITTED")[-1]["record"]["body"])


@breaks("one-fate")
def an_aborted_epoch_is_committed(edit: Edit) -> None:
    body = edit.entries(kind="ABORTED")[-1]["record"]["body"]
    edit.append({**newest_commit(edit), "epoch": body["epoch"], "checkpoint_id": body["checkpoint_id"]})


@breaks("one-fate")
def a_void_epoch_is_committed(edit: Edit) -> None:
    decided = [*edit.entries(kind="COMMITTED"), *edit.entries(kind="ABORTED")]
    epochs = {line["record"]["body"]["epoch"] for line in decided}
    void = next(
        body for e in edit.entries(kind="BEGUN") if (body := e["record"]["body"])["epoch"] not in epochs
    )
    edit.append({**newest_commit(edit), "epoch": void["epoch"], "checkpoint_id": void["checkpoint_id"]})


@breaks("one-fate")
def an_epoch_that_was_never_begun_is_decided(edit: Edit) -> None:
    edit.append(aborted(edit, {"epoch": 900, "checkpoint_id": 1}))


@breaks("one-fate")
def an_epoch_number_is_reused(edit: Edit) -> None:
    edit.append(begun(edit, 1, edit.entries()[-1]["record"]["index"] + 1))


@breaks("watermark")
def the_watermark_goes_back(edit: Edit) -> None:
    edit.alter(edit.commits()[-1], lambda record: record["body"].update(watermark=-1))


@breaks("restored")
def a_restore_goes_to_an_epoch_that_has_expired(edit: Edit) -> None:
    gone = edit.entries(kind="EXPIRED")[-1]["record"]["body"]["epochs"][0]
    edit.append(restored(edit, gone, {}))


@breaks("restored")
def a_restore_goes_to_positions_other_than_those_of_the_cut(edit: Edit) -> None:
    edit.append(restored(edit, newest_commit(edit)["epoch"], {}))


@breaks("expired")
def the_newest_checkpoint_expires(edit: Edit) -> None:
    edit.append(expired(edit, newest_commit(edit)["epoch"]))


@breaks("expired")
def a_savepoint_expires(edit: Edit) -> None:
    now = newest_commit(edit)
    kept = edit.entries(kind="COMMITTED")[-2]["record"]["body"]["epoch"]
    edit.append(
        {
            "type": "SAVEPOINT",
            "term": now["term"],
            "generation": now["generation"],
            "name": "x",
            "epoch": kept,
            "kept": True,
        }
    )
    edit.append(expired(edit, kept))


@breaks("snapshot")
def a_snapshot_contradicts_the_journal(edit: Edit) -> None:
    edit.alter(
        edit.entries(kind="SNAPSHOT")[-1], lambda record: record["body"]["state"].update(watermark=10_000)
    )


@breaks("snapshot")
def a_snapshot_forgets_a_checkpoint(edit: Edit) -> None:
    snapshot = edit.entries(kind="SNAPSHOT")[-1]
    epoch = max(snapshot["record"]["body"]["state"]["committed"])
    edit.alter(snapshot, lambda record: record["body"]["state"]["committed"].pop(epoch))


# --- stages ----------------------------------------------------------------------------------------------


@breaks("incarnation")
def a_fenced_incarnation_writes_a_batch(edit: Edit) -> None:
    batch, prefix = last_of_a_log(edit, "BATCH")
    edit.append({**batch, "batch": batch["batch"] + 1, "incarnation": batch["incarnation"] - 1}, prefix)


@breaks("incarnation")
def an_incarnation_is_not_the_index_of_its_entry(edit: Edit) -> None:
    line = next(e for e in stage_entries(edit) if e["record"]["body"]["type"] == "OPEN")
    edit.alter(line, lambda record: record["body"].update(incarnation=0))


@breaks("batch")
def a_batch_is_skipped(edit: Edit) -> None:
    batch, prefix = last_of_a_log(edit, "BATCH")
    edit.append({**batch, "batch": batch["batch"] + 2}, prefix)


@breaks("batch")
def a_stage_moves_back_in_its_input(edit: Edit) -> None:
    batch, prefix = last_of_a_log(edit, "BATCH", lambda body: bool(body["consumed"]))
    back = dict.fromkeys(batch["consumed"], -1)
    edit.append({**batch, "batch": batch["batch"] + 1, "consumed": back}, prefix)


@breaks("barrier")
def a_stage_is_cut_twice(edit: Edit) -> None:
    barrier, prefix = last_of_a_log(edit, "BARRIER")
    edit.append(barrier, prefix)


@breaks("barrier")
def a_superseded_incarnation_cuts(edit: Edit) -> None:
    line = next(e for e in stage_entries(edit) if e["record"]["body"]["type"] == "BARRIER")
    edit.alter(line, lambda record: record["body"].update(incarnation=0))


@breaks("barrier")
def a_stage_is_cut_before_its_last_batch(edit: Edit) -> None:
    line = next(e for e in stage_entries(edit) if e["record"]["body"]["type"] == "BARRIER")
    edit.alter(line, lambda record: record["body"].update(batch=record["body"]["batch"] + 1))


@breaks("barrier")
def a_stage_is_cut_for_a_checkpoint_that_was_never_begun(edit: Edit) -> None:
    barrier, prefix = last_of_a_log(edit, "BARRIER")
    committed = edit.entries(kind="COMMITTED")[-1]["record"]["index"]
    edit.append({**barrier, "epoch": 900, "checkpoint_id": committed}, prefix)


# --- commits ---------------------------------------------------------------------------------------------


@breaks("acks")
def a_commit_does_not_wait_for_a_member(edit: Edit) -> None:
    commit = edit.writes(edit.commits()[-1])
    edit.touched.append(commit)
    checkpoint_id = commit["record"]["body"]["checkpoint_id"]
    acks = [a for kind in ("sent", "received") for a in edit.of(kind, kind="ack", process=commit["process"])]
    member = next(
        a["message"]["member"] for a in acks if not commit["process"].startswith(a["message"]["member"])
    )
    edit.drop(
        *(
            a
            for a in acks
            if a["message"]["member"] == member and a["message"]["checkpoint_id"] == checkpoint_id
        )
    )


@breaks("acks")
def a_commit_counts_an_ack_of_another_checkpoint(edit: Edit) -> None:
    commit = edit.writes(edit.commits()[-1])
    edit.touched.append(commit)
    body = commit["record"]["body"]
    for kind in ("sent", "received"):
        for line in edit.of(kind, kind="ack", process=commit["process"]):
            if line["message"]["checkpoint_id"] == body["checkpoint_id"]:
                line["message"]["checkpoint_id"] = 1


@breaks("reports")
def an_ack_comes_before_the_barrier_that_it_reports(edit: Edit) -> None:
    ack = next(line for line in edit.of("sent", kind="ack") if line["message"]["ok"])
    stage = next(iter(ack["message"]["reports"]))
    checkpoint_id = ack["message"]["checkpoint_id"]
    barrier = next(
        line
        for line in edit.of("create", process=ack["process"])
        if line["name"].startswith(f"stages/{stage}/")
        and line["record"]["body"].get("checkpoint_id") == checkpoint_id
    )
    edit.move(ack, before=barrier)


@breaks("reports")
def a_manifest_contradicts_an_ack(edit: Edit) -> None:
    commit = edit.writes(edit.commits()[-1])
    edit.touched.append(commit)
    checkpoint_id = commit["record"]["body"]["checkpoint_id"]
    for kind in ("sent", "received"):
        for line in edit.of(kind, kind="ack"):
            if line["message"]["checkpoint_id"] == checkpoint_id:
                for report in line["message"]["reports"].values():
                    report["state"] = {"another": "file"}


@breaks("manifest")
def a_commit_comes_before_its_manifest(edit: Edit) -> None:
    commit = edit.writes(edit.commits()[-1])
    manifest = next(edit.of("create", hash=commit["record"]["body"]["manifest"], process=commit["process"]))
    edit.move(commit, before=manifest)


@breaks("manifest")
def a_commit_names_another_manifest(edit: Edit) -> None:
    edit.alter(edit.commits()[-1], lambda record: record["body"].update(manifest="0" * 64))


@breaks("manifest")
def a_commit_has_different_cuts_than_its_manifest(edit: Edit) -> None:
    edit.alter(edit.commits()[-1], lambda record: record["body"]["cuts"].update(s0=99_999))


@breaks("cut")
def more_was_consumed_than_produced(edit: Edit) -> None:
    report, producer = a_reader(edit)
    edit.alter(
        edit.manifest(edit.commits()[-1]),
        lambda record: record["stages"][report]["consumed"].update({producer: 99_999}),
    )


@breaks("cut")
def rows_are_in_flight_to_an_aligned_stage(edit: Edit) -> None:
    report, producer = a_reader(edit)

    def change(record: Object) -> None:
        upto = record["stages"][producer]["batch"]
        record["stages"][report]["consumed"][producer] = upto - 1
        record["stages"][report]["unaligned"] = False
        flights = [f for f in record["in_flight"] if (f["reader"], f["producer"]) != (report, producer)]
        batches = {str(upto): ["stages/x/1/data/y"]}
        flight = {
            "producer": producer,
            "reader": report,
            "after": upto - 1,
            "upto": upto,
            "batches": batches,
        }
        record["in_flight"] = [*flights, flight]

    edit.alter(edit.manifest(edit.commits()[-1]), change)


@breaks("cut")
def in_flight_batches_are_missing_from_the_manifest(edit: Edit) -> None:
    report, producer = a_reader(edit)

    def change(record: Object) -> None:
        record["stages"][report]["consumed"][producer] = record["stages"][producer]["batch"] - 1
        record["in_flight"] = []

    edit.alter(edit.manifest(edit.commits()[-1]), change)


@breaks("cut")
def a_stage_is_missing_from_the_cut(edit: Edit) -> None:
    edit.alter(edit.manifest(edit.commits()[-1]), lambda record: record["stages"].pop("s0"))


@breaks("cut")
def a_cut_contradicts_the_stage_log(edit: Edit) -> None:
    edit.alter(
        edit.manifest(edit.commits()[-1]),
        lambda record: record["stages"]["s0"].update(offsets={"source": 99_999}),
    )


# --- tables ----------------------------------------------------------------------------------------------


@breaks("published")
def an_aborted_epoch_is_published(edit: Edit) -> None:
    publish = last_publish(edit)
    edit.set(publish, transaction=edit.entries(kind="ABORTED")[-1]["record"]["index"])


@breaks("published")
def an_epoch_that_was_only_begun_is_published(edit: Edit) -> None:
    publish = last_publish(edit)
    edit.set(publish, transaction=edit.entries(kind="BEGUN")[-1]["record"]["index"])


@breaks("published")
def an_epoch_is_published_by_a_process_that_cannot_know_of_its_commit(edit: Edit) -> None:
    publish = last_publish(edit)
    edit.set(publish, knows=publish["transaction"] - 1)


@breaks("published")
def files_are_published_that_the_manifest_does_not_name(edit: Edit) -> None:
    publish = last_publish(edit)
    edit.set(publish, files=[*publish["files"], "more"])


@breaks("publish-order")
def an_epoch_is_published_twice(edit: Edit) -> None:
    publish = last_publish(edit)
    again = {**publish, "expected_version": publish["answer"], "answer": publish["answer"] + 1}
    edit.add(again.pop("process"), **again)


@breaks("publish-order")
def two_epochs_become_one_version(edit: Edit) -> None:
    first, second, *_ = publishes(edit, "s")
    edit.set(second, answer=first["answer"])


@breaks("publish-order")
def a_zombies_older_transaction_comes_after_a_newer_one(edit: Edit) -> None:
    publish = last_publish(edit)
    older = next(p for p in publishes(edit, "s") if p["sink"] == publish["sink"])
    late = {**older, "expected_version": publish["answer"], "answer": publish["answer"] + 1}
    edit.add(late.pop("process"), **late)


@breaks("publish-order")
def an_epoch_is_skipped(edit: Edit) -> None:
    own = [p for p in publishes(edit, "s") if p["sink"] == last_publish(edit)["sink"]]
    first, second, third = own[-3:]
    edit.drop(second)
    edit.set(third, expected_version=first["answer"])


@breaks("publish-order")
def an_epoch_without_rows_is_marked_before_the_previous_one_is_published(edit: Edit) -> None:
    """The last publishes of a sink are removed from the trace, with everything that shows that they happened."""
    publish = last_publish(edit)
    sink = publish["sink"]
    manifest = edit.manifest(edit.commits()[-1])
    edit.alter(manifest, lambda record: record["release"].update({sink: []}))
    last = edit.commits()[-1]["record"]
    before = publishes(edit, sink)[-3]["transaction"]
    edit.drop(*(p for p in edit.of("publish", sink=sink) if p["transaction"] > before))
    edit.drop(*(t for t in edit.of("table", sink=sink) if t["transaction"] > before))
    edit.drop(*(line for line in edit.lines if line.get("name", "").startswith(f"published/{sink}/")))
    mark = {"epoch": last["body"]["epoch"], "sink": sink, "index": last["index"], "version": 1}
    name = f"published/{sink}/{last['index']:012d}.json"
    edit.add(publish["process"], type="create", name=name, hash="mark", answer="created", record=mark)


def a_rewind(edit: Edit) -> Object:
    """A rewind that leaves something in the table and is followed by another commit."""
    return next(
        line
        for line in edit.of("rewind")
        if isinstance(line["answer"], int)
        and line["to_version"] > 0
        and publishes(edit, line["sink"])[-1]["transaction"] > line["transaction"]
    )


@breaks("rewind")
def a_restore_is_skipped(edit: Edit) -> None:
    rewind = a_rewind(edit)
    behind = [p for p in publishes(edit, rewind["sink"]) if p["transaction"] > rewind["transaction"]]
    before = [p for p in publishes(edit, rewind["sink"]) if p["transaction"] < rewind["transaction"]]
    edit.drop(rewind)
    edit.set(behind[0], expected_version=before[-1]["answer"])


@breaks("rewind")
def a_table_is_rewound_without_a_restore(edit: Edit) -> None:
    rewind = next(line for line in edit.of("rewind") if isinstance(line["answer"], int))
    edit.set(rewind, transaction=rewind["transaction"] - 1)


@breaks("rewind")
def a_table_is_rewound_too_far(edit: Edit) -> None:
    edit.set(a_rewind(edit), to_version=0)


@breaks("rewind")
def a_table_is_not_rewound_far_enough(edit: Edit) -> None:
    rewind = a_rewind(edit)
    later = [p for p in publishes(edit, rewind["sink"]) if p["transaction"] > rewind["transaction"]]
    edit.set(rewind, to_version=later[-1]["answer"])


@breaks("mark")
def a_mark_comes_before_its_publish(edit: Edit) -> None:
    publish = last_publish(edit)
    name = f"published/{publish['sink']}/{publish['transaction']:012d}.json"
    edit.move(next(edit.of("create", name=name, process=publish["process"])), before=publish)


@breaks("mark")
def a_mark_names_the_wrong_version(edit: Edit) -> None:
    publish = last_publish(edit)
    name = f"published/{publish['sink']}/{publish['transaction']:012d}.json"
    edit.alter(
        next(edit.of("create", name=name)), lambda record: record.update(version=record["version"] + 1)
    )


# --- deletions -------------------------------------------------------------------------------------------


@breaks("deleted")
def state_of_a_retained_checkpoint_is_deleted(edit: Edit) -> None:
    manifest = edit.manifest(edit.commits()[-1])
    state = next(name for report in manifest["record"]["stages"].values() for name in report["state"])
    deletion = list(edit.of("delete"))[-1]
    edit.set(deletion, names=[*deletion["names"], state])


@breaks("deleted")
def a_checkpoint_is_deleted_by_a_process_that_cannot_know_of_its_expiry(edit: Edit) -> None:
    deletion = next(d for d in edit.of("delete") if any("/manifest.json" in n for n in d["names"]))
    edit.set(deletion, knows=deletion["knows"] - 1)


@breaks("deleted")
def the_manifest_of_a_retained_checkpoint_is_deleted(edit: Edit) -> None:
    deletion = list(edit.of("delete"))[-1]
    edit.set(deletion, names=[*deletion["names"], edit.manifest(edit.commits()[-1])["name"]])


@breaks("deleted")
def a_journal_entry_is_deleted_that_no_snapshot_covers(edit: Edit) -> None:
    deletion = list(edit.of("delete"))[-1]
    edit.set(deletion, names=[*deletion["names"], edit.entries()[-1]["name"]])


@breaks("deleted")
def a_stage_log_entry_is_deleted_that_no_snapshot_covers(edit: Edit) -> None:
    deletion = list(edit.of("delete"))[-1]
    edit.set(deletion, names=[*deletion["names"], stage_entries(edit)[-1]["name"]])


# --- announcements ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phase", "kind"), [("prepare", "BEGUN"), ("commit", "COMMITTED"), ("abort", "ABORTED")]
)
def test_an_announcement_before_its_entry_is_found(phase: str, kind: str, tmp_path: Path) -> None:
    edit = Edit(RICH)
    for sent in edit.of("sent", kind="announcement"):
        checkpoint_id = sent["message"]["checkpoint_id"]
        if sent["message"]["phase"] == phase:
            break
    entry = next(e for e in edit.entries(kind=kind) if e["record"]["body"]["checkpoint_id"] == checkpoint_id)
    edit.move(sent, before=next(edit.of("create", name=entry["name"], process=sent["process"])))
    assert {problem.rule for problem in edit.check(tmp_path).problems} == {"announced"}


@breaks("announced")
def an_announcement_is_made_without_its_entry(edit: Edit) -> None:
    sent = next(s for s in edit.of("sent", kind="announcement") if s["message"]["phase"] == "abort")
    sent["message"]["epoch"] += 1
    edit.touched.append(sent)


@breaks("announced")
def a_commit_is_announced_with_the_wrong_watermark(edit: Edit) -> None:
    sent = next(s for s in edit.of("sent", kind="announcement") if s["message"]["phase"] == "commit")
    sent["message"]["watermark"] = 99_999
    edit.touched.append(sent)


# --- all of them -----------------------------------------------------------------------------------------


def planted(plant: Plant) -> Edit:
    """A trace with this change."""
    for seed in (RICH, *OTHERS):
        edit = Edit(seed)
        with suppress(StopIteration, IndexError):
            plant(edit)
            return edit
    raise AssertionError(f"no schedule has what {plant.__name__} changes")


@pytest.mark.parametrize(("rule", "plant"), PLANTS, ids=[plant.__name__ for _, plant in PLANTS])
def test_a_violated_rule_is_named_and_shown(rule: str, plant: Plant, tmp_path: Path) -> None:
    edit = planted(plant)
    found = [problem for problem in edit.check(tmp_path).problems if problem.rule == rule]
    assert found, f"{plant.__name__} was not found"
    touched = {(line["process"], line["n"]) for line in edit.touched}
    shown = {(at.line.process, at.line.n) for problem in found for at in problem.lines}
    assert touched & shown, f"the lines that show it are not among {shown}"


def test_every_rule_is_violated_by_some_test() -> None:
    assert {rule for rule, _ in PLANTS} == set(RULES)


@pytest.mark.parametrize(
    ("bug", "rule"),
    [
        ("rule_1_other_bytes_are_put_at_the_same_index_after_an_error", "one-writer"),
        ("rule_3_prepare_is_announced_before_begun_is_durable", "announced"),
        ("the_decision_is_durable_only_after_its_announcement", "announced"),
        ("things_are_deleted_before_they_are_expired", "deleted"),
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
        found |= {problem.rule for problem in check(path).problems}
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


# --- lookups in a trace ----------------------------------------------------------------------------------


def newest_commit(edit: Edit) -> Object:
    body: Object = edit.entries(kind="COMMITTED")[-1]["record"]["body"]
    return body


def begun(edit: Edit, epoch: int, checkpoint_id: int) -> Object:
    body = edit.entries(kind="BEGUN")[-1]["record"]["body"]
    return {**body, "epoch": epoch, "checkpoint_id": checkpoint_id}


def aborted(edit: Edit, epoch: Object) -> Object:
    now = newest_commit(edit)
    return {
        "type": "ABORTED",
        "term": now["term"],
        "generation": now["generation"],
        "epoch": epoch["epoch"],
        "checkpoint_id": epoch["checkpoint_id"],
        "reason": "timeout",
        "detail": "",
    }


def restored(edit: Edit, epoch: int, forks: Object) -> Object:
    now = newest_commit(edit)
    return {
        "type": "RESTORED",
        "term": now["term"],
        "generation": now["generation"] + 1,
        "epoch": epoch,
        "forks": forks,
        "reset": [],
    }


def expired(edit: Edit, epoch: int) -> Object:
    return {**edit.entries(kind="EXPIRED")[-1]["record"]["body"], "epochs": [epoch]}


def stage_entries(edit: Edit) -> list[Object]:
    """The entries of one stage's log in the newest generation."""
    newest = newest_commit(edit)["generation"]
    return edit.entries(f"stages/s0/{newest}/log/")


def last_of_a_log(
    edit: Edit, kind: str, wanted: Callable[[Object], bool] = lambda body: True
) -> tuple[Object, str]:
    """The last entry of this kind in a stage's log of the newest generation, as it would follow the end of the log."""
    newest = newest_commit(edit)["generation"]
    for stage in newest_commit(edit)["cuts"]:
        prefix = f"stages/{stage}/{newest}/log/"
        entries = [e["record"]["body"] for e in edit.entries(prefix)]
        batches = [b for b in entries if b["type"] == "BATCH"]
        found = [b for b in entries if b["type"] == kind and wanted(b)]
        if found and batches:
            last = {**found[-1], "incarnation": batches[-1]["incarnation"]}
            return last, prefix
    raise AssertionError(f"no log has such a {kind}")


def a_reader(edit: Edit) -> tuple[str, str]:
    """A stage that reads another one, and its producer."""
    topology = edit.entries(kind="TOPOLOGY")[-1]["record"]["body"]["topology"]
    return next((name, spec["inputs"][0]) for name, spec in topology["stages"].items() if spec["inputs"])


def publishes(edit: Edit, sink: str) -> list[Object]:
    """The successful publishes of sinks with this name prefix, by sink and version."""
    done = [p for p in edit.of("publish") if p["sink"].startswith(sink) and isinstance(p["answer"], int)]
    return sorted(done, key=lambda p: (p["sink"], p["answer"]))


def last_publish(edit: Edit) -> Object:
    """The last publish of the sink with the most publishes."""
    done = publishes(edit, "s")
    most = max({p["sink"] for p in done}, key=lambda sink: sum(p["sink"] == sink for p in done))
    return next(p for p in reversed(done) if p["sink"] == most)
