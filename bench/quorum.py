"""The cost of a decision: `python -m bench.quorum [--rounds 3] [--checkpoints 15]`.

First: the leader's CPU time for the acks of one checkpoint of 1,000 simulated members: begin, decoding and counting
every ack, the decision and the commit, without announcements, storage and the check of the cut. Second: the time from
announcement to decision with all of that: members in separate processes over Zenoh on this machine, a local store with
fsync, no Spark (`members.py`), by the leader's own clock. The last line is JSON; `ratio` is the worst ratio of median
to target.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

from bench.members import running
from cutwater.api.config import RunConfig
from cutwater.protocol.base.records import Offset, StageReport
from cutwater.protocol.base.watermark import known
from cutwater.protocol.base.wire import Ack, decode_message, encode_message
from cutwater.protocol.leader.coordinator import Coordinator
from cutwater.protocol.leader.coordinator_actions import Decide
from cutwater.protocol.leader.quorum import Quorum, Reached
from cutwater.store.local import LocalStore

MEMBERS = 1_000
ROUNDS = 40
TERM = 3
TARGETS_MS = {3: 10.0, 32: 60.0}
"""Targets from announcement to decision in ms, by the number of members."""
INTERVALS_MS = {3: 200, 32: 1_000}
"""The time between two checkpoints; long enough for everything to come to rest."""
WARM_UP = 3


def report(stage: str) -> StageReport:
    """A stage with a source and some state."""
    state = {f"stages/{stage}/1/state/0/{n}/17.delta": f"{n:064x}" for n in range(4)}
    offsets: dict[str, Offset] = {"source": '{"logOffset":17}'}
    return StageReport(
        stage, 1, 17, False, consumed={}, offsets=offsets, watermark=known(1_700_000_000_000), state=state
    )


def acks(epoch: int) -> list[bytes]:
    """The acks that the members would write into their slots."""
    return [
        encode_message(
            Ack(
                member=f"member-{i:04}",
                boot=f"{i:032x}",
                epoch=epoch,
                checkpoint_id=epoch,
                term=TERM,
                ok=True,
                error=None,
                watermark=known(1_700_000_000_000 + i),
                reports={f"stage_{i:04}": report(f"stage_{i:04}")},
            )
        )
        for i in range(MEMBERS)
    ]


def cpu_ms(work: Callable[[], None]) -> float:
    """CPU milliseconds of one call."""
    start_ns = time.process_time_ns()
    work()
    return (time.process_time_ns() - start_ns) / 1e6


def measure_cpu() -> dict[str, float]:
    """The leader's share of a checkpoint, for many members."""
    members = [f"member-{i:04}" for i in range(MEMBERS)]
    coordinator = Coordinator(RunConfig(every="1ms").leader(False).coordinator, members, TERM, 0)
    whole, quorum_only = [], []
    for epoch in range(1, ROUNDS + 1):
        slots = acks(epoch)

        def checkpoint(epoch: int = epoch, slots: list[bytes] = slots) -> None:
            coordinator.tick(epoch * 10)
            coordinator.begun(epoch, epoch, epoch * 10)
            for slot in slots:
                message = decode_message(slot)
                assert isinstance(message, Ack)
                _, actions = coordinator.on_ack(message, epoch * 10)
            assert isinstance(actions[0], Decide)
            coordinator.committed(epoch, epoch * 10)

        messages = [message for slot in slots if isinstance(message := decode_message(slot), Ack)]

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
    return {
        "members": MEMBERS,
        "cpu_ms_per_checkpoint": round(statistics.median(whole), 3),
        "cpu_ms_per_checkpoint_worst": round(max(whole), 3),
        "cpu_ms_quorum_alone": round(statistics.median(quorum_only), 3),
    }


def measure_create() -> float:
    """Milliseconds of one durable create by one process. A decision takes three of them in sequence, so this
    distinguishes a temporarily slow disk from a slow protocol."""
    took_ms = []
    with tempfile.TemporaryDirectory() as folder:
        store = LocalStore(Path(folder))
        for number in range(30):
            start = time.perf_counter()
            store.create(f"log/{number:04}", b"x" * 600)
            took_ms.append((time.perf_counter() - start) * 1000)
    return statistics.median(took_ms)


def measure_decisions(members: int, checkpoints: int) -> list[float]:
    """Milliseconds from announcement to decision, for each checkpoint of a new pipeline."""
    with (
        tempfile.TemporaryDirectory() as folder,
        running(members, Path(folder), INTERVALS_MS[members]) as took_ms,
    ):
        return list(islice(took_ms, WARM_UP + checkpoints))[WARM_UP:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--checkpoints", type=int, default=15)
    parser.add_argument("--members", type=int, nargs="*", choices=[*TARGETS_MS], default=[*TARGETS_MS])
    options = parser.parse_args()
    figures: dict[str, object] = {"bench": "quorum", **measure_cpu()}
    ratios = []
    for members in options.members:
        medians, creates = [], []
        for number in range(1, options.rounds + 1):
            creates.append(measure_create())
            took_ms = measure_decisions(members, options.checkpoints)
            medians.append(statistics.median(took_ms))
            print(
                f"{members} members, round {number}: announcement to decision {medians[-1]:.1f} ms median, "
                f"{max(took_ms):.1f} ms worst of {len(took_ms)}; one durable create {creates[-1]:.1f} ms"
            )
        median, target = statistics.median(medians), TARGETS_MS[members]
        ratios.append(median / target)
        figures |= {
            f"decision_ms_{members}": round(median, 2),
            f"target_ms_{members}": target,
            f"create_ms_{members}": round(statistics.median(creates), 2),
        }
    print(json.dumps({**figures, "ratio": round(max(ratios, default=0.0), 3)}))


if __name__ == "__main__":
    main()
