"""Cutwater: one consistent cut across all your Spark streams."""

from typing import TYPE_CHECKING, Any

from cutwater.protocol.errors import PeerError, StoreError, UserError

if TYPE_CHECKING:
    from cutwater.cluster.config import ClusterConfig
    from cutwater.pipeline import Pipeline
    from cutwater.reading import tables
    from cutwater.sinks.call import call
    from cutwater.sinks.delta import delta
    from cutwater.sinks.parquet import parquet, parquet_files

__all__ = [
    "ClusterConfig",
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
    "ClusterConfig": "cutwater.cluster.config",
    "Pipeline": "cutwater.pipeline",
    "call": "cutwater.sinks.call",
    "delta": "cutwater.sinks.delta",
    "parquet": "cutwater.sinks.parquet",
    "parquet_files": "cutwater.sinks.parquet",
    "tables": "cutwater.reading",
}


def __getattr__(name: str) -> Any:
    """What needs Spark is imported when it is asked for: the simulator and most commands do without."""
    if name in _PLACES:
        from importlib import import_module

        return getattr(import_module(_PLACES[name]), name)
    raise AttributeError(f"module 'cutwater' has no attribute '{name}'")
