"""The registry of planted bugs, and helpers to plant them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from cutwater.protocol.base import log
from cutwater.protocol.leader import (
    campaign,
    housekeeping,
    leader,
    steering,
)
from cutwater.protocol.member import (
    catchup,
    member,
    stage,
    stage_logs,
    stage_start,
)

Patch = pytest.MonkeyPatch
BUGS: dict[str, Callable[[Patch], None]] = {}


def bug(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
    BUGS[plant.__name__] = plant
    return plant


def changed(record: Any, **fields: Any) -> Any:
    return msgspec.structs.replace(record, **fields)


def patch_append(patch: Patch, append: Any) -> None:
    for module in (log, leader, campaign, stage_start, stage, steering):
        patch.setattr(module, "append", append)


def patch_follow(patch: Patch, follow: Any) -> None:
    for module in (
        log,
        leader,
        campaign,
        stage_start,
        stage,
        stage_logs,
        member,
        catchup,
        housekeeping,
        steering,
    ):
        patch.setattr(module, "follow", follow)
