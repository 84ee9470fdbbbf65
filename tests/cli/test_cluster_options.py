"""Commands take the secret from a file or the environment, never from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from cutwater.cli.cluster_options import cluster_config, peer_config
from cutwater.cli.main import app
from cutwater.cluster.open_links import open_links
from cutwater.protocol.base.errors import UserError
from tests.support.cluster_helpers import SECRET
from tests.support.written import Written

PEER = ["tcp/127.0.0.1:7447"]


@pytest.fixture(autouse=True)
def _no_secret_around(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUTWATER_SECRET", raising=False)


def secret_of(given: str) -> str:
    config = peer_config(PEER, given)
    assert config is not None
    return config.secret


@pytest.mark.parametrize("peer", [["--peer", *PEER], []])
def test_a_secret_on_the_command_line_is_refused_with_advice(tmp_path: Path, peer: list[str]) -> None:
    history = Written()
    history.checkpoint()
    history.write(tmp_path)
    words = ["status", "--store", str(tmp_path), *peer, "--secret", SECRET]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 1
    said = " ".join(result.output.split())
    for advice in ("list of processes", "--secret @FILE", "CUTWATER_SECRET"):
        assert advice in said
    assert SECRET not in said


def test_a_secret_comes_from_a_file_or_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n")
    file.chmod(0o600)
    assert secret_of(f"@{file}") == SECRET
    monkeypatch.setenv("CUTWATER_SECRET", f"{SECRET} of the environment")
    assert secret_of("") == f"{SECRET} of the environment"
    assert secret_of(f"@{file}") == SECRET
    monkeypatch.setenv("CUTWATER_SECRET", f"@{file}")
    assert secret_of("") == SECRET
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("mode", [0o640, 0o604])
def test_a_secret_file_that_others_can_read_causes_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: int
) -> None:
    file = tmp_path / "secret"
    file.write_text(SECRET)
    file.chmod(mode)
    assert secret_of(f"@{file}") == SECRET
    said = capsys.readouterr()
    assert f"chmod 600 {file}" in said.err
    assert SECRET not in said.err + said.out


def test_a_file_without_a_valid_secret_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    for content, problem in ((b"\n", "is empty"), (b"\xff\xfe", "not text"), (b"short", "at least 16")):
        file.write_bytes(content)
        with pytest.raises(UserError, match=problem):
            secret_of(f"@{file}")
    with pytest.raises(UserError, match="No such file"):
        secret_of("@nowhere")


def test_without_peers_there_is_no_cluster() -> None:
    assert cluster_config(None, None, "", None, None, None, multicast=False) is None


def test_a_member_cannot_have_a_name_that_commands_use() -> None:
    with pytest.raises(UserError, match="cannot name a member"):
        open_links(None, "orders", "command_1", "1", lambda line: None)
