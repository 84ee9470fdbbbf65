"""The key-value interface, in memory and over Zenoh: slots, mail, presence, and who may join."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from cutwater.cluster.peers import Peer, PeerSlots
from cutwater.protocol.base.errors import UserError
from cutwater.protocol.base.wire import ack_key
from tests.support.cluster_helpers import (
    GRACE_S,
    SECRET,
    Cluster,
    InMemory,
    OverZenoh,
    eventually,
    free_endpoint,
    sees,
    sees_only,
    start_child,
)


@pytest.fixture(params=[InMemory, OverZenoh])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    made: Cluster = request.param()
    yield made
    made.close()


@pytest.fixture
def net() -> Iterator[OverZenoh]:
    made = OverZenoh()
    yield made
    made.close()


# --- slots, mail and presence: the same in memory and over Zenoh ------------------------------------------


def test_anyone_can_read_a_members_last_value_and_a_scan_is_ordered_by_name(cluster: Cluster) -> None:
    members = {name: cluster.join(name) for name in ("c", "a", "b")}
    cluster.meet(*members.values())
    for name, kv in members.items():
        kv.write("key", b"old")
        kv.write("key", name.encode())
        kv.write("other", b"x")
    for kv in members.values():
        for name in members:
            sees(kv, name, "key", name.encode())
        assert list(kv.scan("key").items()) == [("a", b"a"), ("b", b"b"), ("c", b"c")]
        assert kv.read("b", "never written") is None


def test_changes_by_others_are_pushed_in_order_and_own_changes_are_not(cluster: Cluster) -> None:
    a, b = cluster.join("a"), cluster.join("b")
    cluster.meet(a, b)
    seen: list[tuple[str, str, bytes]] = []
    a.subscribe(lambda *change: seen.append(change))
    a.write("mine", b"0")
    for i in range(100):
        b.write("key", b"%d" % i)
    eventually(lambda: len(seen) == 100, "100 changes are seen")
    assert seen == [("b", "key", b"%d" % i) for i in range(100)]


def test_a_late_member_gets_existing_slots_and_not_deleted_ones(cluster: Cluster) -> None:
    a = cluster.join("a")
    a.write("second", b"0")
    a.write("first", b"1")
    a.write("second", b"2")
    a.write("gone", b"3")
    a.delete("gone")
    b = cluster.join("b")
    seen: list[tuple[str, str, bytes]] = []
    b.subscribe(lambda *change: seen.append(change))
    cluster.meet(a, b)
    assert seen == [("a", "first", b"1"), ("a", "second", b"2")]
    assert b.read("a", "gone") is None


def test_a_slot_for_one_reader_is_visible_only_to_that_reader_even_if_it_joins_late(cluster: Cluster) -> None:
    a, b = cluster.join("a"), cluster.join("b")
    cluster.meet(a, b)
    a.write("key", b"for b", to="b")
    a.write("key", b"for c", to="c")
    a.write("end", b"")
    c = cluster.join("c")
    cluster.meet(a, b, c)
    sees(b, "a", "end", b"")
    assert b.read("a", "key") == b"for b"
    assert c.read("a", "key") == b"for c"
    assert a.read("a", "key") == b"for c"


def test_a_deleted_slot_is_gone_for_everyone_who_saw_it(cluster: Cluster) -> None:
    a, b, c = cluster.join("a"), cluster.join("b"), cluster.join("c")
    cluster.meet(a, b, c)
    a.write("all", b"1")
    a.write("one", b"2", to="b")
    sees(b, "a", "one", b"2")
    sees(c, "a", "all", b"1")
    a.delete("all")
    a.delete("one")
    for reader in (a, b, c):
        sees(reader, "a", "all", None)
        sees(reader, "a", "one", None)


def test_seed_a02_acks_of_two_checkpoints_do_not_hide_each_other(cluster: Cluster) -> None:
    a, b = cluster.join("a"), cluster.join("b")
    cluster.meet(a, b)
    b.write(ack_key(42), b"for 42", to="a")
    b.write(ack_key(43), b"for 43", to="a")
    sees(a, "b", ack_key(43), b"for 43")
    assert a.read("b", ack_key(42)) == b"for 42"


def test_mail_reaches_its_recipient_in_order(cluster: Cluster) -> None:
    a, b, c = cluster.join("a"), cluster.join("b"), cluster.join("c")
    cluster.meet(a, b, c)
    mail: dict[str, list[tuple[str, bytes]]] = {"b": [], "c": []}
    for kv in (b, c):
        kv.subscribe(lambda *_: None, lambda *letter, kv=kv: mail[kv.name].append(letter))
    letters = [b"%d" % i + b"x" * (300_000 if i == 5 else 0) for i in range(20)]
    for letter in letters:
        a.post("b", letter)
    a.post("c", b"other")
    eventually(lambda: len(mail["b"]) == 20 and mail["c"], "the mail arrives")
    assert mail == {"b": [("a", letter) for letter in letters], "c": [("a", b"other")]}


def test_a_member_that_is_started_twice_is_noticed(cluster: Cluster) -> None:
    a = cluster.join("a")
    once, twice = cluster.join("b", boot="one"), cluster.join("b", boot="two")
    cluster.meet(a, once, twice)
    assert a.alive() == {"a": ("1",), "b": ("one", "two")}
    assert once.alive() == a.alive()


def test_a_member_that_leaves_is_gone_at_once_and_its_slots_after_a_grace_period(cluster: Cluster) -> None:
    a, b = cluster.join("a"), cluster.join("b")
    cluster.meet(a, b)
    b.write("key", b"1")
    sees(a, "b", "key", b"1")
    left_s = time.monotonic()
    b.close()
    sees_only(a, "a")
    if time.monotonic() - left_s < GRACE_S / 2:
        assert a.read("b", "key") == b"1"
    sees(a, "b", "key", None)
    assert time.monotonic() - left_s >= GRACE_S
    a.write("key", b"2")
    assert a.scan("key") == {"a": b"2"}


def test_writes_after_leaving_reach_nobody(cluster: Cluster) -> None:
    a, b = cluster.join("a"), cluster.join("b")
    cluster.meet(a, b)
    seen: list[tuple[str, str, bytes]] = []
    a.subscribe(lambda *change: seen.append(change), lambda *letter: None)
    b.close()
    b.close()
    sees_only(a, "a")
    b.write("key", b"1")
    b.post("a", b"mail")
    b.delete("key")
    assert seen == []


def test_a_member_that_returns_with_a_new_boot_ends_up_with_only_its_new_slots(
    cluster: Cluster,
) -> None:
    a, b = cluster.join("a"), cluster.join("b", boot="one")
    cluster.meet(a, b)
    b.write("key", b"old")
    sees(a, "b", "key", b"old")
    b.close()
    again = cluster.join("b", boot="two")
    cluster.meet(a, again)
    again.write("key", b"new")
    sees(a, "b", "key", b"new")
    eventually(lambda: a.alive() == {"a": ("1",), "b": ("two",)}, "only the new process is there")


# --- what a member knows about another --------------------------------------------------------------------


def introduced(seq: int = 2, **slots: tuple[int, bytes]) -> Peer:
    peer = Peer("b", "1")
    peer.appear()
    peer.introduce(PeerSlots(seq, slots))
    return peer


def test_a_process_is_invisible_before_it_has_answered() -> None:
    peer = Peer("b", "1")
    assert not peer.push("slots", 1, "key", b"1")
    peer.appear()
    assert (peer.alive, peer.read("key"), peer.items()) == (False, None, [])
    assert peer.introduce(PeerSlots(1, {"key": (1, b"1")})) == [("key", b"1")]
    assert peer.alive


def test_a_push_that_overtakes_the_answer_wins() -> None:
    peer = Peer("b", "1")
    peer.appear()
    peer.push("slots", 3, "changed", b"new")
    peer.push("slots", 4, "deleted", None)
    assert peer.introduce(
        PeerSlots(2, {"changed": (1, b"old"), "deleted": (2, b"x"), "same": (2, b"y")})
    ) == [
        ("same", b"y"),
        ("changed", b"new"),
    ]
    assert peer.read("deleted") is None


def test_a_push_that_the_answer_includes_or_that_was_seen_before_changes_nothing() -> None:
    peer = introduced(seq=5, key=(5, b"new"))
    assert not peer.push("slots", 4, "key", b"old")
    assert peer.push("slots", 6, "key", b"newer")
    assert not peer.push("slots", 6, "key", b"again")
    assert peer.read("key") == b"newer"


def test_two_streams_of_one_process_do_not_wait_for_each_other() -> None:
    peer = introduced()
    assert peer.push("to", 4, "one", b"4")
    assert peer.push("slots", 3, "all", b"3")


def test_a_process_that_was_away_is_asked_again_and_only_news_is_reported() -> None:
    peer = introduced(seq=2, same=(1, b"x"), old=(2, b"y"))
    peer.vanish(0.0)
    assert (peer.alive, peer.read("same")) == (False, b"x")
    peer.appear()
    assert not peer.alive
    assert peer.introduce(PeerSlots(4, {"same": (1, b"x"), "new": (4, b"z")})) == [("new", b"z")]
    assert peer.read("old") is None


# --- discovery --------------------------------------------------------------------------------------------


def test_a_member_that_knows_one_peer_finds_the_rest(net: OverZenoh) -> None:
    a = net.join("a")
    b = net.join("b", peers=net.endpoints[:1])
    c = net.join("c", peers=net.endpoints[1:2])
    d = net.join("d", peers=net.endpoints[2:3])
    net.meet(a, b, c, d)
    d.write("key", b"1")
    sees(a, "d", "key", b"1")


def test_an_absent_peer_does_not_delay_the_start(net: OverZenoh) -> None:
    later = free_endpoint()
    began_s = time.monotonic()
    a = net.join("a", peers=(later,))
    assert time.monotonic() - began_s < 5
    b = net.join("b", listen=(later,), peers=())
    net.meet(a, b)


def test_mail_for_an_absent_member_reaches_it_when_it_joins(net: OverZenoh) -> None:
    a = net.join("a")
    a.post("b", b"early")
    b = net.join("b")
    mail: list[tuple[str, bytes]] = []
    b.subscribe(lambda *_: None, lambda *letter: mail.append(letter))
    eventually(lambda: mail == [("a", b"early")], "the early mail arrives")


def test_a_port_that_is_in_use_is_reported(net: OverZenoh) -> None:
    net.join("a")
    with pytest.raises(UserError, match=r"cannot join the cluster .*in use"):
        net.join("b", listen=net.endpoints[:1])


@pytest.mark.parametrize("name", ["", "a/b", "a*", "$", "a b", "?"])
def test_a_name_that_cannot_be_part_of_a_key_is_refused(net: OverZenoh, name: str) -> None:
    with pytest.raises(UserError, match="cannot name a member"):
        net.join(name)


# --- real processes ---------------------------------------------------------------------------------------


@pytest.fixture
def child(net: OverZenoh) -> Iterator[subprocess.Popen[bytes]]:
    """A member `child` that knows only `b`, which knows only `a`."""
    a, b = net.join("a"), net.join("b")
    endpoint = free_endpoint()
    process = start_child(
        "child", listen=[endpoint], peers=net.endpoints[1:2], secret=SECRET, lease_s=0.6, grace_s=0.3
    )
    try:
        for kv in (a, b):
            sees_only(kv, "a", "b", "child")
            sees(kv, "child", "said", b"here")
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_member_that_is_killed_disappears(net: OverZenoh, child: subprocess.Popen[bytes]) -> None:
    child.kill()
    for kv in net.members:
        sees_only(kv, "a", "b")
        sees(kv, "child", "said", None)


def test_a_paused_member_counts_as_gone_and_receives_what_it_missed_when_it_wakes(
    net: OverZenoh, child: subprocess.Popen[bytes]
) -> None:
    a, b = net.members
    child.send_signal(signal.SIGSTOP)
    for kv in (a, b):
        sees_only(kv, "a", "b")
    sees(a, "child", "said", None)
    a.write("say", b"missed")
    child.send_signal(signal.SIGCONT)
    for kv in (a, b):
        sees_only(kv, "a", "b", "child")
        sees(kv, "child", "said", b"here")
    sees(a, "child", "echo", b"missed")
    sees(b, "child", "echo", b"missed")


def test_a_process_that_never_closes_its_links_still_ends(
    net: OverZenoh, child: subprocess.Popen[bytes]
) -> None:
    assert child.stdin is not None
    child.stdin.close()
    assert child.wait(timeout=30) == 0
    for kv in net.members:
        sees_only(kv, "a", "b")
