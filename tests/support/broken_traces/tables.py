"""Changes that violate the rules of tables, deletions and announcements."""

from __future__ import annotations

from base64 import b64encode

import msgspec

from tests.support.broken_traces.lookups import (
    announced,
    last_publish,
    publishes,
    stage_entries,
)
from tests.support.broken_traces.registry import breaks
from tests.support.traces import Edit, Object

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


@breaks("announced")
def an_announcement_is_made_without_its_entry(edit: Edit) -> None:
    sent = next(s for s in edit.of("sent", kind="announcement") if s["message"]["phase"] == "abort")
    barrier = msgspec.structs.replace(announced(sent), epoch=announced(sent).epoch + 1)
    sent["message"]["barrier"] = b64encode(barrier.pack()).decode()
    edit.touched.append(sent)


@breaks("announced")
def a_commit_is_announced_with_the_wrong_watermark(edit: Edit) -> None:
    sent = next(s for s in edit.of("sent", kind="announcement") if s["message"]["phase"] == "commit")
    sent["message"]["watermark"] = 99_999
    edit.touched.append(sent)
