"""The registry of changes that make a recorded trace violate a rule."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.traces import Edit

Plant = Callable[[Edit], None]
PLANTS: list[tuple[str, Plant]] = []


def breaks(rule: str) -> Callable[[Plant], Plant]:
    """Registers a change of a trace that violates a rule."""

    def register(plant: Plant) -> Plant:
        PLANTS.append((rule, plant))
        return plant

    return register
