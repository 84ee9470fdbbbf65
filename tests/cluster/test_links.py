"""The protocol's messages between members: who receives what and when, and what is not a message."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from cutwater.cluster.kv import ClusterKv
from cutwater.cluster.links import Hint, Links, Presence
from cutwater.protocol.base.barrier import Barrier
from cutwater.protocol.base.records import StageReport
from cutwater.protocol.base.replay_wire import AskRange, Compacted, EntriesChunk, FetchEntries, HaveRange
from cutwater.protocol.base.watermark import UNKNOWN
from cutwater.protocol.base.wire import (
    Ack,
    Announcement,
    Heartbeat,
    LogGrown,
    Phase,
    Reply,
    Request,
    RequestKind,
    ack_key,
    announcement_key,
    encode_message,
)
from cutwater.protocol.replay.provider import Provider
from tests.support.cluster_helpers import Cluster, InMemory, OverZenoh, eventually, sees_only


class Talker:
    """A member, its links, and the messages that it received."""

    def __init__(self, cluster: Cluster, name: str, boot: str = "1") -> None:
        self.name = name
        self.kv: ClusterKv = cluster.join(name, boot)
        self.log_lines: list[str] = []
        self.links = Links(self.kv, self.log_lines.append)
        self.heard: list[tuple[str, Any]] = []
        self.noticed: list[tuple[str, bool]] = []
        self.links.start(self._hear)

    def _hear(self, sender: str, message: Any) -> None:
        if isinstance(message, Presence):
            self.noticed.append((sender, message.is_present))
        else:
            self.heard.append((sender, message))

    def hears(self, sender: str, message: Any) -> None:
        eventually(lambda: (sender, message) in self.heard, f"{self.name} hears {message} of {sender}")


@pytest.fixture(params=[InMemory, OverZenoh])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    made: Cluster = request.param()
    yield made
    made.close()


@pytest.fixture
def three(cluster: Cluster) -> tuple[Talker, Talker, Talker]:
    a, b, c = (Talker(cluster, name) for name in "abc")
    cluster.meet(a.kv, b.kv, c.kv)
    return a, b, c


def announcement(checkpoint_id: int, phase: Phase = Phase.PREPARE) -> Announcement:
    return Announcement(phase, Barrier(checkpoint_id, checkpoint_id).pack(), 1, 1, checkpoint_id)


def ack(member: str, checkpoint_id: int) -> Ack:
    return Ack(member, "1", checkpoint_id, checkpoint_id, 1, True, None, UNKNOWN, {})


def test_an_ack_of_a_member_with_much_state_arrives_complete(three: tuple[Talker, Talker, Talker]) -> None:
    a, b, _ = three
    state = {f"stages/clean/1/state/0/{n}/000123_{n:08x}.sst": f"{n:064x}" for n in range(20_000)}
    report = StageReport(
        "clean", 1, 123, False, consumed={"orders": 9}, offsets={}, watermark=UNKNOWN, state=state
    )
    big = Ack("b", "1", 7, 7, 1, True, None, UNKNOWN, {"clean": report})
    assert len(encode_message(big)) > 2_000_000
    b.links.send("a", big)
    a.hears("b", big)


def test_the_entry_in_an_announcement_arrives_byte_for_byte(three: tuple[Talker, Talker, Talker]) -> None:
    a, b, _ = three
    data = b'{"index": 7,  "body":{"type":"BEGUN"}}'  # as another encoder might have written it
    said = Announcement(Phase.PREPARE, Barrier(7, 7).pack(), 1, 1, 7, entry=msgspec.Raw(data))
    a.links.send(None, said)
    eventually(lambda: len(b.heard) == 1, "b hears it")
    assert bytes(b.heard[0][1].entry) == data


def test_a_broadcast_reaches_all_others_and_a_direct_message_only_its_recipient(
    three: tuple[Talker, Talker, Talker],
) -> None:
    a, b, c = three
    to_all: list[Any] = [announcement(7), Heartbeat("a", "1", 1, 7)]
    to_b: list[Any] = [ack("a", 7), LogGrown("clean", 1, 3), AskRange(1), FetchEntries(2, 1, 9, 100)]
    to_b += [HaveRange(3, 1, 9), EntriesChunk(4, 1, [b"x", b"\xff"]), Compacted(5, 3)]
    for message in to_all:
        a.links.send(None, message)
    for message in to_b:
        a.links.send("b", message)
    a.links.send("c", AskRange(99))
    for message in (*to_all, *to_b):
        b.hears("a", message)
    for message in (*to_all, AskRange(99)):
        c.hears("a", message)
    assert len(b.heard) == len(to_all) + len(to_b)
    assert len(c.heard) == len(to_all) + 1
    assert a.heard == []


def test_a_member_receives_its_messages_to_itself(three: tuple[Talker, Talker, Talker]) -> None:
    a, b, _ = three
    a.links.send("a", ack("a", 7))
    assert a.heard == [("a", ack("a", 7))]
    assert b.heard == []


def test_a_late_member_receives_the_last_message_about_each_checkpoint(cluster: Cluster) -> None:
    a = Talker(cluster, "a")
    a.links.send(None, announcement(7))
    a.links.send(None, announcement(7, Phase.COMMIT))
    a.links.send(None, announcement(8))
    a.links.send("b", ack("a", 7))
    a.links.send("b", ack("a", 8))
    b = Talker(cluster, "b")
    cluster.meet(a.kv, b.kv)
    assert [message for _, message in b.heard] == [
        announcement(7, Phase.COMMIT),
        announcement(8),
        ack("a", 7),
        ack("a", 8),
    ]


def test_an_ack_also_reaches_the_next_leader(three: tuple[Talker, Talker, Talker]) -> None:
    a, b, c = three
    b.links.send("a", ack("b", 7))
    a.hears("b", ack("b", 7))
    b.links.send("c", ack("b", 7))
    c.hears("b", ack("b", 7))


def holds_few(reader: ClusterKv, key: Callable[[int], str]) -> None:
    def few() -> bool:
        held = [i for i in range(1, 1_001) if reader.read("a", key(i)) is not None]
        return not held or held[0] > 1_000 - 8

    eventually(few, f"{reader.name} holds a few of a's slots")


def test_a_thousand_epochs_leave_only_a_few_slots(three: tuple[Talker, Talker, Talker]) -> None:
    a, b, c = three
    for checkpoint_id in range(1, 1_001):
        a.links.send(None, announcement(checkpoint_id))
        a.links.send(None, announcement(checkpoint_id, Phase.COMMIT))
        a.links.send("b" if checkpoint_id % 2 else "c", ack("a", checkpoint_id))
    a.links.hint("end")
    for reader in (a.kv, b.kv, c.kv):
        holds_few(reader, announcement_key)
        holds_few(reader, ack_key)
    b.hears("a", announcement(1_000, Phase.COMMIT))
    assert b.kv.read("a", announcement_key(1_000)) is not None
    assert c.kv.read("a", ack_key(1_000)) is not None


def test_a_question_is_answered_by_the_member_that_was_asked(three: tuple[Talker, Talker, Talker]) -> None:
    a, b, c = three
    provider = Provider(1, [b"entry %d" % i for i in range(1, 6)])

    def answer(sender: str, message: Any) -> None:
        if isinstance(message, AskRange | FetchEntries):
            b.links.send(sender, provider.answer(message))

    b.links.start(answer)
    a.links.send("b", AskRange(1))
    a.hears("b", HaveRange(1, 1, 5))
    a.links.send("b", FetchEntries(2, 2, 3, 1_000))
    a.hears("b", EntriesChunk(2, 2, [b"entry 2", b"entry 3"]))
    assert c.heard == []


def test_requests_and_replies_are_in_the_store_and_only_a_hint_is_sent(
    three: tuple[Talker, Talker, Talker],
) -> None:
    a, b, c = three
    for message in (Request(RequestKind.CHECKPOINT, "1"), Reply("1", True)):
        with pytest.raises(TypeError, match="use the store"):
            a.links.send(None, message)
    a.links.hint("requests")
    for talker in (b, c):
        talker.hears("a", Hint("requests"))


def test_an_undecodable_message_is_dropped_and_counted_and_reported_once(
    three: tuple[Talker, Talker, Talker],
) -> None:
    a, b, _ = three
    a.kv.write("heartbeat", b"{not json")
    a.kv.write("unheard", encode_message(announcement(1)))
    a.kv.write("heartbeat", encode_message(announcement(2)))
    a.kv.write(ack_key(7), encode_message(ack("c", 7)))
    a.kv.post("b", b"\xc1")
    a.kv.post("b", encode_message(announcement(3)))
    a.links.send("b", AskRange(1))
    b.hears("a", AskRange(1))
    eventually(lambda: b.links.ignored == 6, "all six are counted")
    assert b.heard == [("a", AskRange(1))]
    assert len(b.log_lines) == 1


def test_present_members_are_known_with_their_processes(three: tuple[Talker, Talker, Talker]) -> None:
    a, _, c = three
    assert a.links.alive() == {"a": ("1",), "b": ("1",), "c": ("1",)}
    c.links.close()
    sees_only(a.kv, "a", "b")


def test_a_member_that_goes_and_comes_again_is_noticed_and_a_second_process_of_it_is_not(
    cluster: Cluster,
) -> None:
    a, b, twin = Talker(cluster, "a"), Talker(cluster, "b"), Talker(cluster, "b", "2")
    cluster.meet(a.kv, b.kv)
    eventually(lambda: a.links.alive().get("b") == ("1", "2"), "both processes are seen")
    twin.links.close()
    eventually(lambda: a.links.alive().get("b") == ("1",), "one process is left")
    assert a.noticed[-1] == ("b", True)
    b.links.close()
    eventually(lambda: a.noticed[-1] == ("b", False), "a notices that b is gone")
    again = Talker(cluster, "b", "3")
    cluster.meet(a.kv, again.kv)
    eventually(lambda: a.noticed[-1] == ("b", True), "a notices that b is there again")
    assert {name for name, _ in a.noticed} == {"b"}


def test_only_hints_of_a_command_are_received(cluster: Cluster) -> None:
    member, command = Talker(cluster, "a"), Talker(cluster, "command_x")
    cluster.meet(member.kv, command.kv)
    command.links.send(None, announcement(7))
    command.links.send(None, Heartbeat("command_x", "1", 9, 9))
    command.links.hint("requests")
    member.hears("command_x", Hint("requests"))
    assert member.noticed == []
    assert [type(message) for _, message in member.heard] == [Hint]
