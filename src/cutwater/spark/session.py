"""The Spark session: one with good defaults, or a copy of the user's own, and what queries need of either."""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import sys
import tempfile
from contextlib import suppress
from importlib import resources
from typing import Any

import pyspark
from pyspark.sql import SparkSession

from cutwater.protocol.base.errors import UserError
from cutwater.spark.internals.gateway import CALL_ERRORS, has_active_context, launch_apart
from cutwater.spark.internals.java import FILE_MANAGER, Java
from cutwater.spark.internals.sessions import (
    Settings,
    clone,
    hadoop_conf,
    hadoop_version,
    has_file_system,
    session_hadoop_conf,
    write_no_checksum_files,
)

NEVER = "1000000000"
_PACKAGES = {"s3a": "org.apache.hadoop:hadoop-aws", "abfss": "org.apache.hadoop:hadoop-azure"}
"""Where Hadoop's file systems for buckets are, which do not come with Spark."""

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
LOCAL_TASKS = 2

FILE_MANAGER_KEY = "spark.sql.streaming.checkpointFileManagerClass"
"""Set to a class that is quicker on a local disk than Spark's default, and used wherever the store is. Its rename may
overwrite, which is harmless: no two queries work in one folder (rule 7)."""

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
    launch_apart(f"cutwater {name}", master, settings)
    builder: Any = SparkSession.builder
    builder = builder.appName(f"cutwater {name}").master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    java = Java.of(session)
    if FILE_MANAGER_KEY not in settings:
        session.conf.set(FILE_MANAGER_KEY, java.name(FILE_MANAGER))
    write_no_checksum_files(session)
    hadoop = hadoop_conf(session)
    _tell_s3a(hadoop, hadoop)
    _set_needed(session)
    return session


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


def refuse_active_session() -> None:
    """Raises `UserError` if this process has a SparkContext. Spark allows one per process, so a session with other
    settings cannot be made beside it, and the one that is there is not ours to change."""
    if has_active_context():
        raise UserError(
            "there is a Spark session in this process already, and a process can have only one SparkContext. To use it, "
            "give it to the pipeline: start(..., spark=session); it is not changed. To have one made, with master= and "
            "conf=, stop() it first. A file for `cutwater run` makes none itself: its stage functions get one as their "
            "parameter `spark`, and --master and --conf say what it is like"
        )


def copy_session(session: Any) -> SparkSession:
    """A copy of the user's session for queries to run in, with what they need. Raises `UserError` if it cannot be used.

    It is the copy that Spark itself makes for every streaming query (see `clone`), with the current catalog, which Spark
    leaves out.
    """
    refuse_unusable(session)
    Java.of(session)
    copy = clone(session)
    catalog, namespace = session.catalog.currentCatalog(), session.catalog.currentDatabase()
    if catalog != copy.catalog.currentCatalog():
        copy.sql(f"USE `{catalog}`")  # and not by copy.catalog, which takes settings from the active session
        if namespace and namespace != copy.catalog.currentDatabase():
            copy.sql(f"USE NAMESPACE {namespace}")
    _tell_s3a(session_hadoop_conf(copy), copy.conf)
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


def _tell_s3a(known: Settings, conf: Settings) -> None:
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
    if has_file_system(session, scheme):
        return
    package = _PACKAGES.get(scheme)
    advice = (
        f"start with --conf spark.jars.packages={package}:{hadoop_version(session)}, or put that jar and its "
        "dependencies on Spark's class path"
        if package
        else f"put a Hadoop file system for {scheme}:// on Spark's class path"
    )
    raise UserError(f"Spark cannot read or write {scheme}:// yet; {advice}")


def hush(session: SparkSession) -> None:
    """Silences Spark's console output, for a stop whose cause is already known."""
    with suppress(*CALL_ERRORS):  # the JVM is gone, and prints nothing any more
        session.sparkContext.setLogLevel("OFF")
