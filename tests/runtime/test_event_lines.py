"""The log lines that events make."""

from __future__ import annotations

import pytest

from cutwater.protocol.base import events as ev
from cutwater.protocol.base.barrier import Flags
from cutwater.runtime.event_lines import REMEMBERED, TROUBLE_EVERY_S, EventLines

DRAIN = int(Flags.DRAIN)


def lines(*events: ev.Event | tuple[float, ev.Event]) -> list[str]:
    """The lines of these events, a second after another unless they say when."""
    log: list[str] = []
    observer = EventLines("till", log.append)
    for number, event in enumerate(events):
        at_s, what = event if isinstance(event, tuple) else (float(number), event)
        observer(at_s, what)
    return log


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (ev.EpochAborted(3, "deadline", "a is slow", False), "epoch 3 aborted (deadline): a is slow"),
        (ev.LeadershipLost(2, "b"), "term 2 is over: b leads"),
        (
            ev.StageFailed("s", "E: x", False, 1, 5, 1_500),
            "stage 's' failed and restarts in 1.5 s (1 of 5): E: x",
        ),
        (
            ev.StageFailed("s", "gone", True, 2, 5, 2_000),
            "stage 's' lost its query and restarts in 2 s (2 of 5): gone",
        ),
        (ev.StageGivenUp("s", "E: x", 6), "stage 's' is given up after 6 attempts: E: x"),
        (ev.ManifestUnreadable(2, "it is missing"), "the manifest of epoch 2 cannot be read: it is missing"),
        (ev.RequestsRefused(("r",), "no_checkpoint", "none is in flight"), "none is in flight"),
        (ev.CatchingUp(212_000, 517_000, 3), "catching up 41 % · 212,000 of 517,000 · 3 peers"),
        (
            ev.ObjectRejected("requests/x.json", "is not a request, so it is removed", b"{"),
            "requests/x.json is not a request, so it is removed: b'{'",
        ),
        (
            ev.OperationFailed("Create", "no route"),
            "an operation failed and will be retried: Create: no route",
        ),
    ],
)
def test_what_a_user_should_know_is_a_line(event: ev.Event, line: str) -> None:
    assert lines(event) == [line]


def test_a_sink_that_cannot_go_back_and_a_second_process_are_lines() -> None:
    sink, process = lines(ev.SinkNotRewound("out"), ev.SecondProcess(2))
    assert sink.startswith("sink 'out' cannot go back: ")
    assert process.startswith("member 'till' is running 2 times; ")


def test_frequent_events_make_no_line() -> None:
    assert not lines(
        ev.CaughtUp(3), ev.LeaderChanged(1, "a"), ev.StageStarted("s", 1, 1), ev.BatchLogged("s", 0, 5),
        ev.EpochCaptured(1), ev.ManifestWritten(1), ev.TablePublished("out", 1, 1), ev.TableRewound("out", 1, 2),
        ev.PipelineRestored(1, 2), ev.EpochAborted(1, "leader_changed", "b leads", True),
    )  # fmt: skip


def test_a_committed_epoch_says_how_long_it_took_and_who_was_cut_unaligned() -> None:
    assert lines(
        (10.0, ev.EpochBegun(1, 3, 0, None, "till")),
        (10.2, ev.StageCut("a", 1, 5, False)),
        (10.3, ev.StageCut("b", 1, 5, True)),
        (10.5, ev.EpochCommitted(1, None)),
        (20.0, ev.EpochBegun(2, 6, DRAIN, None, "till")),
        (32.0, ev.EpochCommitted(2, None)),
        (40.0, ev.EpochBegun(3, 8, 0, "good", "till")),
        (41.0, ev.EpochCommitted(3, None)),
    ) == [
        "epoch 1 committed in 0.50 s (b unaligned)",
        "epoch 2 committed in 12 s (drain)",
        "savepoint 'good' is epoch 3, committed in 1.0 s",
    ]


def test_a_line_that_need_not_be_repeated_is_not() -> None:
    refused = ev.RequestsRefused(("r",), "name_taken", "savepoint 'x' already exists")
    assert lines(refused, refused) == [refused.detail]
    others = [ev.RequestsRefused(("r",), "name_taken", f"no {number}") for number in range(REMEMBERED)]
    assert len(lines(refused, *others, refused)) == REMEMBERED + 2, "what is remembered has a bound"


def test_trouble_is_logged_once_in_a_while_and_the_latest_of_it_later() -> None:
    quiet = ev.BatchLogged("s", 0, 1)
    assert lines(
        (0.0, ev.OperationFailed("Read", "1")),
        (1.0, ev.OperationFailed("Read", "2")),
        (2.0, ev.OperationFailed("Read", "3")),
        (TROUBLE_EVERY_S - 0.1, quiet),
        (TROUBLE_EVERY_S, quiet),
        (3 * TROUBLE_EVERY_S, ev.OperationFailed("Read", "3")),
    ) == [f"an operation failed and will be retried: Read: {number}" for number in (1, 3)]
