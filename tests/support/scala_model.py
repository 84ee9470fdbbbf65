"""A model of Scala collections, for tests without a JVM."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class ScalaSequence:
    """A Scala `Seq` or `Option`."""

    def __init__(self, *items: Any) -> None:
        self.items = items

    def size(self) -> int:
        return len(self.items)

    def apply(self, at: int) -> Any:
        return self.items[at]

    def isDefined(self) -> bool:
        return bool(self.items)

    def get(self) -> Any:
        return self.items[0]

    def iterator(self) -> Any:
        left = list(self.items)
        return SimpleNamespace(hasNext=lambda: bool(left), next=lambda: left.pop(0))
