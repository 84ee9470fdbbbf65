"""The stage logs of the current generation that one member knows: those of its own stages, and those of stages on other
members that its stages read."""

from __future__ import annotations

from typing import Protocol

from cutwater.protocol.base.effects import Procedure, Send, Wait
from cutwater.protocol.base.log import follow
from cutwater.protocol.base.records import Topology
from cutwater.protocol.base.wire import LogGrown
from cutwater.protocol.member.config import MemberConfig
from cutwater.protocol.member.stage_log import StageLog


class LogReader(Protocol):
    """The member that reads the logs."""

    name: str
    topology: Topology
    config: MemberConfig
    generation: int

    def wake(self, actor: str) -> None: ...
    def wake_readers(self, stage: str) -> None: ...


class StageLogs:
    """The logs of the member's generation, by stage. Notifies readers of new entries, here and on other members."""

    def __init__(self, member: LogReader) -> None:
        self._member = member
        self._logs: dict[str, StageLog] = {}
        self._grown: set[str] = set()

    def forget(self) -> None:
        """Forgets the logs of the generation before: another one begins."""
        self._logs = {}
        self._grown.clear()

    def log(self, stage: str) -> StageLog:
        """The log of a stage, as far as this process knows it."""
        found = self._logs.get(stage)
        if found is None:
            found = self._logs[stage] = StageLog(stage, self._member.generation)
        return found

    def remote(self) -> list[str]:
        """The stages on other members that hosted stages read."""
        topology = self._member.topology
        hosted = topology.hosted(self._member.name)
        return sorted({i for s in hosted for i in topology.stages[s].inputs} - set(hosted))

    def follow_remote(self, producers: list[str]) -> Procedure[None]:
        """The actor that follows the logs of stages on other members."""
        while True:
            grown, self._grown = sorted(self._grown), set()
            for name in grown or producers:
                if (yield from follow(self.log(name).view)):
                    self._member.wake_readers(name)
            if not self._grown:
                yield Wait(self._member.config.poll_ms)

    def on_grown(self, grown: LogGrown) -> None:
        """The log of a stage on another member has grown."""
        if grown.stage not in self._member.topology.stages:
            return
        if grown.generation == self._member.generation and grown.index > self.log(grown.stage).view.last:
            self._grown.add(grown.stage)
            self._member.wake("channels")

    def notify_readers(self, stage: str) -> Procedure[None]:
        """The log of a hosted stage has grown. Wakes its hosted readers, and notifies the members that host others."""
        self._member.wake_readers(stage)
        topology = self._member.topology
        hosts = {topology.stages[reader].member for reader in topology.readers(stage)}
        for host in sorted(hosts - {self._member.name}):
            yield Send(host, LogGrown(stage, self._member.generation, self.log(stage).view.last))
