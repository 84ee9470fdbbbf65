"""The wheel, installed in an environment of its own, away from the source."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import cutwater
from tests.support.spark_helpers import deliver, numbers, rows_of

pytestmark = [pytest.mark.wheel, pytest.mark.slow, pytest.mark.timeout(2400)]

ROOT = Path(__file__).parent.parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
BUILT = f"cutwater-{cutwater.__version__}"

JOB = """
from pathlib import Path
import cutwater as cw

here = Path(__file__).parent
pipeline = cw.Pipeline("tiny")

@pipeline.stage
def source(spark):
    return spark.readStream.schema("id long, amount double, ts timestamp").parquet(str(here / "in"))

@pipeline.stage(sinks=[cw.delta(str(here / "out"))])
def big(source):
    return source.where("amount > 10").select("id", "amount")
"""


def run(command: list[str], folder: Path, seconds: float = 600) -> str:
    """What a command prints, run in a folder without anything of this environment."""
    foreign = ("PYTHON", "VIRTUAL", "SPARK", "PYSPARK", "CUTWATER")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
    environment["PIP_CONSTRAINT"] = str(CONSTRAINTS)
    environment["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=seconds, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the wheel and the source distribution."""
    folder = tmp_path_factory.mktemp("dist")
    asked = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder / "asked")]
    reached = subprocess.run([*asked, "pyproject_hooks"], capture_output=True, text=True, check=False)
    if reached.returncode != 0:
        pytest.skip("pip reaches no package index, and a clean environment needs one")
    run([sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)], folder)
    return folder


@pytest.fixture(scope="module")
def environment(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment in which only the wheel is installed."""
    folder = tmp_path_factory.mktemp("clean")
    run([sys.executable, "-m", "venv", str(folder / "env")], folder)
    programs = folder / "env/bin"
    wheel = built / f"{BUILT}-py3-none-any.whl"
    run([str(programs / "pip"), "install", "--quiet", f"{wheel}[kafka,s3,web]"], folder, 1800)
    return programs


def test_wheel_and_source_have_all_files_and_no_tests(built: Path) -> None:
    source = ROOT / "src"
    expected = {
        str(path.relative_to(source))
        for path in (source / "cutwater").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {"cutwater/py.typed", "cutwater/spark/log4j2.properties", "cutwater/web/page/app.js"} <= expected
    names = set(zipfile.ZipFile(built / f"{BUILT}-py3-none-any.whl").namelist())
    assert {name for name in names if not name.startswith(f"{BUILT}.dist-info/")} == expected
    with tarfile.open(built / f"{BUILT}.tar.gz") as archive:
        packed = set(archive.getnames())
    assert {f"{BUILT}/src/{name}" for name in expected} <= packed
    assert {f"{BUILT}/LICENSE", f"{BUILT}/README.md", f"{BUILT}/pyproject.toml"} <= packed
    assert not any(name.startswith(f"{BUILT}/tests") for name in packed)


def test_the_installed_command_knows_its_version_and_misses_nothing(
    environment: Path, tmp_path: Path
) -> None:
    assert run([str(environment / "cutwater"), "--version"], tmp_path).split() == [
        "cutwater",
        cutwater.__version__,
    ]
    stated = "import importlib.metadata as m; print(m.version('cutwater'))"
    assert run([str(environment / "python"), "-c", stated], tmp_path).strip() == cutwater.__version__
    found = json.loads(run([str(environment / "cutwater"), "doctor", "--json", "--store", "state"], tmp_path))
    assert found["ok"], found
    where = {part["name"]: part["where"] for part in found["parts"]}
    assert Path(where["cutwater"]).is_relative_to(environment.parent), "it is not the source of this checkout"


def test_a_pipeline_runs_from_the_wheel(environment: Path, tmp_path: Path) -> None:
    deliver(tmp_path / "in", "0", numbers(range(200)))
    (tmp_path / "job.py").write_text(JOB)
    said = run([str(environment / "cutwater"), "run", "job.py", "--once", "--master", "local[2]"], tmp_path)
    assert "Traceback" not in said
    expected = [(i, float(i % 97)) for i in range(200) if i % 97 > 10]
    assert rows_of(tmp_path / "out", "id", "amount") == expected


def test_the_demo_runs_from_the_wheel(environment: Path, tmp_path: Path) -> None:
    said = run([str(environment / "cutwater"), "demo"], tmp_path, 840)
    assert said.count("rows are equal") == 2
