"""The two places where an injector's word can live: in this process, or in a file that processes share."""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.member.injector import Counters, Request


class LocalWord:
    """A word for the threads of one process."""

    def __init__(self) -> None:
        self.cell = [0]
        self._lock = Lock()
        self._triggered = 0
        self._superseded = 0
        self._last_superseded = 0

    def swap(self, value: int) -> int:
        with self._lock:
            old = self.cell[0]
            self.cell[0] = value
            self._triggered += 1
            if old:
                self._superseded += 1
                self._last_superseded = old
            return old

    def take(self, expected: int) -> bool:
        with self._lock:
            if self.cell[0] != expected:
                return False
            self.cell[0] = 0
            return True

    def counters(self) -> Counters:
        with self._lock:
            return Counters(
                self._triggered,
                self._superseded,
                Request.unpack(self.cell[0]),
                Request.unpack(self._last_superseded),
            )


# The file is ten native 64-bit integers. The live four are: the word, triggered, superseded, the last
# superseded word. A swap changes all four, so it first writes them to the next four and sets REDO: whoever
# locks the file after a process was killed half-way finishes the swap, and the counters still add up.
_WORD = 0
_LIVE = slice(0, 4)
_NEXT = slice(4, 8)
_REDO = 8
_MAGIC = 9
_MAGIC_VALUE = int.from_bytes(b"cutword1", "little")
_EMPTY = struct.pack("=10Q", *[0] * 9, _MAGIC_VALUE)


class MappedWord:
    """A word in a memory-mapped file, for the processes of one host. The first to open it creates it.

    Each operation locks the file through a descriptor of its own. So the lock excludes threads as well as
    processes, works on both sides of a fork, and goes away with a process that is killed while it holds it.

    Everything here raises `StoreError` if the file cannot be used, is no such file, or was replaced.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        with self._locked(os.O_CREAT) as fd:
            data = os.pread(fd, len(_EMPTY) + 1, 0)
            if not data:
                os.pwrite(fd, _EMPTY, 0)
            elif len(data) != len(_EMPTY) or data[-8:] != _EMPTY[-8:]:
                raise StoreError(
                    f"{self._path} is not a barrier word (it should be {len(_EMPTY)} bytes that end in "
                    f"{_EMPTY[-8:]!r}); stop whatever else writes it, remove it, and start again"
                )
            self._identity = os.fstat(fd)
            self._cells = memoryview(mmap.mmap(fd, len(_EMPTY))).cast("Q")
        self.cell = self._cells[_WORD : _WORD + 1].toreadonly()

    def swap(self, value: int) -> int:
        with self._exclusive() as cells:
            old, triggered, superseded, last = cells[_LIVE]
            if old:
                superseded, last = superseded + 1, old
            cells[_NEXT] = memoryview(array("Q", (value, triggered + 1, superseded, last)))
            cells[_REDO] = 1
            self._redo()
            return old

    def take(self, expected: int) -> bool:
        with self._exclusive() as cells:
            if cells[_WORD] != expected:
                return False
            cells[_WORD] = 0
            return True

    def counters(self) -> Counters:
        with self._exclusive() as cells:
            word, triggered, superseded, last = cells[_LIVE]
        return Counters(triggered, superseded, Request.unpack(word), Request.unpack(last))

    def _redo(self) -> None:
        self._cells[_LIVE] = self._cells[_NEXT]
        self._cells[_REDO] = 0

    @contextmanager
    def _exclusive(self) -> Iterator[memoryview[int]]:
        with self._locked() as fd:
            if not os.path.samestat(os.fstat(fd), self._identity):
                raise StoreError(
                    f"{self._path} was replaced after it was opened, so nobody sees this word any more; "
                    "open it again, and let nothing remove it while a member runs"
                )
            if self._cells[_REDO]:
                self._redo()
            yield self._cells

    @contextmanager
    def _locked(self, flags: int = 0) -> Iterator[int]:
        try:
            fd = os.open(self._path, os.O_RDWR | flags, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                try:
                    yield fd
                finally:
                    # Said aloud, because a process forked meanwhile would keep a merely closed one locked.
                    fcntl.flock(fd, fcntl.LOCK_UN)
            finally:
                os.close(fd)
        except OSError as error:
            raise StoreError(
                f"the barrier word {self._path} cannot be used ({error.strerror}); it must be a file on a "
                "local disk, in a folder that exists, writable by every process that shares it"
            ) from error
