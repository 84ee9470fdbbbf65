"""Writes journals in memory, for tests of what they mean."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable

from cutwater.protocol.base.barrier import Flags
from cutwater.protocol.base.chain import Sealed
from cutwater.protocol.base.records import (
    JOURNAL,
    Aborted,
    Begun,
    Committed,
    Expired,
    JournalBody,
    JournalState,
    Leader,
    Restored,
    Savepoint,
    Snapshot,
    StageSpec,
    Topology,
    TopologySet,
)
from cutwater.protocol.member.journal import Journal, is_void

DRAIN, FULL = int(Flags.DRAIN), int(Flags.FULL_SNAPSHOT)
TOPOLOGY = Topology({"s": StageSpec("s", (), "m")})


class Scribe:
    """Writes a journal entry by entry, and knows its state. Nothing is stored."""

    def __init__(self) -> None:
        self.journal = Journal()
        self.log: list[Sealed[JournalBody]] = []

    @property
    def state(self) -> JournalState:
        return self.journal.state

    @property
    def place(self) -> int:
        """The index of the next entry."""
        return self.journal.index + 1

    def write(self, body: JournalBody) -> None:
        view = self.journal.view
        sealed = view.seal(body, f"n{self.place}", snapshot=isinstance(body, Snapshot))
        self.log.append(JOURNAL.open(sealed.data))  # as a reader gets it, not the live state
        view.push(sealed)

    def lead(self, name: str = "m", term: int | None = None) -> None:
        self.write(Leader(term or self.state.term + 1, name))

    def begin(self, flags: int = 0, savepoint: str | None = None) -> Begun:
        state = self.state
        begun = Begun(state.term, state.generation, state.next_epoch, self.place, flags, "t", savepoint)
        self.write(begun)
        return begun

    def commit(self, begun: Begun | None = None, watermark: int | None = None) -> int:
        """Commits an epoch, or begins and commits the next. Returns its number. Its cut is `10 * epoch`."""
        begun = begun or self.begin()
        self.write(committed(begun, watermark))
        return begun.epoch

    def abort(self, begun: Begun, reason: str = "deadline") -> None:
        self.write(Aborted(begun.term, begun.generation, begun.epoch, begun.checkpoint_id, reason))

    def restore(self, epoch: int, *reset: str) -> None:
        cuts = self.state.committed[epoch].cuts
        self.write(Restored(self.state.term, self.state.generation + 1, epoch, cuts, reset))

    def expire(self, *epochs: int, generations: tuple[int, ...] = ()) -> None:
        state = self.state
        self.write(Expired(state.term, state.generation, epochs, generations, {"s": 7}, ("pinned",)))

    def snapshot(self) -> None:
        self.write(Snapshot(self.state.term, self.state.generation, self.state))


def committed(begun: Begun, watermark: int | None = None) -> Committed:
    cuts = {"s": 10 * begun.epoch}
    return Committed(begun.term, begun.generation, begun.epoch, begun.checkpoint_id, "hash", watermark, cuts)


def led() -> Scribe:
    """A scribe of a journal in its first term."""
    scribe = Scribe()
    scribe.lead()
    return scribe


def changes_nothing(scribe: Scribe, body: JournalBody) -> None:
    """Asserts that the entry is void, and that writing it does not change the state."""
    before = copy.deepcopy(scribe.state)
    assert is_void(scribe.state, body, scribe.place)
    scribe.write(body)
    assert scribe.state == before


def draw(scribe: Scribe, rnd: random.Random) -> JournalBody:
    """An entry that a process might write here: mostly right, often late, sometimes wrong."""
    state = scribe.state
    term = state.term if rnd.random() < 0.9 else max(0, state.term + rnd.choice((-1, 1)))
    generation = state.generation if rnd.random() < 0.9 else max(1, state.generation + rnd.choice((-1, 1)))
    some_epoch = rnd.randint(max(1, state.next_epoch - 4), state.next_epoch)
    known = rnd.choice([*state.committed, some_epoch])
    if state.open and rnd.random() < 0.8:
        begun = rnd.choice(list(state.open.values()))
    else:
        begun = Begun(term, generation, some_epoch, rnd.randint(1, scribe.place), 0, "t")
    epoch, checkpoint_id = begun.epoch, begun.checkpoint_id
    if rnd.random() < 0.1:
        checkpoint_id += 1
    make: list[tuple[int, Callable[[], JournalBody]]] = [
        (2, lambda: Leader(state.term + rnd.choice((0, 1, 1, 2)), rnd.choice("abc"))),
        (1, lambda: TopologySet(term, generation, rnd.choice("xyz"), TOPOLOGY)),
        (
            10,
            lambda: Begun(
                term,
                generation,
                state.next_epoch + rnd.choice((0,) * 8 + (-1, 2)),
                scribe.place + rnd.choice((0,) * 8 + (-1, 1)),
                rnd.choice((0, 0, DRAIN, FULL)),
                "t",
                rnd.choice((None, None, "p", "q")),
            ),
        ),
        (
            10,
            lambda: Committed(
                term, generation, epoch, checkpoint_id, f"h{rnd.random()}", rnd.randint(0, 9), {"s": epoch}
            ),
        ),
        (3, lambda: Aborted(term, generation, epoch, checkpoint_id, "deadline")),
        (2, lambda: Savepoint(term, generation, rnd.choice("pqr"), known, rnd.random() < 0.7)),
        (2, lambda: Restored(term, generation + 1, known, {"s": known}, rnd.choice(((), ("s",))))),
        (2, lambda: Expired(term, generation, (known,), (), {"s": known}, (f"f{known}",))),
    ]
    weights = [weight for weight, _ in make]
    return rnd.choices([body for _, body in make], weights)[0]()
