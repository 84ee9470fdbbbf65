"""`cutwater gc`: removes objects that nothing refers to, and shows what retention would remove.

A running pipeline cleans up by itself. This command removes what a killed pipeline left behind, and only what the
journal says is over: folders of expired generations and of epochs that are not kept. It also removes requests of commands
that were killed, which are no longer renewed.
"""

from __future__ import annotations

from typing import Annotated

import typer

from cutwater.cli.client import Client
from cutwater.cli.output import AsJson, StoreUrl, command, show, table, waiting
from cutwater.documents.kept_checkpoints import sizes_of
from cutwater.protocol.base.errors import StoreError, UserError
from cutwater.protocol.base.paths import CHECKPOINT_PREFIX, MARK_PREFIX, STAGE_PREFIX, generation_of
from cutwater.protocol.base.records import JournalState, Manifest, settled
from cutwater.protocol.member.retention import expire, is_leftover, named_objects
from cutwater.runtime.store_requests import forsaken
from cutwater.store.at_rest import load_manifest, read_journal
from cutwater.store.contract import Store
from cutwater.store.figures import plural, size
from cutwater.store.opening import open_store


@command
def gc(
    store: StoreUrl = "./state",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
    retained: Annotated[
        int, typer.Option("--retained", min=1, help="The number of checkpoints that your runs keep.")
    ] = 3,
    as_json: AsJson = False,
) -> None:
    """Remove what a killed pipeline left behind and nothing needs. Also shows what retention will remove next."""
    where = open_store(store)
    member = Client(where, as_json=as_json).running_member() if not dry_run else None
    if member is not None:
        raise UserError(
            f"the pipeline is running (process {member.pid} on {member.host}) and cleans up by itself; use --dry-run to "
            "see what it would remove, or drain it first"
        )
    with waiting("looking for objects that nothing needs", as_json):
        state = read_journal(where).state
        manifests = _manifests(where, state)
        unused = unreferenced(where, state, manifests)
        due = expire(state, retained, settled(where.list(MARK_PREFIX)), manifests)
        epochs = due.epochs if due is not None else ()
        later = _only_of(manifests, epochs)
        groups = {
            "of epochs that are over": [n for n in unused if n.startswith(CHECKPOINT_PREFIX)],
            "of generations that are expired": [n for n in unused if not n.startswith(CHECKPOINT_PREFIX)],
            "requests that nobody waits for": forsaken(where),
        }
        left = [name for names in groups.values() for name in names]
        sizes = {what: sum(s or 0 for s in sizes_of(where, names)) for what, names in groups.items()}
        later_size = sum(s or 0 for s in sizes_of(where, later))
        if not dry_run:
            where.delete(left)
    shown = table("what", "objects", "size", right=("objects", "size"))
    for what, names in groups.items():
        shown.add_row(what, f"{len(names):,}", size(sizes[what]))
    document = {
        "dry_run": dry_run,
        "leftovers": {w: {"objects": len(n), "bytes": sizes[w]} for w, n in groups.items()},
        "retention": {"epochs": epochs, "objects": len(later), "bytes": later_size},
    }
    verb = "would be removed" if dry_run else "removed"
    retention = "retention has nothing to expire"
    if epochs:
        retention = (
            f"with its next commit, a run will expire {plural(len(epochs), 'checkpoint')} "
            f"({', '.join(map(str, epochs))}): {plural(len(later), 'object')}, {size(later_size)}"
        )
    show(as_json, document, f"{plural(len(left), 'object')} {verb}", shown, retention)


def unreferenced(store: Store, state: JournalState, manifests: dict[int, Manifest]) -> list[str]:
    """The objects of epochs and generations that are over, without those that a kept checkpoint names."""
    named = named_objects(manifests.values())
    found = [n for n in store.list(CHECKPOINT_PREFIX) if is_leftover(state, n)]
    for name in store.list(STAGE_PREFIX):
        generation = generation_of(name)
        if generation is not None and generation < state.generation and generation not in state.generations:
            found.append(name)
    return [name for name in found if name not in named]


def _manifests(store: Store, state: JournalState) -> dict[int, Manifest]:
    """The manifests of all kept checkpoints. Raises `StoreError` if one cannot be read: it may name anything."""
    try:
        return {epoch: load_manifest(store, checkpoint) for epoch, checkpoint in state.committed.items()}
    except StoreError as error:
        raise StoreError(f"a kept checkpoint cannot be read, so nothing is removed: {error}") from error


def _only_of(manifests: dict[int, Manifest], epochs: tuple[int, ...]) -> list[str]:
    """The state files and in-flight files that only these epochs name."""
    going = named_objects(m for e, m in manifests.items() if e in epochs)
    staying = named_objects(m for e, m in manifests.items() if e not in epochs)
    return sorted(n for n in going - staying if n.startswith((STAGE_PREFIX, CHECKPOINT_PREFIX)))
