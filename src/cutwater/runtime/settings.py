"""The settings of a running member."""

from __future__ import annotations

import msgspec

from cutwater.protocol.leader.leader import LeaderConfig
from cutwater.protocol.member.config import MemberConfig


class Settings(msgspec.Struct, frozen=True):
    """The settings of a running member."""

    leader: LeaderConfig
    member: MemberConfig
