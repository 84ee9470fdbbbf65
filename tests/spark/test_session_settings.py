"""Starting Spark, and the settings of sessions, with a model of Spark's Java side."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from threading import Event
from types import SimpleNamespace
from typing import Any, ClassVar

import pyspark
import pytest
from py4j.protocol import Py4JJavaError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.sql import SparkSession

from cutwater.protocol.base.errors import UserError
from cutwater.spark import session
from cutwater.spark.internals import gateway, sessions
from cutwater.spark.internals.java import FILE_MANAGER, Java
from cutwater.store import s3_access


class Gateway:
    """The way to a JVM that was started with these settings."""

    def __init__(self, conf: Any, how: dict[str, Any]) -> None:
        self.conf, self.how = dict(conf.getAll()), how
        self.options = os.environ["SPARK_SUBMIT_OPTS"]


class TheirGateway:
    """The way to a JVM that spark-submit has started."""


@pytest.fixture
def no_jvm(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """No JVM is running yet. Yields the settings of the one that is started, to which a test may add."""
    known: dict[str, str] = {}

    class Conf:
        def __init__(self, loadDefaults: bool = True, _jvm: Any = None) -> None:
            self.settings = dict(known) if loadDefaults else {}

        def setAll(self, pairs: list[tuple[str, str]]) -> Conf:
            self.settings.update(pairs)
            return self

        def getAll(self) -> list[tuple[str, str]]:
            return list(self.settings.items())

    def initialise(gateway: Gateway | None) -> None:
        if gateway is None:
            monkeypatch.setattr(SparkContext, "_gateway", TheirGateway())
        else:
            monkeypatch.setattr(SparkContext, "_gateway", gateway)
            known.update({**gateway.conf, **known})

    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(SparkContext, "_jvm", None)
    monkeypatch.setattr(SparkContext, "_ensure_initialized", initialise)
    monkeypatch.setattr(gateway, "SparkConf", Conf)
    monkeypatch.setattr(gateway, "launch_gateway", Gateway)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)
    monkeypatch.setattr(logging.getLogger(), "filters", [])
    monkeypatch.setattr(logging.getLogger("py4j"), "level", logging.INFO)
    return known


def test_spark_starts_in_its_own_process_group_and_py4j_logs_nothing(no_jvm: dict[str, str]) -> None:
    assert gateway.launch({"spark.x": "y"}, "/a b/log4j2") == {}
    started: Any = SparkContext._gateway
    assert (started.conf, started.how) == ({"spark.x": "y"}, {"process_group": 0})
    assert started.options == "'-Dlog4j2.configurationFile=/a b/log4j2'"
    assert "SPARK_SUBMIT_OPTS" not in os.environ
    assert logging.getLogger("py4j").level == logging.CRITICAL
    assert len(logging.getLogger().filters) == 1
    gateway.launch({"spark.z": "z"}, "log4j2")
    assert SparkContext._gateway is started, "one is already running"


def test_options_of_the_environment_for_the_jvm_are_kept(
    no_jvm: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Dmine")
    gateway.launch({}, "log4j2")
    started: Any = SparkContext._gateway
    assert started.options == "-Dlog4j2.configurationFile=log4j2 -Dmine"
    assert os.environ["SPARK_SUBMIT_OPTS"] == "-Dmine"


def test_settings_of_a_defaults_file_are_distinguished_from_those_of_spark_itself_and_of_an_earlier_run(
    no_jvm: dict[str, str],
) -> None:
    no_jvm |= {
        "spark.of.the.file": "1",
        "spark.ui.showConsoleProgress": "true",
        "spark.app.name": "pyspark-shell",
    }
    assert gateway.launch({"spark.x": "y"}, "log4j2") == {"spark.of.the.file": "1"}
    assert gateway.launch({}, "log4j2") == {"spark.of.the.file": "1"}, "x is of the run before"


def test_under_spark_submit_no_second_jvm_is_started(
    no_jvm: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    no_jvm["spark.master"] = "yarn"
    assert gateway.launch({"spark.x": "y"}, "log4j2") == {"spark.master": "yarn"}
    assert isinstance(SparkContext._gateway, TheirGateway)
    assert logging.getLogger("py4j").level == logging.CRITICAL


class JavaSignals:
    """Java's `Signal`, with the handlers that are set."""

    def __init__(self) -> None:
        self.handlers: dict[str, Any] = {"TERM": "end TERM", "INT": "end INT"}

    def __call__(self, name: str) -> str:
        return name

    def handle(self, name: str, handler: Any) -> Any:
        before, self.handlers[name] = self.handlers[name], handler
        return before


def test_signals_to_the_jvm_are_caught_and_released(monkeypatch: pytest.MonkeyPatch) -> None:
    java, came = JavaSignals(), list[str]()
    jvm = SimpleNamespace(sun=SimpleNamespace(misc=SimpleNamespace(Signal=java)))
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(_jvm=jvm))
    monkeypatch.setattr(gateway, "accept_calls", lambda spark: came.append("accepts"))
    with gateway.jvm_signals(spark, ("TERM",), lambda: came.append("came")):
        java.handlers["TERM"].handle("SIGTERM")
        assert java.handlers["INT"] == "end INT"
    assert came == ["accepts", "came"]
    assert java.handlers["TERM"] == "end TERM"

    def refuse(*_: Any) -> None:
        raise Py4JNetworkError("it was started with -Xrs, or is gone")

    monkeypatch.setattr(java, "handle", refuse)
    with gateway.jvm_signals(spark, ("TERM",), lambda: came.append("came")):
        assert java.handlers["TERM"] == "end TERM"


class Values(dict[str, str]):
    """Settings with the interface of Spark's and Hadoop's."""

    def set(self, key: str, value: str, *source: str) -> None:
        self[key] = value

    def getValByRegex(self, pattern: str) -> dict[str, str]:
        return {key: value for key, value in self.items() if re.search(pattern, key)}

    def getPropertySources(self, key: str) -> list[str]:
        """Hadoop knows where each setting comes from."""
        return self.sources.get(key, ["programmatically"])

    sources: ClassVar[dict[str, list[str]]] = {}


class FakeSession(SparkSession):
    """A session without a JVM."""

    def __init__(self) -> None:
        self.settings, self.hadoop = Values(), Values()
        self.schemes = {"file"}
        self.stopped: BaseException | None = None
        self.level = ""

    @property
    def conf(self) -> Any:
        return self.settings

    @property
    def sparkContext(self) -> Any:
        def find(scheme: str, _: Any) -> None:
            if scheme not in self.schemes:
                raise Py4JJavaError("no", SimpleNamespace(_target_id="x", _gateway_client=None))

        fs = SimpleNamespace(FileSystem=SimpleNamespace(getFileSystemClass=find))
        version = SimpleNamespace(VersionInfo=SimpleNamespace(getVersion=lambda: "3.4.2"))
        hadoop = SimpleNamespace(fs=fs, util=version)
        jvm = SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(hadoop=hadoop)))
        return SimpleNamespace(
            _jsc=SimpleNamespace(hadoopConfiguration=lambda: self.hadoop),
            _jvm=jvm,
            setLogLevel=self._set_level,
        )

    def _set_level(self, level: str) -> None:
        if self.stopped is not None:
            raise self.stopped
        self.level = level

    def stop(self) -> None:
        if self.stopped is not None:
            raise self.stopped


@pytest.fixture
def no_s3_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("no_s3_environment")
def test_a_given_session_gets_the_settings_that_queries_need() -> None:
    for provider, version in (("", "1"), ("x.HDFSBackedStateStoreProvider", "1"), (session.ROCKSDB, "2")):
        given = FakeSession()
        if provider:
            given.settings[session.PROVIDER] = provider
        session._set_needed(given)
        assert session.NEEDED.items() <= given.settings.items()
        assert given.settings["spark.sql.streaming.stateStore.checkpointFormatVersion"] == version
        assert given.hadoop == {}
    with pytest.raises(UserError, match="is not a SparkSession"):
        session.refuse_unusable("local")
    connect = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})
    with pytest.raises(UserError, match="this is a Spark Connect session"):
        session.refuse_unusable(connect())


@pytest.fixture
def nothing_adopted() -> Iterator[None]:
    before = dict(s3_access._adopted)
    yield
    s3_access.adopt(before)


@pytest.mark.usefixtures("no_s3_environment", "nothing_adopted")
def test_spark_and_the_store_use_the_s3_server_of_the_environment_unless_the_user_has_set_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def s3_settings(**before: str) -> dict[str, str]:
        given = FakeSession()
        given.hadoop.update({f"fs.s3a.endpoint{key}": value for key, value in before.items()})
        session._configure_s3a(given.hadoop, given.hadoop)
        return {key.removeprefix("fs.s3a."): value for key, value in given.hadoop.items()}

    monkeypatch.setenv("AWS_DEFAULT_REGION", "here")
    assert s3_settings() == {"endpoint.region": "here"}
    monkeypatch.setenv("AWS_REGION", "there")
    assert s3_settings() == {"endpoint.region": "there"}
    assert s3_settings(**{".region": "own"}) == {"endpoint.region": "own"}
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://a")
    server = {"endpoint": "http://a", "path.style.access": "true", "endpoint.region": "there"}
    assert s3_settings() == s3_settings(**{"": "http://a"}) == server
    assert s3_settings(**{"": "http://own"}) == {**server, "endpoint": "http://own"}
    assert s3_access.access_to("s3://b/x").config["aws_endpoint"] == "http://own"
    assert s3_settings() == server
    assert s3_access._adopted == {}, "the environment would be remembered as if the user had given it"
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://b")
    assert s3_settings()["endpoint"] == "http://b"
    sources = {"fs.s3a.endpoint": ["core-default.xml", "Set by Spark on host from AWS_ENDPOINT_URL"]}
    monkeypatch.setattr(Values, "sources", sources)
    assert s3_settings(**{"": "http://a"})["endpoint"] == "http://b"
    assert s3_access.access_to("s3://b/x").config["aws_endpoint"] == "http://b"


def test_the_error_for_an_unreachable_bucket_names_the_missing_package() -> None:
    given = FakeSession()
    session.check_reach(given, "file:///x")
    with pytest.raises(UserError, match=r"spark.jars.packages=org.apache.hadoop:hadoop-aws:3\.4\.2"):
        session.check_reach(given, "s3a://b/x")
    with pytest.raises(UserError, match="put a Hadoop file system for gs://"):
        session.check_reach(given, "gs://b/x")


def test_an_error_of_a_file_system_is_reported_and_one_that_hangs_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = FakeSession()
    given.schemes.add("s3a")
    tried: list[str] = []

    def fail(_: object, urls: list[str], settings: dict[str, str], trying: Callable[[str], None]) -> None:
        assert settings["fs.s3a.retry.limit"] == "1"
        for url in urls:
            trying(url)
            tried.append(url)
            if "/readable/" not in url:
                raise sessions.FileSystemFailed("cannot write: Access Denied")

    monkeypatch.setattr(session, "use_file_system", fail)
    session.try_file_systems(given, ["file:///x"])
    assert tried == []
    with pytest.raises(
        UserError, match=r"^Spark cannot use s3a://b/x: cannot write: Access Denied\. .*fs\.s3a\."
    ):
        session.try_file_systems(given, ["s3a://b/x"])
    assert tried[0].startswith("s3a://b/x/.")
    tried.clear()
    roots = ["s3a://b/readable/store", "s3a://other/readable", "s3a://b/readable/store", "s3a://b/tables/t"]
    with pytest.raises(UserError, match=r"^Spark cannot use s3a://b/tables/t: cannot write: Access Denied"):
        session.try_file_systems(given, roots)
    assert [url.rpartition("/")[0] for url in tried] == ["s3a://b/readable/store", "s3a://b/tables/t"]
    forever = Event()
    monkeypatch.setattr(session, "use_file_system", lambda *_: forever.wait(30))
    monkeypatch.setattr(session, "_TRIAL_S", 0.1)
    with pytest.raises(UserError, match=r"s3a://b/x: no answer within 0\.1 s"):
        session.try_file_systems(given, ["s3a://b/x"])
    forever.set()
    with pytest.raises(UserError, match="Spark cannot read or write gs:// yet"):
        session.try_file_systems(given, ["gs://b/x"])


def java_error(name: str, message: str, cause: Any = None) -> Any:
    return SimpleNamespace(
        getMessage=lambda: message,
        getCause=lambda: cause,
        getClass=lambda: SimpleNamespace(getSimpleName=lambda: name),
    )


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (java_error("S3Exception", "Access Denied (Service: S3, Status Code: 403, ...)"), "Access Denied"),
        (java_error("S3Exception", "(Service: S3, Status Code: 404, Request ID: null)"), "status 404"),
        (java_error("UnknownHostException", "nope.invalid"), "UnknownHostException: nope.invalid"),
        (
            java_error("IOException", "x", java_error("ConnectException", "Connection refused")),
            "Connection refused",
        ),
        (
            java_error(
                "SdkClientException",
                "Unable to execute HTTP request: ... (SDK Attempt Count: 1)",
                java_error(
                    "HttpHostConnectException",
                    "Connect to 127.0.0.1:9 [/127.0.0.1] failed: Connection refused",
                    java_error("ConnectException", "Connection refused"),
                ),
            ),
            "Connect to 127.0.0.1:9 [/127.0.0.1] failed: Connection refused",
        ),
        (java_error("NullPointerException", ""), "NullPointerException"),
    ],
)
def test_an_error_of_hadoop_is_reported_with_the_message_of_its_cause(error: Any, expected: str) -> None:
    assert sessions._said(error) == expected


def test_spark_uses_the_python_of_this_process_unless_the_user_has_chosen_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "mine")
    session._use_quick_python()
    assert os.environ["PYSPARK_PYTHON"] == "mine"
    monkeypatch.delenv("PYSPARK_PYTHON")
    session._use_quick_python()
    launcher = os.environ["PYSPARK_PYTHON"]
    assert launcher != sys.executable
    show = "import os, sys; print(sys.executable, os.environ['PYTHONPATH'])"
    said = subprocess.run(
        [launcher, "-S", "-c", show],
        env={"PYTHONPATH": "/a:/spark/python/lib/pyspark.zip:/spark/python/lib/py4j-0.10-src.zip:/b"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert said.stdout.split() == [sys.executable, "/a:/b"]
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.setattr(pyspark, "__file__", "/spark/python/lib/pyspark.zip/pyspark/__init__.py")
    session._use_quick_python()
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_a_session_whose_jvm_is_gone_does_not_block_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    given = FakeSession()
    for is_gone in (False, True):
        process = SimpleNamespace(poll=lambda is_gone=is_gone: 137 if is_gone else None)
        known = SimpleNamespace(proc=process)
        monkeypatch.setattr(SparkContext, "_gateway", known)
        monkeypatch.setattr(SparkContext, "_jvm", "jvm")
        monkeypatch.setattr(SparkContext, "_active_spark_context", "context")
        monkeypatch.setattr(SparkSession, "_instantiatedSession", given)
        monkeypatch.setattr(SparkSession, "_activeSession", given)
        given.stopped = Py4JNetworkError("gone") if is_gone else None
        session.hush(given)
        gateway.end_session(given)
        assert given.level == "OFF"
        assert (SparkContext._gateway, SparkContext._jvm) == ((None, None) if is_gone else (known, "jvm"))
        left = (
            SparkContext._active_spark_context,
            SparkSession._instantiatedSession,
            SparkSession._activeSession,
        )
        assert left == ((None, None, None) if is_gone else ("context", given, given))


class Builder:
    """Takes what a session is to be made with."""

    def __init__(self) -> None:
        self.made = FakeSession()
        self.name = self.chosen = ""
        self.before: list[Any] = []
        """What was done before it was made, and with it then."""
        self.submitted: dict[str, str] = {}

    def launch(self, *how: Any, hold_output: bool) -> dict[str, str]:
        self.before.append(how)
        self.holds_output = hold_output
        return self.submitted

    def appName(self, name: str) -> Builder:
        self.name = name
        return self

    def master(self, master: str) -> Builder:
        self.chosen = master
        return self

    def config(self, key: str, value: str) -> Builder:
        self.made.settings[key] = value
        return self

    def getOrCreate(self) -> FakeSession:
        return self.made


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch, no_s3_environment: None) -> Builder:
    made = Builder()
    monkeypatch.setattr(SparkSession, "builder", made)
    monkeypatch.setattr(session, "launch", made.launch)
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(session, "write_no_checksum_files", made.before.append)
    monkeypatch.setattr(Java, "of", lambda spark: SimpleNamespace(name=lambda need: f"this {need.name}"))
    monkeypatch.setenv("JAVA_HOME", "/java")
    monkeypatch.setenv("PYSPARK_PYTHON", "mine")
    monkeypatch.delenv("SPARK_MASTER", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 12)
    return made


def test_a_session_of_our_own_has_good_defaults_and_what_is_given_wins(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_REGION", "here")
    zone = "spark.sql.session.timeZone"
    made: Any = session.make_session("shop", conf={zone: "Europe/Berlin", "spark.x": "y"})
    assert made is builder.made
    assert (builder.name, builder.chosen) == ("cutwater shop", "local[12]")
    (settings, quiet), written = builder.before
    assert settings == {zone: "Europe/Berlin", "spark.x": "y"}
    assert quiet.endswith("log4j2.properties")
    assert written is made
    assert made.settings[zone] == "Europe/Berlin"
    assert made.settings["spark.x"] == "y"
    assert {**session.NEEDED, **session.DEFAULTS, zone: ""}.items() <= {**made.settings, zone: ""}.items()
    assert made.settings["spark.sql.shuffle.partitions"] == "8", "as many as cores, up to 8"
    assert made.settings["spark.sql.streaming.stateStore.checkpointFormatVersion"] == "2"
    assert made.settings[session.FILE_MANAGER_KEY] == f"this {FILE_MANAGER.name}"
    assert made.settings["spark.ui.enabled"] == "false"
    assert made.hadoop == {"fs.s3a.endpoint.region": "here"}


def test_a_file_manager_that_is_given_is_kept(builder: Builder) -> None:
    session.make_session("shop", conf={session.FILE_MANAGER_KEY: "mine"})
    assert builder.made.settings[session.FILE_MANAGER_KEY] == "mine"


def test_what_spark_prints_is_held_back_while_it_resolves_packages(builder: Builder) -> None:
    for conf, is_held in (({}, False), ({"spark.jars.packages": "a:b:1"}, True)):
        session.make_session("shop", conf=conf)
        assert builder.holds_output is is_held


def test_the_master_is_the_given_one_or_the_submitted_one_or_the_environments(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_MASTER", "spark://there")
    session.make_session("shop", "local[3]")
    assert builder.chosen == "local[3]"
    session.make_session("shop", conf={"spark.master": "local[4]"})
    assert builder.chosen == "local[4]"
    builder.made.settings.clear()
    session.make_session("shop")
    assert builder.chosen == "spark://there"
    assert builder.before[-2][0] == {"spark.master": "spark://there"}
    assert "spark.sql.shuffle.partitions" not in builder.made.settings, "a cluster has as many as it has"
    assert "spark.ui.enabled" not in builder.made.settings
    builder.submitted = {"spark.master": "yarn"}
    session.make_session("shop")
    assert builder.chosen == "yarn"
    session.make_session("shop", "local[3]")
    assert builder.chosen == "local[3]", "as in Spark, what the program says wins"


def test_submitted_settings_win_over_defaults_and_given_ones_over_both(builder: Builder) -> None:
    zone, file_manager = "spark.sql.session.timeZone", session.FILE_MANAGER_KEY
    builder.submitted = {
        zone: "Asia/Tokyo",
        session.PROVIDER: "mine",
        file_manager: "mine",
        "spark.sql.shuffle.partitions": "3",
        "spark.ui.enabled": "true",
        "spark.scheduler.mode": "FIFO",
    }
    session.make_session("shop", conf={zone: "Europe/Berlin"})
    set_by_us = builder.made.settings
    assert set_by_us[zone] == "Europe/Berlin"
    assert {*builder.submitted} & {*set_by_us} == {zone}
    assert set_by_us["spark.sql.adaptive.enabled"] == "false"


def test_a_setting_that_queries_need_overrides_all_others_and_is_logged(builder: Builder) -> None:
    retain, deletion = "spark.sql.streaming.minBatchesToRetain", "spark.sql.streaming.fileSource.log.deletion"
    builder.submitted = {retain: "5", deletion: "false"}
    lines: list[str] = []
    session.make_session("shop", log=lines.append)
    assert lines == [f"{retain} is set to {session.NEVER} instead of 5, because Cutwater needs it"]
    assert builder.made.settings[retain] == session.NEVER
    session.make_session("shop", conf={deletion: "true"}, log=lines.append)
    assert lines[2:] == [f"{deletion} is set to false instead of true, because Cutwater needs it"]


@pytest.mark.parametrize(
    ("submitted", "shown"),
    [
        ({}, "cutwater shop"),
        ({"spark.app.name": "job.py"}, "cutwater shop"),
        ({"spark.app.name": "mine"}, "mine"),
    ],
)
def test_a_submitted_name_is_kept_unless_spark_has_made_it_up(
    builder: Builder, monkeypatch: pytest.MonkeyPatch, submitted: dict[str, str], shown: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["/jobs/job.py"])
    builder.submitted = submitted
    session.make_session("shop")
    assert builder.name == shown


def test_without_java_it_is_said_what_to_install(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setattr(shutil, "which", {"java": "/usr/bin/java"}.get)
    session.make_session("shop")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(UserError, match="Spark needs Java 17 or later, and there is none on the PATH"):
        session.make_session("shop")


def test_a_spark_context_that_is_there_is_not_changed_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    session.refuse_active_session()
    monkeypatch.setattr(SparkContext, "_active_spark_context", object())
    with pytest.raises(UserError, match=r"start\(..., spark=session\)"):
        session.refuse_active_session()


def test_a_session_is_not_made_from_one_that_is_there(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", object())
    with pytest.raises(UserError, match="only one SparkContext"):
        session.make_session("shop")
    assert builder.before == []


def test_what_others_log_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "filters", [])
    monkeypatch.setattr(logging.getLogger("py4j"), "level", logging.INFO)
    gateway.hush_py4j()

    def said(path: str) -> bool:
        return bool(root.filter(logging.LogRecord("root", logging.ERROR, path, 1, "", (), None)))

    assert not said("/lib/py4j/java_gateway.py")
    assert said("/lib/py4j/more/x.py")
    assert said("/home/py4j.py")


class Original:
    """A session of the user's, which Spark can copy."""

    def __init__(self, context: Any, inner: Any) -> None:
        self.sparkContext = context
        self._jsparkSession = inner
        self.settings = Values()
        self.said: list[str] = []

    @property
    def conf(self) -> Any:
        return self.settings

    @property
    def catalog(self) -> Any:
        return self._jsparkSession.catalog

    def sql(self, text: str) -> None:
        self.said.append(text)


def java_session(catalog: str = "spark_catalog", database: str = "default", *listeners: str) -> Any:
    heard = list(listeners)
    streams = SimpleNamespace(listListeners=lambda: list(heard), addListener=heard.append)
    hadoop = Values()
    return SimpleNamespace(
        catalog=SimpleNamespace(currentCatalog=lambda: catalog, currentDatabase=lambda: database),
        streams=lambda: streams,
        sessionState=lambda: SimpleNamespace(newHadoopConf=lambda: hadoop),
        cloneSession=lambda: java_session(),
    )


@pytest.mark.usefixtures("no_s3_environment")
@pytest.mark.parametrize(
    ("catalog", "database", "said"),
    [
        ("spark_catalog", "default", []),
        ("spark_catalog", "sales", []),
        ("derby", "default", ["USE `derby`"]),
        ("derby", "", ["USE `derby`"]),
        ("derby", "sales", ["USE `derby`", "USE NAMESPACE sales"]),
    ],
)
def test_a_copy_has_what_spark_leaves_out_of_it(
    monkeypatch: pytest.MonkeyPatch, catalog: str, database: str, said: list[str]
) -> None:
    for module in (session, sessions):
        monkeypatch.setattr(module, "SparkSession", Original)
    monkeypatch.setattr(Java, "of", lambda spark: None)
    monkeypatch.setenv("AWS_REGION", "here")
    users = Original("context", java_session(catalog, database, "one", "two"))
    copy: Any = session.copy_session(users)
    assert copy is not users
    assert copy.sparkContext == "context"
    assert copy.said == said
    assert copy._jsparkSession.streams().listListeners() == ["one", "two"]
    assert session.NEEDED.items() <= copy.settings.items()
    assert copy.settings["fs.s3a.endpoint.region"] == "here"
    assert (users.settings, users.said) == ({}, []), "the user's own is left as it is"


@pytest.mark.parametrize(
    ("error", "scheme", "package"),
    [
        ('UnsupportedFileSystemException: No FileSystem for scheme "s3a"', "s3a", "hadoop-aws"),
        (
            "java.lang.RuntimeException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found",
            "s3a",
            "hadoop-aws",
        ),
        ("Class org.apache.hadoop.fs.azurebfs.SecureAzureBlobFileSystem not found", "abfss", "hadoop-azure"),
        ("No FileSystem for scheme ftps", "ftps", "put a Hadoop file system for ftps://"),
    ],
)
def test_an_error_about_a_missing_file_system_says_what_to_add(error: str, scheme: str, package: str) -> None:
    said = session.missing_file_system(FakeSession(), error)
    assert said is not None
    assert said.startswith(f"Spark cannot read or write {scheme}:// yet")
    assert package in said


def test_other_errors_are_not_about_a_file_system() -> None:
    assert session.missing_file_system(FakeSession(), "Class org.example.Udf not found") is None
