"""When a run is over."""

from __future__ import annotations

from cutwater.protocol.base import effects as fx
from cutwater.protocol.base import records as r
from cutwater.protocol.base.barrier import Flags
from cutwater.protocol.base.paths import MARK_PREFIX, mark_name
from cutwater.protocol.member.ending import Ending
from cutwater.protocol.member.journal import Journal
from tests.support.builders import journal_of, pipeline, stage

GRAPH = pipeline(
    stage("a", member="one", sinks=[r.SinkSpec("own")]),
    stage("b", "a", member="two", sinks=[r.SinkSpec("other")]),
)
DRAINED = journal_of(
    r.Leader(1, "one"),
    r.Begun(1, 1, 1, 2, int(Flags.DRAIN), "h"),
    r.Committed(1, 1, 1, 2, "", None, {}),
)


def ending(state: r.JournalState = DRAINED) -> Ending:
    journal = Journal()
    journal.state = state
    return Ending(journal, GRAPH, ("own",), 100)


def test_a_run_is_over_when_every_sink_has_published_the_last_epoch() -> None:
    found = ending()
    assert (found.is_over, found.unpublished()) == (False, frozenset(("own", "other")))
    found.on_published("own", 3)
    assert (found.is_over, found.unpublished()) == (False, frozenset(("other",)))
    found.on_published("other", 2)
    assert not found.is_over, "that was an earlier epoch"
    found.on_published("other", 3)
    assert found.is_over
    found.on_published("other", 1)
    assert found.is_over, "a published epoch stays published"


def test_a_pipeline_that_is_not_drained_is_not_over() -> None:
    found = ending(journal_of(r.Leader(1, "one")))
    assert not found.is_over
    going_on = journal_of(
        r.Leader(1, "one"), r.Begun(1, 1, 1, 2, 0, "h"), r.Committed(1, 1, 1, 2, "", None, {})
    )
    found = ending(going_on)
    for sink in ("own", "other"):
        found.on_published(sink, 9)
    assert not found.is_over


def test_the_marks_of_others_are_looked_up_and_a_failing_store_is_retried() -> None:
    found = ending()
    actor = found.run()
    assert actor.send(None) == fx.List(MARK_PREFIX)
    assert actor.send(fx.FAILED) == fx.Wait(100)
    assert not found.is_over
    assert actor.send(None) == fx.List(MARK_PREFIX)
    assert actor.send([mark_name(3, "own"), mark_name(3, "other")]) == fx.Wait(100)
    assert found.is_over
    assert actor.send(None) == fx.Wait(100), "there is nothing left to look for"


def test_marks_are_not_looked_up_while_the_pipeline_runs_or_only_own_sinks_are_late() -> None:
    assert next(ending(journal_of(r.Leader(1, "one"))).run()) == fx.Wait(100)
    found = ending()
    found.on_published("other", 3)
    assert next(found.run()) == fx.Wait(100)
