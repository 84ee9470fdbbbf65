"""How a member runs."""

from __future__ import annotations

import msgspec

from cutwater.protocol.leader.leader import LeaderConfig
from cutwater.protocol.member.config import MemberConfig


class Settings(msgspec.Struct, frozen=True):
    """How a member runs. `idle_after_s`: silence after which a stage no longer holds back the pipeline-wide
    watermark. `once`: process what is there now, then drain."""

    leader: LeaderConfig
    member: MemberConfig
    idle_after_s: float = 10.0
    once: bool = False
    unaligned: bool = False
