"""The Java side of a session: its copy, Hadoop's settings and file systems."""

from __future__ import annotations

from typing import Any, Protocol

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession


class Settings(Protocol):
    """Hadoop's settings, or those of a session."""

    def get(self, key: str, default: Any, /) -> Any: ...

    def set(self, key: str, value: str, /) -> None: ...


def clone(session: SparkSession) -> SparkSession:
    """The copy that Spark itself makes for every streaming query: it has the settings, temporary views and functions of
    the original, and shares the SparkContext, the catalogs and the cache with it. (`newSession()` would have neither
    views nor functions.) Listeners of streaming queries, which Spark leaves out, are copied here."""
    original: Any = session
    java = original._jsparkSession.cloneSession()
    for listener in original._jsparkSession.streams().listListeners():
        java.streams().addListener(listener)
    return SparkSession(session.sparkContext, java)


def hadoop_conf(session: SparkSession) -> Settings:
    """Hadoop's settings, which all sessions of a SparkContext share."""
    context: Any = session.sparkContext
    found: Settings = context._jsc.hadoopConfiguration()
    return found


def session_hadoop_conf(session: SparkSession) -> Settings:
    """Hadoop's settings as this session sees them; a copy."""
    inner: Any = session
    found: Settings = inner._jsparkSession.sessionState().newHadoopConf()
    return found


def write_no_checksum_files(session: SparkSession) -> None:
    """Hadoop's local file system writes a hidden file of checksums beside every file, and forks a process for each.
    (Its raw file system, which does not, cannot be used: RocksDB's snapshots fail with it.)"""
    context: Any = session.sparkContext
    context._jvm.org.apache.hadoop.fs.FileSystem.getLocal(hadoop_conf(session)).setWriteChecksum(False)


def has_file_system(session: SparkSession, scheme: str) -> bool:
    """Whether Hadoop has a file system for URLs with this scheme."""
    context: Any = session.sparkContext
    try:
        context._jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, hadoop_conf(session))
    except Py4JJavaError:
        return False
    return True


def hadoop_version(session: SparkSession) -> str:
    """The version of Hadoop that this Spark has."""
    context: Any = session.sparkContext
    return str(context._jvm.org.apache.hadoop.util.VersionInfo.getVersion())
