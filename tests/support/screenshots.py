"""Takes the pictures of the page that are in `docs/`: plays the demo and looks at it in a headless Chromium.

    python -m tests.support.screenshots docs

On a quiet machine: the pictures show how long everything took.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cutwater.store.opening import open_store
from cutwater.web.server import WebServer
from tests.support.browser import Browser, chromium

PIPELINE, EPOCH = (1200, 640), (1200, 760)
SAVEPOINT = "all-is-well"
"""What the demo calls the savepoint to which it goes back."""
START_S, TRAVELS_S = 60.0, 120.0


def main(docs: Path) -> None:
    with tempfile.TemporaryDirectory() as name, chromium() as browser:
        folder = Path(name) / "cutwater-demo"
        printed = Path(name) / "printed"
        with printed.open("w") as out:
            command = [sys.executable, "-m", "cutwater", "demo", "--folder", str(folder)]
            with subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT) as demo:
                try:
                    take_pipeline(browser, address(printed), docs / "page-pipeline.png")
                    demo.wait()
                finally:
                    demo.terminate()
        if demo.returncode:
            raise SystemExit(printed.read_text("utf-8"))
        server = WebServer(open_store(str(folder / "state")), "127.0.0.1:0")
        server.start()
        take_epoch(browser, server.url, SAVEPOINT, docs / "page-epoch.png")
        server.stop()


def address(printed: Path) -> str:
    """The address of the page, once the demo has printed it."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if found := re.search(r"http://127\.0\.0\.1:\d+", printed.read_text("utf-8")):
            return found.group()
        time.sleep(0.1)
    raise SystemExit(f"the demo has printed no address: {printed.read_text('utf-8')}")


def take_pipeline(browser: Browser, url: str, file: Path) -> None:
    """The graph, while a barrier travels and rows wait for it."""
    browser.resize(PIPELINE)
    browser.open(f"{url}/#/pipeline")
    browser.wait(lambda: browser.all(".edge.barrier") and browser.all(".backlog"), "a barrier", TRAVELS_S)
    browser.save(file)


def take_epoch(browser: Browser, url: str, ref: str, file: Path) -> None:
    browser.resize(EPOCH)
    browser.open(f"{url}/#/checkpoints/{ref}")
    browser.wait_for_text("Where the time went", "#view")
    browser.wait_for_text("live", "#fresh")
    browser.save(file)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
