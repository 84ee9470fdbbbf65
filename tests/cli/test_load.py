"""Loading a pipeline from a user's file."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import pytest
from pyspark import SparkContext

from cutwater.cli.load import load
from cutwater.protocol.base.errors import UserError


@pytest.fixture
def restored_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo what loading changes. Large libraries are imported before, because some cannot be imported twice."""
    importlib.import_module("cutwater.api.pipeline")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))


def write_module(folder: Path, text: str) -> str:
    (folder / "mine.py").write_text("import cutwater as cw\n" + text)
    return str(folder / "mine.py")


@pytest.mark.usefixtures("restored_imports")
def test_the_only_pipeline_of_a_file_needs_no_name(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("NAME = 'shop'")
    assert (
        load(write_module(tmp_path, "from beside import NAME\np = cw.Pipeline(NAME)\nsame = p")).name
        == "shop"
    )


@pytest.mark.usefixtures("restored_imports")
def test_modules_next_to_a_file_are_imported_before_others(tmp_path: Path) -> None:
    for folder in ("own", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "beside.py").write_text(f"NAME = '{folder}'")
    sys.path.insert(0, str(tmp_path / "other"))
    assert (
        load(write_module(tmp_path / "own", "from beside import NAME\np = cw.Pipeline(NAME)")).name == "own"
    )
    assert os.environ["PYTHONPATH"].split(os.pathsep)[0] == str(tmp_path / "own"), "for Spark's workers"


@pytest.mark.usefixtures("restored_imports")
def test_one_of_several_pipelines_has_to_be_named(tmp_path: Path) -> None:
    file = write_module(tmp_path, "p = cw.Pipeline('x')\nq = cw.Pipeline('y')")
    assert load(f"{file}:q").name == "y"
    with pytest.raises(UserError, match=r"several pipelines \(p, q\).*mine.py:p"):
        load(file)
    with pytest.raises(UserError, match="no pipeline named z; it has: p, q"):
        load(f"{file}:z")


@pytest.mark.usefixtures("restored_imports")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1", "has no pipeline: add"),
        ("x = 1\ny = x +", r"line 3: SyntaxError: invalid syntax\n    y = x \+"),
        ("def f():\n    return 1 / 0\nf()", r"line 3: ZeroDivisionError: division by zero\n    return 1 / 0"),
        ("p = cw.Pipeline('a b')", "line 2: 'a b' cannot name a pipeline"),
        ("import sys\nsys.exit(3)", "line 3: SystemExit: 3"),
    ],
    ids=["none", "syntax", "raises", "misused", "exits"],
)
def test_an_error_in_a_file_names_its_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        load(write_module(tmp_path, text))


@pytest.mark.usefixtures("restored_imports")
def test_ctrl_c_while_a_file_is_loaded_is_not_an_error_in_the_file(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        load(write_module(tmp_path, "raise KeyboardInterrupt"))


@pytest.mark.usefixtures("restored_imports")
def test_what_needs_spark_belongs_into_a_stage_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column at the top of a file: pyspark raises an error that says little, or nothing at all."""
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    for column in ("F.col('a') > 1", "F.window('ts', '1 minute')"):
        with pytest.raises(UserError, match="not running yet: move it into the stage function"):
            load(write_module(tmp_path, f"from pyspark.sql import functions as F\nbig = {column}"))
    with pytest.raises(UserError, match="AssertionError: mine"):
        load(write_module(tmp_path, "assert False, 'mine'"))
