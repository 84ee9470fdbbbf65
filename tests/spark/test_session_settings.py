"""Starting Spark, and the settings of sessions, with a model of Spark's Java side."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest
from py4j.protocol import Py4JJavaError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.sql import SparkSession

from cutwater.protocol.base.errors import UserError
from cutwater.spark import session
from cutwater.spark.internals import gateway


def test_spark_starts_in_its_own_process_group_and_py4j_logs_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launched: list[Any] = []
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(SparkContext, "_jvm", None)
    monkeypatch.setattr(SparkContext, "_ensure_initialized", lambda gateway: launched.append(gateway))
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setattr(gateway, "launch_gateway", lambda conf, how: (dict(conf.getAll()), how))
    root, py4j = logging.getLogger(), logging.getLogger("py4j")
    monkeypatch.setattr(root, "filters", [])
    monkeypatch.setattr(py4j, "level", logging.INFO)
    gateway.launch_apart("cutwater shop", "local[2]", {"spark.x": "y"})
    conf = {"spark.master": "local[2]", "spark.app.name": "cutwater shop", "spark.x": "y"}
    assert launched == [(conf, {"process_group": 0})]
    assert py4j.level == logging.CRITICAL
    assert len(root.filters) == 1
    monkeypatch.setattr(SparkContext, "_gateway", object())
    gateway.launch_apart("cutwater shop", "local[2]", {})
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    gateway.launch_apart("cutwater shop", "local[2]", {})
    assert len(launched) == 1, "one is already running"


class Values(dict[str, str]):
    """Settings with the interface of Spark's and Hadoop's."""

    def set(self, key: str, value: str) -> None:
        self[key] = value


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


@pytest.mark.usefixtures("no_s3_environment")
def test_spark_uses_the_s3_server_of_the_environment_unless_the_user_has_set_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def told(**before: str) -> dict[str, str]:
        given = FakeSession()
        given.hadoop.update({f"fs.s3a.endpoint{key}": value for key, value in before.items()})
        session._configure_s3a(given.hadoop, given.hadoop)
        return {key.removeprefix("fs.s3a."): value for key, value in given.hadoop.items()}

    monkeypatch.setenv("AWS_DEFAULT_REGION", "here")
    assert told() == {"endpoint.region": "here"}
    monkeypatch.setenv("AWS_REGION", "there")
    assert told() == {"endpoint.region": "there"}
    assert told(**{".region": "own"}) == {"endpoint.region": "own"}
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://a")
    server = {"endpoint": "http://a", "path.style.access": "true", "endpoint.region": "there"}
    assert told() == told(**{"": "http://a"}) == server
    assert told(**{"": "http://own"}) == {"endpoint": "http://own", "endpoint.region": "there"}
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://b")
    assert told()["endpoint"] == "http://b"


def test_the_error_for_an_unreachable_bucket_names_the_missing_package() -> None:
    given = FakeSession()
    session.check_reach(given, "file:///x")
    with pytest.raises(UserError, match=r"spark.jars.packages=org.apache.hadoop:hadoop-aws:3\.4\.2"):
        session.check_reach(given, "s3a://b/x")
    with pytest.raises(UserError, match="put a Hadoop file system for gs://"):
        session.check_reach(given, "gs://b/x")


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
