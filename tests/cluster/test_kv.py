"""The key-value interface, and a quorum over it: announce, observe, ack, decide."""

from __future__ import annotations

from cutwater.cluster.kv import ClusterKv, MemoryCluster
from cutwater.protocol.base.barrier import Barrier, Flags
from cutwater.protocol.base.errors import PeerError
from cutwater.protocol.base.watermark import UNKNOWN, Watermark, known
from cutwater.protocol.base.wire import (
    Ack,
    Announcement,
    Phase,
    ack_key,
    announcement_key,
    decode_message,
    encode_message,
)
from cutwater.protocol.leader.quorum import AckOutcome, Quorum, Reached, Refused

PREPARE = Announcement(Phase.PREPARE, Barrier(42, 7, Flags.FULL_SNAPSHOT).pack(), 3, 1, 42)


def ack(
    member: str, checkpoint_id: int = 42, watermark: Watermark = UNKNOWN, error: str | None = None
) -> bytes:
    return encode_message(Ack(member, f"{member}1", 7, checkpoint_id, 3, error is None, error, watermark, {}))


def count(kv: ClusterKv, quorum: Quorum, checkpoint_id: int = 42) -> dict[str, AckOutcome | str]:
    """Offers every member's slot to the quorum, and returns the outcome for each."""
    outcomes: dict[str, AckOutcome | str] = {}
    for owner, value in kv.scan(ack_key(checkpoint_id)).items():
        try:
            message = decode_message(value)
        except PeerError:
            outcomes[owner] = "unreadable"
            continue
        assert isinstance(message, Ack)
        outcomes[owner] = quorum.on_ack(message)
    return outcomes


def test_a_member_writes_its_own_slot_and_anyone_can_read_it() -> None:
    cluster = MemoryCluster()
    a, b = cluster.member("a"), cluster.member("b")
    a.write("key", b"1")
    a.write("key", b"2")
    assert b.read("a", "key") == b"2"
    assert b.read("b", "key") is None


def test_a_scan_shows_one_key_of_all_members_by_name() -> None:
    cluster = MemoryCluster()
    for name in ("c", "a", "b"):
        cluster.member(name).write("key", name.encode())
        cluster.member(name).write("other", b"x")
    assert list(cluster.member("a").scan("key").items()) == [("a", b"a"), ("b", b"b"), ("c", b"c")]


def test_followers_see_what_the_leader_announces_and_nothing_before() -> None:
    cluster = MemoryCluster()
    leader, follower = cluster.member("a"), cluster.member("b")
    assert follower.read("a", announcement_key(42)) is None
    leader.write(announcement_key(42), encode_message(PREPARE))
    seen = follower.read("a", announcement_key(42))
    assert seen is not None
    assert decode_message(seen) == PREPARE


def test_seed_a01_changes_are_pushed_so_nobody_polls() -> None:
    cluster = MemoryCluster()
    cluster.member("b").write("before", b"0")
    seen: list[tuple[str, str, bytes]] = []
    cluster.member("a").subscribe(lambda owner, key, value: seen.append((owner, key, value)))
    cluster.member("b").write(ack_key(42), b"1")
    assert seen == [("b", "before", b"0"), ("b", ack_key(42), b"1")]


def test_a_quorum_is_complete_when_all_have_acked_and_has_the_lowest_watermark() -> None:
    cluster = MemoryCluster()
    quorum = Quorum(["a", "b"], 7, 42, 3)
    cluster.member("a").write(ack_key(42), ack("a", watermark=known(300)))
    assert count(cluster.member("a"), quorum) == {"a": AckOutcome.COUNTED}
    cluster.member("b").write(ack_key(42), ack("b", watermark=known(200)))
    count(cluster.member("a"), quorum)
    outcome = quorum.outcome()
    assert isinstance(outcome, Reached)
    assert list(outcome.acks) == ["a", "b"]
    assert outcome.watermark == known(200)


def test_a_strangers_slot_and_bad_bytes_have_no_effect() -> None:
    cluster = MemoryCluster()
    quorum = Quorum(["a", "b"], 7, 42, 3)
    cluster.member("a").write(ack_key(42), b"{not json")
    cluster.member("b").write(ack_key(42), ack("b"))
    cluster.member("x").write(ack_key(42), ack("x"))
    assert count(cluster.member("a"), quorum) == {
        "a": "unreadable",
        "b": AckOutcome.COUNTED,
        "x": AckOutcome.STRANGER,
    }
    assert quorum.missing == ("a",)


def test_the_first_refusal_in_a_slot_fails_it_with_the_reason() -> None:
    cluster = MemoryCluster()
    quorum = Quorum(["a", "b", "c"], 7, 42, 3)
    cluster.member("b").write(ack_key(42), ack("b", error="disk full"))
    count(cluster.member("a"), quorum)
    assert quorum.outcome() == Refused("b", "disk full")


def test_seed_a02_an_ack_for_the_next_checkpoint_leaves_the_one_before_in_its_slot() -> None:
    cluster = MemoryCluster()
    quorum = Quorum(["b"], 7, 42, 3)
    cluster.member("b").write(ack_key(42), ack("b"))
    cluster.member("b").write(ack_key(43), ack("b", checkpoint_id=43))
    assert count(cluster.member("a"), quorum) == {"b": AckOutcome.COUNTED}


def test_seed_a07_announcing_does_not_depend_on_departed_members() -> None:
    cluster = MemoryCluster()
    leader = cluster.member("a")
    cluster.member("b").write("key", b"1")
    cluster.depart("b")
    leader.write(announcement_key(42), encode_message(PREPARE))
    assert cluster.member("c").read("a", announcement_key(42)) == encode_message(PREPARE)
    assert leader.read("b", "key") is None
