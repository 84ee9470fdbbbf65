"""Looks things up in a trace, for the changes that violate rules."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable

from cutwater.protocol.base.barrier import Barrier
from tests.support.traces import Edit, Object


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


def announced(sent: Object) -> Barrier:
    """The barrier in an announcement that was sent."""
    return Barrier.unpack(b64decode(sent["message"]["barrier"]))


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
