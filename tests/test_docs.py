"""Everything that the documentation shows exists: links, commands and their options, Python, public names."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

import cutwater
from cutwater.cli.main import app

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
IDS = [str(page.relative_to(ROOT)) for page in PAGES]


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def links(page: Path) -> list[tuple[Path, str]]:
    """The files that a page links to, and the heading within them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    found = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+:", target):
            path, _, heading = target.partition("#")
            found.append(((page.parent / path).resolve() if path else page, heading))
    return found


def headings(page: Path) -> set[str]:
    """The anchors of a page, as GitHub derives them from headings."""
    titles = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_link_has_a_target(page: Path) -> None:
    missing = set()
    for path, heading in links(page):
        name = str(path.relative_to(ROOT))
        if not path.exists():
            missing.add(name)
        elif heading:
            assert heading in headings(path), f"{page.name}: {name} has no heading #{heading}"
    assert not missing


def test_every_page_of_the_documentation_is_in_its_index() -> None:
    linked = {path for path, _ in links(ROOT / "docs" / "index.md")}
    assert {page for page in PAGES if page.parent == ROOT / "docs"} - linked == {ROOT / "docs" / "index.md"}


def lines_of(page: Path, program: str) -> list[list[str]]:
    """The words after `program` in each line of the page's console blocks."""
    found = []
    for block in blocks(page.read_text("utf-8"), "console"):
        for line in block.splitlines():
            for command in re.split(r"(?:^|\s{2,})\w*\$ ", line):
                words = shlex.split(command, comments=True)
                if words and words[0].rpartition("/")[2] == program:
                    found.append(words[1:])
    return found


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_command_has_the_options_that_are_shown(page: Path) -> None:
    group: Any = typer.main.get_command(app)
    for words in lines_of(page, "cutwater"):
        command = group.commands[words[0]]
        known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
        used = {word for word in words[1:] if word.startswith("-")}
        assert used - known == set(), " ".join(words)


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_make_target_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    text = page.read_text("utf-8")
    named = {words[0] for words in lines_of(page, "make")} | set(re.findall(r"`make ([a-z0-9-]+)`", text))
    assert named - targets == set()


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_python_compiles_and_uses_names_that_are_public(page: Path) -> None:
    text = page.read_text("utf-8")
    for block in blocks(text, "python"):
        compile(block, page.name, "exec")
    assert set(re.findall(r"\bcw\.([A-Za-z_]+)", text)) <= set(cutwater.__all__)


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_modules_and_functions_that_are_named_exist(page: Path) -> None:
    """Names like `cutwater.store.at_rest.resolve`, and files in the tree."""
    text = page.read_text("utf-8")
    for dotted in set(re.findall(r"`(cutwater(?:\.[a-z_]+)+)(?:\.[A-Z]\w*(?:\.\w+)?)?`", text)):
        assert module_or_function(dotted), f"{page.name} names {dotted}"
    for name in set(re.findall(r"`((?:src|tests|bench|examples)/[\w./]+)`", text)):
        assert (ROOT / name).exists(), f"{page.name} names {name}"


def test_files_that_the_architecture_names_are_in_the_tree() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    source = ROOT / "src" / "cutwater"
    named = set(re.findall(r"`((?!src|tests|bench)[a-z_/]+/(?:[a-z_]+\.py)?)`", text)) - {"_cutwater/"}
    assert len(named) > 40
    places = {source, source / "protocol", ROOT}
    store = {"stages/", "requests/", "replies/"}  # names in a store
    missing = {name for name in named if not any((place / name).exists() for place in places)}
    assert missing == store
    modules = {path.stem for path in (source / "protocol").rglob("*.py")} - {"__init__", "config", "lead"}
    of_replay = {path.stem for path in (source / "protocol" / "replay").glob("*.py")}
    assert {name for name in modules - of_replay if f"/{name}.py`" not in text} == set()


def module_or_function(dotted: str) -> bool:
    """Whether this is a module, a package, or a name in a module."""
    path = ROOT / "src" / Path(*dotted.split("."))
    if path.is_dir() or path.with_suffix(".py").exists():
        return True
    above = path.parent.with_suffix(".py")
    return above.exists() and re.search(rf"\b(def|class) {path.name}\b", above.read_text("utf-8")) is not None


def test_names_on_the_origins_page_exist_in_the_code() -> None:
    """Every `part.module.Name` and `Class.method` on the page exists."""
    text = (ROOT / "docs" / "origins.md").read_text("utf-8")
    source = {path: path.read_text("utf-8") for path in (ROOT / "src" / "cutwater").rglob("*.py")}
    names = set(re.findall(r"`(?:[a-z_]+\.)*([A-Z]\w+)\.([a-z_]\w*)`", text))
    assert len(names) > 20
    for owner, name in sorted(names):
        homes = [code for code in source.values() if re.search(rf"^class {owner}\b", code, re.MULTILINE)]
        is_there = any(
            re.search(rf"(def {name}\(|^    {name}\b|self\.{name}\b)", code, re.M) for code in homes
        )
        assert is_there, f"{owner}.{name}"
    for dotted in set(re.findall(r"`((?:base|member|leader|replay)\.[a-z_]+)", text)):
        assert module_or_function(f"cutwater.protocol.{dotted}"), dotted
