"""Errors of the `cutwater` command: missing stores, wrong usage, interrupts."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cutwater.cli.main import app
from cutwater.store.opening import open_store
from tests.support.command_helpers import call, document
from tests.support.written import put_status


def test_version_prints_the_version() -> None:
    shown = call("--version")
    assert shown.exit_code == 0
    assert version("cutwater") in shown.output


def test_reading_a_store_does_not_import_spark(folder: Path) -> None:
    code = (
        "import sys; from cutwater.cli.main import app\n"
        f"app(['status', '--store', {str(folder)!r}], standalone_mode=False)\n"
        "sys.exit('pyspark' in sys.modules)"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False).returncode == 0
    )


@pytest.mark.parametrize(
    "words",
    [
        ("checkpoints",), ("show", "latest"), ("status",), ("explain", "1"), ("tables",), ("verify",),
        ("gc", "--dry-run"), ("restore", "latest"), ("savepoint", "x", "--epoch", "latest"), ("drain",),
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_a_missing_or_empty_store_is_an_error_with_advice(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    missing, empty = call(*words, "--store", tmp_path / "no"), call(*words, "--store", tmp_path / "empty")
    for shown in (missing, empty):
        assert shown.exit_code == 1
        assert shown.stderr.splitlines()[-1].startswith("error: ")
        assert shown.stdout == ""
    assert list(document(*words, "--store", tmp_path / "no", code=1)) == ["error"]


def test_a_misspelled_store_gets_a_suggestion(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(
        tmp_path_factory.mktemp("elsewhere")
    )  # below it, the store would be printed with a short path
    for given in (folder.parent / "sate", folder / "journal", folder.parent, folder.parent.as_uri()):
        shown = call("checkpoints", "--store", given)
        assert shown.exit_code == 1
        assert shown.stderr.endswith(f"Did you mean --store {folder}?\n"), shown.stderr
    assert (
        "with --store or CUTWATER_STORE" in call("status", "--store", folder.parent / "no" / "where").stderr
    )
    assert "Did you mean" not in call("explain", "99", "--store", folder).stderr


@pytest.mark.parametrize("words", [("gc", "--retained", "many"), ("explain",), ("frobnicate",)], ids=" ".join)
def test_with_json_usage_errors_are_json_too(words: tuple[str, ...]) -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "cutwater", *words, "--json"], capture_output=True, check=False
    )
    assert (shown.returncode, shown.stderr) == (2, b"")
    assert list(json.loads(shown.stdout)) == ["error"]


@pytest.mark.parametrize("options", [(), ("--json",)], ids=["text", "json"])
def test_a_closed_pipe_ends_a_command_silently(folder: Path, options: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "cutwater", "checkpoints", "--store", str(folder), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert process.wait(60) == 1


def test_ctrl_c_during_the_check_for_a_running_pipeline_prints_one_line(folder: Path) -> None:
    put_status(open_store(str(folder)), report_s=60.0)
    command = [sys.executable, "-m", "cutwater", "gc", "--store", str(folder)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline() == "checking whether the pipeline is running ...\n"
    process.send_signal(signal.SIGINT)
    assert process.stderr.read() == "error: interrupted\n"
    assert process.wait(60) == 130


def test_an_interrupted_command_exits_with_130(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cutwater.cli.checkpoints.read_journal", interrupt)
    shown = call("tables", "--store", folder)
    assert (shown.exit_code, shown.stderr) == (130, "error: interrupted\n")


@pytest.mark.parametrize("ref", ["²", "-1", "later"])
def test_an_unknown_reference_is_an_error(folder: Path, ref: str) -> None:
    result = CliRunner().invoke(app, ["show", "--store", str(folder), "--", ref])
    assert result.exit_code == 1
    assert f"there is no checkpoint '{ref}'" in result.output.replace("\n", " ")
