"""A log of texts, and processes that write and read it, for tests of logs."""

from __future__ import annotations

import itertools

import msgspec

from cutwater.protocol.base.chain import Codec, Sealed, follows
from cutwater.protocol.base.effects import Procedure
from cutwater.protocol.base.log import AppendPhase, LogView, append, compact, follow
from cutwater.protocol.base.paths import entry_name
from tests.support.driver import (
    Outcome,
    Store,
    drive,
)

MINE, TAKEN, VOID = AppendPhase.MINE, AppendPhase.TAKEN, AppendPhase.VOID
PREFIX = "log/"
FAULTS: tuple[Outcome | None, ...] = (None, *Outcome)


class Said(msgspec.Struct, frozen=True, tag="SAID"):
    text: str


class Everything(msgspec.Struct, frozen=True, tag="SNAPSHOT"):
    texts: tuple[str, ...]


Body = Said | Everything
CODEC: Codec[Body] = Codec(Body)


def name(index: int) -> str:
    return entry_name(PREFIX, index)


class Process:
    """One process: its view of the log, and the texts that it derives from it, each once and in order."""

    def __init__(self, who: str = "p") -> None:
        self.who = who
        self.texts: list[str] = []
        self.jumps = 0
        self.view: LogView[Body] = LogView(PREFIX, CODEC, Everything, self._on_entry)
        self._nonces = itertools.count()

    def _on_entry(self, sealed: Sealed[Body], jumped: bool) -> None:
        body = sealed.entry.body
        self.jumps += jumped
        if isinstance(body, Everything):
            assert jumped or list(body.texts) == self.texts
            self.texts = list(body.texts)
        else:
            assert not jumped
            assert body.text not in self.texts
            self.texts.append(body.text)

    def seal(self, text: str) -> Sealed[Body]:
        return self.view.seal(Said(text), f"{self.who}{next(self._nonces)}")

    def say(self, text: str) -> Procedure[AppendPhase]:
        return append(self.view, self.seal(text))

    def compact(self) -> Procedure[AppendPhase]:
        return compact(self.view, Everything(tuple(self.texts)), f"{self.who}{next(self._nonces)}")

    def ensure(self, *texts: str, then_compact: bool = False) -> Procedure[None]:
        """Appends each text unless the log already has it, as a process that works from the log does."""
        for text in texts:
            while text not in self.texts:
                if (yield from self.say(text)) is not MINE:
                    yield from follow(self.view)
        while then_compact and (yield from self.compact()) is not MINE:
            yield from follow(self.view)


def knowing(store: Store, who: str = "p") -> Process:
    """A process that knows everything in the store."""
    process = Process(who)
    drive(follow(process.view), store)
    return process


def written(*texts: str) -> tuple[Store, Process]:
    """A store with these texts in its log, and the process that wrote them."""
    store, process = Store(), Process()
    drive(process.ensure(*texts), store)
    return store, process


def said(store: Store) -> list[str]:
    """The texts of the log for a new reader. Asserts that it is a chain from its newest snapshot to its end."""
    process = knowing(store)
    first = max(process.view.snapshot, 1)
    chain = [CODEC.open(store.objects[name(i)]) for i in range(first, process.view.last + 1)]
    assert all(follows(a, b) for a, b in itertools.pairwise(chain))
    assert store.names(PREFIX)[-1:] == [name(s.entry.index) for s in chain[-1:]]
    return process.texts
