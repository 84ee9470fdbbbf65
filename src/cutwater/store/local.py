"""A store in a local folder. `create` returns only after the object is synced to disk."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from cutwater.protocol.base.errors import StoreError
from cutwater.store.contract import (
    TEMP,
    CannotWrite,
    Checksums,
    Contents,
    NameLists,
    Names,
    StoreUnavailable,
    Tail,
    check_name,
    checksums,
)

T = TypeVar("T")

_TEMP_SECONDS = 3600
_TEMP_FOLDERS = 64
_ATTEMPTS = 100
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS)


class LocalStore:
    """A folder on a local or shared file system with hard links."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = self.root.as_uri()
        self._folder = str(self.root)
        self._temp = self.root / TEMP
        self._mark = self._temp if self._temp.is_dir() else self.root
        self._synced: set[str] = set()

    def create(self, name: str, data: bytes) -> bool:
        place = f"{self._folder}/{check_name(name)}"
        folder = os.path.dirname(place)
        with self._writing(name), self._temp_file(data, sync=True) as temp:
            try:
                self._inside(folder, lambda: os.link(temp, place))
                created = True
            except FileExistsError:
                created = False
        # Sync even if it exists: it may be from our own earlier attempt, whose sync failed.
        self._sync(folder)
        return created

    def put(self, name: str, data: bytes) -> None:
        place = self.path(name)
        with self._writing(name), self._temp_file(data, sync=False) as temp:
            self._inside(str(place.parent), lambda: os.replace(temp, place))

    def read(self, name: str) -> bytes | None:
        try:
            with open(f"{self._folder}/{check_name(name)}", "rb", buffering=0) as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            self._check_root()
            return None

    def read_many(self, names: Sequence[str]) -> Contents:
        return [self.read(name) for name in names]

    def list(self, prefix: str, after: str = "") -> Names:
        check_name(prefix + "x")
        found = []
        folders = [prefix[: prefix.rfind("/") + 1]]
        while folders:
            folder = folders.pop()
            try:
                entries = os.scandir(f"{self._folder}/{folder}")
            except (FileNotFoundError, NotADirectoryError):
                continue
            with entries:
                for entry in entries:
                    name = folder + entry.name
                    if entry.name.startswith(".") or not name.startswith(prefix):
                        continue
                    if entry.is_dir():
                        below = name + "/"
                        if below > after or after.startswith(below):
                            folders.append(below)
                    elif name > after:
                        found.append(name)
        if not found:
            self._check_root()
        return sorted(found)

    def list_many(self, places: Sequence[tuple[str, str]]) -> NameLists:
        return [self.list(prefix, after) for prefix, after in places]

    def delete(self, names: Iterable[str]) -> None:
        """Also removes the `.crc` files that Hadoop writes next to objects, and folders that become empty."""
        folders = set()
        for name in names:
            place = self.path(name)
            for file in (place, place.with_name(f".{place.name}.crc")):
                with self._writing(name), suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
                    file.unlink()
            folders.add(place.parent)
        self._check_root()
        for folder in sorted(folders, reverse=True):
            self._prune(folder)

    def exists(self, name: str) -> bool:
        return self.size(name) is not None

    def size(self, name: str) -> int | None:
        place = self.path(name)
        if place.is_file():
            with suppress(FileNotFoundError):
                return place.stat().st_size
        self._check_root()
        return None

    def tail(self, name: str, length: int) -> Tail | None:
        try:
            with self.path(name).open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(max(0, size - length))
                return Tail(file.read(), size)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            self._check_root()
            return None

    def copy(self, source: str, target: str) -> None:
        """Creates a hard link, or a real copy where links do not work."""
        origin, place = self.path(source), self.path(target)
        if not origin.is_file():
            raise FileNotFoundError(errno.ENOENT, "cannot copy: no such object", str(origin))
        with self._writing(target):
            try:
                self._inside(str(place.parent), lambda: os.link(origin, place))
            except FileExistsError:
                return
            except OSError as error:
                if error.errno not in _NO_LINK:
                    raise
                with self._temp_file(b"", sync=False) as temp:
                    shutil.copyfile(origin, temp)
                    self._inside(str(place.parent), lambda: os.replace(temp, place))

    def checksum(self, name: str) -> str | None:
        place = self.path(name)
        try:
            with place.open("rb") as file:
                os.fsync(file.fileno())
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            self._sync(str(place.parent))
            return digest
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            self._check_root()
            return None

    def checksum_many(self, names: Sequence[str]) -> Checksums:
        return checksums(self, names)

    def path(self, name: str) -> Path:
        return self.root / check_name(name)

    def spark_url(self, name: str) -> str:
        return f"file://{self.path(name)}"  # Hadoop takes paths literally, so nothing is escaped

    def check_writable(self) -> None:
        """Writes an object as `create` does, and deletes old temporary files of killed processes."""
        probe = f"{TEMP}/{uuid4().hex}"
        self.create(probe, b"")
        now = (
            self.path(probe).stat().st_mtime
        )  # by the file system's clock, which may be that of another machine
        self.path(probe).unlink(missing_ok=True)
        for folder, _, files in os.walk(self._temp):
            for temp in (Path(folder, file) for file in files):
                with suppress(FileNotFoundError):
                    if temp.stat().st_mtime < now - _TEMP_SECONDS:
                        temp.unlink()

    @contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        """Names the store and the object in an error about a disk that cannot be written to."""
        try:
            yield
        except OSError as error:
            if (advice := _disk_advice(error)) is None:
                raise
            raise CannotWrite(
                f"the store {self.root} cannot be written to: {error.strerror} ({name}); {advice}"
            ) from error

    @contextmanager
    def _temp_file(self, data: bytes, *, sync: bool) -> Iterator[str]:
        # Several folders, because processes would wait for each other in a shared one.
        folder = f"{self._folder}/{TEMP}/{os.getpid() % _TEMP_FOLDERS}"
        temp = f"{folder}/{uuid4().hex}"
        file = self._inside(folder, lambda: FileIO(temp, "x"))
        try:
            with file:
                left = memoryview(data)
                while left:
                    left = left[file.write(left) :]
                if sync:
                    os.fsync(file.fileno())
            yield temp
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temp)

    def _inside(self, folder: str, act: Callable[[], T]) -> T:
        """Calls `act`, and creates `folder` if it is missing. Retries if a concurrent `delete` removed the folder."""
        for _ in range(_ATTEMPTS):
            try:
                return act()
            except FileNotFoundError:
                self._make(Path(folder))
        return act()

    def _make(self, folder: Path) -> None:
        if folder == self.root:
            self._check_root()
            return
        self._make(folder.parent)
        self._synced.discard(str(folder))
        with suppress(FileExistsError, FileNotFoundError):
            folder.mkdir()

    def _prune(self, folder: Path) -> None:
        with suppress(OSError):
            while folder not in (self.root, self._temp):
                folder.rmdir()
                folder = folder.parent

    def _sync(self, folder: str) -> None:
        """Syncs `folder`, and on first use also the folders above it."""
        _sync_folder(folder)
        while folder != self._folder and folder not in self._synced:
            above = os.path.dirname(folder)
            _sync_folder(above)
            self._synced.add(folder)
            folder = above

    def _check_root(self) -> None:
        """Raises if the store was removed or unmounted: it must not look like an empty store."""
        if not self._mark.is_dir():
            raise StoreUnavailable(
                f"the store {self.root} is gone: the folder {self._mark} no longer exists. Is its file "
                "system still mounted? If the folder was removed by hand, create it again"
            )


def _disk_advice(error: OSError) -> str | None:
    """What to do about a disk that cannot be written to; `None` for other errors."""
    if error.errno in _NO_SPACE:
        return "free space on its file system"
    if error.errno == errno.EROFS:
        return "its file system is mounted read-only: mount it for writing"
    return None


def _sync_folder(folder: Path | str) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def open_folder(root: Path, create: bool) -> LocalStore:
    """Opens the store in a folder; with `create`, creates the folder. Raises `StoreError` if that fails."""
    root = root.resolve()
    try:
        if root.exists() and not root.is_dir():
            raise StoreError(f"{root} is a file, but a store is a folder; pass the path of a folder")
        if not create:
            if not root.exists():
                raise StoreError(f"there is no store at {root}: no such folder; check the path")
            return LocalStore(root)
        (root / TEMP).mkdir(parents=True, exist_ok=True)
        store = LocalStore(root)
        _sync_folder(root.parent)
        store.check_writable()
        return store
    except OSError as error:
        cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
        advice = _disk_advice(cause) or (
            "it must be on a file system with hard links, and this user must be able to write there"
        )
        raise StoreError(
            f"the folder {root} cannot be used as a store: {cause.strerror or cause}; {advice}"
        ) from error
