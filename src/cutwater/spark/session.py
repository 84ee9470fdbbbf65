"""The Spark session: one with good defaults, or a copy of the user's own, and what queries need of either."""

from __future__ import annotations

import atexit
import logging
import os
import shlex
import shutil
import sys
import tempfile
from contextlib import suppress
from importlib import resources
from typing import Any

import pyspark
from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from cutwater.protocol.base.errors import UserError

NEVER = "1000000000"
_PACKAGES = {"s3a": "org.apache.hadoop:hadoop-aws", "abfss": "org.apache.hadoop:hadoop-azure"}
"""Where Hadoop's file systems for buckets are, which do not come with Spark."""

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
LOCAL_TASKS = 2

NEEDED = {
    # Spark purges nothing by itself: checkpoints name its files in place, and retention deletes them.
    "spark.sql.streaming.minBatchesToRetain": NEVER,
    "spark.sql.streaming.fileSource.log.deletion": "false",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # INT96 timestamps, the default of old, are not understood by every reader of a table.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.streaming.noDataMicroBatches.enabled": "true",
}
"""What every query needs, whoever made the session. Set in sessions of ours alone: never in the user's own."""

DEFAULTS = {
    PROVIDER: ROCKSDB,
    "spark.scheduler.mode": "FAIR",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "5",
    "spark.sql.streaming.stateStore.maintenanceInterval": "15s",
    # Quicker on a local disk than Spark's own choice, and used wherever the store is. Its rename may overwrite, which
    # is harmless: no two queries work in one folder (rule 7).
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}
"""What a session of our own has besides."""


def make_session(name: str, master: str | None = None, conf: dict[str, str] | None = None) -> SparkSession:
    """A session with good defaults and a SparkContext of its own; `conf` wins over them. If there is a SparkContext
    in this process, its session is used and its settings are changed: see `refuse_active_session`. Raises
    `UserError` if there is no Java."""
    if not (os.environ.get("JAVA_HOME") or shutil.which("java")):
        raise UserError(
            "Spark needs Java 17 or later, and there is none on the PATH; install it (Debian: "
            "apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17) or set JAVA_HOME"
        )
    master = master or os.environ.get("SPARK_MASTER") or f"local[{os.cpu_count() or LOCAL_TASKS}]"
    settings = {**NEEDED, **DEFAULTS}
    if master.startswith("local"):
        _use_quick_python()
        settings["spark.sql.shuffle.partitions"] = str(min(os.cpu_count() or LOCAL_TASKS, 8))
    quiet = resources.files("cutwater.spark").joinpath("log4j2.properties")
    settings["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile={quiet}"
    settings |= conf or {}
    _launch_apart(name, master, settings)
    builder: Any = SparkSession.builder
    builder = builder.appName(f"cutwater {name}").master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    _write_no_checksum_files(session)
    inner: Any = session.sparkContext
    hadoop = inner._jsc.hadoopConfiguration()
    _tell_s3a(hadoop, hadoop)
    _set_needed(session)
    return session


def _launch_apart(name: str, master: str, settings: dict[str, str]) -> None:
    """Starts Spark's JVM, unless there is one, in a process group of its own: a signal to the group of this process,
    as supervisors and terminals send it, would end the JVM before anything could be drained. (It ends with this
    process all the same: it reads a pipe that breaks then.)"""
    if os.name != "posix" or SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    hush_py4j()
    conf = SparkConf(loadDefaults=False).setMaster(master).setAppName(f"cutwater {name}")
    conf.setAll(list(settings.items()))
    launch: Any = launch_gateway
    SparkContext._ensure_initialized(gateway=launch(conf, {"process_group": 0}))


def hush_py4j() -> None:
    """When the JVM dies, every call that was under way logs pages, through Py4J's own logger or through the root's;
    what has happened is told in a line. What others log is left alone."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_not_of_py4j)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return os.path.basename(os.path.dirname(record.pathname)) != "py4j"


LAUNCHER = """#!/bin/sh
kept=
IFS=:
for entry in $PYTHONPATH; do
  case $entry in
    */python/lib/pyspark.zip|*/python/lib/py4j-*.zip) ;;
    *) kept=$kept${kept:+:}$entry ;;
  esac
done
unset IFS
PYTHONPATH=$kept exec PYTHON "$@"
"""


def _use_quick_python() -> None:
    """Chooses the command for Spark's Python processes on this machine, unless the user has. Spark has them import
    its library from a zip, where compiled code is not kept: each would spend a second on that. They can import what
    this one did."""
    if "PYSPARK_PYTHON" in os.environ:
        return
    os.environ["PYSPARK_PYTHON"] = sys.executable
    if os.name != "posix" or ".zip" in str(pyspark.__file__):
        return
    folder = tempfile.mkdtemp(prefix="cutwater-python-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    launcher = os.path.join(folder, "python")
    with open(launcher, "w") as file:
        file.write(LAUNCHER.replace("PYTHON ", f"{shlex.quote(sys.executable)} "))
    os.chmod(launcher, 0o755)
    os.environ["PYSPARK_PYTHON"] = launcher


def _write_no_checksum_files(session: SparkSession) -> None:
    """Hadoop's local file system writes a hidden file of checksums beside every file, and forks a process for
    each of them. (Its raw one, which does not, cannot be used: RocksDB's snapshots fail with it.)"""
    inner: Any = session
    local = inner._jvm.org.apache.hadoop.fs.FileSystem.getLocal(inner._jsc.hadoopConfiguration())
    local.setWriteChecksum(False)


def refuse_active_session() -> None:
    """Raises `UserError` if this process has a SparkContext. Spark allows one per process, so a session with other
    settings cannot be made beside it, and the one that is there is not ours to change."""
    if SparkContext._active_spark_context is not None:
        raise UserError(
            "there is a Spark session in this process already, and a process can have only one SparkContext. To use it, "
            "give it to the pipeline: start(..., spark=session); it is not changed. To have one made, with master= and "
            "conf=, stop() it first. A file for `cutwater run` makes none itself: its stage functions get one as their "
            "parameter `spark`, and --master and --conf say what it is like"
        )


def copy_session(session: Any) -> SparkSession:
    """A copy of the user's session for queries to run in, with what they need. Raises `UserError` if it cannot be used.

    It is the copy that Spark itself makes for every streaming query: it has the settings, temporary views and functions
    of the original, and shares the SparkContext, the catalogs and the cache with it. (`newSession()` would have neither
    views nor functions.) What Spark leaves out is copied here: the current catalog and listeners of streaming queries.
    """
    refuse_unusable(session)
    original: Any = session
    copy = SparkSession(session.sparkContext, original._jsparkSession.cloneSession())
    catalog, namespace = session.catalog.currentCatalog(), session.catalog.currentDatabase()
    if catalog != copy.catalog.currentCatalog():
        copy.sql(f"USE `{catalog}`")  # and not by copy.catalog, which takes settings from the active session
        if namespace and namespace != copy.catalog.currentDatabase():
            copy.sql(f"USE NAMESPACE {namespace}")
    inner: Any = copy
    for listener in original._jsparkSession.streams().listListeners():
        inner._jsparkSession.streams().addListener(listener)
    _tell_s3a(inner._jsparkSession.sessionState().newHadoopConf(), copy.conf)
    _set_needed(copy)
    return copy


def refuse_unusable(session: Any) -> None:
    """Raises `UserError` for what is not a classic session."""
    if ".connect." in f"{type(session).__module__}.":
        raise UserError(
            "this is a Spark Connect session, which can neither run a pipeline nor read its tables: both need the "
            "driver's own process, and Connect has none. Use a classic session: SparkSession.builder.master(...)"
            ".getOrCreate() in the driver, or spark-submit"
        )
    if not isinstance(session, SparkSession):
        raise UserError(
            f"spark={session!r} is not a SparkSession; leave it out to get one with good defaults"
        )


def _set_needed(session: SparkSession) -> None:
    for key, value in NEEDED.items():
        session.conf.set(key, value)
    # With RocksDB state files get names of their own, so that no two attempts can write the same one.
    version = "2" if "RocksDB" in (session.conf.get(PROVIDER) or "") else "1"
    session.conf.set("spark.sql.streaming.stateStore.checkpointFormatVersion", version)


def _tell_s3a(known: Any, conf: Any) -> None:
    """Gives Hadoop's S3A the server that the environment names, as the store itself has it. (Spark itself hands on
    keys from there.) What is `known` to Hadoop, because the user has set it, stays. `conf` takes the rest: Hadoop's
    own, or a session's, which is a part of Hadoop's in all that the session reads and writes."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if endpoint and known.get("fs.s3a.endpoint", "") in ("", endpoint):
        conf.set("fs.s3a.endpoint", endpoint)
        conf.set("fs.s3a.path.style.access", "true")
    if region and not known.get("fs.s3a.endpoint.region", ""):
        conf.set("fs.s3a.endpoint.region", region)


def check_reach(session: SparkSession, url: str) -> None:
    """Raises `UserError` if this session has no file system for such URLs."""
    scheme = url.partition(":")[0]
    inner: Any = session.sparkContext
    hadoop = inner._jvm.org.apache.hadoop
    try:
        hadoop.fs.FileSystem.getFileSystemClass(scheme, inner._jsc.hadoopConfiguration())
    except Py4JJavaError as error:
        version = hadoop.util.VersionInfo.getVersion()
        package = _PACKAGES.get(scheme)
        advice = (
            f"start with --conf spark.jars.packages={package}:{version}, or put that jar and what it needs on Spark's "
            "class path"
            if package
            else f"put a Hadoop file system for {scheme}:// on Spark's class path"
        )
        raise UserError(f"Spark cannot read or write {scheme}:// yet; {advice}") from error


def hush(session: SparkSession) -> None:
    """Ends what Spark says on the console: for a stop in the middle of things, whose story is known."""
    with suppress(Py4JError, ConnectionError):  # its JVM is gone, and says nothing any more
        session.sparkContext.setLogLevel("OFF")


def end_session(session: SparkSession) -> None:
    """Stops a session of our own, also one whose JVM is gone; the next one starts a new JVM then."""
    gateway = SparkContext._gateway
    try:
        session.stop()
    except (Py4JError, ConnectionError):
        SparkSession._instantiatedSession = SparkSession._activeSession = None
        SparkContext._active_spark_context = None
    process = getattr(gateway, "proc", None)
    if process is not None and process.poll() is not None:
        SparkContext._gateway = SparkContext._jvm = None
