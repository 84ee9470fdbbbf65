"""The settings of sessions, with a model of Spark's Java side."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from cutwater.protocol.base.errors import UserError
from cutwater.spark import session
from cutwater.spark.internals import sessions
from cutwater.spark.internals.java import FILE_MANAGER, Java
from tests.support.fake_session import FakeSession, Values, clear_s3_environment


@pytest.fixture
def no_s3_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    clear_s3_environment(monkeypatch)


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


def test_without_java_the_error_says_what_to_install(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
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
