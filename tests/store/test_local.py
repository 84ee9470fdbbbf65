"""The store in a local folder: the contract, and what is specific to folders."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest

from cutwater.protocol.base import effects as fx
from cutwater.protocol.base.errors import StoreError
from cutwater.store.at_rest import drive
from cutwater.store.contract import CannotWrite, Store, StoreUnavailable
from cutwater.store.local import LocalStore
from cutwater.store.opening import open_place
from tests.support.store_contract import StoreContract, check_race_of_processes


class TestLocalStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return open_place(f"{tmp_path}/store", create=True)

    def test_of_many_processes_exactly_one_creates(self, store: Store) -> None:
        check_race_of_processes(store)


@pytest.fixture
def local(tmp_path: Path) -> LocalStore:
    store = open_place(f"{tmp_path}/store", create=True)
    assert isinstance(store, LocalStore)
    return store


WRITE_AND_DIE = """
import os, resource, signal, sys
from cutwater.store.opening import open_place

url, method, moment = sys.argv[1], sys.argv[2], int(sys.argv[3])
store = open_place(url)
pid = os.getpid()
os.getpid = lambda: 0  # it names the folder of temporary files: the same steps in every process

def die_at_moment(event, _):
    global moment
    if event == "open" or event.startswith("os."):
        moment -= 1
        if moment == -1:
            os.kill(pid, signal.SIGKILL)

if moment < 0:
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
else:
    sys.addaudithook(die_at_moment)
getattr(store, method)("a/b/object", b"new" * 100_000)
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["create", "put"])
def test_a_killed_process_leaves_no_partial_object(local: LocalStore, method: str) -> None:
    """The writer is killed in the middle of writing, then at each step in turn."""
    new = b"new" * 100_000
    seen = []
    for moment in range(-1, 100):
        store = open_place(f"{local.root}/{moment}", create=True)
        if method == "put":
            store.put("a/b/object", b"old")
        writer = subprocess.run([sys.executable, "-c", WRITE_AND_DIE, store.url, method, f"{moment}"])
        if writer.returncode == 0:
            break
        assert writer.returncode == -(signal.SIGXFSZ if moment < 0 else signal.SIGKILL)
        found = store.read("a/b/object")
        assert found in (b"old" if method == "put" else None, new)
        assert store.list("") == ([] if found is None else ["a/b/object"])
        assert store.create("a/b/object", new) == (found is None)
        seen.append(found)
    assert seen[0] != new
    assert seen[-1] == new, "it was never killed after the object became visible"


def test_temporary_files_of_killed_processes_are_deleted_after_an_hour(local: LocalStore) -> None:
    temp = local.root / ".tmp"
    old, young = temp / "1" / "old", temp / "2" / "young"
    for file in (old, young):
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"half")
    for path, age in ((old, 3700), (young, 3500)):
        os.utime(path, (time.time() - age, time.time() - age))
    open_place(local.url)
    assert old.exists()
    open_place(local.url, create=True)
    assert temporary_files(local) == [young]


def test_temporary_files_of_a_live_process_are_not_deleted_by_one_whose_clock_is_ahead(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    young = local.root / ".tmp" / "1" / "young"
    young.parent.mkdir(exist_ok=True)
    young.write_bytes(b"half")
    ahead = time.time() + 7_200
    monkeypatch.setattr(time, "time", lambda: ahead)
    open_place(local.url, create=True)
    assert young.exists()


def temporary_files(store: LocalStore) -> list[Path]:
    return [path for path in (store.root / ".tmp").rglob("*") if not path.is_dir()]


def test_no_temporary_file_remains(local: LocalStore) -> None:
    local.create("a", b"x")
    local.create("a", b"y")
    local.put("a", b"z")
    local.copy("a", "b")
    assert temporary_files(local) == []


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Records what is linked and synced, in order, and still does it."""
    done: list[tuple[str, str]] = []
    link, fsync = os.link, os.fsync

    def linked(source: str, target: str) -> None:
        link(source, target)
        done.append(("link", Path(target).name))

    def synced(handle: int) -> None:
        fsync(handle)
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        done.append(("sync", "temporary file" if path.parent.parent.name == ".tmp" else path.name))

    monkeypatch.setattr("os.link", linked)
    monkeypatch.setattr("os.fsync", synced)
    return done


def test_created_objects_are_durable_and_so_are_their_folders(
    local: LocalStore, steps: list[tuple[str, str]]
) -> None:
    local.create("a/b/1", b"x")
    assert steps == [
        ("sync", "temporary file"),
        ("link", "1"),
        ("sync", "b"),
        ("sync", "a"),
        ("sync", "store"),
    ]
    steps.clear()
    local.create("a/b/2", b"x")
    assert steps == [("sync", "temporary file"), ("link", "2"), ("sync", "b")]
    steps.clear()
    assert not local.create("a/b/2", b"x")
    assert steps == [("sync", "temporary file"), ("sync", "b")]
    local.delete(["a/b/1", "a/b/2"])
    steps.clear()
    local.create("a/b/3", b"x")
    assert steps[-4:] == [("link", "3"), ("sync", "b"), ("sync", "a"), ("sync", "store")]


def test_an_object_is_durable_after_its_checksum_was_computed(
    local: LocalStore, steps: list[tuple[str, str]]
) -> None:
    local.path("data/x").mkdir(parents=True)
    local.path("data/x/part-0").write_bytes(b"rows that Spark wrote")
    local.checksum("data/x/part-0")
    assert steps == [("sync", "part-0"), ("sync", "x"), ("sync", "data"), ("sync", "store")]


def test_put_does_not_wait_for_the_disk(local: LocalStore, steps: list[tuple[str, str]]) -> None:
    local.put("status/a", b"x")
    assert steps == []


def test_delete_removes_folders_that_become_empty(local: LocalStore) -> None:
    for name in ("a/b/c/1", "a/b/d/1", "a/2"):
        local.create(name, b"x")
    local.delete(["a/b/c/1", "a/b/d/1"])
    assert sorted(path.name for path in local.path("a").iterdir()) == ["2"]
    local.delete(["a/2"])
    assert [path.name for path in local.root.iterdir()] == [".tmp"]


def test_delete_removes_the_checksum_file_that_hadoop_wrote(local: LocalStore) -> None:
    local.create("data/1/part-0.parquet", b"x")
    local.path("data/1/.part-0.parquet.crc").write_bytes(b"crc")
    local.delete(["data/1/part-0.parquet"])
    assert not local.path("data").exists()


def test_the_folder_for_temporary_files_stays(local: LocalStore) -> None:
    local.put(".tmp/x", b"")
    local.delete([".tmp/x"])
    assert local.create("a", b"x")


def test_a_delete_during_a_create_does_no_harm(local: LocalStore) -> None:
    numbers = count()

    def come_and_go(_: int) -> None:
        for _ in range(150):
            name = f"deep/er/and/deeper/{next(numbers)}"
            assert local.create(name, b"x")
            assert local.read(name) == b"x"
            local.delete([name])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(come_and_go, range(4)))
    assert local.list("") == []


def test_a_copy_is_a_hard_link(local: LocalStore) -> None:
    local.create("a/1", b"x")
    local.copy("a/1", "b/1")
    assert local.path("a/1").samefile(local.path("b/1"))


def test_a_real_copy_is_made_where_links_do_not_work(local: LocalStore) -> None:
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == local.root.stat().st_dev:
        pytest.skip("/dev/shm is not a separate file system here: links work everywhere")
    with tempfile.TemporaryDirectory(dir=memory) as elsewhere:
        local.path("elsewhere").symlink_to(elsewhere)
        Path(elsewhere, "1").write_bytes(b"x")
        local.copy("elsewhere/1", "b/1")
        assert not local.path("elsewhere/1").samefile(local.path("b/1"))
    assert local.read("b/1") == b"x"
    assert temporary_files(local) == []


def test_a_missing_store_is_not_an_empty_store(local: LocalStore) -> None:
    local.create("a/1", b"x")
    calls: list[Callable[[], object]] = [
        lambda: local.read("a/1"),
        lambda: local.list("a/"),
        lambda: local.list(""),
        lambda: local.size("a/1"),
        lambda: local.checksum("a/1"),
        lambda: local.delete(["a/1"]),
        lambda: local.create("a/2", b"x"),
        lambda: local.put("a/2", b"x"),
    ]
    away = local.root.rename(local.root.with_name("away"))
    for call in calls:
        with pytest.raises(StoreUnavailable, match="still mounted"):
            call()
    assert not local.root.exists()
    local.root.mkdir()  # the empty mount point of the store
    for call in calls:
        with pytest.raises(StoreUnavailable, match="still mounted"):
            call()
    assert list(local.root.iterdir()) == []
    local.root.rmdir()
    away.rename(local.root)
    assert local.read("a/1") == b"x"


def test_a_full_disk_does_not_cause_a_copy_instead_of_a_link(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    local.create("a", b"x")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "link", full)
    with pytest.raises(OSError, match="no space left"):
        local.copy("a", "b")
    assert not local.exists("b")


def test_a_copy_does_not_replace_an_existing_target(local: LocalStore) -> None:
    local.create("a", b"x")
    local.create("b", b"y")
    local.copy("a", "b")
    assert local.read("b") == b"y"


@pytest.mark.parametrize(
    ("number", "said", "advice"),
    [
        (errno.ENOSPC, "No space left on device", "free space on its file system"),
        (errno.EDQUOT, "Disk quota exceeded", "free space on its file system"),
        (errno.EROFS, "Read-only file system", "its file system is mounted read-only"),
    ],
)
def test_a_disk_that_cannot_be_written_to_is_named_with_the_object(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch, number: int, said: str, advice: str
) -> None:
    local.create("a", b"x")

    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    for name in ("link", "replace"):
        monkeypatch.setattr(os, name, fail)
    monkeypatch.setattr(Path, "unlink", fail)
    expected = f"the store {local.root} cannot be written to: {said} (a); {advice}"
    writes: list[Callable[[], object]] = [
        lambda: local.create("a", b""),
        lambda: local.put("a", b""),
        lambda: local.delete(["a"]),
        lambda: local.copy("a", "a"),
    ]
    for write in writes:
        with pytest.raises(CannotWrite, match=re.escape(expected)):
            write()
    with pytest.raises(StoreError, match=f"cannot be used as a store: {said}; {advice}"):
        open_place(str(local.root), create=True)
    with pytest.raises(
        StoreError, match=f"^the store {re.escape(str(local.root))} cannot be written to: {said}"
    ):
        drive(local, (x for x in (fx.Create("a", b"y"),) * 99))
