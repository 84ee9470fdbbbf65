"""`cutwater check` as a process of its own, with Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PIPELINE = """
import cutwater as cw

pipeline = cw.Pipeline("counts")

@pipeline.stage(sinks=[cw.delta("out/ticks")])
def ticks(spark):
    return spark.readStream.format("rate").option("rowsPerSecond", 5).load()

@pipeline.stage(sinks=[cw.delta("out/total")])
def total(ticks):
    return MADE
"""
GOOD = 'ticks.withColumn("twice", ticks.value * 2)'
WRONG = 'ticks.groupBy("value").count()'


@pytest.mark.slow
def test_a_file_is_checked_drawn_and_not_run(tmp_path: Path) -> None:
    file = tmp_path / "counts.py"

    def check(made: str, *options: str) -> subprocess.CompletedProcess[str]:
        file.write_text(PIPELINE.replace("MADE", made))
        command = [sys.executable, "-m", "cutwater", "check", "counts.py", "--master", "local[1]", *options]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)

    done = check(GOOD)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "counts  2 stages" in done.stdout
    assert "no mistakes found" in done.stdout
    done = check(WRONG, "--json")
    assert done.returncode == 1, done.stdout + done.stderr
    (mistake,) = json.loads(done.stdout)["mistakes"]
    assert mistake.startswith("stage 'total': Spark would refuse its query.")
    assert "Traceback" not in done.stderr
    left = {path.name for path in tmp_path.iterdir()} - {"__pycache__", "spark-warehouse"}
    assert left == {"counts.py"}, "something was written"
