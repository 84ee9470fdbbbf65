"""The tests of the store contract: a class for the tests of each kind of store to inherit."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from cutwater.protocol.base.errors import StoreError
from cutwater.store.contract import Store

DEADLINE_SECONDS = 60


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited too long for {what}"
        time.sleep(0.002)


class StoreContract:
    """What every store promises. A subclass provides a fixture `store`."""

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

    def test_a_missing_object_is_none(self, store: Store) -> None:
        store.create("a/b", b"x")
        for name in ("c", "a/c", "a/b/c", "a"):
            assert store.read(name) is None
            assert store.size(name) is None
            assert store.checksum(name) is None
            assert not store.exists(name)
        assert store.exists("a/b")

    def test_many_objects_are_read_in_the_given_order(self, store: Store) -> None:
        names = [f"log/{i}" for i in range(40)]
        for name in names[::2]:
            store.create(name, name.encode())
        assert store.read_many(names) == [
            name.encode() if i % 2 == 0 else None for i, name in enumerate(names)
        ]
        assert store.read_many([]) == []

    def test_many_prefixes_are_listed_in_the_given_order(self, store: Store) -> None:
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

    def test_the_tail_of_an_object_comes_with_its_size(self, store: Store) -> None:
        store.create("a", b"0123456789")
        store.create("empty", b"")
        assert store.tail("a", 3) == (b"789", 10)
        assert store.tail("a", 10) == store.tail("a", 1000) == (b"0123456789", 10)
        assert store.tail("empty", 5) == (b"", 0)
        assert store.tail("none", 5) is None

    def test_list_filters_by_prefix_and_after(self, store: Store) -> None:
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

    def test_delete_ignores_missing_objects(self, store: Store) -> None:
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
    def test_names_that_are_not_paths_inside_the_store_are_refused(self, store: Store, name: str) -> None:
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
from cutwater.store.opening import open_place

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
    """Four processes create the same names in lockstep. Each name has one winner, whose bytes it contains."""
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
