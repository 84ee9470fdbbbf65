"""`cutwater explain`: where a checkpoint's time went, stage by stage, or why it failed and what to do."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.text import Text

from cutwater.cli.output import REF, AsJson, StoreUrl, command, local, show, table
from cutwater.documents.explained import Step, explained_document, steps_of
from cutwater.documents.kept_checkpoints import FLAG_NAMES
from cutwater.protocol.base.durations import readable
from cutwater.runtime.timings import EpochTimes, read_times
from cutwater.store.at_rest import epoch_of, read_journal
from cutwater.store.figures import plural
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
    document = explained_document(where, state, epoch, times)
    text: list[Any] = [_heading(epoch, document["fate"], times)]
    if times is not None:
        text += ["", _bars(steps_of(times, state.topology))]
        bad = [Text(line) for line in _violations(times)]
        text += ["", *bad] if bad else []
    elif "reason" not in document:
        text.append("no timings: they were not recorded, or are gone")
    advice = _advice(document)
    text += ["", *(Text(line) for line in advice)] if advice else []
    text += ["", *(Text(f"hint: {line}") for line in document["hints"])] if document["hints"] else []
    show(as_json, document, *text)


def _violations(times: EpochTimes) -> list[str]:
    """A line for each rule that rows of the epoch violate."""
    return [
        f"bad rows: {plural(count.rows, 'row')} of {stage} violated '{rule}'"
        for stage, rules in times.violations.items()
        for rule, count in rules.items()
        if count.rows
    ]


def _advice(document: dict[str, Any]) -> list[str]:
    if "reason" not in document:
        return []
    why = f"why:    {document['reason']}" + (f": {document['detail']}" if document["detail"] else "")
    return [why, *([f"advice: {document['advice']}"] if document["advice"] else [])]


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
