"""Sinks: tables, files and functions that get an epoch's rows when it is committed."""

from cutwater.sinks.contract import Sink, SinkFailed
from cutwater.sinks.delta.making import delta
from cutwater.sinks.foreach_epoch import foreach_epoch
from cutwater.sinks.parquet import parquet, parquet_files

__all__ = ["Sink", "SinkFailed", "delta", "foreach_epoch", "parquet", "parquet_files"]
