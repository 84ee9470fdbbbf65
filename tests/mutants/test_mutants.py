"""The mutation tool makes the mutants that it should, and none that no test could notice."""

from __future__ import annotations

import tomllib
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.mutants.child import Selection
from tests.mutants.making import mutants_of
from tests.mutants.selecting import LEFT_OUT, WITH_SPARK, WITHOUT_SPARK, guards_of, mutated

TREE = Path(__file__).resolve().parents[2]


def changes(tmp_path: Path, source: str) -> list[tuple[str, str]]:
    place = tmp_path / "m.py"
    place.write_text(dedent(source))
    return [(m.before, m.after) for m in mutants_of("m.py", place)]


def test_a_condition_is_negated_and_shifted_by_one(tmp_path: Path) -> None:
    found = changes(
        tmp_path,
        """
        def f(a, b):
            if a < 5 and not b:
                return a
        """,
    )
    line = "if a < 5 and not b:"
    after = [new for old, new in found if old == line]
    assert sorted(after) == [
        "if a < 5 and b:",
        "if a < 5 or not b:",
        "if a < 6 and not b:",
        "if a <= 5 and not b:",
        "if a >= 5 and not b:",
        "if not (a < 5 and not b):",
    ]
    assert ("return a", "return None") in found


def test_statements_are_removed(tmp_path: Path) -> None:
    found = changes(
        tmp_path,
        """
        def f(self, file):
            self.done = file.x
            os.fsync(file)
            raise ValueError(f"{file} < 1")
        """,
    )
    assert found == [
        ("self.done = file.x", "pass"),
        ("os.fsync(file)", "pass"),
        ('raise ValueError(f"{file} < 1")', "pass"),
    ]


def test_a_condition_that_does_not_hold_becomes_one_that_does(tmp_path: Path) -> None:
    found = changes(tmp_path, "def f():\n    return False\n")
    assert found == [("return False", "return True")]


def test_text_for_people_is_not_mutated(tmp_path: Path) -> None:
    source = '''
        """Returns 1 < 2."""
        from typing import TYPE_CHECKING

        if TYPE_CHECKING:
            import x

        def f(self, n: int = None) -> "not int":
            """Not 1."""
            assert n == 1
            self.tell(f"{n + 1} and 1", 1 < 2)
            assert_never(n)
        '''
    assert changes(tmp_path, source) == []


def test_a_mutant_is_the_module_with_one_place_changed(tmp_path: Path) -> None:
    place = tmp_path / "m.py"
    source = "def f(a):\n    # größer\n    return 'ä' if a == 1 else a\n"
    place.write_text(source)
    made = [m.apply(source) for m in mutants_of("m.py", place)]
    assert source.replace("==", "!=") in made
    assert source.replace("1", "2") in made
    assert source not in made


def test_every_excluded_mutant_is_of_a_line_that_there_is() -> None:
    gone = []
    for entry in tomllib.loads(Path(__file__).with_name("equivalent.toml").read_text())["equivalent"]:
        place = TREE / "src" / "cutwater" / entry["file"]
        source = place.read_text() if place.exists() else ""
        lines = [line.strip() for line in source.splitlines()]
        has_line = "line" not in entry or entry["line"] in lines
        has_function = "function" not in entry or f"def {entry['function']}(" in source
        if not (source and has_line and has_function and {"line", "function"} & entry.keys()):
            gone.append(entry)
    assert not gone


@pytest.mark.parametrize("table", [WITHOUT_SPARK, WITH_SPARK], ids=["without Spark", "with Spark"])
def test_every_module_is_guarded_by_tests_that_there_are(table: dict[str, tuple[str, ...]]) -> None:
    modules = mutated(TREE)
    assert all((TREE / "src" / "cutwater" / name).exists() for name in (*table, *LEFT_OUT))
    assert len(modules) == len(set(modules))
    for module in modules:
        files = guards_of(TREE, module, table)
        assert files or table is WITH_SPARK
        assert all((TREE / file).is_file() for file in files)


def test_all_that_is_neither_core_nor_simulator_nor_demo_is_mutated() -> None:
    modules = {m.relative_to(TREE / "src/cutwater").as_posix() for m in (TREE / "src/cutwater").rglob("*.py")}
    others = {m.partition("/")[0] for m in modules - set(mutated(TREE)) - set(LEFT_OUT)}
    assert others == {"__init__.py", "__main__.py", "protocol", "sim", "demo"}


def test_a_slow_test_is_run_without_spark_unless_it_starts_one() -> None:
    class Item:
        def __init__(self, *marks: pytest.MarkDecorator) -> None:
            self.marks = [decorator.mark for decorator in marks]

        def iter_markers(self, name: str) -> list[pytest.Mark]:
            return [mark for mark in self.marks if mark.name == name]

        def add_marker(self, mark: pytest.MarkDecorator) -> None:
            assert mark.name == "timeout"

    plain, waits = Item(), Item(pytest.mark.slow)
    starts = Item(pytest.mark.slow, pytest.mark.xdist_group("spark"))
    for with_spark, expected in ((False, [plain, waits]), (True, [starts])):
        items: list[Any] = [plain, waits, starts]
        Selection(with_spark, None).pytest_collection_modifyitems(items)
        assert items == expected


def test_the_most_specific_row_says_which_tests_guard_a_module() -> None:
    def files(module: str) -> tuple[str, ...]:
        return guards_of(
            TREE, module, {"spark/": ("a.py",), "spark/checkpoint/": ("b.py",), "spark/x.py": ("c.py",)}
        )

    assert [files(m) for m in ("spark/y.py", "spark/checkpoint/y.py", "spark/x.py", "sinks/y.py")] == [
        ("a.py",),
        ("b.py",),
        ("c.py",),
        (),
    ]
    assert mutated(TREE, ["runtime/mailbox.py", "inspection"]) == [
        "inspection/__init__.py",
        "inspection/integrity.py",
        "inspection/older_store.py",
        "inspection/unpublished.py",
        "runtime/mailbox.py",
    ]
