"""Where rows go: tables, files and functions that are given an epoch's rows when it is committed."""

from cutwater.sinks.base import Sink, SinkFailed
from cutwater.sinks.call import call
from cutwater.sinks.delta import delta
from cutwater.sinks.opening import open_sinks
from cutwater.sinks.parquet import parquet, parquet_files

__all__ = ["Sink", "SinkFailed", "call", "delta", "open_sinks", "parquet", "parquet_files"]
