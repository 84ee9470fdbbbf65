"""Whether everything is there that a restore of a checkpoint needs: the one way to check it.

A restore, `cutwater verify` and tests all ask here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.base.records import Checkpoint, Manifest
from cutwater.store.at_rest import manifest_of
from cutwater.store.contract import Store

SIDE_BY_SIDE = 8


def needed(manifest: Manifest) -> dict[str, str | None]:
    """What a restore needs of the store, with checksums where they are recorded. Files that sinks hold back are not
    among them: they lie with their tables, and the sinks check them."""
    held = {file.name for files in manifest.held.values() for file in files}
    return {name: checksum for name, checksum in sorted(manifest.objects().items()) if name not in held}


def damaged_objects(
    store: Store, manifests: Iterable[Manifest], tell: Callable[[str], None] = lambda line: None
) -> dict[str, str]:
    """The objects that these manifests need and that are missing or damaged, with why. Each object is read once,
    however many manifests name it; `tell` is told of the progress."""
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
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        for done, (name, why) in enumerate(zip(names, pool.map(check, names.items()), strict=True), 1):
            tell(f"checking objects: {done:,} of {len(names):,}")
            if why:
                wrong[name] = f"{name} {why}"
    return wrong


def checkpoint_problems(store: Store, checkpoint: Checkpoint) -> list[str]:
    """What is wrong with a checkpoint, its manifest included; empty if it can be restored."""
    try:
        manifest = manifest_of(store, checkpoint)
    except StoreError as error:
        return [str(error)]
    return list(damaged_objects(store, [manifest]).values())
