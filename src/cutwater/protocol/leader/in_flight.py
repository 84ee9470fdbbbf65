"""What is in flight in a cut: rows that one stage has produced and another has not read yet.

Channel files are usually read once, soon after they were written, so they are not synced. Those that a checkpoint names
must survive a power failure. So the leader, which alone knows what a cut leaves in flight, makes them durable and reads
their checksums before it commits. An aligned cut leaves nothing in flight, and costs nothing.
"""

from __future__ import annotations

import msgspec

from cutwater.protocol.base.effects import Checksum, Copy, Procedure, insist
from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.base.paths import channel_copy_name, file_name
from cutwater.protocol.base.records import InFlight, Manifest

MAX_AT_ONCE = 100
"""How many files are handled at once."""


def secured(manifest: Manifest, previous: Manifest | None) -> Procedure[Manifest]:
    """Makes everything that is in flight durable, and returns the manifest with checksums. What the previous checkpoint
    had in flight is already durable. Raises `StoreError` if a file is missing."""
    known: dict[str, str] = {}
    for flight in previous.in_flight if previous is not None else ():
        known |= flight.checksums
    named = {name: flight for flight in manifest.in_flight for name in flight.names()}
    asked = sorted(name for name in named if name not in known)
    for start in range(0, len(asked), MAX_AT_ONCE):
        names = asked[start : start + MAX_AT_ONCE]
        for name, checksum in zip(names, (yield from insist(Checksum(tuple(names)))), strict=True):
            if checksum is None:
                raise _is_missing(named[name], name)
            known[name] = checksum
    flights = (
        msgspec.structs.replace(flight, checksums={name: known[name] for name in flight.names()})
        for flight in manifest.in_flight
    )
    return msgspec.structs.replace(manifest, in_flight=tuple(flights))


def copied(manifest: Manifest) -> Procedure[Manifest]:
    """Copies what is in flight, and returns the manifest of a full checkpoint, which is self-contained. Raises
    `StoreError` if a file is missing: it is lost, or this leader's term has long been over."""
    flights: list[InFlight] = []
    for flight in manifest.in_flight:
        batches: dict[int, tuple[str, ...]] = {}
        for batch, files in flight.batches.items():
            copies = tuple(
                channel_copy_name(
                    manifest.epoch, manifest.checkpoint_id, flight.producer, batch, file_name(file)
                )
                for file in files
            )
            for source, target in zip(files, copies, strict=True):
                if (yield from insist(Copy(source, target))) is None:
                    raise _is_missing(flight, source)
            batches[batch] = copies
        flights.append(msgspec.structs.replace(flight, batches=batches))
    return msgspec.structs.replace(manifest, in_flight=tuple(flights))


def _is_missing(flight: InFlight, name: str) -> StoreError:
    return StoreError(f"{name}, which stage {flight.reader} has not read yet, is missing")
