"""Only `spark/internals/` uses anything of Spark or Py4J that is not public API.

The check reads the source: imports, attributes that begin with an underscore and are not Cutwater's own, and names of
Java classes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyspark
import pytest

SOURCE = Path(__file__).parents[3] / "src" / "cutwater"
INTERNALS = "spark/internals/"
PUBLIC = {
    "pyspark.errors",
    "pyspark.sql",
    "pyspark.sql.functions",
    "pyspark.sql.streaming.query",
    "pyspark.sql.types",
}
"""The modules of pyspark with what its documentation names, as far as they are used."""

JAVA = ("org.apache.spark.sql.execution.", "org.apache.spark.sql.catalyst.", "org.apache.spark.sql.classic.")
DOCUMENTED = {"org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"}
"""Java classes that Spark's documentation names as the value of a setting."""

OWN = frozenset({"_asdict", "_fields", "_replace"})
"""Of named tuples."""


def read_modules() -> dict[str, str]:
    files = sorted(SOURCE.rglob("*.py"))
    return {file.relative_to(SOURCE).as_posix(): file.read_text("utf-8") for file in files}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def defined(tree: ast.Module) -> Iterator[str]:
    """The names that a module gives to functions, classes, variables and attributes of `self`."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(attr=name, ctx=ast.Store(), value=ast.Name(id="self")):
                yield name


def private_use(sources: Mapping[str, str]) -> set[tuple[str, str]]:
    """The modules outside internals that use something private, and what."""
    trees = {name: ast.parse(text) for name, text in sources.items() if not name.startswith(INTERNALS)}
    own = OWN.union(*(defined(tree) for tree in trees.values()))
    return {(name, used) for name, tree in trees.items() for used in _used(tree) if used not in own}


def _used(tree: ast.Module) -> Iterator[str]:
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (a.name for a in names if a.name != "pyspark" and _is_of_spark(a.name))
            case ast.ImportFrom(module="pyspark", names=names):
                yield from (f"pyspark.{a.name}" for a in names if a.name not in pyspark.__all__)
            case ast.ImportFrom(module=str(module), names=names) if _is_of_spark(module):
                yield from (f"{module}.{a.name}" for a in names if module not in PUBLIC or is_private(a.name))
            case ast.Attribute(attr=name) if is_private(name):
                yield name
            case ast.Constant(value=str(text)) if id(node) not in documentation and text not in DOCUMENTED:
                if text.startswith(JAVA) or (text.startswith("_j") and text.isidentifier()):
                    yield text


def _is_of_spark(module: str) -> bool:
    return module.split(".")[0] in ("pyspark", "py4j")


@pytest.mark.slow
def test_only_internals_uses_what_is_not_public() -> None:
    found = private_use(read_modules())
    assert found == set(), "give it a function in spark/internals/"


@pytest.mark.parametrize(
    ("source", "used"),
    [
        ("spark._jvm.java.lang.System", "_jvm"),
        ("def f(frame):\n    return frame._jdf.count()", "_jdf"),
        ("SparkContext._gateway = None", "_gateway"),
        ("getattr(spark, '_jsparkSession')", "_jsparkSession"),
        ("import py4j.protocol", "py4j.protocol"),
        ("def f():\n    from py4j.protocol import Py4JError", "py4j.protocol.Py4JError"),
        ("from pyspark.java_gateway import launch_gateway", "pyspark.java_gateway.launch_gateway"),
        ("import pyspark.java_gateway", "pyspark.java_gateway"),
        ("from pyspark import cloudpickle", "pyspark.cloudpickle"),
        ("from pyspark.sql.types import _parse", "pyspark.sql.types._parse"),
        ("x = 'org.apache.spark.sql.classic.Dataset'", "org.apache.spark.sql.classic.Dataset"),
    ],
)
def test_the_check_finds_private_use(source: str, used: str) -> None:
    assert private_use({"api/a.py": source}) == {("api/a.py", used)}
    assert private_use({f"{INTERNALS}a.py": source}) == set()


@pytest.mark.parametrize(
    "source",
    [
        "from pyspark.sql import DataFrame, SparkSession\nfrom pyspark.sql import functions as F",
        "import pyspark\nfrom pyspark import SparkConf",
        "class A:\n    def __init__(self):\n        self._journal = 1\ndef f(a):\n    return a._journal",
        "class A:\n    '''See `_jvm`.'''",
    ],
)
def test_the_check_accepts_public_and_own_names(source: str) -> None:
    assert private_use({"api/a.py": source}) == set()
