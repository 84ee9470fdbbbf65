"""A pipeline that somebody watches, for benches that compare it with one that nobody does: the web server beside it, an
open page, and a Prometheus.

    python -m bench.watched URL      (what watches, in a process of its own, as a browser and a Prometheus are)
"""

from __future__ import annotations

import http.client
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

import cutwater as cw
from cutwater.cli.serving import PageBeside

SCRAPE_S = 2.0
"""Prometheus asks every 15 s or less often; here it is more expensive."""


@contextmanager
def watched(pipeline: cw.Pipeline, store: str) -> Iterator[None]:
    """Serves the page and the metrics of a pipeline, and lets a process watch them."""
    page = PageBeside("127.0.0.1:0", "")
    url = page.start(pipeline, store)
    with subprocess.Popen([sys.executable, "-m", "bench.watched", url], stdout=subprocess.PIPE) as watching:
        try:
            assert watching.stdout is not None
            watching.stdout.readline()  # it has begun
            yield
        finally:
            watching.terminate()
            watching.wait()
            page.stop()


def ask(address: str, path: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.request("GET", path)
    return connection.getresponse()


def read_events(address: str, begun: Event) -> None:
    while True:  # 503 until there is a store
        answer = ask(address, "/api/v1/events")
        if answer.status == 200:
            while answer.readline():
                begun.set()
        time.sleep(0.1)


def main(url: str) -> None:
    address = url.removeprefix("http://")
    begun = Event()
    Thread(target=read_events, args=(address, begun), daemon=True).start()
    begun.wait(1)
    while True:
        ask(address, "/metrics").read()
        print("metrics read", flush=True)
        time.sleep(SCRAPE_S)


if __name__ == "__main__":
    main(sys.argv[1])
