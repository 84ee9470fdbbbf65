"""The durable store: named objects in a local folder or in a bucket.

Everything that Cutwater remembers lies here, so the two stores give the same promises: `create` is
put-if-absent, atomic per name and durable when it returns; nobody ever sees half an object; a read or
list that starts after a write returned sees it. An error says nothing about whether the write happened.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import MemoryStore, from_url

from cutwater.protocol.base.errors import StoreError

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Bucket

T = TypeVar("T")
Names = list[str]
NameLists = list[list[str]]
Contents = list[bytes | None]
Checksums = list[str | None]

URL_FORMS = "a folder, file:///folder, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix"
_BUCKET_SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss", "memory")
_AZURE_ACCESS = (
    "AZURE_STORAGE_ACCOUNT_KEY or one of its alternatives, and AZURE_STORAGE_ACCOUNT_NAME unless the URL is "
    "abfss://container@account.dfs.core.windows.net/prefix"
)
_ACCESS = {
    "s3": "AWS_REGION, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or their alternatives; for a server "
    "of your own AWS_ENDPOINT_URL, and AWS_ALLOW_HTTP=true if that is http",
    "gs": "GOOGLE_SERVICE_ACCOUNT or GOOGLE_APPLICATION_CREDENTIALS",
    "az": _AZURE_ACCESS,
    "ab": _AZURE_ACCESS,
}
_TEMP = ".tmp"
_TEMP_SECONDS = 3600
_TEMP_FOLDERS = 64
_ATTEMPTS = 100
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS)
_SIDE_BY_SIDE = 16
_CHUNK = 8 << 20


class StoreUnavailable(OSError):
    """The store did not do what was asked, for a reason that may pass; whether it happened is not known."""


class Store(Protocol):
    """Objects by name. A name is a relative path like `journal/000000000001.json`."""

    url: str

    def create(self, name: str, data: bytes) -> bool:
        """Put-if-absent, durable on return; `False` if the object exists."""

    def put(self, name: str, data: bytes) -> None:
        """Replaces the object atomically. Not synced: for hints, which may be lost."""

    def read(self, name: str) -> bytes | None:
        """The object's contents, `None` if there is none."""

    def read_many(self, names: Sequence[str]) -> Contents:
        """What `read` gives for each name; from a bucket side by side."""

    def list(self, prefix: str, after: str = "") -> Names:
        """The sorted names that begin with `prefix`, at any depth, and sort after `after`. A path with a
        component that begins with a dot is never listed."""

    def list_many(self, places: Sequence[tuple[str, str]]) -> NameLists:
        """What `list` gives for each prefix and `after`; from a bucket side by side."""

    def delete(self, names: Iterable[str]) -> None:
        """Removes objects; those that are not there are fine."""

    def exists(self, name: str) -> bool: ...

    def size(self, name: str) -> int | None:
        """In bytes; `None` if there is no such object."""

    def copy(self, source: str, target: str) -> None:
        """Copies an immutable object. A target that is there already is a copy made earlier, and fine. The
        copy is durable once its `checksum` was asked for."""

    def checksum(self, name: str) -> str | None:
        """SHA-256 of the contents in hex, `None` if there is no such object. Makes the object durable first,
        whoever wrote it: who asks is about to rely on it."""

    def checksum_many(self, names: Sequence[str]) -> Checksums:
        """What `checksum` gives for each name, side by side."""

    def path(self, name: str) -> Path | None:
        """The object's file, if this store is a local folder."""

    def spark_url(self, name: str) -> str:
        """What Spark opens to get at the object."""


def open_store(url: str, *, create: bool = False) -> Store:
    """Opens the store at a folder or URL. With `create`, makes the folder if need be and makes sure that the
    store can be written and keeps its promises."""
    if "://" not in url and not url.startswith("file:"):
        return _open_folder(Path(url), create)
    parts = urlsplit(url)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise StoreError(
                f"{url} names the host {parts.netloc!r}; write file:///folder, with three slashes"
            )
        return _open_folder(Path(unquote(parts.path)), create)
    if parts.scheme not in _BUCKET_SCHEMES:
        raise StoreError(f"{url} is not a kind of store that Cutwater knows; give {URL_FORMS}")
    return _open_bucket(url, create)


def _checksums(store: Store, names: Sequence[str]) -> Checksums:
    with ThreadPoolExecutor(_SIDE_BY_SIDE) as pool:
        return list(pool.map(store.checksum, names))


def _check_name(name: str) -> str:
    if "\0" in name or any(part in ("", ".", "..") for part in name.split("/")):
        raise StoreError(
            f"{name!r} cannot be the name of an object: it must be a plain path inside the store"
        )
    return name


class LocalStore:
    """A folder on a local or shared file system with hard links."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = self.root.as_uri()
        self._folder = str(self.root)
        self._temp = self.root / _TEMP
        self._mark = self._temp if self._temp.is_dir() else self.root
        self._synced: set[str] = set()

    def create(self, name: str, data: bytes) -> bool:
        place = f"{self._folder}/{_check_name(name)}"
        folder = os.path.dirname(place)
        with self._temp_file(data, sync=True) as temp:
            try:
                self._inside(folder, lambda: os.link(temp, place))
                created = True
            except FileExistsError:
                created = False
        # Also when it exists: that may be our own earlier try, whose sync failed.
        self._sync(folder)
        return created

    def put(self, name: str, data: bytes) -> None:
        place = self.path(name)
        with self._temp_file(data, sync=False) as temp:
            self._inside(str(place.parent), lambda: os.replace(temp, place))

    def read(self, name: str) -> bytes | None:
        try:
            with open(f"{self._folder}/{_check_name(name)}", "rb", buffering=0) as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            self._check_root()
            return None

    def read_many(self, names: Sequence[str]) -> Contents:
        return [self.read(name) for name in names]

    def list(self, prefix: str, after: str = "") -> Names:
        _check_name(prefix + "x")
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
        """Removes the `.crc` that Hadoop put beside a file too, and folders that are left empty."""
        folders = set()
        for name in names:
            place = self.path(name)
            for file in (place, place.with_name(f".{place.name}.crc")):
                with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
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

    def copy(self, source: str, target: str) -> None:
        """A hard link, or a copy where links do not work."""
        origin, place = self.path(source), self.path(target)
        if not origin.is_file():
            raise FileNotFoundError(errno.ENOENT, "nothing to copy: no such object", str(origin))
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
        return _checksums(self, names)

    def path(self, name: str) -> Path:
        return self.root / _check_name(name)

    def spark_url(self, name: str) -> str:
        return f"file://{self.path(name)}"  # Hadoop reads its paths literally: nothing is escaped

    def check_writable(self) -> None:
        """Writes as `create` does, and clears away what processes that were killed have left behind."""
        probe = f"{_TEMP}/{uuid4().hex}"
        self.create(probe, b"")
        now = self.path(probe).stat().st_mtime  # of the file system's clock, which may be another machine's
        self.path(probe).unlink(missing_ok=True)
        for folder, _, files in os.walk(self._temp):
            for temp in (Path(folder, file) for file in files):
                with suppress(FileNotFoundError):
                    if temp.stat().st_mtime < now - _TEMP_SECONDS:
                        temp.unlink()

    @contextmanager
    def _temp_file(self, data: bytes, *, sync: bool) -> Iterator[str]:
        # Several folders: in one that all processes share they would wait for each other.
        folder = f"{self._folder}/{_TEMP}/{os.getpid() % _TEMP_FOLDERS}"
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
        """Does `act`, making `folder` when it is missing; again when a `delete` removed it in between."""
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
        """Makes durable what is in `folder`, and the first time also that the folder itself is there."""
        _sync_folder(folder)
        while folder != self._folder and folder not in self._synced:
            above = os.path.dirname(folder)
            _sync_folder(above)
            self._synced.add(folder)
            folder = above

    def _check_root(self) -> None:
        """A store that was removed or unmounted is an error, and not an empty store."""
        if not self._mark.is_dir():
            raise StoreUnavailable(
                f"the store {self.root} is gone: there is no folder {self._mark} any more. Is its file "
                "system still mounted? If the folder was removed by hand, make it again"
            )


def _sync_folder(folder: Path | str) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _open_folder(root: Path, create: bool) -> LocalStore:
    root = root.resolve()
    try:
        if root.exists() and not root.is_dir():
            raise StoreError(f"{root} is a file, and a store is a folder; give the path of a folder")
        if not create:
            if not root.exists():
                raise StoreError(f"there is no store at {root}: no such folder; check the path")
            return LocalStore(root)
        (root / _TEMP).mkdir(parents=True, exist_ok=True)
        store = LocalStore(root)
        _sync_folder(root.parent)
        store.check_writable()
        return store
    except OSError as error:
        raise StoreError(
            f"the folder {root} cannot be used as a store: {error.strerror or error}; it must be on a file "
            "system with hard links, and this user must be able to write there"
        ) from error


class ObjectStore:
    """A bucket, or what lies below a prefix in it."""

    def __init__(self, url: str, bucket: Bucket, spark_root: str) -> None:
        self.url = url
        self._bucket = bucket
        self._spark_root = spark_root
        self._pool = ThreadPoolExecutor(_SIDE_BY_SIDE, thread_name_prefix="store")
        self._lookers = ThreadPoolExecutor(_SIDE_BY_SIDE, thread_name_prefix="store")  # for those in the pool

    def create(self, name: str, data: bytes) -> bool:
        with self._errors("create", name):
            try:
                obstore.put(self._bucket, _check_name(name), data, mode="create", use_multipart=False)
                return True
            except AlreadyExistsError:
                return False

    def put(self, name: str, data: bytes) -> None:
        with self._errors("put", name):
            obstore.put(self._bucket, _check_name(name), data, use_multipart=False)

    def read(self, name: str) -> bytes | None:
        with self._errors("read", name):
            try:
                return bytes(obstore.get(self._bucket, _check_name(name)).bytes())
            except FileNotFoundError as error:
                _check_bucket(error)
                return None

    def read_many(self, names: Sequence[str]) -> Contents:
        return list(self._pool.map(self.read, names))

    def list(self, prefix: str, after: str = "") -> Names:
        _check_name(prefix + "x")
        folder = prefix[: prefix.rfind("/") + 1]
        with self._errors("list", prefix):
            found = obstore.list(self._bucket, folder or None, offset=after or None).collect()
        sizes: dict[str, int] = {}
        for entry in found:
            if (name := entry["path"]).startswith(prefix) and name > after and "/." not in f"/{name}":
                sizes[name] = max(entry["size"], sizes.get(name, 0))
        return sorted(sizes.keys() - self._markers([name for name, size in sizes.items() if not size]))

    def _markers(self, empty: Names) -> set[str]:
        """Those of the listed names that are no objects, but what Hadoop's S3A leaves for folders: empty objects
        whose key ends in a slash, which obstore leaves out. A listing with a delimiter tells: of the folder above it
        gives an object by its own key, and a key that goes on behind the slash as a folder."""
        folders = sorted({name.rpartition("/")[0] for name in empty})
        objects: set[str] = set()
        for found in self._lookers.map(self._objects_in, folders):
            objects |= found
        return set(empty) - objects

    def _objects_in(self, folder: str) -> set[str]:
        with self._errors("list", folder):
            found = obstore.list_with_delimiter(self._bucket, folder or None)
        names = (entry["path"] for entry in found["objects"])  # the folder's own marker among them
        return {name for name in names if name.rpartition("/")[0] == folder}

    def list_many(self, places: Sequence[tuple[str, str]]) -> NameLists:
        return list(self._pool.map(lambda place: self.list(*place), places))

    def delete(self, names: Iterable[str]) -> None:
        wanted = [_check_name(name) for name in names]
        with self._errors("delete", ", ".join(wanted[:3])):
            try:
                obstore.delete(self._bucket, wanted)
            except FileNotFoundError:
                # Some stores stop at the first one that is not there.
                list(self._pool.map(self._delete_one, wanted))

    def _delete_one(self, name: str) -> None:
        with suppress(FileNotFoundError):
            obstore.delete(self._bucket, name)

    def exists(self, name: str) -> bool:
        return self.size(name) is not None

    def size(self, name: str) -> int | None:
        with self._errors("look at", name):
            try:
                return obstore.head(self._bucket, _check_name(name))["size"]
            except FileNotFoundError as error:
                _check_bucket(error)
                return None

    def copy(self, source: str, target: str) -> None:
        with self._errors("copy", source):
            obstore.copy(self._bucket, _check_name(source), _check_name(target))

    def checksum(self, name: str) -> str | None:
        """Reads the object piece by piece, each within the time limit of one request."""
        size = self.size(name)
        if size is None:
            return None
        digest = hashlib.sha256()
        with self._errors("read", name):
            try:
                for start in range(0, size, _CHUNK):
                    end = min(start + _CHUNK, size)
                    digest.update(obstore.get_range(self._bucket, name, start=start, end=end))
            except FileNotFoundError as error:
                _check_bucket(error)
                return None
        return digest.hexdigest()

    def checksum_many(self, names: Sequence[str]) -> Checksums:
        return _checksums(self, names)

    def path(self, name: str) -> None:
        return None

    def spark_url(self, name: str) -> str:
        return f"{self._spark_root}/{_check_name(name)}"

    def check_usable(self, *, write: bool) -> None:
        """Asks the bucket for something; with `write`, whether `create` can be relied upon as well."""
        name = f"{_TEMP}/{uuid4().hex}"
        obstore.list(self._bucket, name).collect()
        if write:
            self.create(name, b"")
            created_twice = self.create(name, b"")
            self.delete([name])
            if created_twice:
                raise StoreError(
                    f"{self.url} cannot be used as a store: it lets two writers create the same object. "
                    "Use one that supports conditional writes (for S3: If-None-Match on PUT)"
                )

    @contextmanager
    def _errors(self, what: str, name: str) -> Iterator[None]:
        try:
            yield
        except BaseError as error:
            raise StoreUnavailable(f"cannot {what} {name} in {self.url}: {_reason(error)}") from error


def _check_bucket(error: FileNotFoundError) -> None:
    """That an object is not there is fine; that its bucket is not there is an error."""
    if "NoSuchBucket" in str(error):
        raise StoreUnavailable(f"the bucket is gone: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """What a store said, without the XML around it and the debug output below it."""
    text = str(error).partition("\n\nDebug source")[0]
    said = re.search("<Message>(.*?)</Message>", text, re.DOTALL)
    return (said[1] if said else text.partition("\n")[0]).rstrip(".")


def _open_bucket(url: str, create: bool) -> ObjectStore:
    try:
        bucket: Any
        if url.startswith("memory:"):
            bucket = MemoryStore()
        else:
            bucket = from_url(url, retry_config={"max_retries": 4, "retry_timeout": timedelta(seconds=20)})
        store = ObjectStore(url, bucket, _spark_root(url, bucket))
        store.check_usable(write=create)
        return store
    except (BaseError, OSError, ValueError) as error:
        raise StoreError(
            f"{url} cannot be used as a store: {_reason(error)}; check that it exists and that the "
            f"environment gives access to it: {_ACCESS[url[:2]]}"
        ) from error


def _spark_root(url: str, bucket: Any) -> str:
    """The URL by which Hadoop's file systems know the same place."""
    scheme = urlsplit(url).scheme
    if scheme == "memory":
        return "memory:"
    config: dict[str, str] = bucket.config
    if scheme in ("s3", "s3a"):
        root = f"s3a://{config['bucket']}"
    elif scheme == "gs":
        root = f"gs://{config['bucket']}"
    else:
        account = config.get("account_name") or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")
        if not account:
            raise ValueError("the storage account of the container is not known")
        root = f"abfss://{config['container_name']}@{account}.dfs.core.windows.net"
    return f"{root}/{bucket.prefix}" if bucket.prefix else root
