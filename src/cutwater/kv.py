"""The key-value seam between members: every member writes only its own slots, anyone reads and scans.

It carries hints and speed; the store carries the truth. A value that cannot be read harms nobody but the
slot that holds it. This is the implementation for members in one process. Changes are pushed: nobody polls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

OnChange = Callable[[str, str, bytes], None]
"""Called with the owner, the key and the new value of a slot."""


class ClusterKv(Protocol):
    """One member's view of the slots of all."""

    def write(self, key: str, value: bytes) -> None:
        """Sets this member's own slot; what was in it is gone."""

    def read(self, owner: str, key: str) -> bytes | None:
        """What is in a member's slot, `None` if it has written nothing there."""

    def scan(self, key: str) -> dict[str, bytes]:
        """What every member has under this key, by member, in the order of their names."""

    def subscribe(self, on_change: OnChange) -> None:
        """Calls back at every change of any member's slot, and at once for what is there already."""


class MemoryCluster:
    """The slots of all members of one process."""

    def __init__(self) -> None:
        self.slots: dict[tuple[str, str], bytes] = {}
        self.subscribers: list[OnChange] = []

    def member(self, name: str) -> MemoryKv:
        """The view of the member `name`."""
        return MemoryKv(self, name)

    def depart(self, name: str) -> None:
        """A member is gone, and with it its slots."""
        for slot in [s for s in self.slots if s[0] == name]:
            del self.slots[slot]


class MemoryKv:
    """One member's view of a `MemoryCluster`."""

    def __init__(self, cluster: MemoryCluster, name: str) -> None:
        self._cluster = cluster
        self._name = name

    def write(self, key: str, value: bytes) -> None:
        self._cluster.slots[self._name, key] = value
        for on_change in list(self._cluster.subscribers):
            on_change(self._name, key, value)

    def read(self, owner: str, key: str) -> bytes | None:
        return self._cluster.slots.get((owner, key))

    def scan(self, key: str) -> dict[str, bytes]:
        return {owner: value for (owner, k), value in sorted(self._cluster.slots.items()) if k == key}

    def subscribe(self, on_change: OnChange) -> None:
        self._cluster.subscribers.append(on_change)
        for (owner, key), value in sorted(self._cluster.slots.items()):
            on_change(owner, key, value)
