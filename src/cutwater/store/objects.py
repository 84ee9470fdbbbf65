"""A store in a bucket of any object store that obstore supports and that has conditional writes."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from html import unescape
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit
from uuid import uuid4

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError
from obstore.store import AzureStore, MemoryStore, from_url

from cutwater.protocol.base.errors import StoreError
from cutwater.store.contract import (
    TEMP,
    Checksums,
    Contents,
    NameLists,
    Names,
    StoreUnavailable,
    Tail,
    check_name,
    checksums,
)
from cutwater.store.s3_access import access_to

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Bucket

_AZURE_ACCESS = (
    "AZURE_STORAGE_ACCOUNT_KEY or one of its alternatives, and AZURE_STORAGE_ACCOUNT_NAME unless the URL is "
    "abfss://container@account.dfs.core.windows.net/prefix"
)
_ACCESS = {
    "s3": "AWS_REGION, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or their alternatives; for your own "
    "server also AWS_ENDPOINT_URL. A run also takes Spark's settings, --conf spark.hadoop.fs.s3a.*",
    "gs": "GOOGLE_SERVICE_ACCOUNT or GOOGLE_APPLICATION_CREDENTIALS",
    "az": _AZURE_ACCESS,
    "ab": _AZURE_ACCESS,
}
_PERMISSIONS = {
    "list": "s3:ListBucket",
    "create": "s3:PutObject",
    "read": "s3:GetObject",
    "delete": "s3:DeleteObject",
}
_NO_KEYS = re.compile(r"169\.254\.169\.254|metadata\.google\.internal")
"""Where the cloud's own machines get their credentials: queried if there are none in the environment."""

_MAX_PARALLEL = 16
_NO_ANSWER = re.compile(
    r"Error performing \w+ (https?://[^/?\s]+).*HTTP error: error sending request", re.DOTALL
)
_CHUNK = 8 << 20
_BROKEN_ANSWERS = 3
T = TypeVar("T")

_LASTING = {"max_retries": 4, "retry_timeout": timedelta(seconds=20)}
"""The protocol retries failed operations, so a request fails rather soon."""
_TRYING = {"max_retries": 1, "retry_timeout": timedelta(seconds=10)}
"""Opening a store reports problems within seconds."""
_TRYING_CLIENT = {"connect_timeout": "5s", "timeout": "10s"}


class ObjectStore:
    """A bucket, or a prefix within one."""

    def __init__(self, url: str, bucket: Bucket, spark_root: str) -> None:
        self.url = url
        self._bucket = bucket
        self._spark_root = spark_root
        self._has_suffix_ranges = not isinstance(bucket, AzureStore)
        self._pool = ThreadPoolExecutor(_MAX_PARALLEL, thread_name_prefix="store")
        # A second pool, because tasks of the first one wait for its results.
        self._folder_pool = ThreadPoolExecutor(_MAX_PARALLEL, thread_name_prefix="store")

    def create(self, name: str, data: bytes) -> bool:
        with self._errors("create", name):
            try:
                obstore.put(self._bucket, check_name(name), data, mode="create", use_multipart=False)
                return True
            except AlreadyExistsError:
                return False

    def put(self, name: str, data: bytes) -> None:
        with self._errors("put", name):
            obstore.put(self._bucket, check_name(name), data, use_multipart=False)

    def read(self, name: str) -> bytes | None:
        with self._errors("read", name):
            try:
                return bytes(obstore.get(self._bucket, check_name(name)).bytes())
            except FileNotFoundError as error:
                _check_bucket(error)
                return None

    def read_many(self, names: Sequence[str]) -> Contents:
        return list(self._pool.map(self.read, names))

    def list(self, prefix: str, after: str = "") -> Names:
        check_name(prefix + "x")
        folder = prefix[: prefix.rfind("/") + 1]
        with self._errors("list", prefix):
            found = _whole(lambda: obstore.list(self._bucket, folder or None, offset=after or None).collect())
        sizes: dict[str, int] = {}
        for entry in found:
            if (name := entry["path"]).startswith(prefix) and name > after and "/." not in f"/{name}":
                sizes[name] = max(entry["size"], sizes.get(name, 0))
        return sorted(sizes.keys() - self._markers([name for name, size in sizes.items() if not size]))

    def _markers(self, empty: Names) -> set[str]:
        """The names that are not objects but folder markers of Hadoop's S3A: empty objects whose key ends in a slash,
        which obstore strips. A listing of the parent folder with a delimiter shows the difference: an object appears
        under its own key, and a key that continues after the slash appears as a folder."""
        folders = sorted({name.rpartition("/")[0] for name in empty})
        objects: set[str] = set()
        for found in self._folder_pool.map(self._objects_in, folders):
            objects |= found
        return set(empty) - objects

    def _objects_in(self, folder: str) -> set[str]:
        with self._errors("list", folder):
            found = _whole(lambda: obstore.list_with_delimiter(self._bucket, folder or None))
        names = (entry["path"] for entry in found["objects"])  # includes the folder's own marker
        return {name for name in names if name.rpartition("/")[0] == folder}

    def list_many(self, places: Sequence[tuple[str, str]]) -> NameLists:
        return list(self._pool.map(lambda place: self.list(*place), places))

    def delete(self, names: Iterable[str]) -> None:
        wanted = [check_name(name) for name in names]
        with self._errors("delete", ", ".join(wanted[:3])):
            try:
                _whole(lambda: obstore.delete(self._bucket, wanted))
            except FileNotFoundError:
                # Some object stores stop at the first missing object.
                list(self._pool.map(self._delete_one, wanted))

    def _delete_one(self, name: str) -> None:
        with suppress(FileNotFoundError):
            obstore.delete(self._bucket, name)

    def exists(self, name: str) -> bool:
        return self.size(name) is not None

    def size(self, name: str) -> int | None:
        with self._errors("look at", name):
            try:
                return obstore.head(self._bucket, check_name(name))["size"]
            except FileNotFoundError as error:
                _check_bucket(error)
                return None

    def tail(self, name: str, length: int) -> Tail | None:
        with self._errors("read", name):
            try:
                if self._has_suffix_ranges:
                    try:
                        found = obstore.get(
                            self._bucket, check_name(name), options={"range": {"suffix": length}}
                        )
                        return Tail(bytes(found.bytes()), found.meta["size"])
                    except BaseError:
                        if self.size(name) != 0:  # an empty object has no range
                            raise
                size = obstore.head(self._bucket, check_name(name))["size"]
                start = max(0, size - length)
                data = bytes(obstore.get_range(self._bucket, name, start=start, end=size)) if size else b""
                return Tail(data, size)
            except FileNotFoundError as error:
                _check_bucket(error)
                return None

    def copy(self, source: str, target: str) -> None:
        with self._errors("copy", source):
            _whole(lambda: obstore.copy(self._bucket, check_name(source), check_name(target)))

    def checksum(self, name: str) -> str | None:
        """Reads the object in chunks, so that each request stays within its time limit."""
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
        return checksums(self, names)

    def path(self, name: str) -> None:
        return None

    def spark_url(self, name: str) -> str:
        return f"{self._spark_root}/{check_name(name)}"

    def check_usable(self, *, write: bool) -> None:
        """Checks that the bucket answers and, with `write`, that objects can be created, read and deleted, and that
        `create` is really put-if-absent."""
        name = f"{TEMP}/{uuid4().hex}"
        self.list(name)
        if write:
            self.create(name, b"")
            self.read(name)
            created_twice = self.create(name, b"")
            self.delete([name])
            if created_twice:
                raise StoreError(
                    f"{self.url} cannot be used as a store: it lets two writers create the same object. "
                    "Use a store that supports conditional writes (for S3: If-None-Match on PUT)"
                )

    @contextmanager
    def _errors(self, what: str, name: str) -> Iterator[None]:
        try:
            yield
        except BaseError as error:
            raise StoreUnavailable(f"cannot {what} {name} in {self.url}: {_reason(error)}") from error


def _whole(ask: Callable[[], T]) -> T:
    """The answer to a request that may be sent twice. obstore retries a request that gets no answer, but not one whose
    answer breaks off."""
    for _ in range(_BROKEN_ANSWERS):
        try:
            return ask()
        except BaseError as error:
            if "response body" not in str(error):
                raise
    return ask()


def _check_bucket(error: FileNotFoundError) -> None:
    """Raises if the bucket is missing, as opposed to an object in it."""
    if "NoSuchBucket" in str(error):
        raise StoreUnavailable(f"the bucket is gone: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """The object store's own message, without the surrounding XML and debug output."""
    text = str(error).partition("\n\nDebug source")[0]
    if _NO_KEYS.search(text):
        return f"no credentials were found{_profile_advice()}"
    silent = _NO_ANSWER.search(text)
    if silent is not None:
        return f"no connection to {silent[1]}"
    said = re.search("<Message>(.*?)</Message>", text, re.DOTALL)
    return unescape(said[1] if said else text.partition("\n")[0]).rstrip(". ")


def _profile_advice() -> str:
    if not os.environ.get("AWS_PROFILE"):
        return ""
    return ' (profiles are not read; use `eval "$(aws configure export-credentials --format env)"`)'


def open_bucket(url: str, create: bool) -> ObjectStore:
    """Opens the store at a URL; with `create`, checks that it is writable. Raises `StoreError` if it is unusable, within
    seconds."""
    url = _one_spelling(url)
    try:
        ObjectStore(url, _bucket(url, _TRYING, _TRYING_CLIENT), "").check_usable(write=create)
        bucket = _bucket(url, _LASTING, {})
        return ObjectStore(url, bucket, _spark_root(url, bucket))
    except (BaseError, OSError, ValueError) as error:
        said = re.sub(rf"^cannot (\w+) .* in {re.escape(url)}: ", r"cannot \1 objects: ", _reason(error))
        raise StoreError(
            f"{url} cannot be used as a store: {said}{_permission(error)}; check that it exists and that the "
            f"environment grants access to it: {_ACCESS[url[:2]]}"
        ) from error


def _one_spelling(url: str) -> str:
    """s3a:// is what Hadoop calls s3://."""
    return f"s3://{url.removeprefix('s3a://')}" if url.startswith("s3a://") else url


def _bucket(url: str, retries: Any, client: dict[str, str]) -> Any:
    if url.startswith("memory:"):
        return MemoryStore()
    access = access_to(url)
    options: Any = client | ({"allow_http": True} if access.allows_http else {})
    config: Any = access.config
    return from_url(url, config=config, client_options=options, retry_config=retries)


def _permission(error: Exception) -> str:
    """The permission that is missing, if the store says that access is denied."""
    cause = error.__cause__ or error
    if not isinstance(cause, PermissionDeniedError) and "AccessDenied" not in str(cause):
        return ""
    what = str(error).removeprefix("cannot ").partition(" ")[0]
    return f" (on S3 that needs {_PERMISSIONS[what]})" if what in _PERMISSIONS else ""


def _spark_root(url: str, bucket: Any) -> str:
    """The URL of the same place for Hadoop's file systems."""
    scheme = urlsplit(url).scheme
    if scheme == "memory":
        return "memory:"
    config: dict[str, str] = bucket.config
    if scheme == "s3":
        root = f"s3a://{config['bucket']}"
    elif scheme == "gs":
        root = f"gs://{config['bucket']}"
    else:
        account = config.get("account_name") or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")
        if not account:
            raise ValueError("the storage account of the container is unknown")
        root = f"abfss://{config['container_name']}@{account}.dfs.core.windows.net"
    return f"{root}/{bucket.prefix}" if bucket.prefix else root
