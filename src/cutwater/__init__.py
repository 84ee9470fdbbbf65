"""Cutwater: one consistent cut across all your Spark streams."""

from typing import TYPE_CHECKING, Any

from cutwater.protocol.base.errors import (
    CutwaterError,
    GraphChanged,
    IllegalStep,
    InvariantBroken,
    PeerError,
    StoreError,
    UserError,
)

if TYPE_CHECKING:
    from cutwater.api.config import RunConfig
    from cutwater.api.follow import Following, follow
    from cutwater.api.pipeline import Pipeline
    from cutwater.api.snapshot import Snapshot, read, snapshot
    from cutwater.api.tables import tables
    from cutwater.cluster.config import ClusterConfig
    from cutwater.protocol.follower.followed import Followed
    from cutwater.sinks.contract import Sink
    from cutwater.sinks.delta.making import delta
    from cutwater.sinks.foreach_epoch import foreach_epoch
    from cutwater.sinks.parquet import parquet, parquet_files
    from cutwater.sinks.quarantine import quarantine
    from cutwater.store.stage_status import StageStatus
    from cutwater.store.status import Status

__version__ = "0.1.0"
"""The version of the package. Nothing else states it."""

__all__ = [
    "ClusterConfig",
    "CutwaterError",
    "Followed",
    "Following",
    "GraphChanged",
    "IllegalStep",
    "InvariantBroken",
    "PeerError",
    "Pipeline",
    "RunConfig",
    "Sink",
    "Snapshot",
    "StageStatus",
    "Status",
    "StoreError",
    "UserError",
    "delta",
    "follow",
    "foreach_epoch",
    "parquet",
    "parquet_files",
    "quarantine",
    "read",
    "snapshot",
    "tables",
]

_MODULES = {
    "ClusterConfig": "cutwater.cluster.config",
    "Followed": "cutwater.protocol.follower.followed",
    "Following": "cutwater.api.follow",
    "Pipeline": "cutwater.api.pipeline",
    "RunConfig": "cutwater.api.config",
    "Sink": "cutwater.sinks.contract",
    "Snapshot": "cutwater.api.snapshot",
    "StageStatus": "cutwater.store.stage_status",
    "Status": "cutwater.store.status",
    "delta": "cutwater.sinks.delta.making",
    "follow": "cutwater.api.follow",
    "foreach_epoch": "cutwater.sinks.foreach_epoch",
    "parquet": "cutwater.sinks.parquet",
    "parquet_files": "cutwater.sinks.parquet",
    "quarantine": "cutwater.sinks.quarantine",
    "read": "cutwater.api.snapshot",
    "snapshot": "cutwater.api.snapshot",
    "tables": "cutwater.api.tables",
}


def __getattr__(name: str) -> Any:
    """Import lazily what needs Spark: the simulator and most commands do not need it."""
    if name in _MODULES:
        from importlib import import_module

        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'cutwater' has no attribute '{name}'")
