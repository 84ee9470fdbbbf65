"""The store contract on a real S3 server, and servers that misbehave."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Barrier, Thread
from urllib.parse import parse_qs, urlsplit

import obstore
import pytest
from pyarrow.fs import S3FileSystem  # type: ignore[import-untyped]

from cutwater.protocol.base import paths
from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.base.records import Prepared
from cutwater.protocol.base.watermark import NONE
from cutwater.spark.checkpoint import incarnations, new_folder, prepared, stage_files
from cutwater.spark.checkpoint.folder import Cache
from cutwater.store import objects
from cutwater.store.contract import Store, StoreUnavailable
from cutwater.store.opening import open_place
from tests.support.s3_proxy import Fault, s3_proxy
from tests.support.s3_server import BUCKET, INSTALL, S3Server, find_server, s3_server
from tests.support.store_contract import StoreContract, check_race_of_processes

needs_server = pytest.mark.skipif(find_server() is None, reason=f"no S3 server; install it with: {INSTALL}")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    with s3_server(tmp_path / "s3") as running:
        for key, value in running.environment.items():
            monkeypatch.setenv(key, value)
        yield running


@needs_server
class TestS3Store(StoreContract):
    @pytest.fixture
    def store(self, server: S3Server) -> Store:
        return open_place(server.url, create=True)

    def test_of_many_processes_exactly_one_creates(self, store: Store) -> None:
        check_race_of_processes(store)

    def test_opening_leaves_no_objects(self, store: Store, tmp_path: Path) -> None:
        bucket = tmp_path / "s3" / BUCKET
        assert [path for path in bucket.rglob("*") if path.is_file() and path.parts[-2] == ".tmp"] == []

    def test_the_locations_of_objects(self, store: Store) -> None:
        assert store.url == f"s3://{BUCKET}/pipelines/orders"
        assert store.spark_url("a/b") == f"s3a://{BUCKET}/pipelines/orders/a/b"
        assert store.path("a/b") is None

    def test_stores_in_one_bucket_do_not_see_each_other(self, store: Store) -> None:
        other = open_place(f"s3a://{BUCKET}/pipelines/order", create=True)
        store.create("a", b"x")
        assert other.list("") == []
        assert other.create("a", b"y")
        assert open_place(f"s3://{BUCKET}").list("pipelines/o") == ["pipelines/order/a", "pipelines/orders/a"]


def make_folders(server: S3Server, *names: str) -> None:
    """Creates folder markers as Hadoop's S3A does: empty objects whose key ends in a slash."""
    client = S3FileSystem(
        endpoint_override=server.endpoint,
        access_key=server.environment["AWS_ACCESS_KEY_ID"],
        secret_key=server.environment["AWS_SECRET_ACCESS_KEY"],
        region="us-east-1",
    )
    for name in names:
        client.create_dir(f"{server.url.removeprefix('s3://')}/{name}")


@needs_server
def test_folder_markers_are_not_listed_and_empty_objects_are(server: S3Server) -> None:
    store = open_place(server.url, create=True)
    make_folders(server, "top", "a/offsets", "a/sources/0", "a/nothing/in/it")
    for name in ("a/offsets/0", "a/offsets/1", "a/sources/0/0"):
        store.create(name, b"x")
    for name in ("empty", "a/empty", "a/sources/1", "a/nothing/else"):
        store.create(name, b"")
    listed = [entry["path"] for entry in obstore.list(store._bucket).collect()]  # type: ignore[attr-defined]
    assert {"top", "a/offsets", "a/sources/0", "a/nothing/in/it"} <= set(listed)
    everything = sorted(
        ["a/offsets/0", "a/offsets/1", "a/sources/0/0", "empty", "a/empty", "a/sources/1", "a/nothing/else"]
    )
    assert store.list("") == everything
    assert store.list("a/") == everything[:-1]
    assert store.list("a/off", "a/offsets/0") == ["a/offsets/1"]
    places = [("a/nothing/", ""), ("a/sources", ""), ("top", ""), ("a/off", "")] * 10
    answers = [["a/nothing/else"], ["a/sources/0/0", "a/sources/1"], [], ["a/offsets/0", "a/offsets/1"]] * 10
    assert store.list_many(places) == answers
    assert not store.exists("a/offsets")


@needs_server
def test_a_stage_is_cut_and_reopened_next_to_folder_markers(server: S3Server) -> None:
    store = open_place(server.url, create=True)
    folder = paths.spark_prefix("s", 1, 1)
    make_folders(server, f"{folder}offsets", f"{folder}commits", f"{folder}sources/0", "published/t")
    new_folder.make_folder(store, "s", 1, 1, None, None)
    store.put(
        f"{folder}offsets/0", b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}\n{"logOffset":0}'
    )
    store.put(f"{folder}commits/0", b'v1\n{"nextBatchWatermarkMs":0}')
    store.put(f"{folder}sources/0/0", b"v1\n{}")
    found = stage_files.find_state(store, "s", 1, 1, 0, None, Cache())
    assert found is not None
    assert {name.removeprefix(folder) for name in found} == {
        "offsets/0", "commits/0", "sources/0/0", "cutwater/base.json",
    }  # fmt: skip
    prepared.write_prepared(store, "s", 1, 1, Prepared(0, (), {}, consumed={}, offsets={}, watermark=NONE))
    new_folder.make_folder(store, "s", 1, 2, 1, None)
    assert incarnations.list_folders(store, "s", 1) == [1, 2]
    assert store.list("published/") == []


@needs_server
def test_an_unusable_bucket_is_refused(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for create in (False, True):
        with pytest.raises(StoreError, match=r"s3://nope/x cannot be used as a store: .*does not exist"):
            open_place("s3://nope/x", create=create)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(StoreError, match=r"signature.*AWS_SECRET_ACCESS_KEY"):
        open_place(server.url)


@needs_server
def test_a_missing_bucket_is_not_an_empty_store(server: S3Server, tmp_path: Path) -> None:
    store = open_place(server.url, create=True)
    store.create("a", b"x")
    shutil.rmtree(tmp_path / "s3" / BUCKET)
    calls: list[Callable[[], object]] = [
        lambda: store.read("a"),
        lambda: store.list(""),
        lambda: store.create("b", b"x"),
    ]
    for call in calls:
        with pytest.raises(OSError, match="bucket"):
            call()


@needs_server
def test_an_unreachable_server_is_a_temporary_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_server(tmp_path / "s3") as first:
        for key, value in first.environment.items():
            monkeypatch.setenv(key, value)
        store = open_place(first.url, create=True)
        store.create("a", b"x")
        port = int(first.endpoint.rpartition(":")[2])
    calls: list[Callable[[], object]] = [
        lambda: store.read("a"),
        lambda: store.read_many(["a", "b"]),
        lambda: store.list(""),
        lambda: store.create("b", b"x"),
        lambda: store.put("b", b"x"),
        lambda: store.delete(["a"]),
        lambda: store.size("a"),
        lambda: store.copy("a", "b"),
        lambda: store.checksum("a"),
    ]
    with ThreadPoolExecutor(len(calls)) as pool:
        for outcome in [pool.submit(call) for call in calls]:
            with pytest.raises(StoreUnavailable, match=f"cannot .* in s3://{BUCKET}"):
                outcome.result()
    with s3_server(tmp_path / "s3", port):
        assert store.read("a") == b"x"
        assert store.create("b", b"x")


def point_at(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes clients believe that S3 is there."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes `handler` the S3 server of this test."""
    http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    Thread(target=http.serve_forever, daemon=True).start()
    point_at(f"http://127.0.0.1:{http.server_port}", monkeypatch)
    try:
        yield
    finally:
        http.shutdown()
        http.server_close()


class CarelessServer(BaseHTTPRequestHandler):
    """Accepts every PUT regardless of its conditions, like S3-compatible servers that do not support them."""

    def answer(self, body: str = "") -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.send_response(200)
        self.send_header("ETag", '"1"')
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.send_header("Content-Length", f"{len(body)}")
        self.end_headers()
        self.wfile.write(body.encode())

    def do_PUT(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer("<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>")

    def do_POST(self) -> None:
        self.answer("<DeleteResult><Deleted><Key>any</Key></Deleted></DeleteResult>")

    def log_message(self, format: str, *args: object) -> None:
        """Stays silent."""


def test_a_server_that_ignores_conditions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(CarelessServer, monkeypatch):
        open_place("s3://bucket/x")
        with pytest.raises(StoreError, match=r"lets two writers create the same object.*If-None-Match"):
            open_place("s3://bucket/x", create=True)


@pytest.mark.parametrize(
    ("method", "permission"), [("PUT", "s3:PutObject"), ("GET", "s3:ListBucket"), ("POST", "s3:DeleteObject")]
)
def test_a_missing_permission_is_named(method: str, permission: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Denying(CarelessServer):
        def deny(self) -> None:
            body = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
            self.rfile.read(int(self.headers.get("Content-Length", "0")))
            self.send_response(403)
            self.send_header("Content-Length", f"{len(body)}")
            self.end_headers()
            self.wfile.write(body)

    setattr(Denying, f"do_{method}", Denying.deny)
    with (
        serving(Denying, monkeypatch),
        pytest.raises(StoreError, match=rf"Access Denied \(on S3 that needs {permission}\)"),
    ):
        open_place("s3://bucket/x", create=True)


def test_a_server_that_does_not_answer_is_reported_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.monotonic()
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.setattr(objects, "_TRYING_CLIENT", {"timeout": "1s"})
        point_at(f"http://127.0.0.1:{silent.getsockname()[1]}", monkeypatch)
        with pytest.raises(StoreError, match=r"s3://bucket/x cannot be used as a store"):
            open_place("s3://bucket/x")
    assert time.monotonic() - began < 10


def test_without_credentials_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoMachine(CarelessServer):
        def do_PUT(self) -> None:
            self.send_error(404)

    with serving(NoMachine, monkeypatch):
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1/169.254.169.254")
        monkeypatch.setenv("AWS_PROFILE", "mine")
        with pytest.raises(StoreError, match=r"no credentials were found \(profiles are not read"):
            open_place("s3://bucket/x")


@needs_server
def test_requests_that_fail_or_whose_answer_is_lost_are_repeated(
    server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_proxy(server.port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        store = open_place(server.url, create=True)
        store.create("a", b"x" * 1000)
        for fault in Fault:
            waiting = [fault]
            for kind in ("create", "get", "list", "head", "copy", "put", "delete"):
                waiting = [fault]
                proxy.weather = lambda request, kind=kind, waiting=waiting: (  # type: ignore[misc]
                    waiting.pop() if waiting and request.kind == kind else None
                )
                name = f"{fault.name}-{kind}"
                store.create(name, name.encode())
                assert store.read(name) == name.encode()
                tail = store.tail("a", 10)
                assert tail is not None
                assert tail == (b"x" * 10, 1000)
                store.copy(name, f"{name}-2")
                store.put("p", name.encode())
                assert store.size(f"{name}-2") == len(name)
                assert name in store.list("")
                store.delete([name])
                assert store.read("p") == name.encode()
                assert not store.exists(name)
                assert waiting == [], f"no {kind} was sent"
        assert set(proxy.faults) == set(Fault)


def test_a_folder_marker_is_distinguished_from_an_object(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the answers of S3, key by key, because no S3 server is at hand."""
    keys = {"x/a/": 0, "x/a/one": 3, "x/a/void": 0, "x/b": 0, "x/b/": 0, "x/c": 5, "x/c/": 0, "x/d/": 0}

    class Lister(CarelessServer):
        def do_GET(self) -> None:
            asked = {k: v[0] for k, v in parse_qs(urlsplit(self.path).query).items()}
            prefix, delimiter = asked.get("prefix", ""), asked.get("delimiter")
            objects, above = dict[str, int](), set[str]()
            for key, size in keys.items():
                inside, cut, _ = key.removeprefix(prefix).partition("/")
                if delimiter is not None and cut and key.startswith(prefix):
                    above.add(f"{prefix}{inside}/")
                elif key.startswith(prefix):
                    objects[key] = size
            said = "".join(
                f"<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
                f"<Size>{size}</Size></Contents>"
                for key, size in objects.items()
            )
            said += "".join(f"<CommonPrefixes><Prefix>{p}</Prefix></CommonPrefixes>" for p in sorted(above))
            self.answer(f"<ListBucketResult><IsTruncated>false</IsTruncated>{said}</ListBucketResult>")

    with serving(Lister, monkeypatch):
        store = open_place("s3://bucket/x")
        assert store.list("") == ["a/one", "a/void", "b", "c"]
        assert store.list("a/") == ["a/one", "a/void"]


def test_many_objects_are_read_in_parallel(monkeypatch: pytest.MonkeyPatch) -> None:
    together = Barrier(8)

    class PatientServer(CarelessServer):
        """Answers a read only when eight are waiting."""

        def do_GET(self) -> None:
            if "list-type" in self.path:
                super().do_GET()
            else:
                together.wait(30)
                self.answer(self.path[-1])

    with serving(PatientServer, monkeypatch):
        names = [f"a/{i}" for i in range(8)]
        assert open_place("s3://bucket").read_many(names) == [name[-1].encode() for name in names]
