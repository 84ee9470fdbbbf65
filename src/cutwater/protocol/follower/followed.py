"""What a follower is given, and how far it has come."""

from __future__ import annotations

import msgspec


class Followed(msgspec.Struct, frozen=True, kw_only=True):
    """A published epoch, or (`rewound`) that everything has gone back to an epoch by a restore.

    `tables` has the version of each table, by its sink's name; `None` if the epoch has expired since, so that its version
    is no longer known. `after_gap`: epochs before this one were not given, because they had expired by the time that
    this follower could have learnt of them; after a crash, perhaps only the one that was given last. `position` is the
    journal's entry; it grows with each one that is given."""

    epoch: int
    generation: int
    tables: dict[str, int | None]
    watermark: int | None
    position: int
    rewound: bool = False
    after_gap: bool = False


class Position(msgspec.Struct, frozen=True):
    """How far a named follower has come: everything up to the journal's entry `index` was given and dealt with. `epoch`
    is the one that this entry concerns; epochs from `next_epoch` on were not decided yet by then. `nonce` tells apart the
    processes of one follower."""

    index: int
    epoch: int
    next_epoch: int
    nonce: str = ""
