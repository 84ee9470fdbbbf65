"""The key-value interface between members: each member writes only its own slots, and all can read and scan.

It carries the messages of a checkpoint in progress; decisions are in the store. An undecodable value affects only its
own slot. Changes are pushed, so nobody polls. `MemoryCluster` is the implementation for members in one process,
`cluster/zenoh_kv.py` the one between processes and machines.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import RLock
from typing import Protocol

COMMAND = "command_"
"""The name prefix of processes that are not members and only observe."""
OnChange = Callable[[str, str, bytes], None]
"""Called with the owner, the key and the new value of a slot."""
OnMail = Callable[[str, bytes], None]
"""Called with the sender and the posted bytes."""


OnPresence = Callable[[str, bool], None]
"""Called with a member, and whether one of its processes is there."""


class ClusterKv(Protocol):
    """One member's view of all slots. `boot` identifies its process."""

    @property
    def name(self) -> str: ...

    @property
    def boot(self) -> str: ...

    @property
    def rejected(self) -> int:
        """How many messages had no valid seal."""

    def write(self, key: str, value: bytes, to: str | None = None) -> None:
        """Sets this member's own slot, replacing its value. With `to` it is a separate slot that only that member
        sees."""

    def delete(self, key: str) -> None:
        """Deletes this member's own slot, for everyone who saw it."""

    def read(self, owner: str, key: str) -> bytes | None:
        """The value of a member's slot, or `None` if it holds nothing that this member may see."""

    def scan(self, key: str) -> dict[str, bytes]:
        """Each member's value under this key, sorted by member name."""

    def post(self, to: str, data: bytes) -> None:
        """Sends bytes to one member, in order. They are not stored and may be lost. A member that has not joined yet
        may still receive them when it does."""

    def subscribe(
        self, on_change: OnChange, on_mail: OnMail | None = None, on_presence: OnPresence | None = None
    ) -> None:
        """Calls `on_change` for each change that another process makes to its slots, and immediately for existing
        values; calls `on_mail` for what is posted to this member, and `on_presence` when another member appears or is
        gone. Callbacks run on any thread and must not block."""

    def alive(self) -> dict[str, tuple[str, ...]]:
        """The members that are present, including this one, and the processes (`boot`) of each: more than one if the
        same member was started twice."""

    def close(self) -> None:
        """Leaves the cluster. The slots of this process remain for a while."""


Process = tuple[str, str]
"""A member's name and the boot of its process."""


class MemoryCluster:
    """The slots of all members of one process. Those of a departed member remain for `grace_s`."""

    def __init__(self, grace_s: float = 0.0) -> None:
        self.slots: dict[tuple[str, str, str | None], bytes] = {}
        self.subscribers: dict[Process, tuple[OnChange, OnMail | None, OnPresence | None]] = {}
        self.present: set[Process] = set()
        self.lock = RLock()
        self._grace_s = grace_s
        self._gone_s: dict[str, float] = {}

    def member(self, name: str, boot: str = "1") -> MemoryKv:
        """The view of the member `name`, which is present from now on."""
        with self.lock:
            self.present.add((name, boot))
            self._gone_s.pop(name, None)
            self._tell_presence(name, True)
        return MemoryKv(self, name, boot)

    def depart(self, name: str, boot: str | None = None) -> None:
        """Removes a member, or one of its processes; its slots expire later."""
        with self.lock:
            for process in [p for p in self.present if p[0] == name and boot in (None, p[1])]:
                self.present.discard(process)
                self.subscribers.pop(process, None)
            if not any(p[0] == name for p in self.present):
                self._gone_s[name] = time.monotonic()
                self._tell_presence(name, False)
            self.expire()

    def _tell_presence(self, name: str, is_present: bool) -> None:
        for process, (_, _, on_presence) in list(self.subscribers.items()):
            if process[0] != name and on_presence is not None:
                on_presence(name, is_present)

    def expire(self) -> None:
        """Removes the slots of members that left more than `grace_s` ago."""
        now_s = time.monotonic()
        for name in [n for n, gone_s in self._gone_s.items() if now_s - gone_s >= self._grace_s]:
            del self._gone_s[name]
            for slot in [s for s in self.slots if s[0] == name]:
                del self.slots[slot]


class MemoryKv:
    """One member's view of a `MemoryCluster`."""

    rejected = 0
    """Nothing is sealed in one process."""

    def __init__(self, cluster: MemoryCluster, name: str, boot: str) -> None:
        self.name = name
        self.boot = boot
        self._cluster = cluster

    def write(self, key: str, value: bytes, to: str | None = None) -> None:
        cluster = self._cluster
        with cluster.lock:
            if not self._present():
                return
            slot = self.name, key, to
            cluster.slots.pop(slot, None)
            cluster.slots[slot] = value
            for process, (on_change, _, _) in list(cluster.subscribers.items()):
                if process != (self.name, self.boot) and to in (None, process[0]):
                    on_change(self.name, key, value)

    def delete(self, key: str) -> None:
        with self._cluster.lock:
            for slot in [s for s in self._cluster.slots if s[:2] == (self.name, key)]:
                del self._cluster.slots[slot]

    def read(self, owner: str, key: str) -> bytes | None:
        return self.scan(key).get(owner)

    def scan(self, key: str) -> dict[str, bytes]:
        found = [(owner, value) for owner, k, value in self._visible() if k == key]
        return dict(sorted(found))

    def post(self, to: str, data: bytes) -> None:
        with self._cluster.lock:
            for process, (_, on_mail, _) in (
                list(self._cluster.subscribers.items()) if self._present() else ()
            ):
                if process[0] == to and process != (self.name, self.boot) and on_mail is not None:
                    on_mail(self.name, data)

    def subscribe(
        self, on_change: OnChange, on_mail: OnMail | None = None, on_presence: OnPresence | None = None
    ) -> None:
        with self._cluster.lock:
            self._cluster.subscribers[self.name, self.boot] = on_change, on_mail, on_presence
            for owner, key, value in self._visible():
                if owner != self.name:
                    on_change(owner, key, value)

    def alive(self) -> dict[str, tuple[str, ...]]:
        with self._cluster.lock:
            present = sorted(self._cluster.present)
        return {name: tuple(b for n, b in present if n == name) for name, _ in present}

    def close(self) -> None:
        self._cluster.depart(self.name, self.boot)

    def _present(self) -> bool:
        return (self.name, self.boot) in self._cluster.present

    def _visible(self) -> list[tuple[str, str, bytes]]:
        """The slots that this member may see, in the order they were written."""
        with self._cluster.lock:
            self._cluster.expire()
            slots = list(self._cluster.slots.items())
        return [(o, k, v) for (o, k, to), v in slots if to in (None, self.name) or o == self.name]
