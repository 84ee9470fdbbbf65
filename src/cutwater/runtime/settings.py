"""The settings of a running member."""

from __future__ import annotations

import msgspec

from cutwater.protocol.leader.leader import LeaderConfig
from cutwater.protocol.member.config import MemberConfig


class Settings(msgspec.Struct, frozen=True):
    """The settings of a running member. `idle_after_s`: silence after which a stage no longer holds back the
    pipeline-wide watermark. `once`: process the data that is available now, then drain."""

    leader: LeaderConfig
    member: MemberConfig
    idle_after_s: float = 10.0
    once: bool = False
    unaligned: bool = False
