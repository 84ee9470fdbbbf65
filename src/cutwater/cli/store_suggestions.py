"""Suggests a store when the given one does not exist: one with a similar name, or in a folder above or below it."""

from __future__ import annotations

from contextlib import suppress
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from urllib.parse import unquote, urlsplit

from cutwater.protocol.base.paths import JOURNAL_PREFIX

MAX_ENTRIES = 200
"""How many entries of a folder to look at."""


def suggest_store(store: str, message: str) -> str:
    """What to append to an error about a store that is missing or empty; empty for any other error."""
    path = _folder(store)
    if path is None or str(path) not in message or _is_store(path):
        return ""
    found = _stores_near(path)
    if found:
        return f". Did you mean {' or '.join(f'--store {name}' for name in found)}?"
    return "" if path.exists() else ". Set its location with --store or CUTWATER_STORE"


def _folder(store: str) -> Path | None:
    """The local folder of a store, `None` if it is not local."""
    if store.startswith("file:"):
        return Path(unquote(urlsplit(store).path)).resolve()
    return None if "://" in store else Path(store).resolve()


def _stores_near(path: Path) -> list[str]:
    above = [p for p in path.parents if _is_store(p)][:1]
    inside = [p for p in _entries(path) if _is_store(p)][:3]
    beside = {p.name: p for p in _entries(path.parent) if _is_store(p)}
    alike = [beside[name] for name in get_close_matches(path.name, beside)]
    return [_shown(p) for p in above or inside or alike]


def _shown(path: Path) -> str:
    with suppress(ValueError):
        return f"./{path.relative_to(Path.cwd())}"
    return str(path)


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(islice(folder.iterdir(), MAX_ENTRIES))
    except OSError:
        return []


def _is_store(folder: Path) -> bool:
    try:
        return (folder / JOURNAL_PREFIX).is_dir()
    except OSError:
        return False
