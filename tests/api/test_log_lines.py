"""Progress is logged by the logger `cutwater`, and shown as the user has configured logging."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cutwater.api.log_lines import LOG, lines_printed, lines_to, log_of


@contextmanager
def configured(*handlers: logging.Handler, level: int = logging.WARNING) -> Iterator[None]:
    """The root logger with these handlers, without those of pytest, which are added after fixtures."""
    root = logging.getLogger()
    before, level_before = root.handlers[:], root.level
    root.handlers[:] = handlers
    root.setLevel(level)
    try:
        yield
    finally:
        root.handlers[:] = before
        root.setLevel(level_before)


class RecordingHandler(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def test_records_name_their_pipeline_and_member() -> None:
    kept = RecordingHandler()
    with configured(kept, level=logging.INFO):
        log_of("shop", "till").info("it is 100 % done")
    (record,) = kept.records
    assert (record.name, record.getMessage()) == ("cutwater", "it is 100 % done")
    assert (vars(record)["pipeline"], vars(record)["member"]) == ("shop", "till")


def test_lines_are_printed_where_logging_is_not_configured(capsys: pytest.CaptureFixture[str]) -> None:
    with configured():
        with lines_printed():
            log_of("shop", "main").info("begun")
        log_of("shop", "main").info("after it")
    assert [line.split(" ", 1)[1] for line in capsys.readouterr().out.splitlines()] == ["begun"]


def test_configured_logging_decides_where_lines_go(capsys: pytest.CaptureFixture[str]) -> None:
    kept = RecordingHandler()
    with configured(kept), lines_printed():
        log_of("shop", "main").info("below the configured level")
        log_of("shop", "main").warning("above it")
    assert capsys.readouterr().out == ""
    assert [record.getMessage() for record in kept.records] == ["above it"]


@pytest.mark.parametrize("level", [logging.WARNING, logging.INFO])
def test_lines_to_gets_every_line_and_other_handlers_get_the_same_as_without_it(level: int) -> None:
    kept, log_lines = RecordingHandler(), list[str]()
    before = LOG.level, LOG.propagate, LOG.handlers[:]
    with configured(kept, level=level), lines_to(log_lines.append):
        log_of("shop", "main").info("begun")
        log_of("shop", "main").debug("in detail")
        log_of("shop", "main").info("done")
    assert log_lines == ["begun", "done"]
    assert [r.getMessage() for r in kept.records] == (log_lines if level == logging.INFO else [])
    assert (LOG.level, LOG.propagate, LOG.handlers) == before


def test_a_line_cannot_control_the_terminal() -> None:
    lines: list[str] = []
    with configured(), lines_to(lines.append):
        log_of("shop", "till").info("it failed: %s", "\x1b[31mboom\r\nsecond\x07")
    assert lines == ["it failed: \u241b[31mboom\nsecond\u2407"]
