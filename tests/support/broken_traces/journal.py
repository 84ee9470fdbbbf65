"""Changes that violate the rules of logs and of the journal."""

from __future__ import annotations

from tests.support.broken_traces.lookups import (
    aborted,
    begun,
    expired,
    newest_commit,
    restored,
    stage_entries,
)
from tests.support.broken_traces.registry import breaks
from tests.support.traces import Edit


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
