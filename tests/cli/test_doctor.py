"""`cutwater doctor`: versions, what is missing, and attempts at the store."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any

import pytest

import cutwater
from cutwater.cli import doctor
from cutwater.cli.doctor import Part, package
from cutwater.protocol.base.errors import StoreError
from cutwater.spark import class_archive, session
from cutwater.spark.internals import gateway
from cutwater.store.local import LocalStore, open_folder
from cutwater.store.probe import try_store
from tests.support.command_helpers import call, document


@pytest.fixture(autouse=True)
def usual_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPARK_HOME", "SPARK_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(doctor, "java", lambda: Part("Java", "17.0.1", "/java"))


def parts(found: Any) -> dict[str, Any]:
    return {part["name"]: part for part in found["parts"]}


def test_it_shows_the_version_of_everything_and_starts_no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "make_session", lambda *_: pytest.fail("Spark is started"))
    found = document("doctor")
    assert found["ok"]
    known = parts(found)
    declared = {doctor.package(need).name for need in requires("cutwater") or () if ";" not in need}
    assert {"pyspark", "deltalake", "obstore", "eclipse-zenoh", "pyarrow"} <= declared <= {*known}
    assert {"Python", "Java", "Spark", "Hadoop", "system", "cores", "memory", "connectors"} <= {*known}
    assert known["cutwater"]["version"] == cutwater.__version__
    assert known["Spark"]["version"] == known["pyspark"]["version"]
    assert known["Hadoop"]["version"]
    text = call("doctor")
    assert text.exit_code == 0
    assert text.stdout.splitlines()[-1] == "nothing is missing"


def test_something_missing_is_reported_with_what_to_do_and_exits_with_1(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def version(name: str) -> str:
        if name == "deltalake":
            raise PackageNotFoundError
        return "4.4.0" if name == "pyspark" else "99"

    monkeypatch.setattr(doctor, "version", version)
    monkeypatch.setattr(
        doctor, "requires", lambda _: ["deltalake>=1.6", "pyspark<4.4,>=4.0", "x; extra == 'dev'"]
    )
    monkeypatch.setattr(doctor, "spark_home", lambda: None)
    found = document("doctor", code=1)
    assert not found["ok"]
    problems = {part["name"]: part["problem"] for part in found["parts"] if part["problem"]}
    assert problems == {
        "deltalake": "it is not installed; run: pip install 'deltalake>=1.6'",
        "pyspark": "4.4.0 is not supported; run: pip install 'pyspark<4.4,>=4.0'",
    }
    text = call("doctor")
    assert text.exit_code == 1
    assert text.stdout.splitlines()[-1] == "2 problems"
    assert "deltalake: it is not installed" in text.stdout


@pytest.mark.parametrize(
    ("need", "installed", "fits"),
    [
        ("pyspark<4.4,>=4.0", "4.3.0", True),
        ("pyspark<4.4,>=4.0", "4.4", False),
        ("pyspark<4.4,>=4.0", "4.0.0.dev1", True),
        ("pyspark<4.4,>=4.0", "3.5.6", False),
        ("obstore>=0.12", "0.9.1", False),
        ("obstore>=0.12", "0.12", True),
        ("pandas<3", "3.0.0rc1", False),
        ("rich", "1", True),
        ("a>1", "1", False),
        ("a<=1.2", "1.2.3", True),
    ],
)
def test_versions_are_compared_as_numbers(
    monkeypatch: pytest.MonkeyPatch, need: str, installed: str, fits: bool
) -> None:
    monkeypatch.setattr(doctor, "version", lambda name: installed)
    assert (package(need).problem == "") is fits


@pytest.fixture
def javas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a Java home whose `java -version` prints this."""
    monkeypatch.undo()

    def make(said: str, code: int = 0) -> Path:
        home = tmp_path / "jdk"
        (home / "bin").mkdir(parents=True, exist_ok=True)
        (home / "bin/java").write_text(f"#!/bin/sh\necho '{said}' >&2\nexit {code}\n")
        (home / "bin/java").chmod(0o755)
        monkeypatch.setenv("JAVA_HOME", str(home))
        return home

    return make


def test_the_java_of_java_home_is_asked_for_its_version(javas: Any) -> None:
    home = javas('openjdk version "21.0.2" 2024-01-16')
    assert doctor.java() == Part("Java", "21.0.2", str(home / "bin/java"))
    javas('java version "1.8.0_392"')
    assert "Spark needs Java 17 or later" in doctor.java().problem
    javas("something else")
    assert doctor.java().version == "unknown"
    javas("broken", 1)
    assert f"correct JAVA_HOME, which is {home}" in doctor.java().problem
    shutil.rmtree(home)
    assert doctor.java().version is None


def test_a_missing_java_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    found = doctor.java()
    assert found.version is None
    assert "apt-get install openjdk-17-jre-headless" in found.problem


def test_an_old_python_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.python().problem == ""
    monkeypatch.setattr(sys, "version_info", (3, 10, 1))
    assert "needs Python 3.11 or later" in doctor.python().problem


def test_connectors_settings_and_a_foreign_spark_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    (missing,) = [part for part in doctor.spark_jars() if part.name == "Spark"]
    assert "has no Spark in jars/" in missing.problem
    (tmp_path / "jars").mkdir()
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/spark-defaults.conf").write_text("spark.x y")
    jars = (
        "spark-core_2.13-4.0.1",
        "hadoop-client-api-3.4.1",
        "hadoop-aws-3.4.1",
        "spark-sql-kafka-0-10_2.13-4.0.1",
    )
    for jar in jars:
        (tmp_path / "jars" / f"{jar}.jar").touch()
    monkeypatch.setattr(doctor, "version", lambda name: "4.0.5")
    found = {part.name: part for part in doctor.spark_jars()}
    assert {name: part.version for name, part in found.items()} == {
        "Spark": "4.0.1", "Hadoop": "3.4.1", "connector: Kafka": "4.0.1", "connector: S3": "3.4.1",
        "Spark's settings": "found",
    }  # fmt: skip
    assert found["Spark"].problem == ""
    monkeypatch.setattr(doctor, "version", lambda name: "4.3.0")
    (other,) = [part for part in doctor.spark_jars() if part.name == "Spark"]
    assert "has Spark 4.0.1, and the Python side is pyspark 4.3.0" in other.problem


def test_a_store_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    store = tmp_path / "state"
    open_folder(store, create=True)
    before = sorted(tmp_path.rglob("*.json"))
    assert parts(document("doctor", "--store", store))["store"]["version"] == "works"
    assert sorted(tmp_path.rglob("*.json")) == before
    (tmp_path / "file").touch()
    found = document("doctor", "--store", tmp_path / "file", code=1)
    assert "is a file, but a store is a folder" in parts(found)["store"]["problem"]


@pytest.mark.parametrize(
    ("operation", "answer", "message"),
    [
        ("create", True, "let two writers create the same object"),
        ("create", False, "did not create a new object"),
        ("read", None, "did not give back what was written"),
        ("list", [], "did not list an object"),
        ("delete", None, "still has an object that was deleted"),
    ],
)
def test_a_store_that_breaks_a_promise_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, answer: Any, message: str
) -> None:
    store = open_folder(tmp_path, create=True)
    monkeypatch.setattr(LocalStore, operation, lambda *_: answer)
    with pytest.raises(StoreError, match=message):
        try_store(store)


def test_a_session_is_tried_only_if_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done: list[Any] = []

    class Session:
        version = "4.3.0"

        class sparkContext:
            master = "local[1]"

        def range(self, count: int) -> Any:
            return type("Rows", (), {"count": lambda self: done.append("job")})()

    def make(name: str, master: str | None, conf: dict[str, str]) -> Session:
        done.append((name, master, conf))
        return Session()

    monkeypatch.setattr(session, "make_session", make)
    monkeypatch.setattr(session, "try_file_systems", lambda session, roots: done.append(roots))
    monkeypatch.setattr(gateway, "end_session", lambda session: done.append("ended"))
    words = ["doctor", "--spark", "--master", "local[1]", "--conf", "spark.x=y", "--store", str(tmp_path)]
    found = parts(document(*words))
    assert (found["Spark session"]["version"], found["Spark session"]["where"]) == ("4.3.0", "local[1]")
    assert done == [("doctor", "local[1]", {"spark.x": "y"}), [tmp_path.as_uri()], "job", "ended"]


def test_it_is_quick_and_needs_no_pyspark() -> None:
    program = "import sys; import cutwater.cli.doctor; print([m for m in sys.modules if m == 'pyspark'])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_it_shows_the_archive_of_java_classes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(class_archive.SWITCH, "off")
    assert doctor.archive() == Part("class archive", "off")
    monkeypatch.setenv(class_archive.SWITCH, str(tmp_path))
    monkeypatch.setattr(class_archive, "key", lambda: "key")
    assert doctor.archive().version == "none yet"
    assert str(tmp_path) in doctor.archive().where
    tmp_path.chmod(0o775)
    assert "others may write" in doctor.archive().where
    tmp_path.chmod(0o700)
    (tmp_path / "made").write_bytes(b"classes")
    path = class_archive.put(tmp_path / "made", "key")
    assert doctor.archive() == Part("class archive", "7 B", str(path))


def test_a_folder_that_is_not_there_is_tried_and_not_left_behind(tmp_path: Path) -> None:
    found = parts(document("doctor", "--store", tmp_path / "mistyped/folder"))["store"]
    assert (found["version"], "no such folder yet" in found["where"]) == ("works", True)
    assert list(tmp_path.iterdir()) == []
    document("doctor", "--store", (tmp_path / "mistyped").as_uri())
    assert list(tmp_path.iterdir()) == []
