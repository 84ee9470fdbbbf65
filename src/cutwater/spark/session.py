"""The Spark session: a new one with good defaults, or a copy of the user's, with the settings that queries need."""

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
from cutwater.spark.internals.gateway import CALL_ERRORS, LaunchFailed, has_active_context, launch_apart
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
from cutwater.spark.packages import PACKAGES, unresolved, unresolved_message

NEVER = "1000000000"
_PACKAGES = {"s3a": "org.apache.hadoop:hadoop-aws", "abfss": "org.apache.hadoop:hadoop-azure"}
"""The packages with Hadoop's file systems for buckets, which do not come with Spark."""

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
LOCAL_TASKS = 2

FILE_MANAGER_KEY = "spark.sql.streaming.checkpointFileManagerClass"
"""Set to a class that is quicker on a local disk than Spark's default, and used wherever the store is. Its rename may
overwrite, which is harmless: no two queries work in one folder (rule 7)."""

NEEDED = {
    # Spark must not purge anything: checkpoints refer to its files in place, and retention deletes them.
    "spark.sql.streaming.minBatchesToRetain": NEVER,
    "spark.sql.streaming.fileSource.log.deletion": "false",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Not every reader of a table understands INT96 timestamps, the old default.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.streaming.noDataMicroBatches.enabled": "true",
}
"""Settings that every query needs. Set only in our own sessions, including copies; never in the user's."""

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
"""Further settings of a session that we make."""


def make_session(name: str, master: str | None = None, conf: dict[str, str] | None = None) -> SparkSession:
    """Make a session with good defaults, which `conf` overrides, and a new SparkContext. If this process already has a
    SparkContext, its session is used and its settings are changed: see `refuse_active_session`. Raises `UserError` if
    there is no Java, or if Cutwater cannot work with this build of Spark."""
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
    _launch(f"cutwater {name}", master, settings)
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
    _configure_s3a(hadoop, hadoop)
    _set_needed(session)
    return session


def _launch(app: str, master: str, settings: dict[str, str]) -> None:
    """Start Spark's JVM. Raises `UserError`, in one line, if it cannot find a package that it is told to load."""
    try:
        launch_apart(app, master, settings, hold_output=PACKAGES in settings)
    except LaunchFailed as error:
        missing = unresolved(error.lines)
        if missing:
            raise UserError(unresolved_message(missing)) from error
        sys.stderr.write("".join(f"{line}\n" for line in error.lines))
        raise UserError(f"{error}; what it printed is above") from error


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
    """Choose the command for Spark's Python processes on this machine, unless the user has. By default they import
    pyspark from a zip, which cannot cache compiled code, so each would compile it for a second. With this command they
    import the same pyspark as this process."""
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
    """Raise `UserError` if this process has a SparkContext. Spark allows one per process, so we cannot make a second one
    with other settings, and the existing one is not ours to change."""
    if has_active_context():
        raise UserError(
            "this process already has a Spark session, and a process can have only one SparkContext. To use it, "
            "give it to the pipeline: start(..., spark=session); it is not changed. To get a new one, with master= and "
            "conf=, stop() it first. A file for `cutwater run` must not make one: its stage functions get the session as "
            "their parameter `spark`, and --master and --conf configure it"
        )


def copy_session(session: Any) -> SparkSession:
    """Copy the user's session, for queries to run in, with the settings that they need. Raises `UserError` if Cutwater
    cannot use it.

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
    _configure_s3a(session_hadoop_conf(copy), copy.conf)
    _set_needed(copy)
    return copy


def refuse_unusable(session: Any) -> None:
    """Raise `UserError` if this is not a classic session."""
    if ".connect." in f"{type(session).__module__}.":
        raise UserError(
            "this is a Spark Connect session, which can neither run a pipeline nor read its tables: both must run in the "
            "driver process. Use a classic session: SparkSession.builder.master(...)"
            ".getOrCreate() in the driver, or spark-submit"
        )
    if not isinstance(session, SparkSession):
        raise UserError(
            f"spark={session!r} is not a SparkSession; leave it out to get one with good defaults"
        )


def _set_needed(session: SparkSession) -> None:
    for key, value in NEEDED.items():
        session.conf.set(key, value)
    # With RocksDB state files get unique names, so no two attempts can write the same file.
    version = "2" if "RocksDB" in (session.conf.get(PROVIDER) or "") else "1"
    session.conf.set("spark.sql.streaming.stateStore.checkpointFormatVersion", version)


def _configure_s3a(known: Settings, conf: Settings) -> None:
    """Configure Hadoop's S3A with the server that the environment names, which the store uses too. (Spark itself passes
    on the keys.) What the user has set, in `known`, is kept. The rest goes to `conf`: Hadoop's own settings, or those of
    a session, which apply to everything that the session reads and writes."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if endpoint and known.get("fs.s3a.endpoint", "") in ("", endpoint):
        conf.set("fs.s3a.endpoint", endpoint)
        conf.set("fs.s3a.path.style.access", "true")
    if region and not known.get("fs.s3a.endpoint.region", ""):
        conf.set("fs.s3a.endpoint.region", region)


def check_reach(session: SparkSession, url: str) -> None:
    """Raise `UserError` if this session has no file system for such URLs."""
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
