"""`cutwater verify`: whether everything that a restore would need is there and whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import typer
from rich.text import Text

from cutwater.commands.output import AsJson, StoreUrl, command, plural, show, waiting
from cutwater.offline import drive, manifest_of, read_journal, resolve
from cutwater.protocol.errors import StoreError
from cutwater.protocol.log import follow
from cutwater.protocol.records import MARK_PREFIX, JournalState, Manifest, Published, decode
from cutwater.protocol.stagelog import StageLog
from cutwater.stores import Store, open_store

SIDE_BY_SIDE = 8
SHOWN = 5


@command
def verify(
    ref: Annotated[
        str | None, typer.Argument(help="Only this checkpoint: an epoch, a savepoint's name, or latest.")
    ] = None,
    store: StoreUrl = "./state",
    as_json: AsJson = False,
) -> None:
    """Checks the journal, the logs, the marks, and every object of the kept checkpoints with its checksum."""
    where = open_store(store)
    with waiting("reading the journal and the logs", as_json) as tell:
        try:
            state = read_journal(where).state
        except StoreError as error:
            show(as_json, {"damaged": True, "journal": str(error)}, Text(f"journal  {error}", style="red"))
            raise typer.Exit(1) from None
        damage = {f"log of stage '{s}'": why for s, why in _damaged_logs(where, state)}
        damage |= dict(_damaged_marks(where))
        wanted = (
            [resolve(state, ref)]
            if ref is not None
            else sorted(state.committed.values(), key=lambda c: c.index)
        )
        manifests: dict[int, Manifest] = {}
        problems: dict[int, list[str]] = {}
        for checkpoint in wanted:
            problems[checkpoint.epoch] = []
            try:
                manifests[checkpoint.epoch] = manifest_of(where, checkpoint)
            except StoreError as error:
                problems[checkpoint.epoch].append(str(error))
        wrong = check_objects(where, manifests.values(), tell)
    for epoch, manifest in manifests.items():
        problems[epoch] += [wrong[name] for name in sorted(needed(manifest)) if name in wrong]
    document = {
        "damaged": bool(damage) or any(problems.values()),
        "journal": "whole",
        "damage": damage,
        "checkpoints": {str(e): {"restorable": not p, "problems": p} for e, p in problems.items()},
    }
    show(as_json, document, *_text(state, damage, problems, manifests))
    if document["damaged"]:
        raise typer.Exit(1)


def _damaged_logs(store: Store, state: JournalState) -> Iterable[tuple[str, str]]:
    """The stages of the current generation whose log cannot be read, with why."""
    for name in state.topology.stages if state.topology is not None else ():
        try:
            drive(store, follow(StageLog(name, state.generation).view))
        except StoreError as error:
            yield name, str(error)


def _damaged_marks(store: Store) -> Iterable[tuple[str, str]]:
    names = store.list(MARK_PREFIX)
    for name, data in zip(names, store.read_many(names), strict=True):
        try:
            if data is not None:
                decode(name, data, Published)
        except StoreError as error:
            yield name, str(error)


def needed(manifest: Manifest) -> dict[str, str | None]:
    """What a restore needs of the store, with checksums. What is held lies with its table, and not here."""
    held = {file.name for files in manifest.held.values() for file in files}
    return {name: checksum for name, checksum in manifest.objects().items() if name not in held}


def check_objects(store: Store, manifests: Iterable[Manifest], tell: Callable[[str], None]) -> dict[str, str]:
    """What is wrong with the objects that these manifests name, each looked at once."""
    names: dict[str, str | None] = {}
    for manifest in manifests:
        names |= needed(manifest)
    wrong: dict[str, str] = {}

    def check(item: tuple[str, str | None]) -> str:
        name, checksum = item
        if checksum is None:
            return "" if store.exists(name) else "is missing"
        found = store.checksum(name)
        return (
            "is missing"
            if found is None
            else ""
            if found == checksum
            else "is damaged (its checksum differs)"
        )

    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        for done, (name, why) in enumerate(zip(names, pool.map(check, names.items()), strict=True), 1):
            tell(f"checking objects: {done:,} of {len(names):,}")
            if why:
                wrong[name] = f"{name} {why}"
    return wrong


def _text(
    state: JournalState,
    damage: dict[str, str],
    problems: dict[int, list[str]],
    manifests: dict[int, Manifest],
) -> list[Any]:
    stages = len(state.topology.stages) if state.topology is not None else 0
    lines: list[Any] = [f"journal whole; {plural(stages, 'stage log')} of generation {state.generation} read"]
    lines += [Text(f"{what}: {why}", style="red") for what, why in damage.items()]
    for epoch, found in problems.items():
        names = [n for n, e in state.savepoints.items() if e == epoch]
        label = f"epoch {epoch}" + "".join(f" (savepoint '{n}')" for n in names)
        if not found:
            count = plural(len(needed(manifests[epoch])), "object")
            lines.append(Text.assemble(f"{label}  ", ("can be restored", "green"), f"  {count} checked"))
            continue
        lines.append(Text.assemble(f"{label}  ", ("cannot be restored", "red")))
        lines += [Text(f"    {why}") for why in found[:SHOWN]]
        if len(found) > SHOWN:
            lines.append(f"    and {len(found) - SHOWN} more (--json lists them all)")
    if not problems:
        lines.append("no checkpoint has been committed yet")
    return lines
