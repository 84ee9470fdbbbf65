"""The Java side of a session: its copy, Hadoop's settings and file systems."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
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


def given_settings(conf: Settings, pattern: str) -> dict[str, str]:
    """Hadoop's settings with matching names that the user has set: neither Hadoop's defaults, nor what Spark or Cutwater
    have taken from the environment."""
    hadoop: Any = conf
    found = dict(hadoop.getValByRegex(pattern))
    return {key: value for key, value in found.items() if not _is_unasked(hadoop.getPropertySources(key))}


def set_from_environment(conf: Settings, key: str, value: str) -> None:
    """Change one of Hadoop's settings so that `given_settings` does not mistake it for the user's."""
    hadoop: Any = conf
    hadoop.set(key, value, "Set by Cutwater from AWS_*")


def _is_unasked(sources: Any) -> bool:
    last = str(list(sources)[-1]) if sources else ""
    return last.endswith("-default.xml") or " from AWS_" in last


class FileSystemFailed(Exception):
    """An operation of a Hadoop file system failed; the message says why."""


def use_file_system(
    session: SparkSession, urls: Iterable[str], settings: dict[str, str], trying: Callable[[str], None]
) -> None:
    """Create an object at each of these URLs, which are of one bucket, read, list and delete it, through Hadoop's file
    system for them, with these settings in addition; calls `trying` before each. Raises `FileSystemFailed`."""
    context: Any = session.sparkContext
    jvm = context._jvm
    conf = jvm.org.apache.hadoop.conf.Configuration(session_hadoop_conf(session))
    for key, value in settings.items():
        conf.set(key, value)
    doing, system = "open its file system", None
    try:
        for url in urls:
            trying(url)
            path = jvm.org.apache.hadoop.fs.Path(url)
            if system is None:
                system = jvm.org.apache.hadoop.fs.FileSystem.newInstance(path.toUri(), conf)
            doing = "write"
            system.create(path, True).close()
            doing = "read"
            system.open(path).close()
            doing = "list"
            system.listStatus(path)
            doing = "delete"
            system.delete(path, False)
    except Py4JJavaError as error:
        raise FileSystemFailed(f"cannot {doing}: {_said(error.java_exception)}") from error
    finally:
        if system is not None:
            system.close()


def _said(error: Any) -> str:
    """The message of a server or a class, without Hadoop's and the SDK's details around it."""
    cause = error
    while cause.getCause() is not None and not str(cause.getMessage()).startswith("Connect to "):
        cause = cause.getCause()  # except that of an error which names the server
    text = str(cause.getMessage() or "").strip().partition("\n")[0]
    plain = re.sub(r" ?\((Service|SDK Attempt).*", "", text).strip()
    kind = str(cause.getClass().getSimpleName())
    status = re.search(r"Status Code: (\d+)", text)
    if plain:
        return plain if " " in plain else f"{kind}: {plain}"
    return f"status {status[1]}" if status else kind


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
