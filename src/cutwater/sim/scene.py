"""The interfaces through which the parts of a simulated world see the world and each other's processes.

Each part receives the world as a `Scene`, or as a protocol of its own module that adds the parts that it uses. So
imports go one way: `world` imports all modules of the simulator, and none imports `world`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Protocol

from cutwater.protocol.base.records import Topology
from cutwater.protocol.base.wire import Reply, Request
from cutwater.protocol.leader.inbox import Arrivals, Inbox
from cutwater.protocol.leader.leader import Leader
from cutwater.protocol.member.config import MemberConfig
from cutwater.protocol.member.member import Member
from cutwater.sim.faults import Faults
from cutwater.sim.store import SimStore, SimTable
from cutwater.sim.topology import Model, StageModel
from cutwater.store.recording import Recorder


class ActorView(Protocol):
    """A procedure that waits for the answer to an effect."""

    token: int


class ProcessView(Protocol):
    """A process of a member."""

    name: str
    alive: bool
    paused: bool
    started_ms: int
    paused_ms: int
    woke_ms: int
    woke_before_ms: int
    beat_ms: int
    store_down_until_ms: int
    checked_index: int
    must_know: int
    leader: Leader
    inbox: Inbox
    arrivals: Arrivals
    recorder: Recorder | None

    @property
    def member(self) -> Member: ...

    def resume(self, actor: Any, token: int, answer: Any) -> None: ...

    def resume_later(self, delay_ms: int, actor: Any, answer: Any) -> None: ...

    def deliver(self, sender: str, data: bytes) -> None: ...

    def turn(self, task: Callable[[], object]) -> None: ...

    def notice(self, name: str, is_present: bool) -> None: ...

    def poke(self, name: str) -> None: ...

    def crash(self) -> None: ...

    def pause(self) -> None: ...

    def wake_up(self) -> None: ...


class Post(Protocol):
    """The part of `Askers` that processes call."""

    @property
    def stored(self) -> list[str]: ...

    def on_delivery(self, process: ProcessView, request_id: str) -> None: ...

    def on_reply(self, process: ProcessView, reply: Reply) -> None: ...


class Troubles(Protocol):
    """The part of `Chaos` that other parts call; it decides what happens next."""

    @property
    def askers(self) -> Post: ...

    def interrupt(self, process: ProcessView) -> None: ...

    def replace(self, process: ProcessView) -> int: ...

    def ends(self, process: ProcessView, why: str) -> None: ...

    def is_over(self, process: ProcessView) -> None: ...

    def graph_changed(self, process: ProcessView) -> None: ...

    def start_members(self) -> None: ...


class Scene(Protocol):
    """A world: time, randomness, stored objects, processes and requests."""

    seed: int
    rng: Random
    now_ms: int
    faults: Faults
    model: Model
    store: SimStore
    tables: dict[str, SimTable]
    requests: dict[str, Request]
    tracer: Callable[[str], None] | None
    record: Callable[[bytes], object] | None
    slow_until_ms: dict[str, int]
    slowness: int
    broken_until_ms: dict[str, int]
    trigger_ms: dict[str, int]
    last_start_ms: dict[str, int]
    io_ms: int
    table_ms: int
    wants_rest: bool
    rested: set[tuple[str, int, int]]
    under_way: set[tuple[str, int, int]]
    took_all: set[tuple[str, int]]
    healed_ms: int
    member_config: MemberConfig

    @property
    def graph(self) -> Topology: ...

    @property
    def chaos(self) -> Troubles: ...

    @property
    def processes(self) -> Sequence[ProcessView]: ...

    def leaders(self) -> Sequence[ProcessView]: ...

    def start(self, name: str) -> ProcessView: ...

    def stop(self, process: ProcessView) -> None: ...

    def run_command(self, request: Request) -> None: ...

    def add_stage(self, model: StageModel) -> None: ...

    def schedule(self, delay_ms: int, call: Callable[..., None], *args: Any) -> None: ...

    def between(self, low: int, high: int) -> int: ...

    def available(self, root: str, at_ms: int | None = None) -> int: ...

    def batch_ms(self, stage: str) -> int: ...

    def fault(self, what: str) -> None: ...

    def trace(self, process: ProcessView | None, what: str) -> None: ...
