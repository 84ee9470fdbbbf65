"""Joining the others, or nobody."""

from __future__ import annotations

from collections.abc import Callable

from cutwater.cluster.config import ClusterConfig
from cutwater.cluster.kv import COMMAND, MemoryCluster
from cutwater.cluster.links import Links
from cutwater.protocol.base.errors import UserError


def open_links(
    config: ClusterConfig | None, pipeline: str, member: str, boot: str, tell: Callable[[str], None]
) -> Links:
    """The links of one member; without a configuration it is alone. Raises `UserError` if it cannot join."""
    if member.startswith(COMMAND):
        raise UserError(
            f"'{member}' cannot name a member: {COMMAND}... are the commands that look on; choose another"
        )
    if config is None:
        return Links(MemoryCluster().member(member, boot), tell)
    from cutwater.cluster.zenoh_kv import ZenohKv

    return Links(ZenohKv(config, pipeline, member, boot, tell), tell)
