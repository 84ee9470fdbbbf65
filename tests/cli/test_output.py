"""How commands format sizes, times and watermarks."""

from __future__ import annotations

import time
from io import StringIO

import pytest
from rich.table import Table
from rich.text import Text

from cutwater.cli.checkpoints import describe_watermark
from cutwater.cli.output import CleanConsole, local
from cutwater.protocol.base.watermark import Watermark, WatermarkKind
from cutwater.store.figures import plural, size


@pytest.mark.parametrize(
    ("count", "said"),
    [(None, "-"), (0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (99_900, "99.9 kB"), (100_000, "100 kB"),
     (5 * 10**6, "5.0 MB"), (10**9, "1.0 GB"), (2 * 10**12, "2.0 TB")],
)  # fmt: skip
def test_sizes_have_a_readable_unit(count: int | None, said: str) -> None:
    assert size(count) == said


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        (Watermark(WatermarkKind.NONE), "none"),
        (Watermark(WatermarkKind.UNKNOWN), "no event yet"),
        (Watermark(WatermarkKind.KNOWN, 1_767_225_600_000), "2026-01-01 00:00:00"),
        (Watermark(WatermarkKind.IDLE, 1_767_225_600_000), "2026-01-01 00:00:00 (idle)"),
    ],
)
@pytest.mark.usefixtures("utc")
def test_watermarks_are_described(mark: Watermark, said: str) -> None:
    assert describe_watermark(mark) == said


def test_a_timestamp_of_today_has_no_date() -> None:
    now = time.time()
    assert local(now) == time.strftime("%H:%M:%S", time.localtime(now))
    assert local(now - 2 * 86_400) == time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now - 2 * 86_400))
    assert local(None) == "-"


def test_plural_has_no_ending_for_one() -> None:
    assert [plural(count, "object") for count in (0, 1, 2)] == ["0 objects", "1 object", "2 objects"]
    assert [plural(count, "batch") for count in (1, 2000)] == ["1 batch", "2,000 batches"]


def test_a_text_of_others_cannot_control_the_terminal() -> None:
    written = StringIO()
    screen = CleanConsole(
        file=written, force_terminal=True, color_system="standard", width=80, highlight=False
    )
    made = Table("\x1b[5mname")
    made.add_row(Text("\x1b]0;owned\x07"))
    screen.print(Text("error: \x1b[31mboom", "red"), made, "\x1b[2J", markup=False)
    out = written.getvalue()
    for evil in ("\x1b[31mboom", "\x1b[5m", "\x1b]0", "\x07", "\x1b[2J"):
        assert evil not in out
    assert "\u241b[31mboom" in out
    assert "\x1b[" in out, "its own styles are kept"
