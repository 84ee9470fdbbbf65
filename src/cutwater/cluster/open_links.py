"""Opens a member's links: to its cluster, or to nobody."""

from __future__ import annotations

from collections.abc import Callable

from cutwater.cluster.config import ClusterConfig
from cutwater.cluster.kv import COMMAND, MemoryCluster
from cutwater.cluster.links import Links
from cutwater.protocol.base.errors import UserError


def open_links(
    config: ClusterConfig | None, pipeline: str, member: str, boot: str, notify: Callable[[str], None]
) -> Links:
    """The links of a member, which is alone without a configuration. Raises `UserError` if it cannot join."""
    if member.startswith(COMMAND):
        raise UserError(
            f"'{member}' cannot name a member: names with {COMMAND} are reserved for commands; choose another"
        )
    if config is None:
        return Links(MemoryCluster().member(member, boot), notify)
    from cutwater.cluster.zenoh_kv import ZenohKv

    return Links(ZenohKv(config, pipeline, member, boot, notify), notify)
