"""Cutwater: one consistent cut across all your Spark streams."""

from typing import TYPE_CHECKING, Any

from cutwater.protocol.base.errors import PeerError, StoreError, UserError

if TYPE_CHECKING:
    from cutwater.api.pipeline import Pipeline
    from cutwater.api.tables import tables
    from cutwater.cluster.config import ClusterConfig
    from cutwater.sinks.delta.sink import delta
    from cutwater.sinks.foreach_epoch import call
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
    "Pipeline": "cutwater.api.pipeline",
    "call": "cutwater.sinks.foreach_epoch",
    "delta": "cutwater.sinks.delta.sink",
    "parquet": "cutwater.sinks.parquet",
    "parquet_files": "cutwater.sinks.parquet",
    "tables": "cutwater.api.tables",
}


def __getattr__(name: str) -> Any:
    """What needs Spark is imported when it is asked for: the simulator and most commands do without."""
    if name in _PLACES:
        from importlib import import_module

        return getattr(import_module(_PLACES[name]), name)
    raise AttributeError(f"module 'cutwater' has no attribute '{name}'")
