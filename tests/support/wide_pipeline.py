"""A pipeline of thirty stages with fan-in, fan-out and chains, whose store has a rich history; for the page.

`python -m tests.support.wide_pipeline FOLDER` writes it, and then plays its members until it is interrupted.
"""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path

import msgspec

from cutwater.protocol.base import records as r
from cutwater.protocol.base.barrier import Flags
from cutwater.runtime.timings import EpochTimes, StageTime
from cutwater.store.contract import Store
from cutwater.store.stage_status import ChannelLag, SourceLag, StageStatus
from cutwater.store.status import Status
from tests.support.builders import stage
from tests.support.written import Written

MEMBERS = ("ingest", "core", "reports")
NOW = 1_767_225_600.0
ERROR = (
    "Py4JJavaError: org.apache.spark.SparkException: [CAST_INVALID_INPUT] The value 'n/a' of the type \"STRING\" cannot "
    'be cast to "BIGINT" because it is malformed.'
)


def wide_topology() -> r.Topology:
    """Six sources, chains of two, joins, a fan-out to six reports, and a chain at the end: thirty stages."""
    sources = ["orders", "payments", "refunds", "clicks", "stock", "prices"]
    stages = [stage(name, "", "ingest") for name in sources]
    stages += [stage(f"clean_{name}", name, "ingest") for name in sources]
    stages += [
        stage("paid", "clean_orders clean_payments", "core"),
        stage("settled", "paid clean_refunds", "core", [r.SinkSpec("settled")]),
        stage("sessions", "clean_clicks", "core"),
        stage("attributed", "settled sessions", "core", [r.SinkSpec("attributed")]),
        stage("levels", "clean_stock", "core", [r.SinkSpec("stock_levels")]),
        stage("priced", "settled clean_prices", "core"),
        stage("margin", "priced levels", "core"),
    ]
    for name in ("by_minute", "by_hour", "by_shop", "by_country", "by_channel", "by_customer"):
        stages.append(stage(name, "margin", "reports", [r.SinkSpec(name, final=name == "by_minute")]))
    chain = ["by_customer", "scores", "ranked", "filtered_by_a_rule_with_a_long_name", "alerts", "alerts_out"]
    stages += [stage(name, before, "reports") for before, name in itertools.pairwise(chain)]
    stages[-1] = stage("alerts_out", "alerts", "reports", [r.SinkSpec("alerts")])
    return r.Topology({one.name: one for one in stages})


class WidePlay(Written):
    """Its epochs begin ten seconds apart, each a little slower than the one before."""

    def __init__(self) -> None:
        super().__init__(wide_topology())

    def times(self, epoch: int) -> EpochTimes:
        order = {name: place for place, name in enumerate(self.topology.stages)}
        inputs = {name: spec.inputs for name, spec in self.topology.stages.items()}
        cut: dict[str, float] = {}
        for name in sorted(order, key=lambda n: order[n]):
            after = max((cut[i] for i in inputs[name]), default=0.0)
            slow = 1.4 if name == "margin" else 0
            cut[name] = round(after + 0.05 + 0.03 * ((order[name] * 7 + epoch * 3) % 11) + slow, 3)
        last = max(cut.values())
        checkpoint = self.state.committed[epoch]
        sinks = {sink: round(last + 0.5 + 0.1 * place, 3) for place, sink in enumerate(self.topology.sinks())}
        return EpochTimes(
            epoch, checkpoint.checkpoint_id, NOW + 10 * epoch, checkpoint.flags,
            savepoint=next((n for n, e in self.state.savepoints.items() if e == epoch), None),
            stages={n: StageTime(s, checkpoint.cuts[n], False) for n, s in cut.items()},
            captured_s=round(last + 0.05, 3), manifest_s=round(last + 0.2, 3), committed_s=round(last + 0.3, 3),
            published_s=sinks,
        )  # fmt: skip


def wide_store(folder: Path) -> Store:
    """Twelve checkpoints, two savepoints, aborts, a restore with a second generation."""
    play = WidePlay()
    for number in range(1, 13):
        if number in (4, 9):
            play.begin()
            play.abort()
        named = {3: "before-deploy", 8: "month-end"}.get(number)
        play.checkpoint(Flags.FULL_SNAPSHOT if named else 0, named)
    target = play.state.committed[play.state.savepoints["month-end"]]
    play.record(r.Restored(1, 2, target.epoch, target.cuts))
    return play.write(folder)


def put_wide_status(store: Store, beat: int, *, failing: str = "by_country", cut: int | None = None) -> None:
    """The status of three members, one of whose stages fails."""
    topology = wide_topology()
    for member in MEMBERS:
        stages = tuple(
            _status(name, place, topology, failing, cut, beat) for place, name in enumerate(topology.stages)
            if topology.stages[name].member == member
        )  # fmt: skip
        now = time.time()
        status = Status(
            "retail", member, f"boot-{member}", f"host-{member}", 4000 + len(member), "running", now - 7_200, now, 2, 1,
            10, now - 4, 2.1, None, None, 1_767_225_900_000, 10.0, stages, {}, leads=member == "core", beat=beat,
            report_s=0.5, version="0.1.0", spark="4.3.0", spark_ui=f"http://host-{member}:4040",
        )  # fmt: skip
        store.put(f"status/{member}.json", msgspec.json.encode(status))


def _status(
    name: str, place: int, topology: r.Topology, failing: str, cut: int | None, beat: int
) -> StageStatus:
    inputs = topology.stages[name].inputs
    channels = tuple(
        ChannelLag(i, (place * 3 + k) % 4, ((place * 3 + k) % 4) * 1_250) for k, i in enumerate(inputs)
    )
    error = ""
    if name == failing:
        error = ERROR
    state = "restarting" if error else "idle" if place % 9 == 5 else "running"
    return StageStatus(
        name, state, 120 + place, 0.0 if state != "running" else 1_830.5 * (1 + place % 5), 0.2 + 0.11 * (place % 7),
        sum(c.batches for c in channels), sum(c.rows for c in channels), 1_767_225_900_000 + 1_000 * place, "known",
        restarts=2 if error else 0, error=error,
        sources=() if inputs else (SourceLag(f"kafka {name}", rows=place * 420), ),
        channels=channels, cut=cut if cut is not None and place < beat % 31 else (10 if cut is None else cut - 1),
    )  # fmt: skip


def main(folder: str) -> None:
    store = wide_store(Path(folder))
    for beat in itertools.count(1):
        put_wide_status(store, beat)
        time.sleep(0.4)


if __name__ == "__main__":
    main(sys.argv[1])
