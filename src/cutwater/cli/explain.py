"""`cutwater explain`: where a checkpoint's time went, stage by stage, or why it failed and what to do."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.text import Text

from cutwater.cli.kept_checkpoints import FLAG_NAMES
from cutwater.cli.output import REF, AsJson, StoreUrl, command, iso, local, show, table
from cutwater.protocol.base.barrier import Flags
from cutwater.protocol.base.durations import readable
from cutwater.protocol.base.errors import StoreError, UserError
from cutwater.protocol.base.failures import FailureReason
from cutwater.protocol.base.records import Aborted, JournalState, Manifest, Topology
from cutwater.protocol.base.watermark import WatermarkKind
from cutwater.protocol.member.journal import Fate, fate
from cutwater.runtime.timings import EpochTimes, read_times
from cutwater.store.at_rest import epoch_of, load_manifest, read_journal
from cutwater.store.contract import Store
from cutwater.store.opening import open_store

BAR = 24


@command
def explain(
    ref: Annotated[
        str, typer.Argument(metavar="REF", help=f"{REF}. The number may be that of an epoch that failed.")
    ],
    store: StoreUrl = "./state",
    as_json: AsJson = False,
) -> None:
    """Explain one epoch: where the time went, stage by stage, or why it failed and what to do."""
    where = open_store(store)
    state = read_journal(where).state
    epoch = epoch_of(state, ref)
    times = read_times(where, epoch)
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
    text: list[Any] = [_heading(epoch, document["fate"], times)]
    if times is not None:
        steps = steps_of(times, state.topology)
        document |= {
            "begun_at": iso(times.begun_at),
            "flags": [word for flag, word in FLAG_NAMES.items() if times.flags & flag],
            "savepoint": times.savepoint,
            "steps": [{"step": s, "from_s": a, "to_s": b, "note": n} for s, a, b, n in steps],
        }
        text += ["", _bars(steps)]
    elif abort is None:
        text.append("no timings: they were not recorded, or are gone")
    advice = _failure(document, times, abort)
    hints = _hints(where, state, epoch, times)
    document["hints"] = hints
    text += ["", *(Text(line) for line in advice)] if advice else []
    text += ["", *(Text(f"hint: {line}") for line in hints)] if hints else []
    show(as_json, document, *text)


def _fate(what: Fate, times: EpochTimes | None, abort: Aborted | None) -> str:
    if abort is not None or (times is not None and times.aborted_s is not None):
        return "aborted"
    if what is Fate.OVER and times is not None:
        return "committed, expired since" if times.committed_s is not None else "over"
    return what.value


def _heading(epoch: int, what: str, times: EpochTimes | None) -> Text:
    what, comma, since = what.partition(", ")
    line = Text.assemble((f"epoch {epoch}", "bold"), "  ", (what, "red" if what == "aborted" else ""))
    if times is not None and times.committed_s is not None:
        line.append(f" in {readable(times.committed_s)}")
    line.append(f"{comma}{since}")
    if times is not None:
        line.append(f", begun {local(times.begun_at)}")
        flags = [word for flag, word in FLAG_NAMES.items() if times.flags & flag]
        if flags:
            line.append(f"  ({', '.join(flags)})")
        if times.savepoint:
            line.append(f"  savepoint '{times.savepoint}'")
    return line


Step = tuple[str, float, float, str]
"""Name, start and end in seconds after the epoch began, and a note."""


def steps_of(times: EpochTimes, topology: Topology | None) -> list[Step]:
    """The steps of an epoch: each stage from its last input's cut to its own, then capture, commit and publishing."""
    steps: list[Step] = []
    for name in _in_order(times, topology):
        cut = times.stages[name]
        inputs = topology.stages[name].inputs if topology is not None and name in topology.stages else ()
        before = {i: times.stages[i].cut_s for i in inputs if i in times.stages}
        last = max(before, key=lambda i: before[i], default=None)
        start = min(before[last], cut.cut_s) if last is not None else 0.0
        note = f"cut at batch {cut.batch}"
        if cut.unaligned:
            note += ", unaligned"
        elif last is not None:
            note += f", {readable(cut.cut_s - start)} after {last}"
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


def _in_order(times: EpochTimes, topology: Topology | None) -> list[str]:
    """The stages in the order of their cuts; of those cut at the same time, inputs come first."""
    inputs = {n: s.inputs for n, s in topology.stages.items()} if topology is not None else {}

    def depth(name: str) -> int:
        return 1 + max((depth(i) for i in inputs.get(name, ())), default=0)

    return sorted(times.stages, key=lambda n: (times.stages[n].cut_s, depth(n), n))


def _bars(steps: list[Step]) -> Any:
    total = max((end for _, _, end, _ in steps), default=0.0) or 1.0
    shown = table("", "at", "", "", right=("at",))
    for name, start, end, note in steps:
        left = round(start / total * BAR)
        length = max(1, round((end - start) / total * BAR))
        left = min(left, BAR - length)
        bar = Text("·" * left, style="dim")
        bar.append("━" * length, style="cyan" if note != "published" else "green")
        bar.append("·" * (BAR - left - length), style="dim")
        shown.add_row(name, readable(end), bar, note)
    return shown


def _failure(document: dict[str, Any], times: EpochTimes | None, abort: Aborted | None) -> list[str]:
    reason = abort.reason if abort is not None else times.reason if times is not None else None
    if reason is None:
        return []
    detail = abort.detail if abort is not None else times.detail if times is not None else ""
    known = {r.value: r.advice for r in FailureReason}
    advice = known.get(reason, "")
    document |= {"reason": reason, "detail": detail, "advice": advice}
    return [
        line
        for line in (f"why:    {reason}" + (f": {detail}" if detail else ""), advice and f"advice: {advice}")
        if line
    ]


def _hints(store: Store, state: JournalState, epoch: int, times: EpochTimes | None) -> list[str]:
    hints: list[str] = []
    if times is not None and times.committed_s and times.stages:
        waits = {
            name: end - start
            for name, start, end, _ in steps_of(times, state.topology)
            if name in times.stages
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
