"""A network between two members that can be cut silently."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from threading import Thread


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


class Proxy:
    """Forwards bytes from its own port to another, both on the loopback interface, unless it is cut. A connection that
    exists during a cut is closed when the cut ends, as it would be by then anyway."""

    def __init__(self, to: int) -> None:
        self.port = free_port()
        self._to = to
        self._loop = asyncio.new_event_loop()
        self._open: asyncio.Event
        self._writers: set[asyncio.StreamWriter] = set()
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)

    def cut(self) -> None:
        self._loop.call_soon_threadsafe(self._open.clear)

    def mend(self) -> None:
        self._loop.call_soon_threadsafe(self._mend)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    async def _listen(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    def _mend(self) -> None:
        if not self._open.is_set():
            for writer in self._writers:
                writer.transport.abort()
            self._open.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            await self._open.wait()
            there, back = await asyncio.open_connection("127.0.0.1", self._to)
            self._writers.add(back)
            await asyncio.gather(self._pump(reader, back), self._pump(there, writer))
        except OSError:
            pass
        finally:
            writer.transport.abort()
            self._writers.discard(writer)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                await self._open.wait()
                writer.write(data)
                await writer.drain()
        writer.transport.abort()
        self._writers.discard(writer)
