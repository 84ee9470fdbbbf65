"""What others have written, on a terminal."""

from __future__ import annotations

import pytest

from cutwater.store.printable import one_line, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain \u00fc \u65e5\u672c", "plain \u00fc \u65e5\u672c"),
        ("a\tb\nc", "a\tb\nc"),
        ("\x1b[31mred\x1b[0m", "\u241b[31mred\u241b[0m"),
        ("\x1b]0;title\x07", "\u241b]0;title\u2407"),
        ("over\rwritten\b\x00", "over\u240dwritten\u2408\u2400"),
        ("\x9b31m\x7f", "\ufffd31m\ufffd"),
        ("\u202eabc\u2066", "\ufffdabc\ufffd"),
    ],
)
def test_control_characters_are_shown_and_not_obeyed(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_a_text_of_several_lines_becomes_one() -> None:
    assert one_line("no route\n  at a\r\n\tat b\n") == "no route at a at b"
    assert one_line("a\u2028b\tc\x1b") == "a b c\u241b"
    assert one_line("") == ""
