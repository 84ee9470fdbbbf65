"""`cutwater ui`, and the page beside a running member."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from cutwater.cli import http_options
from cutwater.cli.http_options import http_token, require_web
from cutwater.cli.serving import PageBeside
from cutwater.cluster.config import ClusterConfig
from cutwater.protocol.base.errors import UserError
from cutwater.store.contract import Store
from cutwater.store.opening import open_store
from cutwater.store.status import read_status
from cutwater.web.server import listen_at
from tests.support.cluster_helpers import SECRET, free_endpoint
from tests.support.command_helpers import call
from tests.support.live_member import TWO, members
from tests.support.spark_helpers import await_that

TOKEN = "correct-horse-battery-staple"


@pytest.mark.slow
def test_ui_serves_the_store_until_it_is_interrupted(folder: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "cutwater",
        "ui",
        "--store",
        str(folder),
        "--listen",
        "127.0.0.1:0",
        "--json",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        url = json.loads(child.stdout.readline())["url"]
        with urllib.request.urlopen(f"{url}/api/v1/checkpoints", timeout=60) as answer:
            assert [row["epoch"] for row in json.load(answer)["checkpoints"]] == [4, 3, 2, 1]
        child.send_signal(signal.SIGINT)
        assert child.wait(60) == 0


class NoStatus:
    """A store that takes no status any more: what it has of a member stays as it is."""

    def __init__(self, store: Store) -> None:
        self.read = store.read

    def put(self, name: str, data: bytes) -> None:
        raise OSError("the disk is full")


@pytest.mark.slow
def test_with_a_peer_the_page_shows_what_members_say_and_not_what_the_store_has(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "state"), create=True)
    first, second = free_endpoint(), free_endpoint()
    with members(store, TWO) as group:
        one = group.start("one", 2_000, ClusterConfig(listen=(first,), secret=SECRET))
        two = group.start("two", 2_000, ClusterConfig(listen=(second,), peers=(first,), secret=SECRET))
        await_that("both have reported", lambda: len(read_status(store)) == 2, 30)
        for member in (one, two):
            member.reporter._store = NoStatus(store)  # type: ignore[assignment]
        in_store = {status.member: status.beat for status in read_status(store)}
        command = [sys.executable, "-m", "cutwater", "ui", "--store", str(tmp_path / "state"), "--json"]
        with subprocess.Popen(
            [*command, "--listen", "127.0.0.1:0", "--peer", second], stdout=subprocess.PIPE, text=True,
            env={**os.environ, "CUTWATER_SECRET": SECRET},
        ) as child:  # fmt: skip
            try:
                assert child.stdout is not None
                url = json.loads(child.stdout.readline())["url"]

                def shown() -> dict[str, tuple[str, bool]]:
                    with urllib.request.urlopen(f"{url}/api/v1/pipeline", timeout=60) as answer:
                        found = json.load(answer)["members"]
                    return {m["member"]: (m["presence"], m["beat"] > in_store[m["member"]]) for m in found}

                running = ("running", True)
                await_that("both are shown", lambda: shown() == {"one": running, "two": running}, 30)
                one.stop()
                await_that("one has ended", lambda: shown()["one"][0] != "running", 30)
                assert shown()["two"] == running
            finally:
                child.send_signal(signal.SIGINT)
            assert child.wait(60) == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--listen", "8080"], "write HOST:PORT"),
        (["--listen", "0.0.0.0:0"], "--http-token @FILE"),
        (["--http-token", TOKEN], "visible to every user"),
        (["--store", "nowhere-at-all"], "nowhere-at-all"),
    ],
)
def test_ui_refuses_what_cannot_work(folder: Path, options: list[str], said: str) -> None:
    found = call("ui", "--store", folder, *options)
    assert found.exit_code == 1
    assert said in " ".join(found.output.split())


def test_a_token_comes_from_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    os.chmod(file, 0o600)
    assert http_token(f"@{file}") == TOKEN
    assert http_token("") is None
    for value in (TOKEN, f"{TOKEN}\n"):
        monkeypatch.setenv("CUTWATER_HTTP_TOKEN", value)
        assert http_token("") == TOKEN
    monkeypatch.setenv("CUTWATER_HTTP_TOKEN", f"@{file}")
    assert http_token("") == TOKEN


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(UserError, match=r"pip install 'cutwater\[web\]'"):
        require_web()
    assert "cutwater[web]" in http_options.MISSING


def test_an_address_that_cannot_be_used_is_refused_before_spark_starts() -> None:
    with pytest.raises(UserError, match="--http-token"):
        PageBeside("0.0.0.0:0", "")
    taken = listen_at("127.0.0.1", 0)
    try:
        with pytest.raises(UserError, match="cannot listen"):
            PageBeside(f"127.0.0.1:{taken.getsockname()[1]}", "")
    finally:
        taken.close()
