"""The archive of Java's classes: which one a start uses, and that no archive at all keeps it from starting."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cutwater.protocol.base.errors import UserError
from cutwater.spark import class_archive, session
from cutwater.spark.internals.gateway import LaunchFailed
from cutwater.spark.packages import PACKAGES


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for archives of a machine with one Java and one Spark."""
    java, spark = tmp_path / "java", tmp_path / "spark"
    for path, text in {java / "bin/java": "", java / "release": "17", spark / "jars/core.jar": "c"}.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setenv("JAVA_HOME", str(java))
    monkeypatch.setenv("SPARK_HOME", str(spark))
    folder = tmp_path / "archives"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv(class_archive.SWITCH, str(folder))
    return folder


def archive(place: Path, content: bytes = b"classes") -> Path:
    made = place / "made"
    made.write_bytes(content)
    wanted = class_archive.key()
    assert wanted is not None
    return class_archive.put(made, wanted)


def test_an_archive_is_found_by_the_next_start(place: Path) -> None:
    assert class_archive.find() is None
    path = archive(place)
    assert class_archive.find() == path
    assert f"-XX:SharedArchiveFile={path}" in class_archive.options(path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b"klasses"),
        lambda path: path.write_bytes(b"clas"),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"classes and more"),
    ],
)
def test_a_damaged_archive_is_not_used_and_makes_room_for_another(
    place: Path, damage: Callable[[Path], None]
) -> None:
    path = archive(place)
    damage(path)
    assert class_archive.find() is None
    assert not path.exists()
    assert class_archive.find() is None
    assert archive(place) == path == class_archive.find()


@pytest.mark.parametrize(
    ("name", "text"), [("java/release", "21"), ("java/bin/java", "another"), ("spark/jars/core.jar", "d+")]
)
def test_the_archive_of_another_java_or_spark_is_not_used(place: Path, name: str, text: str) -> None:
    path = archive(place)
    (place.parent / name).write_text(text)
    assert class_archive.find() is None
    assert path.exists(), "another environment of this user may use it"


def test_an_archive_that_was_made_in_another_way_is_not_used(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(place)
    monkeypatch.setattr(class_archive, "TRAINING", "0")
    assert class_archive.find() is None


@pytest.mark.parametrize(("which", "mode"), [("archive", 0o620), ("folder", 0o777)])
def test_an_archive_that_others_can_write_is_not_used(place: Path, which: str, mode: int) -> None:
    path = archive(place)
    (path if which == "archive" else place).chmod(mode)
    assert class_archive.find() is None


def test_a_start_does_not_need_a_usable_folder(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.rmdir()
    assert class_archive.find() is None
    place.write_text("a file")
    assert class_archive.find() is None
    monkeypatch.setenv("JAVA_HOME", str(place / "gone"))
    assert class_archive.find() is None


def test_a_start_does_not_need_a_readable_archive(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive(place)

    def refuse(path: Path) -> str:
        raise PermissionError(path)

    monkeypatch.setattr(class_archive, "digest", refuse)
    assert class_archive.find() is None


def test_only_the_archives_that_were_used_last_are_kept(place: Path) -> None:
    paths = [archive(place, f"classes {n}".encode()) for n in range(class_archive.KEPT)]
    for age, path in enumerate(paths):
        os.utime(path, (1_000 - age, 1_000 - age))
    new = archive(place, b"newest")
    assert set(place.glob("*.jsa")) == {new, paths[0]}


@pytest.mark.parametrize(
    ("settings", "folder"),
    [
        ({class_archive.SWITCH: "off", "XDG_CACHE_HOME": "/caches"}, None),
        ({class_archive.SWITCH: "/mine", "XDG_CACHE_HOME": "/caches"}, "/mine"),
        ({"XDG_CACHE_HOME": "/caches"}, "/caches/cutwater"),
        ({"HOME": "/home/me"}, "/home/me/.cache/cutwater"),
    ],
)
def test_archives_are_in_the_users_folder_for_caches_unless_they_are_switched_off(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], folder: str | None
) -> None:
    for name in (class_archive.SWITCH, "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.platform", "linux")
    assert class_archive.folder() == (Path(folder) if folder is not None else None)


# --- the start of a session ------------------------------------------------------------------------------


class Launches:
    """Starts of a JVM: `fails` says which of them fail."""

    def __init__(self, *fails: bool, lines: tuple[str, ...] = ("it says why",)) -> None:
        self.fails = list(fails)
        self.lines = list(lines)
        self.options: list[tuple[str, ...]] = []

    def __call__(
        self, settings: Any, quiet: str, hold_output: bool, java_options: tuple[str, ...] = ()
    ) -> dict[str, str]:
        self.options.append(tuple(java_options))
        if self.fails.pop(0):
            raise LaunchFailed(self.lines)
        return {"spark.of": "others"}


@pytest.fixture
def no_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "has_jvm", lambda: False)


@pytest.mark.usefixtures("no_jvm")
def test_a_session_is_started_with_the_archive(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = archive(place)
    launch = Launches(False)
    monkeypatch.setattr(session, "launch", launch)
    assert session._launch({}) == {"spark.of": "others"}
    assert launch.options == [class_archive.options(path)]


@pytest.mark.usefixtures("no_jvm")
def test_a_jvm_that_ends_with_the_archive_is_started_without_it_and_the_archive_is_removed(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = archive(place)
    launch = Launches(True, False)
    monkeypatch.setattr(session, "launch", launch)
    assert session._launch({}) == {"spark.of": "others"}
    assert launch.options == [class_archive.options(path), ()]
    assert [name.name for name in place.iterdir()] == [f"{class_archive.key()}.rejected"]


def test_a_start_does_not_need_to_remove_a_rejected_archive(place: Path) -> None:
    class_archive.reject(place / "gone" / "key-digest.jsa")


@pytest.mark.usefixtures("no_jvm")
def test_an_archive_is_not_blamed_for_a_jvm_that_ends_without_it_too(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = archive(place)
    monkeypatch.setattr(session, "launch", Launches(True, True))
    with pytest.raises(UserError, match="ended while it started"):
        session._launch({PACKAGES: "a:b:1"})
    assert path.exists()


@pytest.mark.usefixtures("no_jvm")
def test_packages_that_cannot_be_resolved_are_looked_for_once(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = archive(place)
    launch = Launches(True, lines=(":: unresolved dependency: a#b;1: not found",))
    monkeypatch.setattr(session, "launch", launch)
    with pytest.raises(UserError, match="cannot find the package a:b:1 "):
        session._launch({PACKAGES: "a:b:1"})
    assert launch.options == [class_archive.options(path)]
    assert path.exists()


def test_the_jvm_of_others_is_not_asked_to_use_the_archive(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(place)
    launch = Launches(False)
    monkeypatch.setattr(session, "launch", launch)
    monkeypatch.setattr(session, "has_jvm", lambda: True)
    session._launch({})
    assert launch.options == [()]


# --- with Java -------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("java") is None, reason="no Java on the PATH")
@pytest.mark.slow
def test_java_silently_starts_without_a_file_that_is_not_an_archive(tmp_path: Path) -> None:
    path = tmp_path / "an archive"
    plain = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True)
    for content in (b"", b"no archive", b"\0" * 100_000):
        path.write_bytes(content)
        command = ["java", *class_archive.options(path), "-version"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        said = (done.stdout + done.stderr).replace("mixed mode)", "mixed mode, sharing)")
        assert said == plain.stderr, "it says nothing, and shares none but perhaps its own classes"
