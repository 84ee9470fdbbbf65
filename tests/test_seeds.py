"""Every known weakness of the five seed documents has a test named after it."""

from __future__ import annotations

import re
from pathlib import Path

WEAKNESSES = {"a": 15, "b": 4, "c": 9, "d": 13, "e": 10}


def test_every_known_weakness_has_a_test_named_after_it() -> None:
    named = set()
    for file in Path(__file__).parent.rglob("test_*.py"):
        named.update(re.findall(r"^def test_(?:\w+_and_)?seed_([a-e]\d\d)_", file.read_text(), re.MULTILINE))
    wanted = {f"{letter}{n:02d}" for letter, count in WEAKNESSES.items() for n in range(1, count + 1)}
    assert sorted(wanted - named) == []
