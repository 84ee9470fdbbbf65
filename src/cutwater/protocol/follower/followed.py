"""What is delivered to a follower, and its position."""

from __future__ import annotations

import msgspec


class Followed(msgspec.Struct, frozen=True, kw_only=True):
    """A published epoch, or (`rewound`) that everything has gone back to an epoch by a restore.

    `tables` has the version of each table, by its sink's name; `None` if the epoch has expired since, so that its version
    is no longer known. `after_gap`: epochs before this one were not delivered, because they had expired before this
    follower could learn of them; after a crash, perhaps only the last one delivered. `position` is the journal's entry;
    it grows with each delivery."""

    epoch: int
    generation: int
    tables: dict[str, int | None]
    watermark: int | None
    position: int
    rewound: bool = False
    after_gap: bool = False


class Position(msgspec.Struct, frozen=True):
    """The position of a named follower: everything up to the journal's entry `index` was delivered and acknowledged.
    `epoch` is the one that this entry concerns; epochs from `next_epoch` on were not decided yet by then. `nonce` tells
    the processes of one follower apart."""

    index: int
    epoch: int
    next_epoch: int
    nonce: str = ""
