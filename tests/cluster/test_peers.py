"""What a member knows about one process of another: presence, slots, undelivered mail."""

from __future__ import annotations

import pytest

from cutwater.cluster import peers, seal
from cutwater.cluster.peers import BoundedQueue, Peer, PeerSlots


def introduced(**slots: tuple[int, bytes]) -> Peer:
    peer = Peer("a", "boot1")
    peer.appear()
    peer.introduce(PeerSlots(max((seq for seq, _ in slots.values()), default=0), slots))
    return peer


# --- presence ---------------------------------------------------------------------------------------------


def test_a_process_is_alive_while_it_is_present_and_has_answered() -> None:
    peer = Peer("a", "boot1")
    assert (peer.alive, peer.shown, peer.present) == (False, False, False)
    peer.appear()
    assert (peer.present, peer.alive) == (True, False)
    peer.asked = b"nonce"
    peer.introduce(PeerSlots(0, {}))
    assert (peer.alive, peer.shown) == (True, True)
    assert not peer.asked
    peer.asked = b"another"
    peer.vanish(5.0)
    assert (peer.alive, peer.present, peer.introduced) == (False, False, False)
    assert not peer.asked
    peer.appear()
    assert (peer.present, peer.alive, peer.gone_s) == (True, False, None), "it must be asked again"


def test_a_process_that_is_gone_expires_after_a_while() -> None:
    peer = introduced()
    assert not peer.expired(100.0, 3.0)
    peer.vanish(5.0)
    assert not peer.expired(7.9, 3.0)
    assert peer.expired(8.0, 3.0)
    peer.appear()
    assert not peer.expired(100.0, 3.0)


# --- slots ------------------------------------------------------------------------------------------------


def test_slots_are_visible_only_after_an_answer() -> None:
    peer = Peer("a", "boot1")
    assert not peer.push("live", 5, "k", b"early"), "nobody is told yet"
    assert peer.read("k") is None
    assert peer.items() == []
    assert peer.introduce(PeerSlots(3, {"x": (3, b"old")})) == [("x", b"old"), ("k", b"early")]
    assert peer.read("k") == b"early"
    assert peer.items() == [("x", b"old"), ("k", b"early")], "in the order they were written"


def test_a_later_number_wins_and_a_late_message_changes_nothing() -> None:
    peer = introduced(k=(5, b"five"))
    assert not peer.push("live", 5, "k", b"again")
    assert not peer.push("live", 4, "k", b"late")
    assert peer.read("k") == b"five"
    assert peer.push("live", 6, "k", b"six")
    assert not peer.push("live", 6, "k", b"again")
    assert peer.read("k") == b"six"
    assert peer.push("other", 6, "j", b"another stream counts on its own")


def test_a_deleted_slot_is_gone_and_nobody_is_told() -> None:
    peer = introduced(k=(1, b"one"))
    assert not peer.push("live", 2, "k", None)
    assert peer.read("k") is None
    assert peer.items() == []


def test_a_slot_that_is_deleted_before_the_answer_stays_deleted() -> None:
    peer = Peer("a", "boot1")
    peer.appear()
    peer.push("live", 5, "k", None)
    assert peer.introduce(PeerSlots(4, {"k": (2, b"two"), "j": (3, b"three")})) == [("j", b"three")]
    assert peer.read("k") is None


def test_an_answer_after_the_deletion_counts() -> None:
    peer = Peer("a", "boot1")
    peer.appear()
    peer.push("live", 3, "k", None)
    assert peer.introduce(PeerSlots(4, {"k": (4, b"four")})) == [("k", b"four")]


def test_only_what_is_new_in_an_answer_is_told() -> None:
    peer = introduced(a=(1, b"a"), b=(2, b"b"))
    peer.vanish(1.0)
    peer.appear()
    assert peer.introduce(PeerSlots(9, {"a": (1, b"a"), "b": (4, b"new"), "c": (3, b"c")})) == [
        ("c", b"c"),
        ("b", b"new"),
    ]
    assert not peer.push("live", 9, "d", b"the answer included it")


def test_an_older_answer_does_not_bring_old_messages_back() -> None:
    peer = introduced(k=(8, b"eight"))
    peer.introduce(PeerSlots(2, {}))
    assert not peer.push("live", 7, "k", b"seven")


def test_slots_are_limited_by_count_and_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "MAX_SLOTS", 2)
    monkeypatch.setattr(peers, "MAX_SLOT_BYTES", 10)
    peer = introduced(a=(1, b"12345"))
    assert peer.push("live", 2, "b", b"12345")
    assert not peer.push("live", 3, "c", b""), "there are two"
    assert peer.push("live", 4, "b", b"54321"), "it replaces one"
    assert not peer.push("live", 5, "b", b"123456"), "eleven bytes"
    assert peer.read("b") is None
    assert peer.push("live", 6, "b", b"12345"), "what was dropped takes no room"
    peer.push("live", 7, "a", None)
    assert peer.push("live", 8, "b", b"1234567890")


def test_an_answer_resets_the_count_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "MAX_SLOT_BYTES", 10)
    peer = introduced(a=(1, b"1234567890"))
    peer.introduce(PeerSlots(2, {"a": (2, b"12345")}))
    assert peer.push("live", 3, "b", b"12345")
    assert not peer.push("live", 4, "c", b"1")


# --- mail -------------------------------------------------------------------------------------------------


def test_mail_waits_in_order() -> None:
    waiting: BoundedQueue[str] = BoundedQueue()
    assert not waiting
    waiting.add("first", 1)
    waiting.add("second", 1)
    assert waiting
    assert (waiting.take(), waiting.take()) == ("first", "second")
    assert not waiting


def test_waiting_mail_is_limited_by_count_and_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "MAX_WAITING", 2)
    monkeypatch.setattr(peers, "MAX_WAITING_BYTES", 10)
    waiting: BoundedQueue[str] = BoundedQueue()
    for name, size in (("a", 5), ("too large", 6), ("b", 5), ("too many", 0)):
        waiting.add(name, size)
    assert waiting.take() == "a"
    waiting.add("c", 5)
    assert (waiting.take(), waiting.take()) == ("b", "c")
    assert not waiting


def test_the_numbers_of_senders_that_speak_are_remembered_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a flood of strangers would make the members' old messages new again."""
    monkeypatch.setattr(seal, "MAX_KNOWN", 2)
    highest = seal.Highest()
    assert highest.is_newer(("a", "1"), 5)
    assert highest.is_newer(("b", "1"), 5)
    assert not highest.is_newer(("a", "1"), 5)
    assert highest.is_newer(("a", "1"), 6)
    assert highest.is_newer(("c", "1"), 1), "which takes the place of b"
    assert not highest.is_newer(("a", "1"), 6)
    assert highest.is_newer(("b", "1"), 5)
