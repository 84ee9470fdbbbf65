"""CPU time that the leader spends on the acks of one checkpoint: `python -m bench.quorum`.

A checkpoint here is all that the coordinator does for it: begin, every member's ack from its bytes on, the
decision and the commit. Announcing, storage and checking the cut are not in it.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

from cutwater.protocol.coordinator import Coordinator
from cutwater.protocol.coordinator_actions import CoordinatorConfig, Decide
from cutwater.protocol.quorum import Quorum, Reached
from cutwater.protocol.watermark import known
from cutwater.protocol.wire import Ack, decode, encode

MEMBERS = 1_000
ROUNDS = 40
TERM = 3


def acks(epoch: int) -> list[bytes]:
    """What the members would write into their slots."""
    return [
        encode(
            Ack(
                member=f"member-{i:04}",
                boot=f"{i:032x}",
                epoch=epoch,
                checkpoint_id=epoch,
                term=TERM,
                ok=True,
                error=None,
                watermark=known(1_700_000_000_000 + i),
                part=f"checkpoints/{epoch}-{epoch}/parts/member-{i:04}-{i:08x}.json",
                part_hash=f"{i:064x}",
                size_bytes=10_000_000 + i,
            )
        )
        for i in range(MEMBERS)
    ]


def cpu_ms(work: Callable[[], None]) -> float:
    """CPU milliseconds of one call."""
    start_ns = time.process_time_ns()
    work()
    return (time.process_time_ns() - start_ns) / 1e6


def main() -> None:
    members = [f"member-{i:04}" for i in range(MEMBERS)]
    coordinator = Coordinator(CoordinatorConfig(interval_ms=1), members, TERM, 0)
    whole, quorum_only = [], []
    for epoch in range(1, ROUNDS + 1):
        slots = acks(epoch)

        def checkpoint(epoch: int = epoch, slots: list[bytes] = slots) -> None:
            coordinator.tick(epoch * 10)
            coordinator.begun(epoch, epoch, epoch * 10)
            for slot in slots:
                message = decode(slot)
                assert isinstance(message, Ack)
                _, actions = coordinator.on_ack(message, epoch * 10)
            assert isinstance(actions[0], Decide)
            coordinator.committed(epoch, epoch * 10)

        messages = [message for slot in slots if isinstance(message := decode(slot), Ack)]

        def collect(epoch: int = epoch, messages: list[Ack] = messages) -> None:
            quorum = Quorum(members, epoch, epoch, TERM)
            for message in messages:
                quorum.on_ack(message)
            assert isinstance(quorum.outcome(), Reached)

        whole.append(cpu_ms(checkpoint))
        quorum_only.append(cpu_ms(collect))
    print(f"{MEMBERS} members, {ROUNDS} checkpoints, median and worst CPU time of one:")
    print(f"  all of it, decoding included: {statistics.median(whole):.2f} ms, {max(whole):.2f} ms")
    print(
        f"  the quorum alone:             {statistics.median(quorum_only):.2f} ms, {max(quorum_only):.2f} ms"
    )
    figures = {
        "members": MEMBERS,
        "cpu_ms_per_checkpoint": round(statistics.median(whole), 3),
        "cpu_ms_per_checkpoint_worst": round(max(whole), 3),
        "cpu_ms_quorum_alone": round(statistics.median(quorum_only), 3),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
