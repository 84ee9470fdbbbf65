"""The settings of members and leaders in tests: those of the options' defaults, with changes."""

from __future__ import annotations

from typing import Any

import msgspec

from cutwater.api.config import RunConfig
from cutwater.protocol.leader.coordinator_actions import CoordinatorConfig
from cutwater.protocol.leader.leader import LeaderConfig
from cutwater.protocol.member.config import MemberConfig


def member_config(**changes: Any) -> MemberConfig:
    """A member that polls a local folder, and does not end because of failures."""
    found = {
        "poll_ms": 200, "restarts": RunConfig().restarts, "publish_tries": None, "tolerated_failures": None,
        "idle_after_ms": 10_000, "once": False,
    }  # fmt: skip
    return MemberConfig(**(found | changes))


def coordinator_config(**changes: Any) -> CoordinatorConfig:
    found = msgspec.structs.asdict(RunConfig().leader(is_alone=False).coordinator)
    return CoordinatorConfig(**(found | changes))


def leader_config(timeout_ms: int = 3_000, heartbeat_ms: int = 1_000, /, **coordinator: Any) -> LeaderConfig:
    return LeaderConfig(timeout_ms, heartbeat_ms, coordinator_config(**coordinator))
