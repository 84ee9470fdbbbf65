"""A real Prometheus for tests: Debian's package, unpacked by `make tools-prometheus`."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.s3_server import free_port
from tests.support.spark_helpers import await_that

TOOLS = Path(__file__).resolve().parents[2] / ".tools" / "prometheus" / "usr" / "bin"


def find(program: str) -> str | None:
    """`prometheus` or `promtool`, on the PATH or in the project's `.tools`."""
    return shutil.which(program) or shutil.which(program, path=TOOLS)


MISSING = (
    None
    if find("prometheus") and find("promtool")
    else "there is no Prometheus; fetch it with `make tools-prometheus`"
)


def promtool(*arguments: str | Path) -> str:
    """Runs promtool, and returns what it says. Fails if it does."""
    program = find("promtool")
    assert program is not None
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Prometheus:
    """A running Prometheus."""

    def __init__(self, address: str) -> None:
        self.url = f"http://{address}/api/v1"

    def get(self, path: str, **parameters: str) -> Any:
        with urllib.request.urlopen(
            f"{self.url}/{path}?{urllib.parse.urlencode(parameters)}", timeout=10
        ) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples of an instant query."""
        found: list[dict[str, Any]] = self.get("query", query=expression)["result"]
        return found

    def answers(self) -> bool:
        try:
            self.get("targets")
        except (urllib.error.URLError, OSError):
            return False
        return True


@contextmanager
def scraping(folder: Path, target: str, rules: Path) -> Iterator[Prometheus]:
    """A Prometheus that scrapes `target` every 200 ms; it is killed at the end."""
    program = find("prometheus")
    assert program is not None
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "global": {"scrape_interval": "200ms", "scrape_timeout": "200ms", "evaluation_interval": "200ms"},
        "rule_files": [str(rules)],
        "scrape_configs": [{"job_name": "cutwater", "static_configs": [{"targets": [target]}]}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config), "utf-8")  # JSON is YAML
    address = f"127.0.0.1:{free_port()}"
    command = [
        program, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            made = Prometheus(address)
            await_that("Prometheus answers", lambda: process.poll() is not None or made.answers(), 60)
            assert process.poll() is None, (folder / "log").read_text("utf-8")
            yield made
        finally:
            process.kill()
            process.wait()
