"""Imports in `src/cutwater` follow the table of layers in ARCHITECTURE.md, and there is no import cycle.

The check reads the source, so an import within a function and one for types only count like any other.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "ARCHITECTURE.md"
SOURCE = ROOT / "src" / "cutwater"
BEGIN, END = "<!-- layers -->", "<!-- /layers -->"

DISTRIBUTIONS = {
    "opentelemetry": "opentelemetry-api",
    "prometheus_client": "prometheus-client",
    "py4j": "pyspark",
    "zenoh": "eclipse-zenoh",
}
"""The distribution of a package, where its name differs."""


@dataclass(frozen=True)
class Layer:
    """One row of the table: a package or a module, and what its modules may import."""

    name: str
    ours: frozenset[str]
    outside: frozenset[str]


# --- the table ----------------------------------------------------------------------------------------------


def module_name(place: str) -> str:
    """'protocol/base/' as 'cutwater.protocol.base', 'spark/files.py' as 'cutwater.spark.files'."""
    parts = place.removesuffix("/").removesuffix(".py").split("/")
    return ".".join(["cutwater", *parts]).removesuffix(".__init__")


def read_table(text: str) -> list[Layer]:
    """The rows between the two markers. Raises `ValueError` for a malformed row."""
    lines = text[text.index(BEGIN) : text.index(END)].splitlines()
    rows = [line.strip("|").split("|") for line in lines if line.startswith("| `")]
    layers = []
    for row in rows:
        if len(row) != 4:
            raise ValueError(f"a row of the table of layers needs four columns: {row}")
        (place,) = re.findall(r"`([^`]+)`", row[0])
        ours = frozenset(map(module_name, re.findall(r"`([^`]+)`", row[2])))
        outside = frozenset(re.findall(r"\w+", row[3])) - {"nothing"}
        layers.append(Layer(module_name(place), ours, outside))
    return layers


def is_within(module: str, place: str) -> bool:
    """Whether a module is the place or is below it. The root package contains only itself."""
    return module == place or (place != "cutwater" and module.startswith(f"{place}."))


def layer_of(module: str, layers: list[Layer]) -> Layer | None:
    """The most specific row for the module."""
    return max((la for la in layers if is_within(module, la.name)), key=lambda la: len(la.name), default=None)


# --- the source ---------------------------------------------------------------------------------------------


def read_modules(folder: Path) -> dict[str, str]:
    """The source of every module, by its name."""
    return {
        module_name(str(path.relative_to(folder))): path.read_text("utf-8")
        for path in sorted(folder.rglob("*.py"))
    }


def imports(module: str, source: str, modules: Set[str]) -> Iterator[str]:
    """What a module imports: the module if a name is one, else the module that the name comes from."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level or node.module is None:
                raise ValueError(f"{module} has a relative import in line {node.lineno}: write it in full")
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in modules else node.module


def graph_of(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """What each module imports from this project and from outside, without the standard library."""
    return {
        name: {
            found
            for found in imports(name, source, sources.keys())
            if found.split(".")[0] not in sys.stdlib_module_names
        }
        for name, source in sources.items()
    }


def broken(graph: Mapping[str, Set[str]], layers: list[Layer]) -> set[tuple[str, str]]:
    """The imports that the table does not allow."""
    return {
        (module, found)
        for module, names in graph.items()
        for found in names
        if not is_allowed(module, found, layers)
    }


def is_allowed(module: str, found: str, layers: list[Layer]) -> bool:
    layer = layer_of(module, layers)
    if layer is None:
        return False
    if found.split(".")[0] != "cutwater":
        return found.split(".")[0] in layer.outside
    return layer_of(found, layers) == layer or any(is_within(found, place) for place in layer.ours)


def cycles(graph: Mapping[str, Set[str]]) -> set[frozenset[str]]:
    """The groups of modules that import each other, directly or indirectly."""
    reached = {module: reach(module, graph) for module in graph}
    found = (frozenset(m for m in reached[module] if module in reached.get(m, ())) for module in graph)
    return {cycle for cycle in found if cycle}


def reach(module: str, graph: Mapping[str, Set[str]]) -> set[str]:
    """Everything that a module imports, directly or indirectly; itself only if it is in a cycle."""
    seen: set[str] = set()
    ahead = [*graph[module]]
    while ahead:
        name = ahead.pop()
        if name not in seen and name in graph:
            seen.add(name)
            ahead.extend(graph[name])
    return seen


LAYERS = read_table(PAGE.read_text("utf-8"))
GRAPH = graph_of(read_modules(SOURCE))


# --- the project --------------------------------------------------------------------------------------------


def test_every_import_is_one_that_the_table_allows() -> None:
    found = broken(GRAPH, LAYERS)
    assert found == set(), "move the code, or change the table in ARCHITECTURE.md if the layers have changed"


def test_there_is_no_import_cycle() -> None:
    found = cycles(GRAPH)
    assert found == set()


def test_every_module_has_a_row_and_every_row_has_a_module() -> None:
    # Packages such as `protocol` contain only a docstring above their parts.
    homeless = {module for module in GRAPH if layer_of(module, LAYERS) is None and GRAPH[module]}
    assert homeless == set()
    rows = {layer.name for layer in LAYERS}
    assert len(rows) == len(LAYERS) > 10
    assert {row for row in rows if not any(is_within(module, row) for module in GRAPH)} == set()


def test_what_a_row_allows_exists() -> None:
    ours = {place for layer in LAYERS for place in layer.ours}
    assert {place for place in ours if not any(is_within(module, place) for module in GRAPH)} == set()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(d for name in extras if name != "dev" for d in extras[name])]
    declared = {re.split(r"[<>=\[ ]", dependency)[0] for dependency in wanted}
    outside = {DISTRIBUTIONS.get(name, name) for layer in LAYERS for name in layer.outside}
    assert outside - declared == set()


def test_the_rows_are_in_the_order_of_the_layers() -> None:
    """Whatever a row may import is above it, so no two rows may import each other."""
    above: list[str] = []
    for layer in LAYERS:
        for place in layer.ours:
            assert any(is_within(name, place) for name in above), (
                f"{layer.name} may import {place} from below"
            )
        above.append(layer.name)


# --- the check itself ---------------------------------------------------------------------------------------

TABLE = f"""
{BEGIN}
| package | what it is | may import of ours | may import from outside |
|---|---|---|---|
| `low/` | the base | nothing | msgspec |
| `high/part.py` | a part of its own | `low` | nothing |
| `high/` | the rest | `low/one.py`, `high/part.py` | pyspark, rich |
| `__init__.py` | the API | `high` | nothing |
{END}
"""
MODULES = dict.fromkeys(
    (
        "cutwater",
        "cutwater.low",
        "cutwater.low.one",
        "cutwater.low.two",
        "cutwater.high.part",
        "cutwater.high.main",
        "cutwater.high.other",
    ),
    "",
)


@pytest.mark.parametrize(
    ("module", "source", "found"),
    [
        ("low.one", "import cutwater.high.main", "cutwater.high.main"),
        ("low.one", "from cutwater.high import main", "cutwater.high.main"),
        ("low.one", "from cutwater.high.main import f", "cutwater.high.main"),
        ("low.one", "def f():\n    from cutwater.high.main import f", "cutwater.high.main"),
        ("low.one", "if TYPE_CHECKING:\n    from cutwater.high.main import F", "cutwater.high.main"),
        ("low.one", "import cutwater", "cutwater"),
        ("low.one", "from cutwater import Pipeline", "cutwater"),
        ("low.one", "import rich.table", "rich.table"),
        ("low.one", "def f():\n    import pyspark", "pyspark"),
        ("high.main", "from cutwater.low import two", "cutwater.low.two"),
        ("high.main", "import msgspec", "msgspec"),
        ("high.part", "import cutwater.high.main", "cutwater.high.main"),
        ("high.part", "import pyspark", "pyspark"),
        ("nowhere", "import rich", "rich"),
    ],
)
def test_the_check_finds_what_the_table_does_not_allow(module: str, source: str, found: str) -> None:
    graph = graph_of({**MODULES, f"cutwater.{module}": source})
    assert broken(graph, read_table(TABLE)) == {(f"cutwater.{module}", found)}


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("low.one", "from cutwater.low import two"),
        ("low.one", "import msgspec.json"),
        ("low.one", "import os, threading"),
        ("high.main", "from cutwater.low.one import f"),
        ("high.main", "from cutwater.high import other, part"),
        ("high.main", "from pyspark.sql import functions as F"),
        ("high.part", "from cutwater.low import two"),
        ("__init__", "from cutwater.high.part import f"),
    ],
)
def test_the_check_accepts_what_the_table_allows(module: str, source: str) -> None:
    graph = graph_of({**MODULES, module_name(f"{module.replace('.', '/')}.py"): source})
    assert broken(graph, read_table(TABLE)) == set()


def test_a_cycle_is_found_over_several_modules_and_within_functions() -> None:
    graph = graph_of(
        {
            "cutwater.a": "import cutwater.b",
            "cutwater.b": "def f():\n    import cutwater.c",
            "cutwater.c": "if TYPE_CHECKING:\n    from cutwater.a import A",
            "cutwater.d": "import cutwater.a, cutwater.e",
            "cutwater.e": "import rich",
        }
    )
    assert cycles(graph) == {frozenset({"cutwater.a", "cutwater.b", "cutwater.c"})}


def test_a_relative_import_is_refused() -> None:
    with pytest.raises(ValueError, match=r"cutwater\.a has a relative import in line 1"):
        graph_of({"cutwater.a": "from . import b"})
