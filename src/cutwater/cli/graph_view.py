"""Draws the graph of a pipeline as text: a line per stage, and a rail down from each stage to those that read it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from cutwater.api.checking import CheckedSink, CheckedStage
from cutwater.store.status import ALONE

STEP = 3
"""How many columns of text a rail takes."""


def draw(stages: Sequence[CheckedStage]) -> list[Text]:
    """The lines of the drawing. Stages come after those that they read."""
    shown = _in_order(stages)
    known = {stage.name for stage in shown}
    last = {name: stage.name for stage in shown for name in stage.inputs}
    has_members = len({stage.member for stage in shown}) > 1 or any(s.member != ALONE for s in shown)
    rails: dict[int, str] = {}
    rows: list[tuple[str, str, Text]] = []
    for stage in shown:
        inputs = {c for c, name in rails.items() if name in stage.inputs}
        ending = {c for c in inputs if last[rails[c]] == stage.name}
        column = max(rails, default=-1) + 1
        before = _towards(column, set(rails), inputs, ending)
        for c in ending:
            del rails[c]
        if stage.name in last:
            rails[column] = stage.name
        name = f"{stage.name} ({stage.member})" if has_members else stage.name
        facts = _facts(stage, known) or [Text()]
        rows.append((before, f"● {name}", facts[0]))
        rows += [
            ("".join(("│" if c in rails else " ").ljust(STEP) for c in range(column + 1)), "", f)
            for f in facts[1:]
        ]
    width = max((len(before) + len(name) for before, name, _ in rows), default=0) + 2
    lines = []
    for before, name, fact in rows:
        line = Text(before, style="cyan").append(name, style="bold")
        line.append(" " * (width - len(before) - len(name)))
        line = line.append_text(fact)
        line.rstrip()
        lines.append(line)
    return lines


def _towards(column: int, rails: set[int], inputs: set[int], ending: set[int]) -> str:
    """The text to the left of a stage: other rails, and the connection from its inputs."""
    first = min(inputs, default=column)
    text = ""
    for c in range(column):
        if c < first:
            text += ("│" if c in rails else " ").ljust(STEP)
        elif c == first:
            text += ("└" if c in ending else "├").ljust(STEP, "─")
        elif c in inputs:
            text += ("┴" if c in ending else "┼").ljust(STEP, "─")
        else:
            text += ("│" if c in rails else "─").ljust(STEP, "─")
    return text


def _facts(stage: CheckedStage, known: set[str]) -> list[Text]:
    facts = [Text(f"reads {source}") for source in stage.sources]
    if stage.inputs:
        facts.append(
            Text(f"reads {', '.join(n if n in known else f'{n} (not here)' for n in stage.inputs)}", "dim")
        )
    if not stage.is_checked:
        facts.append(Text("not checked", "yellow"))
    if stage.chained_into is not None:
        facts.append(Text(f"runs in the query of {stage.chained_into}", "cyan"))
    if stage.not_chained is not None:
        facts.append(Text(f"a query of its own: {stage.not_chained}", "dim"))
    if stage.output_mode != "append":
        facts.append(Text(f"output mode {stage.output_mode}"))
    if stage.rules:
        facts.append(Text(f"rules {', '.join(stage.rules)}; bad rows: {stage.on_violation}"))
    return [*facts, *(Text(f"→ {_sink(sink)}", "green") for sink in stage.sinks)]


def _sink(sink: CheckedSink) -> str:
    text = " ".join(filter(None, (sink.kind, sink.path or sink.name)))
    return f"{text}, when {sink.final_by} has passed" if sink.final_by is not None else text


def _in_order(stages: Sequence[CheckedStage]) -> list[CheckedStage]:
    """The stages, each as soon as possible after its inputs."""
    by_name = {stage.name: stage for stage in stages}
    done: dict[str, CheckedStage] = {}

    def visit(stage: CheckedStage, above: tuple[str, ...]) -> None:
        if stage.name in done or stage.name in above:
            return
        for name in stage.inputs:
            if name in by_name:
                visit(by_name[name], (*above, stage.name))
        done[stage.name] = stage

    for stage in stages:
        visit(stage, ())
    return list(done.values())
