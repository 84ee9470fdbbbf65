"""Checks that all objects needed to restore a checkpoint are present and undamaged.

Restores, `cutwater verify` and the tests all use this check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.base.records import Checkpoint, Manifest
from cutwater.store.at_rest import load_manifest
from cutwater.store.contract import Store

MAX_PARALLEL = 8


def needed(manifest: Manifest) -> dict[str, str | None]:
    """The objects in the store that a restore needs, with their checksums where recorded. Excludes files that sinks
    hold back: those are stored with their tables, and the sinks check them."""
    held = {file.name for files in manifest.held.values() for file in files}
    return {name: checksum for name, checksum in sorted(manifest.objects().items()) if name not in held}


def damaged_objects(
    store: Store, manifests: Iterable[Manifest], report_progress: Callable[[str], None] = lambda line: None
) -> dict[str, str]:
    """The missing or damaged objects among those that these manifests need, each with a message. Reads each object
    once, even if several manifests name it. `report_progress` is called with a line of text per object."""
    names: dict[str, str | None] = {}
    for manifest in manifests:
        names |= needed(manifest)

    def check(item: tuple[str, str | None]) -> str:
        name, checksum = item
        if checksum is None:
            return "" if store.exists(name) else "is missing"
        found = store.checksum(name)
        if found is None:
            return "is missing"
        return "" if found == checksum else "is damaged (its checksum differs)"

    wrong: dict[str, str] = {}
    with ThreadPoolExecutor(MAX_PARALLEL) as pool:
        for done, (name, why) in enumerate(zip(names, pool.map(check, names.items()), strict=True), 1):
            report_progress(f"checking objects: {done:,} of {len(names):,}")
            if why:
                wrong[name] = f"{name} {why}"
    return wrong


def checkpoint_problems(store: Store, checkpoint: Checkpoint) -> list[str]:
    """The problems with a checkpoint, including its manifest; empty if it can be restored."""
    try:
        manifest = load_manifest(store, checkpoint)
    except StoreError as error:
        return [str(error)]
    return list(damaged_objects(store, [manifest]).values())
