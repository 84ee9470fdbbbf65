"""`cutwater.protocol` decides and does not act: what it may import, and what it must not call.

The check reads the source, so an import inside a function counts. A module may import from this project only what is
below `cutwater.protocol`, so a rule that holds for each module holds for everything that it imports. (`test_layers.py`
checks the layers within the protocol.)
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import cutwater.protocol

PACKAGE = "cutwater.protocol"
ALLOWED = {
    "__future__",
    "bisect",
    "collections.abc",
    "contextlib",
    "dataclasses",
    "difflib",
    "enum",
    "functools",
    "hashlib",
    "msgspec",
    "re",
    "struct",
    "typing",
}
"""The modules in use. One may be added if it does no I/O, starts no threads, and uses neither clocks nor random
numbers."""

FORBIDDEN = {"breakpoint", "eval", "exec", "input", "open", "print", "__import__"}
"""Built-in functions that act without an import, or that hide one."""

FOLDER = Path(cutwater.protocol.__path__[0])
MODULES = sorted(FOLDER.rglob("*.py"))


def imported(node: ast.AST) -> list[str]:
    """The modules that a statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    if node.level or node.module is None:
        return ["a relative import"]
    if node.module == "cutwater":
        return [f"cutwater.{alias.name}" for alias in node.names]
    return [node.module]


def impurities(source: str) -> list[str]:
    """The impure things that a module does, each with its line."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        for name in imported(node):
            if name not in ALLOWED and name != PACKAGE and not name.startswith(PACKAGE + "."):
                found.append(f"line {node.lineno}: imports {name}")  # type: ignore[attr-defined]
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in FORBIDDEN:
            found.append(f"line {node.lineno}: uses {node.id}")
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_a_module_of_the_protocol_is_pure(path: Path) -> None:
    assert impurities(path.read_text("utf-8")) == []


def test_every_module_is_checked_including_those_of_sub_packages() -> None:
    names = {str(path.relative_to(FOLDER)) for path in MODULES}
    assert {"__init__.py", "base/chain.py", "replay/__init__.py", "replay/session.py"} <= names


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "import typing, time",
        "import os.path",
        "from time import monotonic",
        "from collections import abc",
        "import cutwater",
        "import cutwater.sim.world",
        "from cutwater import sim",
        "from cutwater.protocols import x",
        "from . import chain",
        "from ..sim import world",
        "def f():\n    import random",
        "class C:\n    def f(self):\n        from threading import Lock",
        "if TYPE_CHECKING:\n    import pyspark",
        "try:\n    import zenoh\nexcept ImportError:\n    pass",
        "open('x')",
        "print('x')",
        "x = input()",
        "__import__('time')",
        "exec('import time')",
        "list(map(print, 'x'))",
    ],
)
def test_the_check_finds_an_impure_module(source: str) -> None:
    assert len(impurities(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "from __future__ import annotations",
        "from collections.abc import Mapping",
        "import hashlib, struct",
        "import msgspec",
        "import cutwater.protocol.base.chain",
        "from cutwater import protocol",
        "from cutwater.protocol import chain",
        "from cutwater.protocol.base.chain import Codec",
        "codec.open(data)",
        "def open(self): ...",
        "state.open[1] = 2",
    ],
)
def test_the_check_accepts_a_pure_module(source: str) -> None:
    assert impurities(source) == []


def test_the_check_names_the_line() -> None:
    assert impurities("import enum\n\nimport time\nprint(1)") == [
        "line 3: imports time",
        "line 4: uses print",
    ]
