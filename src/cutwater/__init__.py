"""Cutwater: one consistent cut across all your Spark streams."""

from cutwater.protocol.errors import PeerError, StoreError, UserError

__all__ = [
    "PeerError",
    "Pipeline",
    "StoreError",
    "UserError",
    "call",
    "delta",
    "parquet",
    "parquet_files",
    "tables",
]

_PLACES = {
    "Pipeline": "cutwater.pipeline",
    "call": "cutwater.sinks.call",
    "delta": "cutwater.sinks.delta",
    "parquet": "cutwater.sinks.parquet",
    "parquet_files": "cutwater.sinks.parquet",
    "tables": "cutwater.reading",
}


def __getattr__(name: str) -> object:
    """What needs Spark is imported when it is asked for: the simulator and most commands do without."""
    if name in _PLACES:
        from importlib import import_module

        return getattr(import_module(_PLACES[name]), name)
    raise AttributeError(f"module 'cutwater' has no attribute '{name}'")
