"""Transition tables of all state machines.

A table is data. Machines look up the next phase; the diagrams in ARCHITECTURE.md are generated from it.
A step that the table does not have raises `IllegalStep`, and the state of the machine is unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Generic, TypeVar

from cutwater.protocol.base.errors import IllegalStep

P = TypeVar("P", bound=Enum)

TABLES: dict[str, Table[Enum]] = {}
"""All tables by name, in the order of definition; the documentation is generated from them."""


class Table(Generic[P]):
    """The phases of one state machine: its start, and its transitions by phase and event."""

    def __init__(self, name: str, title: str, start: P, steps: Mapping[tuple[P, str], P]) -> None:
        self.name = name
        self.title = title
        self.start = start
        self.steps = dict(steps)
        TABLES[name] = self  # type: ignore[assignment]

    def next(self, phase: P, event: str) -> P:
        """The next phase after `event`; raises `IllegalStep` if there is none."""
        try:
            return self.steps[phase, event]
        except KeyError:
            known = ", ".join(sorted(e for p, e in self.steps if p is phase)) or "nothing: it is final"
            raise IllegalStep(
                f"{self.name}: no step '{event}' from phase '{phase.value}'; possible there: {known}"
            ) from None

    def allows(self, phase: P, event: str) -> bool:
        """Whether the table has that step."""
        return (phase, event) in self.steps

    def mermaid(self) -> str:
        """The table as a Mermaid state diagram, in the order in which its steps were written."""
        lines = ["stateDiagram-v2", f"    [*] --> {self.start.value}"]
        lines += [f"    {a.value} --> {b.value}: {event}" for (a, event), b in self.steps.items()]
        sources = {a for a, _ in self.steps}
        finals = dict.fromkeys(b for b in self.steps.values() if b not in sources)
        lines += [f"    {b.value} --> [*]" for b in finals]
        return "\n".join(lines)
