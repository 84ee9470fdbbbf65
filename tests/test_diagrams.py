"""The diagrams in ARCHITECTURE.md are up to date with the code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cutwater.protocol.base.errors import UserError
from tests.support import diagrams

PAGE = Path(__file__).parent.parent / "ARCHITECTURE.md"
STATE = r"(?:\[\*\]|[a-z_]+)"
STEP = re.compile(rf"    {STATE} --> {STATE}(?:: [a-z_ ]+)?")


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """In a separate process, because transition tables defined by other tests do not belong to the protocol."""
    command = [sys.executable, "-m", "tests.support.diagrams", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_diagrams_in_the_repository_are_current() -> None:
    result = run("--check", PAGE)
    assert result.returncode == 0, result.stderr


def test_every_diagram_has_a_title_and_is_a_state_diagram_of_steps_from_one_start() -> None:
    text = PAGE.read_text("utf-8")
    text = text[text.index(diagrams.BEGIN) : text.index(diagrams.END)]
    blocks = re.findall(r"^### [^\n]+\n\n```mermaid\n(.+?)\n```$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == text.count("###") == text.count("```mermaid") > 5
    for block in blocks:
        first, start, *steps = block.split("\n")
        assert first == "stateDiagram-v2"
        assert re.fullmatch(r"    \[\*\] --> [a-z_]+", start)
        assert steps
        assert all(STEP.fullmatch(step) for step in steps), block


def test_an_outdated_page_is_detected_and_only_its_diagrams_are_rewritten(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\nbefore\n{diagrams.BEGIN}\nold\n{diagrams.END}\nafter\n", "utf-8")
    stale = run("--check", page)
    assert stale.returncode == 1
    assert "not up to date with the code; run `make docs`" in stale.stderr
    assert run("--write", page).returncode == 0
    assert run("--check", page).returncode == 0
    text = page.read_text("utf-8")
    assert text.startswith(f"# Title\n\nbefore\n{diagrams.BEGIN}\n\n### ")
    assert text.endswith(f"```\n\n{diagrams.END}\nafter\n")
    assert "old" not in text


@pytest.mark.parametrize(
    "text",
    [
        "",
        diagrams.BEGIN,
        f"{diagrams.END}\n{diagrams.BEGIN}",
        f"see {diagrams.BEGIN}\n{diagrams.END}",
        f"{diagrams.BEGIN}\n{diagrams.BEGIN}\n{diagrams.END}",
    ],
)
def test_a_page_without_a_place_for_diagrams_is_refused_and_not_changed(text: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text, "utf-8")
    with pytest.raises(UserError, match=r"page\.md has no place for the diagrams: add a line"):
        diagrams.write(page)
    assert page.read_text("utf-8") == text


def test_a_missing_page_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert diagrams.main(["--check", str(tmp_path / "missing.md")]) == 1
    assert "missing.md" in capsys.readouterr().err
