"""How many examples a test with random data tries."""

from __future__ import annotations

from hypothesis import settings

DEFAULT = 100
"""How many examples Hypothesis tries by default."""


def examples(count: int) -> settings:
    """Settings for a test with this many examples, and accordingly fewer in `make test-fast`."""
    return settings(max_examples=count * settings().max_examples // DEFAULT, deadline=None)
