"""The Spark session: a new one with good defaults, or a copy of the user's, with the settings that queries need."""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import resources
from threading import Thread
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pyspark
from pyspark.sql import SparkSession

from cutwater.protocol.base.errors import UserError
from cutwater.spark import class_archive
from cutwater.spark.internals.gateway import CALL_ERRORS, LaunchFailed, has_active_context, has_jvm, launch
from cutwater.spark.internals.java import FILE_MANAGER, Java
from cutwater.spark.internals.sessions import (
    FileSystemFailed,
    Settings,
    clone,
    given_settings,
    hadoop_conf,
    hadoop_version,
    has_file_system,
    session_hadoop_conf,
    set_from_environment,
    use_file_system,
    write_no_checksum_files,
)
from cutwater.spark.packages import PACKAGES, unresolved, unresolved_message
from cutwater.store import s3_access

NEVER = "1000000000"
_FILE_SYSTEMS = {"s3a": "org.apache.hadoop:hadoop-aws", "abfss": "org.apache.hadoop:hadoop-azure"}
"""The packages with Hadoop's file systems for buckets, which do not come with Spark."""

_IMPATIENT = {
    "fs.s3a.attempts.maximum": "2",
    "fs.s3a.retry.limit": "1",
    "fs.s3a.retry.interval": "200ms",
    "fs.s3a.retry.throttle.limit": "2",
    "fs.s3a.connection.establish.timeout": "5s",
    "fs.s3a.connection.timeout": "10s",
    "fs.azure.io.retry.max.retries": "1",
}
"""Hadoop's file systems retry for minutes. The check at the start does not."""
_TRIAL_S = 60.0
"""Loading the classes takes a few seconds, longer on a busy machine."""

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
    # Only Spark itself knows that dates before 1582 were written in the old calendar; other readers get wrong ones.
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    "spark.sql.streaming.noDataMicroBatches.enabled": "true",
}
"""Settings that every query needs. Set only in our own sessions, including copies; never in the user's."""

DEFAULTS = {
    PROVIDER: ROCKSDB,
    "spark.scheduler.mode": "FAIR",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "5",
    "spark.sql.streaming.stateStore.maintenanceInterval": "15s",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    # Spark and Cutwater write every file under a name of its own, so S3A need not look first: a quarter fewer lists.
    "spark.hadoop.fs.s3a.performance.flags": "create,delete,mkdir",
}
"""Further settings of a session that we make, unless somebody has set them."""

MASTER = "spark.master"
APP = "spark.app.name"


def make_session(
    name: str,
    master: str | None = None,
    conf: dict[str, str] | None = None,
    log: Callable[[str], None] = lambda line: None,
) -> SparkSession:
    """Make a session with a new SparkContext. What is given here wins, as what a program sets does in Spark; then what
    was submitted (spark-submit, `PYSPARK_SUBMIT_ARGS`, spark-defaults.conf); then our defaults. Only the settings that
    queries need override all of them: `log` is called with a line for each setting that they replace.

    Raises `UserError` if this process already has a SparkContext, if there is no Java, or if Cutwater cannot work with
    this build of Spark."""
    refuse_active_session()
    return set_up_session(name, master, conf, log)


def set_up_session(
    name: str,
    master: str | None = None,
    conf: dict[str, str] | None = None,
    log: Callable[[str], None] = lambda line: None,
) -> SparkSession:
    """The same as `make_session`, but a SparkContext that this process already has is used, and its session's settings
    are changed. Only for who knows that it is our own."""
    if not (os.environ.get("JAVA_HOME") or shutil.which("java")):
        raise UserError(
            "Spark needs Java 17 or later, and there is none on the PATH; install it (Debian: "
            "apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17) or set JAVA_HOME"
        )
    given = dict(conf or {})
    master = master or given.get(MASTER)
    wanted = master or os.environ.get("SPARK_MASTER")
    first = {**given, MASTER: wanted} if wanted else given
    submitted = _launch(first)
    master = master or submitted.get(MASTER) or wanted or f"local[{os.cpu_count() or LOCAL_TASKS}]"
    settings = dict(DEFAULTS)
    if master.startswith("local"):
        _use_quick_python()
        settings["spark.ui.enabled"] = "false"
        settings["spark.sql.shuffle.partitions"] = str(min(os.cpu_count() or LOCAL_TASKS, 8))
    settings = {key: value for key, value in settings.items() if key not in submitted} | given
    for key, value in NEEDED.items():
        before = settings.get(key, submitted.get(key, value))
        if before != value:
            log(f"{key} is set to {value} instead of {before}, because Cutwater needs it")
    builder: Any = SparkSession.builder
    builder = builder.appName(_app_name(name, submitted)).master(master)
    for key, value in {**settings, **NEEDED}.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    java = Java.of(session)
    if FILE_MANAGER_KEY not in {*given, *submitted}:
        session.conf.set(FILE_MANAGER_KEY, java.name(FILE_MANAGER))
    write_no_checksum_files(session)
    hadoop = hadoop_conf(session)
    _configure_s3a(hadoop, hadoop)
    _set_needed(session)
    return session


def _launch(settings: dict[str, str]) -> dict[str, str]:
    """Start Spark's JVM, and return the settings that others have given it. Raises `UserError`, in one line, if it cannot
    find a package that it is configured to load."""
    quiet = str(resources.files("cutwater.spark").joinpath("log4j2.properties"))
    archive = class_archive.find() if not has_jvm() else None
    if archive is None:
        return _launch_plainly(settings, quiet)
    options = class_archive.options(archive)
    try:
        return launch(settings, quiet, hold_output=PACKAGES in settings, java_options=options)
    except LaunchFailed as error:
        if missing := unresolved(error.lines):  # the archive is not to blame, and looking again takes a while
            raise UserError(unresolved_message(missing)) from error
    submitted = _launch_plainly(settings, quiet)
    class_archive.reject(archive)  # without it Spark starts, so it is to blame
    return submitted


def _launch_plainly(settings: dict[str, str], quiet: str) -> dict[str, str]:
    try:
        return launch(settings, quiet, hold_output=PACKAGES in settings)
    except LaunchFailed as error:
        missing = unresolved(error.lines)
        if missing:
            raise UserError(unresolved_message(missing)) from error
        sys.stderr.write("".join(f"{line}\n" for line in error.lines))
        raise UserError(f"{error}; what it printed is above") from error


def _app_name(name: str, submitted: dict[str, str]) -> str:
    """The application's name: the submitted one, unless it is the one that spark-submit makes up."""
    made_up = ("", os.path.basename(sys.argv[0]))
    found = submitted.get(APP, "")
    return f"cutwater {name}" if found in made_up else found


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
    """Let Hadoop's S3A and the store reach the same S3 with the same settings. Those that the user has given for S3A, in
    `known`, are adopted for the store; those that the environment adds go to `conf`: Hadoop's own settings, or those of a
    session, which apply to everything that the session reads and writes."""
    names = "|".join(map(re.escape, s3_access.SETTINGS))
    given = given_settings(known, rf"^fs\.s3a\.(bucket\..+\.)?({names})$")
    for key, value in s3_access.from_environment(given).items():
        if conf is known:
            set_from_environment(conf, key, value)
        else:
            conf.set(key, value)
    s3_access.adopt(given)


def check_reach(session: SparkSession, url: str) -> None:
    """Raise `UserError` if this session has no file system for such URLs."""
    scheme = url.partition(":")[0]
    if not has_file_system(session, scheme):
        raise UserError(_no_file_system(session, scheme))


def missing_file_system(session: SparkSession, error: str) -> str | None:
    """What to do about an error of Spark if it means that there is no file system for a URL."""
    scheme = re.search(r'No FileSystem for scheme "?([\w+.-]+)', error)
    if scheme is not None:
        return _no_file_system(session, scheme[1])
    lacks = re.search(r"Class org\.apache\.hadoop\.fs\.(s3a|azurebfs)\.\w+ not found", error)
    return (
        _no_file_system(session, {"azurebfs": "abfss"}.get(lacks[1], lacks[1])) if lacks is not None else None
    )


def _no_file_system(session: SparkSession, scheme: str) -> str:
    package = _FILE_SYSTEMS.get(scheme)
    advice = (
        f"start with --conf {PACKAGES}={package}:{hadoop_version(session)}, or put that jar and its "
        "dependencies on Spark's class path"
        if package
        else f"put a Hadoop file system for {scheme}:// on Spark's class path"
    )
    return f"Spark cannot read or write {scheme}:// yet; {advice}"


def try_file_systems(session: SparkSession, roots: Iterable[str]) -> None:
    """Write, read, list and delete an object below each of these URLs, through Spark's file systems for them. Raises
    `UserError`, within seconds, for the first with which this session cannot: `check_reach`, or whatever the server
    says."""
    buckets: dict[tuple[str, str], list[str]] = {}
    for root in dict.fromkeys(roots):
        check_reach(session, root)
        scheme, bucket, *_ = urlsplit(root)
        if scheme != "file":
            buckets.setdefault((scheme, bucket), []).append(root)
    for below in buckets.values():
        _try_bucket(session, below)


def _try_bucket(session: SparkSession, roots: list[str]) -> None:
    failed: list[FileSystemFailed] = []
    probe = f"/.cutwater-{uuid4().hex}"
    tried = [roots[0]]

    def attempt() -> None:
        try:
            urls = [f"{root}{probe}" for root in roots]
            use_file_system(session, urls, _IMPATIENT, lambda url: tried.append(url.removesuffix(probe)))
        except FileSystemFailed as error:
            failed.append(error)

    thread = Thread(target=attempt, name="file system", daemon=True)
    thread.start()
    thread.join(_TRIAL_S)
    reason = str(failed[0]) if failed else f"no answer within {_TRIAL_S:g} s"
    if failed or thread.is_alive():
        scheme = tried[-1].partition(":")[0]
        raise UserError(
            f"Spark cannot use {tried[-1]}: {reason}. Cutwater itself can, so compare Spark's settings with the "
            f"environment: --conf spark.hadoop.fs.{scheme}.* wins over it"
        )


def hush(session: SparkSession) -> None:
    """Silences Spark's console output, for a stop whose cause is already known."""
    with suppress(*CALL_ERRORS):  # the JVM is gone, and prints nothing any more
        session.sparkContext.setLogLevel("OFF")
