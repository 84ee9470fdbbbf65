"""A start with changed code is refused if it would have to publish rows with other columns."""

from __future__ import annotations

from pathlib import Path

import pytest

from cutwater.inspection.unpublished import refuse_other_columns
from cutwater.protocol.base import records as r
from cutwater.protocol.base.errors import UserError
from cutwater.protocol.base.log import append
from cutwater.protocol.base.paths import mark_name
from cutwater.protocol.base.watermark import NONE
from cutwater.protocol.member.stage_log import StageLog
from cutwater.sinks import Sink, delta
from cutwater.store.at_rest import drive
from cutwater.store.contract import Store
from tests.support.builders import pipeline, stage
from tests.support.live_leader import LiveLeader
from tests.support.sink_helpers import ROWS, schema, store
from tests.support.sink_helpers import stage as stage_rows

__all__ = ["store"]

OTHER = schema(id="long", town="string")


class Place:
    """A pipeline with one sink, which has staged rows with the columns of `ROWS`."""

    def __init__(self, base: Path, store: Store) -> None:
        self.store = store
        self.base = base
        self.leader = LiveLeader(store, pipeline(stage("s", sinks=[r.SinkSpec("t")])))
        self.files = stage_rows(self.sink(ROWS), "1-1-0-a", [1])

    def sink(self, rows: str) -> Sink:
        sink = delta(str(self.base / "t"), name="t")
        sink.bind(self.store, "t", rows)
        return sink

    def check(self, rows: str, epoch: int | None = None) -> None:
        state = self.leader.state
        target = state.committed[epoch] if epoch is not None else None
        refuse_other_columns(self.store, [("s", self.sink(rows))], state, target)


@pytest.fixture
def place(tmp_path: Path, store: Store) -> Place:
    return Place(tmp_path, store)


def test_rows_that_are_held_back_are_refused_at_a_start_and_at_a_restore(place: Place) -> None:
    place.leader.commit(-1)
    place.leader.commit(0, held={"t": (r.StagedFile(place.files[0], 5),)})
    said = r"sink 't' of stage 's' cannot publish rows that it holds back.*city.*the code now has id long, town string"
    for epoch in (None, 2):
        with pytest.raises(UserError, match=said):
            place.check(OTHER, epoch)
    place.check(ROWS)
    place.check(OTHER, 1)  # a checkpoint from before these rows


def test_rows_that_are_committed_are_refused_until_they_are_published(place: Place) -> None:
    place.leader.commit(0, release={"t": place.files})
    place.leader.commit(0)
    for epoch in (None, 1, 2):
        with pytest.raises(UserError, match="cannot publish rows that are committed but not published yet"):
            place.check(OTHER, epoch)
    index = place.leader.state.committed[1].index
    mark = r.Published(1, "t", index, 0, index, 1)
    place.store.create(mark_name(index, "t"), r.seal(mark))
    place.check(OTHER)


def test_rows_of_an_abandoned_timeline_do_not_matter(place: Place) -> None:
    place.leader.commit(-1)
    place.leader.commit(0, release={"t": place.files})
    place.leader.restore(1)
    place.check(OTHER)


def test_rows_since_the_newest_checkpoint_are_refused_unless_a_restore_computes_them_again(
    place: Place,
) -> None:
    place.leader.commit(-1)
    view = StageLog("s", 1).view
    batch = r.Batch(
        1, 0, (), {"t": (r.StagedFile(place.files[0], None),)}, consumed={}, offsets={}, watermark=NONE
    )
    opened = r.Open(1, -1, consumed={}, offsets={}, watermark=NONE)
    bodies: tuple[r.StageBody, ...] = (opened, batch)
    for number, body in enumerate(bodies):
        drive(place.store, append(view, view.seal(body, f"n{number}")))
    with pytest.raises(
        UserError, match=r"batches since the newest checkpoint.*Start with `--restore latest`"
    ):
        place.check(OTHER)
    place.check(OTHER, 1)
    place.check(ROWS)


def test_a_store_without_a_pipeline_has_nothing_to_publish(tmp_path: Path, store: Store) -> None:
    sink = delta(str(tmp_path / "t"))
    sink.bind(store, "t", ROWS, register=False)
    refuse_other_columns(store, [("s", sink)], r.JournalState())
