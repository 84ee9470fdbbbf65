"""A status as notebooks show it."""

from __future__ import annotations

import re

from msgspec.structs import replace

from cutwater.store.stage_status import SourceLag
from tests.cli.test_live_view import STAGE, STATUS


def cells(html: str, tag: str = "td") -> list[str]:
    return re.findall(rf"<{tag} [^>]*>(.*?)</{tag}>", html)


def test_a_notebook_shows_a_status_as_a_table() -> None:
    busy = replace(
        STAGE,
        name="b",
        batch=-1,
        rows_per_s=1234.5,
        batch_s=0.25,
        lag_rows=12_000,
        watermark=1_767_225_600_000,
    )
    waiting = replace(STAGE, name="c", lag_batches=2)
    html = replace(STATUS, epoch=12, stages=(STAGE, busy, waiting))._repr_html_()
    assert "<b>shop: running, generation 3, epoch 12</b>" in html
    assert cells(html, "th") == ["stage", "state", "batch", "rows/s", "took", "behind", "watermark (UTC)"]
    assert cells(html) == [
        "a", "running", "7", "-", "-", "-", "-",
        "b", "running", "-", "1,234", "0.25 s", "12k rows", "2026-01-01 00:00:00",
        "c", "running", "7", "-", "-", "2 batches", "-",
    ]  # fmt: skip
    assert "no checkpoint yet" in STATUS._repr_html_()


def test_a_notebook_shows_the_first_batch_and_the_lag_of_sources_as_the_live_view_does() -> None:
    lag = SourceLag("FileStreamSource[/in]", files=1200, bytes=3_400_000)
    first = replace(STAGE, batch=-1, first_batch_s=40.0, sources=(lag,))
    html = replace(STATUS, stages=(first, replace(STAGE, name="b", restarts=2)))._repr_html_()
    assert cells(html)[:7] == ["a", "in its first batch for 40 s", "-", "-", "-", "1,200 files", "-"]
    assert "<br>a is behind FileStreamSource[/in] by 1,200 files, 3.4 MB" in html
    assert cells(html)[7:9] == ["b", "running (2)"]


def test_text_of_errors_and_names_is_escaped() -> None:
    stage = replace(STAGE, name="<a>", error="1 < 2 & <script>")
    html = replace(STATUS, member="m<1>", trouble="<b>no</b>", stages=(stage,))._repr_html_()
    assert "shop · m&lt;1&gt;: running" in html
    assert "trouble: &lt;b&gt;no&lt;/b&gt;" in html
    assert "&lt;a&gt;: 1 &lt; 2 &amp; &lt;script&gt;" in html
    assert cells(html)[0] == "&lt;a&gt;"


def test_the_plain_form_names_the_fields() -> None:
    assert "pipeline='shop'" in repr(STATUS)
    assert "StageStatus(name='a', state='running'" in repr(STATUS)
