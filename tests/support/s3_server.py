"""Starts a real S3 server (the Versity gateway over a folder) for tests and benchmarks."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[2] / ".tools" / "bin"
VERSION = "v1.8.0"
INSTALL = f"GOBIN=$PWD/.tools/bin go install github.com/versity/versitygw/cmd/versitygw@{VERSION}"
BUCKET = "cutwater"
START_SECONDS = 20


@dataclass(frozen=True)
class S3Server:
    """A running server with one empty bucket, and the environment variables that a client needs."""

    endpoint: str
    environment: dict[str, str]
    process: subprocess.Popen[bytes]

    @property
    def port(self) -> int:
        return int(self.endpoint.rpartition(":")[2])

    @property
    def url(self) -> str:
        return f"s3://{BUCKET}/pipelines/orders"

    def add_user(self, name: str, secret: str) -> None:
        """Adds a user who may do nothing yet."""
        keys = self.environment
        admin = ["admin", "--access", keys["AWS_ACCESS_KEY_ID"], "--secret", keys["AWS_SECRET_ACCESS_KEY"]]
        user = ["--endpoint-url", self.endpoint, "create-user", "--access", name, "--secret", secret]
        binary = find_server()
        assert binary is not None
        subprocess.run([binary, *admin, *user, "--role", "user"], check=True, capture_output=True, env={})

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def find_server() -> str | None:
    """The server's binary, on the PATH or in the project's `.tools/bin`."""
    return shutil.which("versitygw") or shutil.which("versitygw", path=TOOLS)


@contextmanager
def s3_server(folder: Path, port: int = 0) -> Iterator[S3Server]:
    """A server on this machine that keeps its objects in `folder`; it is killed at the end."""
    binary = find_server()
    if binary is None:
        raise FileNotFoundError(f"there is no versitygw; install it with: {INSTALL}")
    (folder / BUCKET).mkdir(parents=True, exist_ok=True)
    port = port or free_port()
    address = f"127.0.0.1:{port}"
    keys = {"ROOT_ACCESS_KEY": "cutwater", "ROOT_SECRET_KEY": "cutwater-secret"}
    users = folder.with_name(f"{folder.name}-users")
    users.mkdir(exist_ok=True)
    command = [
        binary,
        "--quiet",
        "--port",
        address,
        "--keep-alive",
        "--iam-dir",
        f"{users}",
        "posix",
        f"{folder}",
    ]
    with folder.with_name(f"{folder.name}.log").open("wb") as log:
        process = subprocess.Popen(command, env=keys, stdout=log, stderr=log)
    environment = {
        "AWS_ENDPOINT_URL": f"http://{address}",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": keys["ROOT_ACCESS_KEY"],
        "AWS_SECRET_ACCESS_KEY": keys["ROOT_SECRET_KEY"],
    }
    server = S3Server(f"http://{address}", environment, process)
    try:
        _wait_until_it_listens(process, port, Path(log.name))
        yield server
    finally:
        server.end()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_it_listens(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the S3 server did not start: {log.read_text()}") from error
            time.sleep(0.02)
