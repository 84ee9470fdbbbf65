"""A real server, over a real socket."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from queue import Queue
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from cutwater.protocol.base.errors import UserError
from cutwater.store.contract import Store
from cutwater.telemetry.routes import routes
from cutwater.web import api as api_module
from cutwater.web import connection as connection_module
from cutwater.web import hub as hub_module
from cutwater.web.server import WebServer, listen_at
from tests.support.written import put_status


@pytest.fixture
def server(store: Store) -> Iterator[WebServer]:
    made = WebServer(store, "127.0.0.1:0")
    made.start()
    yield made
    made.stop()


def get(server: WebServer, path: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=30)
    connection.request("GET", path)
    answer = connection.getresponse()
    text = answer.read()
    found = answer.status, json.loads(text) if path.startswith("/api") else text
    connection.close()
    return found


def events(server: WebServer) -> Iterator[tuple[str, Any]]:
    """What a page is sent, as it comes."""
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=30)
    connection.request("GET", "/api/v1/events")
    answer = connection.getresponse()
    assert answer.headers["content-type"].startswith("text/event-stream")
    event = ""
    for line in answer:
        text = line.decode().strip()
        if text.startswith("event: "):
            event = text.removeprefix("event: ")
        elif text.startswith("data: "):
            yield event, json.loads(text.removeprefix("data: "))


def test_a_page_learns_of_a_change_without_asking(server: WebServer, store: Store) -> None:
    seen = []
    for event, data in events(server):
        seen.append(event)
        if event == "pipeline" and not data["members"]:
            put_status(store)
        elif event == "pipeline":
            assert data["members"][0]["member"] == "main"
            break
    assert "journal" in seen


def test_pages_learn_that_the_store_fails_and_that_it_is_back(
    server: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems: list[object] = []
    with monkeypatch.context() as patch:
        for event, data in events(server):
            if event == "pipeline" and not problems:
                patch.setattr(server.reader, "look", _broken)
            elif event == "store":
                problems.append(data["problem"])
                patch.undo()
                if len(problems) == 2:
                    break
    assert problems == ["the store does not answer; the log of the server says why", None]


def _broken(*_: object) -> None:
    raise OSError("the disk is on fire")


def test_clients_that_never_read_or_finish_their_request_do_no_harm(server: WebServer) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    hanging = []
    for text in (b"", b"GET / HT", b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n") * 10:
        one = socket.create_connection((host, int(port)))
        one.sendall(text)
        hanging.append(one)
    began = time.monotonic()
    assert get(server, "/api/v1/pipeline")[0] == 200
    assert time.monotonic() - began < 10
    stopping = time.monotonic()
    server.stop()
    assert time.monotonic() - stopping < 10
    for one in hanging:
        one.close()


def opened(server: WebServer, count: int, sent: bytes = b"") -> list[socket.socket]:
    host, port = server.url.removeprefix("http://").split(":")
    found = []
    for _ in range(count):
        found.append(socket.create_connection((host, int(port)), timeout=30))
        found[-1].sendall(sent)
    return found


def test_connections_without_a_request_do_not_displace_others(
    server: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "MAX_CONNECTIONS", 5)
    idle = opened(server, 20)
    assert get(server, "/")[0] == 200
    assert [one.recv(1) for one in idle[:15]] == [b""] * 15
    for one in idle:
        one.close()


def test_when_all_connections_are_in_use_one_more_is_closed_at_once(
    server: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = opened(server, 3, b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert [one.recv(15) for one in streams] == [b"HTTP/1.1 200 OK"] * 3
    monkeypatch.setattr(connection_module, "MAX_CONNECTIONS", 3)
    (more,) = opened(server, 1)
    with suppress(ConnectionError):
        assert more.recv(1) == b""
    for one in [*streams, more]:
        one.close()


@pytest.mark.parametrize(
    "sent", [(b"",), (b"GET / HTTP/1.1\r\n",), (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET")]
)
def test_a_connection_that_sends_no_complete_request_is_closed(
    server: WebServer, monkeypatch: pytest.MonkeyPatch, sent: tuple[bytes, ...]
) -> None:
    monkeypatch.setattr(connection_module, "HEAD_S", 0.1)
    (one,) = opened(server, 1, sent[0])
    with suppress(ConnectionError):
        for more in sent[1:]:
            one.recv(65_536)
            one.sendall(more)
        one.settimeout(8)  # less than an idle connection is kept after an answer
        while one.recv(65_536):
            pass
    one.close()


def test_a_hanging_store_does_not_delay_health_checks(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    member: Any = SimpleNamespace(turn=lambda task: task(), latest_status=(None, 0.0))
    server = WebServer(store, "127.0.0.1:0", routes=routes(lambda: member))
    answers: Queue[int] = Queue()
    begun, go_on = Event(), Event()
    monkeypatch.setattr(api_module, "LOOK_S", 0.1)

    def hang() -> list[Any]:
        begun.set()
        go_on.wait(60)
        return []

    server.start()
    try:
        assert get(server, "/api/v1/pipeline")[0] == 200
        monkeypatch.setattr(server.reader, "_members", hang)
        assert begun.wait(10)  # the watcher looks
        threads = [
            Thread(target=lambda: answers.put(get(server, "/api/v1/pipeline")[0]), daemon=True)
            for _ in range(60)
        ]
        for thread in threads:
            thread.start()
        assert [answers.get(timeout=20) for _ in range(50)] == [503] * 50
        began = time.monotonic()
        for path in ("/healthz", "/readyz", "/metrics", "/api/v1/requests", "/"):
            get(server, path)
        assert time.monotonic() - began < 4
    finally:
        go_on.set()
        server.stop()


def test_requests_that_are_not_http_get_an_error_and_the_server_continues(server: WebServer) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    for text in (
        b"\x00\xff" * 100,
        b"GET " + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
    ):
        with socket.create_connection((host, int(port))) as one:
            one.settimeout(30)
            one.sendall(text)
            one.shutdown(socket.SHUT_WR)
            with suppress(ConnectionError):
                assert b"Traceback" not in one.recv(65_536)
    assert get(server, "/api/v1/pipeline")[0] == 200


def test_an_address_that_is_taken_is_an_error(store: Store, server: WebServer) -> None:
    with pytest.raises(UserError, match="cannot listen on"):
        WebServer(store, server.url.removeprefix("http://")).start()
    with pytest.raises(UserError, match="cannot listen on"):
        listen_at("192.0.2.1", 80)


def test_many_pages_at_once_are_answered(server: WebServer) -> None:
    found: list[int] = []
    threads = [Thread(target=lambda: found.append(get(server, "/api/v1/checkpoints")[0])) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [200] * 20


def reading_nothing(server: WebServer, count: int, sent: bytes) -> list[socket.socket]:
    """Clients that send this, as far as it is taken, and read nothing of the answer but its beginning."""
    host, port = server.url.removeprefix("http://").split(":")
    found = []
    for _ in range(count):
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        one.settimeout(0.2)
        one.connect((host, int(port)))
        with suppress(TimeoutError, ConnectionError):
            one.sendall(sent)
        one.settimeout(20)
        with suppress(ConnectionError):
            one.recv(1)
        found.append(one)
    return found


def is_soon_answered(server: WebServer, path: str) -> bool:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        with suppress(OSError, http.client.HTTPException):
            return get(server, path)[0] == 200
        time.sleep(0.05)
    return False


def test_clients_that_pipeline_requests_and_read_no_answer_do_not_displace_others(
    server: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "MAX_CONNECTIONS", 5)
    hanging = reading_nothing(server, 8, b"GET /style.css HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1_500)
    for path in ("/", "/style.css", "/"):
        assert is_soon_answered(server, path)
    for one in hanging:
        one.close()


class Endless:
    """A route whose answer does not end, and one that does not begin."""

    def __init__(self) -> None:
        self.gone: Queue[str] = Queue()

    def routes(self) -> list[Route]:
        return [
            Route("/endless", lambda request: StreamingResponse(self._rows())),
            Route("/hang", self._hang),
        ]

    async def _rows(self) -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"x" * 65_536
                await asyncio.sleep(0)
        finally:
            self.gone.put("endless")

    async def _hang(self, request: Request) -> Response:
        try:
            await asyncio.sleep(60)
        finally:
            self.gone.put("hang")
        return Response()


ENDLESS = b"GET /endless HTTP/1.1\r\nHost: localhost\r\n\r\n"


def test_clients_that_do_not_read_their_one_answer_do_not_displace_others(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "MAX_CONNECTIONS", 3)
    server = WebServer(store, "127.0.0.1:0", routes=Endless().routes())
    server.start()
    try:
        hanging = reading_nothing(server, 3, ENDLESS)
        assert is_soon_answered(server, "/")
        for one in hanging:
            one.close()
    finally:
        server.stop()


def test_an_answer_that_is_not_read_is_given_up(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "STALL_S", 0.1)
    endless = Endless()
    server = WebServer(store, "127.0.0.1:0", routes=endless.routes())
    server.start()
    try:
        (one,) = reading_nothing(server, 1, ENDLESS)
        assert endless.gone.get(timeout=10) == "endless"
        one.close()
    finally:
        server.stop()


def test_a_page_that_does_not_read_gives_up_its_connection(
    server: WebServer, store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not only its place among the pages: to close it would wait until it reads."""
    monkeypatch.setattr(hub_module, "SEND_S", 0.05)
    monkeypatch.setattr(hub_module, "HEARTBEAT_S", 0.01)
    (one,) = reading_nothing(server, 1, b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert server._shown is not None
    hub = server._shown._hub
    deadline = time.monotonic() + 30
    while hub.clients and time.monotonic() < deadline:
        hub.publish("pipeline", b"x" * 500_000)
        time.sleep(0.01)
    assert hub.clients == 0
    assert server._server is not None
    connections = server._server.server_state.connections
    while connections and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not connections
    assert [record.getMessage() for record in caplog.records] == []
    one.close()


def test_a_server_that_ends_while_it_answers_says_nothing_about_it(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    endless = Endless()
    server = WebServer(store, "127.0.0.1:0", routes=endless.routes())
    server.start()
    hanging = reading_nothing(server, 2, ENDLESS)
    hanging += opened(server, 1, b"GET /hang HTTP/1.1\r\nHost: localhost\r\n\r\n")
    get(server, "/")
    server.stop()
    assert sorted(endless.gone.get(timeout=10) for _ in range(3)) == ["endless", "endless", "hang"]
    assert [record.getMessage() for record in caplog.records] == []
    for one in hanging:
        one.close()
