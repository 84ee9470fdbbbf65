"""Mail to single members: in order, held for those that are absent, and never in the way of others."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
import zenoh

from cutwater.cluster import mail as module
from cutwater.cluster.config import MAX_VALUE_BYTES
from cutwater.cluster.mail import MAX_HELD, MAX_QUEUED, SMALL_BYTES, Outbox

LARGE = b"x" * (SMALL_BYTES + 1)


class Session:
    """Notes what is sent. While `gate` is closed, nothing large gets through."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes, int]] = []
        self.gate, self.begun = Event(), Event()
        self.gate.set()
        self.is_open = True

    def put(self, where: str, sealed: bytes, attachment: int, **_: Any) -> None:
        if not self.is_open:
            raise zenoh.ZError("closed")
        if len(sealed) > SMALL_BYTES:
            self.begun.set()
            assert self.gate.wait(10)
        self.sent.append((where, sealed, attachment))

    @property
    def data(self) -> list[bytes]:
        return [data for _, data, _ in self.sent]


def seal(kind: str, where: str, seq: int, data: bytes) -> tuple[bytes, int]:
    assert kind == "mail"
    return data, seq


@pytest.fixture
def session() -> Session:
    return Session()


@pytest.fixture
def outbox(session: Session) -> Iterator[Outbox]:
    made = Outbox(session, SimpleNamespace(member="me", seal=seal), "root")  # type: ignore[arg-type]
    yield made
    session.gate.set()
    made.close()


def settle(outbox: Outbox) -> None:
    """Waits until all large mail is sent."""
    pause = Event()
    for _ in range(1000):
        with outbox._lock:
            if not outbox._pending:
                return
        pause.wait(0.01)
    raise AssertionError("mail is still queued")


def test_small_mail_is_sent_at_once_to_every_process(outbox: Outbox, session: Session) -> None:
    outbox.post("you", b"hello", ["b1", "b2"])
    assert session.sent == [("root/you/b1/me", b"hello", 1), ("root/you/b2/me", b"hello", 2)]
    at_most = b"x" * SMALL_BYTES
    outbox.post("you", at_most, ["b1"])
    assert session.data[-1] == at_most


def test_large_mail_does_not_delay_the_sender(outbox: Outbox, session: Session) -> None:
    session.gate.clear()
    outbox.post("you", LARGE, ["b1"])
    assert session.begun.wait(10)
    assert session.sent == []
    session.gate.set()
    settle(outbox)
    assert session.data == [LARGE]


def test_small_mail_does_not_overtake_large_mail(outbox: Outbox, session: Session) -> None:
    session.gate.clear()
    outbox.post("you", LARGE, ["b1"])
    outbox.post("you", b"after it", ["b1"])
    assert session.sent == []
    session.gate.set()
    settle(outbox)
    assert session.data == [LARGE, b"after it"]
    outbox.post("you", b"at once again", ["b1"])
    assert session.data[-1] == b"at once again"
    assert [seq for *_, seq in session.sent] == [1, 2, 3]


def test_mail_for_an_absent_member_is_held(outbox: Outbox, session: Session) -> None:
    outbox.post("you", b"one", [])
    outbox.post("you", b"two", [])
    outbox.post("other", b"three", [])
    assert session.sent == []
    outbox.release("you", "b7")
    assert session.sent == [("root/you/b7/me", b"one", 1), ("root/you/b7/me", b"two", 2)]
    outbox.release("you", "b8")
    assert len(session.sent) == 2, "once"


def test_held_mail_is_lost_after_a_while(
    outbox: Outbox, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    outbox.post("you", b"old", [])
    now[0] += 1
    outbox.post("you", b"new", [])
    now[0] += module.HELD_S - 1
    outbox.post("you", b"newer", [])
    now[0] += 1
    outbox.release("you", "b1")
    assert session.data == [b"new", b"newer"]


def test_the_newest_mail_is_held(outbox: Outbox, session: Session) -> None:
    for number in range(MAX_HELD + 2):
        outbox.post("you", b"%d" % number, [])
    outbox.release("you", "b1")
    assert session.data == [b"%d" % number for number in range(2, MAX_HELD + 2)]


def test_data_that_is_too_large_is_left_to_the_store(outbox: Outbox, session: Session) -> None:
    outbox.post("you", b"x" * (MAX_VALUE_BYTES + 1), ["b1"])
    outbox.post("you", b"x" * (MAX_VALUE_BYTES + 1), [])
    outbox.release("you", "b1")
    settle(outbox)
    assert session.sent == []
    outbox.post("you", b"x" * MAX_VALUE_BYTES, ["b1"])
    settle(outbox)
    assert len(session.sent) == 1


def test_mail_that_finds_no_room_is_lost_and_blocks_nobody(outbox: Outbox, session: Session) -> None:
    session.gate.clear()
    outbox.post("you", LARGE, ["b1"])
    assert session.begun.wait(10)
    for _ in range(MAX_QUEUED + 5):
        outbox.post("you", LARGE, ["b1"])
    session.gate.set()
    settle(outbox)
    assert len(session.sent) == MAX_QUEUED + 1
    outbox.post("you", b"small", ["b1"])
    assert session.data[-1] == b"small", "nothing is taken for queued that was lost"


def test_closing_does_not_wait_for_a_full_queue(session: Session) -> None:
    outbox = Outbox(session, SimpleNamespace(member="me", seal=seal), "root")  # type: ignore[arg-type]
    session.gate.clear()
    outbox.post("you", LARGE, ["b1"])
    assert session.begun.wait(10)
    for _ in range(MAX_QUEUED):
        outbox.post("you", LARGE, ["b1"])
    outbox.close()
    session.gate.set()
    outbox._thread.join(10)
    assert not outbox._thread.is_alive()


def test_a_closed_session_ends_the_thread(outbox: Outbox, session: Session) -> None:
    session.is_open = False
    outbox.post("you", b"small", ["b1"])
    outbox.post("you", LARGE, ["b1"])
    outbox._thread.join(10)
    assert not outbox._thread.is_alive()
