"""Planted bugs: each removes or breaks one thing, and the simulator must find it.

A bug is a function that breaks the product with pytest's monkeypatch. The product itself has no switches for this.
"""

from tests.support.planted import (
    batches,
    cuts,
    inbox,
    logs,
    publishing,
    queries,
    restores,
    retention,
    steering,
)
from tests.support.planted.registry import BUGS

__all__ = [
    "BUGS",
    "batches",
    "cuts",
    "inbox",
    "logs",
    "publishing",
    "queries",
    "restores",
    "retention",
    "steering",
]
