"""What the status shows of events."""

from __future__ import annotations

import time

import pytest

from cutwater.protocol.base import events as ev
from cutwater.runtime.status_facts import StatusFacts
from cutwater.runtime.troubles import Troubles


def test_an_epoch_is_open_from_its_beginning_until_it_is_decided() -> None:
    facts, now_s, now = StatusFacts(), time.monotonic(), time.time()
    facts(now_s - 10, ev.EpochBegun(1, 3, 0, None, "a"))
    facts(now_s - 4, ev.EpochBegun(2, 4, 0, None, "a"))
    assert facts.open_since(1) == pytest.approx(now - 10, abs=0.5)
    assert facts.open_since(2) == pytest.approx(now - 4, abs=0.5)
    assert facts.last_commit is None
    facts(now_s - 2.5, ev.EpochCommitted(1, None))
    facts(now_s - 2, ev.EpochAborted(2, "deadline", "", False))
    assert (facts.open_since(1), facts.open_since(2)) == (None, None)
    assert facts.last_commit is not None
    assert facts.last_commit.duration_s == 7.5
    assert facts.last_commit.at == pytest.approx(now - 2.5, abs=0.5)


def test_a_commit_of_an_epoch_that_was_begun_unseen_is_not_timed() -> None:
    facts = StatusFacts()
    facts(1.0, ev.EpochCommitted(1, None))
    assert facts.last_commit is None


def test_the_latest_error_of_a_stage_is_kept() -> None:
    facts = StatusFacts()
    facts(1.0, ev.StageFailed("s", "first", False, 1, 2, 1_000))
    facts(2.0, ev.StageGivenUp("s", "second", 2))
    assert facts.stage_errors == {"s": "second"}


def test_the_trouble_is_what_still_fails() -> None:
    troubles = Troubles()
    facts = StatusFacts(troubles)
    assert facts.trouble == ""
    troubles.failed("Read", "no route")
    assert facts.trouble == "Read: no route"
    troubles.worked("Read")
    assert facts.trouble == ""
