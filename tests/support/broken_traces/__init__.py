"""Changes that make a recorded trace violate a rule, each registered with its rule."""

from tests.support.broken_traces import cuts, journal, tables
from tests.support.broken_traces.registry import PLANTS, Plant

__all__ = ["PLANTS", "Plant", "cuts", "journal", "tables"]
