"""Events for open pages: slow and dead clients harm nobody."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest

from cutwater.web import hub as hub_module
from cutwater.web.hub import MAX_CLIENTS, MAX_WAITING, Hub

SCOPE = {"type": "http", "method": "GET", "path": "/api/v1/events"}


class Client:
    """A client that takes what it is sent, unless it is told to stop reading."""

    def __init__(self) -> None:
        self.status = 0
        self.text = ""
        self.reads = asyncio.Event()
        self.reads.set()
        self.gone = asyncio.Event()
        self.has_ended = False

    async def receive(self) -> MutableMapping[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        await self.reads.wait()
        self.status = message.get("status", self.status)
        self.text += message.get("body", b"").decode()
        self.has_ended = message["type"] == "http.response.body" and not message.get("more_body")


async def until(holds: Any) -> None:
    for _ in range(1_000):
        if holds():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not happen in time")


async def joined(hub: Hub) -> tuple[Client, asyncio.Task[None]]:
    client, before = Client(), hub.clients
    task = asyncio.ensure_future(hub(SCOPE, client.receive, client.send))
    await until(lambda: hub.clients > before)
    return client, task


def test_all_clients_get_an_event_and_late_ones_the_newest_that_is_kept() -> None:
    async def play() -> None:
        hub = Hub()
        first, _ = await joined(hub)
        hub.publish("pipeline", b'{"n":1}', keep=True)
        hub.publish("request", b'{"n":2}')
        second, _ = await joined(hub)
        await until(lambda: '{"n":2}' in first.text and '{"n":1}' in second.text)
        assert first.text.index('event: pipeline\ndata: {"n":1}\n\n') < first.text.index("event: request")
        assert '{"n":2}' not in second.text
        hub.close()
        await until(lambda: first.has_ended and second.has_ended and hub.clients == 0)

    asyncio.run(play())


def test_a_client_that_does_not_read_is_dropped_and_the_others_are_not() -> None:
    async def play() -> None:
        hub = Hub()
        slow, slow_task = await joined(hub)
        other, _ = await joined(hub)
        await until(lambda: "retry" in slow.text)
        slow.reads.clear()
        for number in range(3 * MAX_WAITING):
            hub.publish("pipeline", b"%d" % number)
            await until(lambda number=number: f"data: {number}\n" in other.text)
        slow.reads.set()
        await slow_task
        assert hub.clients == 1
        assert f"data: {3 * MAX_WAITING - 1}\n" not in slow.text

    asyncio.run(play())


def test_a_client_whose_connection_hangs_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "SEND_S", 0.05)
    monkeypatch.setattr(hub_module, "HEARTBEAT_S", 0.05)

    async def play() -> None:
        hub = Hub()
        client, task = await joined(hub)
        await until(lambda: "event: alive" in client.text)
        client.reads.clear()
        await asyncio.wait_for(task, 5)
        assert hub.clients == 0

    asyncio.run(play())


def test_a_client_that_has_gone_is_forgotten() -> None:
    async def play() -> None:
        hub = Hub()
        client, task = await joined(hub)
        client.gone.set()
        await asyncio.wait_for(task, 5)
        assert hub.clients == 0

    asyncio.run(play())


def test_one_client_too_many_gets_an_error() -> None:
    async def play() -> None:
        hub = Hub()
        for _ in range(MAX_CLIENTS):
            await joined(hub)
        client = Client()
        await hub(SCOPE, client.receive, client.send)
        assert client.status == 503

    asyncio.run(play())


def test_publishing_does_not_wait_for_a_loop_that_has_ended() -> None:
    hub = Hub()

    async def play() -> None:
        await joined(hub)

    asyncio.run(play())
    hub.publish("pipeline", b"{}")
    hub.close()
