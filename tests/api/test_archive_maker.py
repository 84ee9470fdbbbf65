"""Making the archive of Java's classes in the background: no failure of it reaches a run."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from cutwater.api import archive_maker
from cutwater.api.archive_maker import is_wanted, make, make_later
from cutwater.spark import class_archive
from tests.support.spark_helpers import await_that


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(class_archive.SWITCH, str(tmp_path / "caches/cutwater"))
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setattr(class_archive, "key", lambda: "key")
    monkeypatch.setattr(archive_maker, "MEMORY", 0)
    return tmp_path / "caches/cutwater"


def train(made: Path) -> None:
    made.write_bytes(b"classes")


def fail(made: Path) -> None:
    made.write_bytes(b"cla")
    raise OSError("No space left on device")


def test_an_archive_is_made_once_and_only_the_user_can_read_it(place: Path) -> None:
    assert is_wanted(place)
    path = make(place, train)
    assert path is not None
    assert path == class_archive.find()
    assert place.stat().st_mode & 0o777 == 0o700
    assert not is_wanted(place)
    assert make(place, lambda made: pytest.fail("it is there")) is None
    assert {p.name for p in place.iterdir()} == {"making", path.name}


def test_no_archive_is_made_where_none_would_be_used(place: Path) -> None:
    place.mkdir(parents=True)
    place.chmod(0o775)  # others may write to it, and an archive is code
    assert not is_wanted(place)
    assert make(place, lambda made: pytest.fail("nobody could use it")) is None
    place.chmod(0o700)
    assert is_wanted(place)


def test_after_some_attempts_that_failed_no_other_is_made(place: Path) -> None:
    for _ in range(archive_maker.ATTEMPTS):
        assert is_wanted(place)
        with pytest.raises(OSError, match="No space"):
            make(place, fail)
        assert not list(place.glob("*.tmp"))
        assert class_archive.find() is None
    assert not is_wanted(place)
    assert make(place, lambda made: pytest.fail("it was tried often enough")) is None


def test_two_makers_at_once_make_one_archive(place: Path) -> None:
    began, go_on = Event(), Event()

    def slowly(made: Path) -> None:
        began.set()
        assert go_on.wait(30)
        train(made)

    with ThreadPoolExecutor() as pool:
        first = pool.submit(make, place, slowly)
        assert began.wait(30)
        assert make(place, lambda made: pytest.fail("somebody else is making it")) is None
        go_on.set()
        assert first.result(30) == class_archive.find()


def test_a_maker_looks_again_when_it_is_the_only_one(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([True, False])
    monkeypatch.setattr(archive_maker, "is_wanted", lambda place: next(looks))
    place.mkdir(parents=True)
    assert make(place, lambda made: pytest.fail("another process has just made it")) is None


def test_two_archives_that_were_made_at_once_do_no_harm(place: Path) -> None:
    place.mkdir(parents=True, mode=0o700)
    for number in (1, 2):
        (place / f"{number}.tmp").write_bytes(b"classes %d" % number)
        class_archive.put(place / f"{number}.tmp", "key")
    assert class_archive.find() is not None


@pytest.mark.slow
def test_the_next_maker_removes_what_a_killed_one_left(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = (
        "import time, sys; from pathlib import Path; from cutwater.api import archive_maker as a; "
        "from cutwater.spark import class_archive; class_archive.key = lambda: 'key'; "
        "a.make(Path(sys.argv[1]), lambda made: (made.write_bytes(b'half'), time.sleep(600)))"
    )
    killed = subprocess.Popen([sys.executable, "-c", program, str(place)])
    await_that("it has begun", lambda: bool(list(place.glob("*.tmp"))), 60)
    assert make(place, lambda made: pytest.fail("the other one holds the lock")) is None
    killed.send_signal(signal.SIGKILL)
    killed.wait(30)
    assert class_archive.find() is None
    monkeypatch.setattr(archive_maker, "STALE_S", 0.0)
    path = make(place, train)
    assert path == class_archive.find()
    assert not list(place.glob("*.tmp"))


def test_a_folder_that_cannot_be_written_is_left_alone(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        os, "access", lambda path, how: False
    )  # root, as which tests may run, can write everywhere
    assert not is_wanted(place)
    assert make(place, lambda made: pytest.fail("it cannot be put anywhere")) is None


def test_a_full_disk_is_left_alone(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_maker, "ROOM", 2**62)
    assert not is_wanted(place)


def test_an_archive_with_which_java_did_not_start_is_not_made_again(place: Path) -> None:
    path = make(place, train)
    assert path is not None
    class_archive.reject(path)
    assert class_archive.find() is None
    assert not is_wanted(place)


@pytest.mark.parametrize(
    ("meminfo", "limit", "used", "free"),
    [
        ("MemTotal: 9 kB\nMemAvailable:    5000000 kB\n", None, "", 5_120_000_000),
        ("MemAvailable:    5000000 kB\n", "4000000000\n", "3000000000\n", 1_000_000_000),
        ("MemAvailable:    5000000 kB\n", "max\n", "3000000000\n", 5_120_000_000),
        (None, None, "", float("inf")),
        ("MemTotal: 9 kB\n", None, "", float("inf")),
    ],
)
def test_free_memory_is_that_of_the_machine_and_of_the_container(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    meminfo: str | None,
    limit: str | None,
    used: str,
    free: float,
) -> None:
    monkeypatch.setattr(archive_maker, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(archive_maker, "CGROUP", tmp_path)
    if meminfo is not None:
        (tmp_path / "meminfo").write_text(meminfo)
    if limit is not None:
        (tmp_path / "memory.max").write_text(limit)
        (tmp_path / "memory.current").write_text(used)
    assert archive_maker.free_memory() == free


def test_no_archive_is_made_where_memory_is_short(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_maker, "MEMORY", float("inf"))
    monkeypatch.setattr(archive_maker, "free_memory", lambda: 1e9)
    assert not is_wanted(place)


@pytest.mark.parametrize("trouble", ["a file", "no folder", "a failed start"])
def test_a_run_does_not_notice_that_no_archive_can_be_made(
    place: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    lines: list[str] = []
    if trouble == "a file":
        place.parent.mkdir()
        place.write_text("")
    elif trouble == "no folder":
        place.parent.parent.joinpath("caches").write_text("")
    else:
        monkeypatch.setattr(sys, "executable", str(place / "no python"))
    archive_maker._launch(lines.append)
    assert len(lines) == (trouble == "a failed start")


def test_a_maker_is_started_after_a_while_unless_the_run_has_ended(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = Event()
    monkeypatch.setattr(archive_maker, "_launch", lambda log: launched.set())
    monkeypatch.setattr(archive_maker, "AFTER_S", 0.01)
    timer = make_later(print)
    assert timer is not None
    assert launched.wait(30)
    launched.clear()
    monkeypatch.setattr(archive_maker, "AFTER_S", 60.0)
    timer = make_later(print)
    assert timer is not None
    timer.cancel()
    timer.join(30)
    assert not launched.is_set()


def test_no_maker_is_started_under_spark_submit_or_if_archives_are_switched_off(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert make_later(print) is None
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT")
    monkeypatch.setenv(class_archive.SWITCH, "off")
    assert make_later(print) is None


@pytest.mark.skipif(shutil.which("java") is None, reason="no Java on the PATH")
@pytest.mark.slow
def test_java_uses_the_archive_that_was_made(place: Path) -> None:
    def java(*options: str) -> str:
        done = subprocess.run(["java", *options, "-version"], capture_output=True, text=True, check=True)
        return done.stdout

    path = make(place, lambda made: void(java("-Xshare:auto", f"-XX:ArchiveClassesAtExit={made}")))
    assert path is not None
    assert class_archive.find() == path
    assert "shared objects file (top)" in java(*class_archive.options(path), "-Xlog:class+load=info:stdout")


def void(_: object) -> None: ...


@pytest.mark.slow
def test_a_training_that_hangs_ends(place: Path) -> None:
    program = (
        "import signal, time\nfrom pathlib import Path\nfrom cutwater.api import archive_training as training\n"
        "def hang(*_):\n"
        "    assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= training.GIVES_UP_S\n"
        "    try:\n        signal.raise_signal(signal.SIGALRM)\n        time.sleep(300)\n"
        "    finally:\n        Path('cleaned').touch()\n"
        "training.make = hang\ntraining.main()"
    )
    place.mkdir(parents=True)
    done = subprocess.run([sys.executable, "-c", program], cwd=place, timeout=120, stderr=subprocess.DEVNULL)
    assert done.returncode == 1
    assert (place / "cleaned").exists()
