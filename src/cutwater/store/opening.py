"""Opens the store that a URL or a path names."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from cutwater.protocol.base.errors import StoreError
from cutwater.store.contract import Store
from cutwater.store.format import check_format
from cutwater.store.local import open_folder
from cutwater.store.objects import open_bucket
from cutwater.store.overlay import Overlay

URL_FORMS = "a folder, file:///folder, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix"
_BUCKET_SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss", "memory")


def open_store(url: str, *, create: bool = False) -> Store:
    """Opens a pipeline's store at a folder or URL. With `create`, creates it if necessary, and checks that it is
    writable and keeps its promises. Raises `StoreError` if the store is unusable or has an unknown format. This is the
    only way to open a pipeline's store."""
    store = open_place(url, create=create)
    check_format(store, create=create)
    return store


def is_on_s3(store: object) -> bool:
    """Whether this is the URL of a store on S3, whose address and keys may be in Spark's settings."""
    return isinstance(store, str) and urlsplit(store).scheme in ("s3", "s3a")


def look_at(url: str, *, is_store: bool = False) -> Store:
    """Opens a place for reading: what is written there stays in memory, and a missing folder is an empty place. Raises
    `StoreError` as `open_place` does, and for a pipeline's store as `open_store` does."""
    if "://" not in url and not url.startswith("file:") and url.strip() and not Path(url).exists():
        return Overlay(None, Path(url).resolve().as_uri())
    store = open_store(url) if is_store else open_place(url)
    return Overlay(store, store.url)


def open_place(url: str, *, create: bool = False) -> Store:
    """Opens a folder or URL that is not a pipeline's store: a table. `create` works as in `open_store`."""
    if not url.strip():
        raise StoreError(f"the address is empty (is a variable unset?); give {URL_FORMS}")
    if "://" not in url and not url.startswith("file:"):
        return open_folder(Path(url), create)
    parts = urlsplit(url)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise StoreError(
                f"{url} names the host {parts.netloc!r}; write file:///folder, with three slashes"
            )
        return open_folder(Path(unquote(parts.path)), create)
    if parts.scheme not in _BUCKET_SCHEMES:
        raise StoreError(f"{url} is not a kind of store that Cutwater supports; use {URL_FORMS}")
    return open_bucket(url, create)
