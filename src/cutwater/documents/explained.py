"""One epoch explained: where its time went, or why it failed and what to do."""

from __future__ import annotations

from typing import Any

import msgspec

from cutwater.documents.kept_checkpoints import FLAG_NAMES
from cutwater.documents.timestamps import iso
from cutwater.protocol.base.barrier import Flags
from cutwater.protocol.base.durations import readable
from cutwater.protocol.base.errors import StoreError, UserError
from cutwater.protocol.base.failures import FailureReason
from cutwater.protocol.base.records import Aborted, JournalState, Manifest, Topology
from cutwater.protocol.base.watermark import WatermarkKind
from cutwater.protocol.member.journal import Fate, fate
from cutwater.runtime.timings import EpochTimes
from cutwater.store.at_rest import load_manifest
from cutwater.store.contract import Store


def explained_document(
    store: Store, state: JournalState, epoch: int, times: EpochTimes | None
) -> dict[str, Any]:
    """What `cutwater explain --json` prints. Raises `UserError` if nothing is known about the epoch."""
    abort = next((a for a in state.aborted if a.epoch == epoch), None)
    what = fate(state, epoch)
    if times is None and abort is None and what in (Fate.UNKNOWN, Fate.OVER):
        last = state.next_epoch - 1
        why = (
            f"the last one that began is {last}"
            if what is Fate.UNKNOWN
            else "it is over, and its timings are gone"
        )
        raise UserError(
            f"nothing is known about epoch {epoch}: {why}; `cutwater checkpoints` lists the kept epochs"
        )
    document: dict[str, Any] = {"epoch": epoch, "fate": _fate(what, times, abort)}
    if times is not None:
        document |= {
            "begun_at": iso(times.begun_at),
            "flags": [word for flag, word in FLAG_NAMES.items() if times.flags & flag],
            "savepoint": times.savepoint,
            "steps": [
                {"step": s, "from_s": a, "to_s": b, "note": n}
                for s, a, b, n in steps_of(times, state.topology)
            ],
            "violations": msgspec.to_builtins(times.violations),
        }
    document |= _failure(times, abort)
    document["hints"] = _hints(store, state, epoch, times)
    return document


def _fate(what: Fate, times: EpochTimes | None, abort: Aborted | None) -> str:
    if abort is not None or (times is not None and times.aborted_s is not None):
        return "aborted"
    if what is Fate.OVER and times is not None:
        return "committed, expired since" if times.committed_s is not None else "over"
    return what.value


Step = tuple[str, float, float, str]
"""Name, start and end in seconds after the epoch began, and a note."""


def steps_of(times: EpochTimes, topology: Topology | None) -> list[Step]:
    """The steps of an epoch: each stage from its first barrier to its cut, then capture, commit and publishing. Timings
    without barriers, of an older version, show a stage from its last input's cut."""
    steps: list[Step] = []
    for name in _in_order(times, topology):
        cut = times.stages[name]
        last, last_s = _last_input(times, topology, name)
        start = last_s if cut.barrier_s is None else max(0.0, min(cut.barrier_s, cut.cut_s))
        note = f"cut at batch {cut.batch}"
        chained = topology.chain(name) if topology is not None else ()
        if chained:
            note += f", with {', '.join(chained)} chained into it"
        if cut.unaligned:
            note += ", unaligned"
        elif last is not None:
            note += f", {readable(cut.cut_s - last_s)} after {last}"
        steps.append((name, start, cut.cut_s, note))
    reached = max((s.cut_s for s in times.stages.values()), default=0.0)
    for name, at in (
        ("captured", times.captured_s),
        ("manifest", times.manifest_s),
        ("committed", times.committed_s),
        ("aborted", times.aborted_s),
    ):
        if at is not None:
            steps.append((name, min(reached, at), at, ""))
            reached = max(reached, at)
    for sink, at in sorted(times.published_s.items(), key=lambda item: item[1]):
        steps.append((f"in {sink}", min(reached, at), at, "published"))
    return steps


def _last_input(times: EpochTimes, topology: Topology | None, name: str) -> tuple[str | None, float]:
    """The input of a stage that was cut last, and when, but not after the stage; without inputs the beginning."""
    inputs = topology.stages[name].inputs if topology is not None and name in topology.stages else ()
    before = {i: times.stages[i].cut_s for i in inputs if i in times.stages}
    last = max(before, key=lambda i: before[i], default=None)
    return last, min(before[last], times.stages[name].cut_s) if last is not None else 0.0


def _in_order(times: EpochTimes, topology: Topology | None) -> list[str]:
    """The stages in the order of their cuts; of those cut at the same time, inputs come first."""
    inputs = {n: s.inputs for n, s in topology.stages.items()} if topology is not None else {}

    def depth(name: str) -> int:
        return 1 + max((depth(i) for i in inputs.get(name, ())), default=0)

    return sorted(times.stages, key=lambda n: (times.stages[n].cut_s, depth(n), n))


def _failure(times: EpochTimes | None, abort: Aborted | None) -> dict[str, str]:
    reason = abort.reason if abort is not None else times.reason if times is not None else None
    if reason is None:
        return {}
    detail = abort.detail if abort is not None else times.detail if times is not None else ""
    known = {r.value: r.advice for r in FailureReason}
    return {"reason": reason, "detail": detail, "advice": known.get(reason, "")}


def _hints(store: Store, state: JournalState, epoch: int, times: EpochTimes | None) -> list[str]:
    hints: list[str] = []
    if times is not None and times.committed_s and times.stages:
        # From the last input's cut, not from the first barrier: a stage that waits for a slow input is not slow itself.
        waits = {
            name: times.stages[name].cut_s - _last_input(times, state.topology, name)[1]
            for name in _in_order(times, state.topology)
        }
        slowest = max(waits, key=lambda n: waits[n])
        if waits[slowest] > 1 and waits[slowest] > times.committed_s / 2:
            drained = bool(times.flags & Flags.DRAIN)
            hints.append(
                f"stage '{slowest}' took most of the time, "
                + (
                    "finishing its work"
                    if drained
                    else "processing the rows before its barrier; with --unaligned or --alignment-timeout a checkpoint "
                    "does not wait for that"
                )
            )
    if epoch in state.committed:
        try:
            hints += watermark_hints(load_manifest(store, state.committed[epoch]))
        except StoreError as error:
            hints.append(str(error))
    return hints


def watermark_hints(manifest: Manifest) -> list[str]:
    """Which stages held back the pipeline-wide watermark, and which did not only because they were idle."""
    hints = []
    kinds = {name: report.watermark.kind for name, report in sorted(manifest.stages.items())}
    unknown = [n for n, kind in kinds.items() if kind is WatermarkKind.UNKNOWN]
    if unknown:
        hints.append(
            f"no event time seen yet by {', '.join(unknown)}: until then the pipeline-wide watermark does not move. A "
            "stage that joins or unions several inputs with a watermark sees none while one of them is silent"
        )
    idle = [n for n, kind in kinds.items() if kind is WatermarkKind.IDLE]
    if idle and not manifest.flags & Flags.DRAIN:
        hints.append(f"idle, so not holding back the watermark: {', '.join(idle)}")
    return hints
