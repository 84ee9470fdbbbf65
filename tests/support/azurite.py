"""Starts Azurite, the emulator of Azure's blob storage, for tests."""

from __future__ import annotations

import base64
import hashlib
import hmac
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path
from urllib.error import URLError

from tests.support.s3_server import TOOLS, free_port

BINARY = TOOLS.parent / "azurite" / "node_modules" / ".bin" / "azurite-blob"
INSTALL = "npm install --prefix .tools/azurite azurite@3.35.0"
CONTAINER = "cutwater"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account and the key that every Azurite has, as its documentation says."""

START_SECONDS = 60
VERSION = "2021-12-02"


@contextmanager
def azurite(folder: Path) -> Iterator[dict[str, str]]:
    """An Azurite on this machine with one empty container; gives the environment that a client needs."""
    port = free_port()
    command = [
        str(BINARY),
        "--blobPort",
        str(port),
        "--location",
        str(folder),
        "--silent",
        "--disableTelemetry",
        "--skipApiVersionCheck",
    ]
    folder.mkdir(parents=True)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        _make_container(port)
        yield {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": KEY,
            "AZURE_STORAGE_USE_EMULATOR": "true",
            "AZURITE_BLOB_STORAGE_URL": f"http://127.0.0.1:{port}",
        }
    finally:
        process.kill()
        process.wait()


def _make_container(port: int) -> None:
    """Waits until the server listens."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        date = formatdate(usegmt=True)
        resource = f"/{ACCOUNT}/{ACCOUNT}/{CONTAINER}\nrestype:container"
        signed = "\n".join(["PUT", *[""] * 11, f"x-ms-date:{date}", f"x-ms-version:{VERSION}", resource])
        digest = hmac.new(base64.b64decode(KEY), signed.encode(), hashlib.sha256).digest()
        headers = {
            "x-ms-date": date,
            "x-ms-version": VERSION,
            "Content-Length": "0",
            "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}",
        }
        url = f"http://127.0.0.1:{port}/{ACCOUNT}/{CONTAINER}?restype=container"
        try:
            urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers))
            return
        except URLError as error:
            if hasattr(error, "code") or time.monotonic() > deadline:
                raise
            time.sleep(0.1)
