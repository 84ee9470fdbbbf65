"""The promises of the store, for each kind of it; and what only a local folder has to get right."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from threading import Barrier

import obstore
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutwater.protocol.base.errors import StoreError
from cutwater.store.stores import LocalStore, ObjectStore, Store, StoreUnavailable, open_place

DEADLINE_SECONDS = 60


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited too long for {what}"
        time.sleep(0.002)


class StoreContract:
    """What every store promises. A subclass has a fixture `store`."""

    def test_an_object_is_created_once(self, store: Store) -> None:
        assert store.create("journal/1.json", b"first")
        assert not store.create("journal/1.json", b"second")
        assert store.read("journal/1.json") == b"first"

    def test_put_replaces(self, store: Store) -> None:
        store.put("status/a", b"one")
        store.put("status/a", b"two, and longer")
        store.put("status/a", b"3")
        assert store.read("status/a") == b"3"
        assert store.list("") == ["status/a"]

    def test_what_is_not_there_is_none(self, store: Store) -> None:
        store.create("a/b", b"x")
        for name in ("c", "a/c", "a/b/c", "a"):
            assert store.read(name) is None
            assert store.size(name) is None
            assert store.checksum(name) is None
            assert not store.exists(name)
        assert store.exists("a/b")

    def test_many_are_read_in_the_order_of_their_names(self, store: Store) -> None:
        names = [f"log/{i}" for i in range(40)]
        for name in names[::2]:
            store.create(name, name.encode())
        assert store.read_many(names) == [
            name.encode() if i % 2 == 0 else None for i, name in enumerate(names)
        ]
        assert store.read_many([]) == []

    def test_many_places_are_listed_in_the_order_in_which_they_are_asked_for(self, store: Store) -> None:
        for name in ("b/1", "b/2", "a/1", "a/2"):
            store.create(name, b"")
        assert store.list_many([("b/", "b/1"), ("none/", ""), ("a/", "")]) == [["b/2"], [], ["a/1", "a/2"]]
        assert store.list_many([]) == []

    def test_an_empty_object_is_an_object(self, store: Store) -> None:
        store.create("a", b"")
        assert store.read("a") == b""
        assert store.size("a") == 0
        assert store.checksum("a") == hashlib.sha256().hexdigest()
        assert not store.create("a", b"x")

    def test_list_goes_by_prefix_and_place(self, store: Store) -> None:
        # "-" and "." sort before "/", so the order of names is not the order of folders.
        names = ["a-b/1", "a.json", "a/1", "a/10", "a/2", "a/b/1", "aa/1", "b/1"]
        for name in reversed(names):
            store.create(name, b"")
        assert store.list("") == names
        assert store.list("a/") == ["a/1", "a/10", "a/2", "a/b/1"]
        assert store.list("a") == names[:-1]
        assert store.list("a/1") == ["a/1", "a/10"]
        assert store.list("a/", after="a/10") == ["a/2", "a/b/1"]
        assert store.list("", after="a.json") == names[2:]
        assert store.list("", after="a/b/0") == names[5:]
        assert store.list("c/") == []
        assert store.list("a/", after="b") == []
        assert store.list("b/", after="a") == ["b/1"]

    def test_names_are_taken_literally(self, store: Store) -> None:
        names = ["d/x=2026-01-01 00%3A00/part 0~#?&+*[1].parquet", "d/ä/é"]
        for name in names:
            assert store.create(name, name.encode())
            store.copy(name, f"{name}.copy")
            assert store.read(f"{name}.copy") == name.encode()
        assert store.list("d/x=2026-01-01 00%3A00/p") == [names[0], f"{names[0]}.copy"]
        assert store.list("d/", after=f"{names[0]}.copy") == [names[1], f"{names[1]}.copy"]
        store.delete(names)
        assert store.list("") == [f"{name}.copy" for name in names]

    def test_names_with_a_leading_dot_are_not_listed(self, store: Store) -> None:
        for name in (".a", ".b/c", "d/.e", "d/.f/g", "d/h.i"):
            store.put(name, b"")
        assert store.list("") == ["d/h.i"]
        assert store.list("d/.") == []

    def test_delete_takes_what_is_there(self, store: Store) -> None:
        for name in ("a/1", "a/2", "b/c/1"):
            store.create(name, b"x")
        store.delete(["a/3", "a/1", "no/such", "b/c/1"])
        assert store.list("") == ["a/2"]
        store.delete([])
        store.delete(name for name in ["a/2"])
        assert store.list("") == []
        assert store.create("a/1", b"again")

    def test_many_objects_are_listed_and_deleted(self, store: Store) -> None:
        names = [f"many/{i:05}" for i in range(1100)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda name: store.put(name, b""), names))
        assert store.list("many/") == names
        assert store.list("many/", after="many/00998") == names[999:]
        store.delete(names)
        assert store.list("") == []

    def test_a_copy_outlives_its_source(self, store: Store) -> None:
        store.create("state/1", b"rows")
        store.copy("state/1", "savepoints/x/state/1")
        store.copy("state/1", "savepoints/x/state/1")
        store.delete(["state/1"])
        assert store.read("savepoints/x/state/1") == b"rows"
        with pytest.raises(OSError):
            store.copy("state/1", "savepoints/y/state/1")
        assert store.list("") == ["savepoints/x/state/1"]

    def test_the_checksum_is_that_of_the_contents(self, store: Store) -> None:
        data = os.urandom(20 << 20)
        store.put("big", data)
        assert store.checksum("big") == hashlib.sha256(data).hexdigest()
        assert store.size("big") == len(data)
        assert store.read("big") == data

    @pytest.mark.parametrize("name", ["", "/a", "a/", "..", "../a", "a/../../b", "a/./b", "a//b", "a\0b"])
    def test_names_that_are_no_path_inside_the_store_are_refused(self, store: Store, name: str) -> None:
        calls: list[Callable[[], object]] = [
            lambda: store.create(name, b""),
            lambda: store.put(name, b""),
            lambda: store.read(name),
            lambda: store.read_many([name]),
            lambda: store.delete([name]),
            lambda: store.size(name),
            lambda: store.checksum(name),
            lambda: store.copy("a", name),
            lambda: store.copy(name, "a"),
            lambda: store.spark_url(name),
        ]
        for call in calls:
            with pytest.raises(StoreError, match="cannot be the name of an object"):
                call()
        with pytest.raises(StoreError, match="cannot be the name of an object"):
            store.list("../")

    def test_of_many_threads_exactly_one_creates(self, store: Store) -> None:
        writers, rounds = 8, 25
        together = Barrier(writers)

        def compete(writer: int) -> list[bool]:
            outcomes = []
            for i in range(rounds):
                together.wait(DEADLINE_SECONDS)
                outcomes.append(store.create(f"race/{i:02}", f"{writer}".encode()))
            return outcomes

        with ThreadPoolExecutor(writers) as pool:
            outcomes = list(pool.map(compete, range(writers)))
        for i in range(rounds):
            winners = [writer for writer in range(writers) if outcomes[writer][i]]
            assert len(winners) == 1
            assert store.read(f"race/{i:02}") == f"{winners[0]}".encode()


COMPETE = """
import sys, time
from cutwater.store.stores import open_place

store = open_place(sys.argv[1])
me = sys.argv[2]
deadline = time.monotonic() + 60
for i in range(40):
    store.put(f"ready/{i:02}/{me}", b"")
    while len(store.list(f"ready/{i:02}/")) < 4:
        assert time.monotonic() < deadline
    if store.create(f"race/{i:02}", me.encode()):
        print(f"race/{i:02}")
"""


def check_race_of_processes(store: Store) -> None:
    """Four processes create the same names in step; each name has one winner, whose bytes stand there."""
    contenders = [
        subprocess.Popen(
            [sys.executable, "-c", COMPETE, store.url, f"{i}"], stdout=subprocess.PIPE, text=True
        )
        for i in range(4)
    ]
    winner: dict[str, str] = {}
    for i, contender in enumerate(contenders):
        won = contender.communicate(timeout=2 * DEADLINE_SECONDS)[0].split()
        assert contender.returncode == 0
        assert not winner.keys() & set(won), "two processes created the same object"
        winner |= dict.fromkeys(won, f"{i}")
    assert sorted(winner) == [f"race/{i:02}" for i in range(40)]
    assert all(store.read(name) == me.encode() for name, me in winner.items())


class TestLocalStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return open_place(f"{tmp_path}/store", create=True)

    def test_of_many_processes_exactly_one_creates(self, store: Store) -> None:
        check_race_of_processes(store)


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        return open_place("memory:///", create=True)


@pytest.fixture
def local(tmp_path: Path) -> LocalStore:
    store = open_place(f"{tmp_path}/store", create=True)
    assert isinstance(store, LocalStore)
    return store


PARTS = st.sampled_from(["a", "b", "ab", "a-b", "a.b"])
NAMES = st.lists(PARTS, min_size=1, max_size=3).map(lambda parts: "/".join(parts) + "_")


@settings(max_examples=200, deadline=None)
@given(names=st.sets(NAMES), prefix=NAMES, cut=st.integers(0, 12), after=st.one_of(st.just(""), NAMES))
def test_list_is_the_sorted_names_with_that_prefix(
    names: set[str], prefix: str, cut: int, after: str
) -> None:
    prefix = prefix[:cut]
    wanted = sorted(name for name in names if name.startswith(prefix) and name > after)
    with tempfile.TemporaryDirectory() as folder:
        for store in (open_place(folder), open_place("memory:///")):
            for name in names:
                store.put(name, b"")
            assert store.list(prefix, after) == wanted


WRITE_AND_DIE = """
import os, resource, signal, sys
from cutwater.store.stores import open_place

url, method, moment = sys.argv[1], sys.argv[2], int(sys.argv[3])
store = open_place(url)

def die_in_time(event, _):
    global moment
    if event == "open" or event.startswith("os."):
        moment -= 1
        if moment == -1:
            os.kill(os.getpid(), signal.SIGKILL)

if moment < 0:
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
else:
    sys.addaudithook(die_in_time)
getattr(store, method)("a/b/object", b"new" * 100_000)
"""


@pytest.mark.parametrize("method", ["create", "put"])
def test_a_killed_process_leaves_no_half_object(local: LocalStore, method: str) -> None:
    """The writer is killed in the middle of the contents, then at one step after the other."""
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


def test_what_killed_processes_left_is_cleared_away_after_an_hour(local: LocalStore) -> None:
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


def test_what_a_living_process_writes_is_not_cleared_away_by_one_whose_clock_is_ahead(
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


def test_no_temporary_file_stays_behind(local: LocalStore) -> None:
    local.create("a", b"x")
    local.create("a", b"y")
    local.put("a", b"z")
    local.copy("a", "b")
    assert temporary_files(local) == []


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What is linked and synced, in order. Everything is still done."""
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


def test_an_object_whose_checksum_was_asked_for_is_durable(
    local: LocalStore, steps: list[tuple[str, str]]
) -> None:
    local.path("data/x").mkdir(parents=True)
    local.path("data/x/part-0").write_bytes(b"rows that Spark wrote")
    local.checksum("data/x/part-0")
    assert steps == [("sync", "part-0"), ("sync", "x"), ("sync", "data"), ("sync", "store")]


def test_put_waits_for_no_disk(local: LocalStore, steps: list[tuple[str, str]]) -> None:
    local.put("status/a", b"x")
    assert steps == []


def test_delete_removes_folders_that_are_left_empty(local: LocalStore) -> None:
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


def test_deleting_beside_a_create_breaks_nothing(local: LocalStore) -> None:
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


def test_a_copy_is_a_link(local: LocalStore) -> None:
    local.create("a/1", b"x")
    local.copy("a/1", "b/1")
    assert local.path("a/1").samefile(local.path("b/1"))


def test_a_copy_is_made_where_a_link_does_not_work(local: LocalStore) -> None:
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == local.root.stat().st_dev:
        pytest.skip("/dev/shm is no other file system here: links work everywhere")
    with tempfile.TemporaryDirectory(dir=memory) as elsewhere:
        local.path("elsewhere").symlink_to(elsewhere)
        Path(elsewhere, "1").write_bytes(b"x")
        local.copy("elsewhere/1", "b/1")
        assert not local.path("elsewhere/1").samefile(local.path("b/1"))
    assert local.read("b/1") == b"x"
    assert temporary_files(local) == []


def test_a_store_that_is_gone_is_not_an_empty_store(local: LocalStore) -> None:
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
    local.root.mkdir()  # an empty place where the store was mounted
    for call in calls:
        with pytest.raises(StoreUnavailable, match="still mounted"):
            call()
    assert list(local.root.iterdir()) == []
    local.root.rmdir()
    away.rename(local.root)
    assert local.read("a/1") == b"x"


def test_a_folder_that_was_not_opened_for_writing_is_left_as_it_is(tmp_path: Path) -> None:
    store = open_place(f"{tmp_path}")
    assert store.list("") == []
    assert store.read("a") is None
    assert list(tmp_path.iterdir()) == []


def test_where_objects_are(tmp_path: Path) -> None:
    folder = tmp_path / "a b%20c"
    store = open_place(f"{folder}", create=True)
    store.create("d/e", b"x")
    assert store.path("d/e") == folder / "d/e"
    assert store.spark_url("d/e") == f"file://{folder}/d/e"
    assert open_place(store.url).read("d/e") == b"x"
    assert open_place(f"{tmp_path}/elsewhere/../a b%20c").url == store.url
    assert open_place("memory:///").path("d/e") is None


def test_a_relative_folder_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_place("state", create=True)
    monkeypatch.chdir("/")
    assert store.create("a", b"x")
    assert (tmp_path / "state/a").read_bytes() == b"x"


@pytest.mark.parametrize("create", [False, True])
def test_a_store_that_cannot_be_is_refused(tmp_path: Path, create: bool) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match="is a file, and a store is a folder"):
        open_place(f"{tmp_path}/file", create=create)
    with pytest.raises(StoreError, match="three slashes"):
        open_place("file://host/folder", create=create)
    for url in ("foo://x/y", "https://example.com/x"):
        with pytest.raises(StoreError, match="not a kind of store"):
            open_place(url, create=create)
    with pytest.raises(StoreError, match="cannot be used as a store"):
        open_place(f"{tmp_path}/file/below", create=True)


def test_a_folder_that_does_not_exist_is_made_only_when_asked_for(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no such folder"):
        open_place(f"{tmp_path}/x/y")
    assert not (tmp_path / "x").exists()
    assert open_place(f"{tmp_path}/x/y", create=True).list("") == []


def test_a_folder_that_cannot_be_written_is_refused() -> None:
    with pytest.raises(StoreError, match="must be able to write"):
        open_place("/proc/self", create=True)


def test_an_azure_container_needs_its_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(StoreError, match="abfss://container@account"):
        open_place("az://container/prefix")


def test_a_removed_store_can_be_made_again(local: LocalStore) -> None:
    shutil.rmtree(local.root)
    assert open_place(f"{local.root}", create=True).create("a", b"x")


@pytest.mark.parametrize("ask", ["read", "size", "exists", "checksum"])
def test_a_bucket_that_is_gone_is_not_an_object_that_is_not_there(
    ask: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_place("memory://", create=True)
    store.put("a", b"x")

    def gone(*_: object, **__: object) -> None:
        raise FileNotFoundError("<Code>NoSuchBucket</Code><Message>it was removed</Message>")

    for name in ("get", "get_range", "head"):
        monkeypatch.setattr(f"cutwater.store.stores.obstore.{name}", gone)
    with pytest.raises(StoreUnavailable, match="the bucket is gone: it was removed"):
        getattr(store, ask)("a")


def test_a_bucket_that_goes_while_an_object_is_read_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_place("memory://", create=True)
    store.put("a", b"x")

    def gone(*_: object, **__: object) -> None:
        raise FileNotFoundError("NoSuchBucket")

    monkeypatch.setattr("cutwater.store.stores.obstore.get_range", gone)
    with pytest.raises(StoreUnavailable):
        store.checksum("a")


def test_a_full_disk_is_no_reason_to_copy_instead_of_linking(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    local.create("a", b"x")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "link", full)
    with pytest.raises(OSError, match="no space left"):
        local.copy("a", "b")
    assert not local.exists("b")


def test_a_copy_to_where_something_is_leaves_that_there(local: LocalStore) -> None:
    local.create("a", b"x")
    local.create("b", b"y")
    local.copy("a", "b")
    assert local.read("b") == b"y"


def test_a_bucket_that_was_tried_out_is_as_it_was() -> None:
    store = open_place("memory://", create=True)
    assert isinstance(store, ObjectStore)
    store.check_usable(write=True)
    assert obstore.list(store._bucket).collect() == []
