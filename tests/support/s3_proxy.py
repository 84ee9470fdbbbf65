"""A proxy between clients and an S3 server on this machine: counts requests, and makes some of them fail."""

from __future__ import annotations

import asyncio
import random
from asyncio import StreamReader, StreamWriter
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from threading import Thread
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

Headers = dict[str, str]
SLOW_S = 0.5
SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


class Fault(Enum):
    SLOW = "the answer comes late"
    BUSY = "503 SlowDown, and nothing is done"
    RESET = "the connection is reset, and nothing is done"
    LOST = "the request is carried out, and the connection is reset before the answer"
    CUT = "the request is carried out, and the connection is reset in the middle of the answer's body"


class Request(NamedTuple):
    """One request, as far as tests and counts care. `client`: `spark` (Hadoop's S3A) or `cutwater`."""

    method: str
    kind: str
    client: str
    key: str


Weather = Callable[[Request], Fault | None]


def fair(request: Request) -> None:
    """Nothing fails."""


def storm(seed: int, rate: float) -> Weather:
    """Of all requests, this part gets a fault, each kind as often as the others."""
    chance, kinds = random.Random(seed), list(Fault)
    return lambda request: chance.choice(kinds) if chance.random() < rate else None


class S3Proxy:
    """Runs in a thread of its own. `weather` may be replaced at any time."""

    def __init__(self, server_port: int) -> None:
        self.requests: list[Request] = []
        self.faults: Counter[Fault] = Counter()
        self.weather: Weather = fair
        self.port = 0
        self._server_port = server_port
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="s3 proxy", daemon=True)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._thread.start()
        listening = asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 20)
        server = asyncio.run_coroutine_threadsafe(listening, self._loop).result()
        self.port = server.sockets[0].getsockname()[1]

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end_connections(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end_connections(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    # --- one connection -------------------------------------------------------------------------------

    async def _serve(self, client: StreamReader, answers: StreamWriter) -> None:
        upstream: tuple[StreamReader, StreamWriter] | None = None
        try:
            while True:
                line, headers = await _read_head(client)
                if headers.pop("expect", ""):
                    answers.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                body = await _read_body(client, headers)
                method, target, _ = line.split(" ", 2)
                request = describe(method, target, headers)
                self.requests.append(request)
                fault = self.weather(request)
                if fault is not None:
                    self.faults[fault] += 1
                if fault is Fault.RESET:
                    return
                if fault is Fault.BUSY:
                    size = {"content-length": str(len(SLOW_DOWN))}
                    body = SLOW_DOWN if method != "HEAD" else b""
                    answers.write(_head("HTTP/1.1 503 Slow Down", size) + body)
                    continue
                if fault is Fault.SLOW:
                    await asyncio.sleep(SLOW_S)
                if upstream is None:
                    upstream = await asyncio.open_connection("127.0.0.1", self._server_port, limit=1 << 20)
                upstream[1].write(_head(line, headers) + body)
                head, content = await _read_answer(upstream[0], method)
                if fault is Fault.LOST or (fault is Fault.CUT and not content):
                    return
                answers.write(head + (content if fault is not Fault.CUT else content[: len(content) // 2]))
                await answers.drain()
                if fault is Fault.CUT:
                    return
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            return  # one of the two sides has closed its connection
        finally:
            for writer in (answers, *(upstream or ())[1:]):
                with suppress(OSError, RuntimeError):
                    assert isinstance(writer, StreamWriter)
                    writer.transport.abort()


async def _read_head(reader: StreamReader) -> tuple[str, Headers]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *rest = head.rstrip("\r\n").split("\r\n")
    fields = (line.partition(":") for line in rest)
    return first, {name.strip().lower(): value.strip() for name, _, value in fields}


async def _read_body(reader: StreamReader, headers: Headers) -> bytes:
    if "chunked" not in headers.get("transfer-encoding", ""):
        return await reader.readexactly(int(headers.get("content-length", "0")))
    body = b""
    while True:
        size = await reader.readuntil(b"\r\n")
        chunk = await reader.readexactly(int(size.split(b";")[0], 16) + 2)
        body += size + chunk
        if len(chunk) == 2:
            return body


async def _read_answer(reader: StreamReader, method: str) -> tuple[bytes, bytes]:
    while True:
        line, headers = await _read_head(reader)
        status = int(line.split(" ")[1])
        if status >= 200:
            break
    has_body = method != "HEAD" and status not in (204, 304)
    return _head(line, headers), await _read_body(reader, headers) if has_body else b""


def _head(line: str, headers: Headers) -> bytes:
    fields = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"{line}\r\n{fields}\r\n".encode("latin-1")


def describe(method: str, target: str, headers: Headers) -> Request:
    """What kind of request it is, in the words of S3's price list where it has some."""
    parts = urlsplit(target)
    query = parse_qs(parts.query, keep_blank_values=True)
    key = unquote(parts.path).lstrip("/").partition("/")[2]
    match method:
        case "GET" if "list-type" in query or ("prefix" in query and not key):
            kind, key = "list", query.get("prefix", [""])[0]
        case "PUT" if "x-amz-copy-source" in headers:
            kind = "copy"
        case "PUT" if "if-none-match" in headers:
            kind = "create"
        case "POST" if "delete" in query:
            kind = "delete"
        case "PUT" | "POST" if "uploads" in query or "uploadId" in query:
            kind = "multipart"
        case _:
            kind = method.lower()
    agent = headers.get("user-agent", "")
    return Request(method, kind, "spark" if "Hadoop" in agent else "cutwater", key)


@contextmanager
def s3_proxy(server_port: int) -> Iterator[S3Proxy]:
    """A proxy in front of the server on this port."""
    proxy = S3Proxy(server_port)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()
