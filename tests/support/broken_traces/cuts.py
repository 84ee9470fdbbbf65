"""Changes that violate the rules of stages and of commits."""

from __future__ import annotations

from tests.support.broken_traces.lookups import (
    a_reader,
    last_of_a_log,
    stage_entries,
)
from tests.support.broken_traces.registry import breaks
from tests.support.traces import Edit, Object

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
