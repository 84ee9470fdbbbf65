"""The examples of how to deploy a pipeline name paths that the web server has, and commands with options that exist."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.main import get_command

import cutwater
from cutwater.cli.main import app
from cutwater.telemetry.routes import routes

DEPLOY = Path(__file__).parents[2] / "deploy"
KUBERNETES = sorted(DEPLOY.glob("kubernetes/*.yaml"))
UNITS = sorted(DEPLOY.glob("systemd/*.service"))


def test_the_probes_of_kubernetes_are_routes() -> None:
    text = "".join(path.read_text("utf-8") for path in KUBERNETES)
    probed = set(re.findall(r"path: (/\w+)", text))
    assert probed == {"/healthz", "/readyz"}
    assert probed <= {route.path for route in routes(lambda: None)}  # type: ignore[attr-defined]


COMMANDS = {
    path.name: [
        [word.strip(' ",') for word in line.split()]
        for line in re.findall(r"\bcutwater[, ]+(run[^\]\n]*)", path.read_text("utf-8"))
    ]
    for path in (*KUBERNETES, *UNITS)
}


@pytest.mark.parametrize("example", COMMANDS)
def test_an_example_runs_a_command_with_flags_that_exist(example: str) -> None:
    known = {flag for p in get_command(app).commands["run"].params for flag in p.opts}  # type: ignore[attr-defined]
    assert "--store" in known
    assert len(COMMANDS[example]) == 1, "an example runs one pipeline"
    used = {word for words in COMMANDS[example] for word in words if word.startswith("--")}
    assert "--store" in used
    assert used <= known


def test_the_environment_variables_of_the_examples_are_read() -> None:
    text = "".join(path.read_text("utf-8") for path in DEPLOY.rglob("*") if path.is_file())
    used = set(re.findall(r"\bCUTWATER_[A-Z_]+", text))
    code = "".join(path.read_text("utf-8") for path in Path(cutwater.__file__).parent.rglob("*.py"))
    assert "CUTWATER_HTTP_TOKEN" in used
    assert used <= set(re.findall(r'environ(?:\.get\(|\[)"(CUTWATER_[A-Z_]+)"', code))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
@pytest.mark.parametrize("unit", UNITS, ids=[path.name for path in UNITS])
def test_systemd_accepts_the_unit(unit: Path, tmp_path: Path) -> None:
    """Its program is not installed here, so another one stands in for it."""
    here = tmp_path / unit.name
    text = re.sub(
        r"^ExecStart=\S+", f"ExecStart={shutil.which('true')}", unit.read_text("utf-8"), flags=re.MULTILINE
    )
    here.write_text(text.replace("WorkingDirectory=/srv/orders", f"WorkingDirectory={tmp_path}"), "utf-8")
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", here], capture_output=True, text=True)
    assert (done.returncode, [line for line in done.stderr.splitlines() if unit.name in line]) == (0, [])
