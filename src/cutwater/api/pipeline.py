"""The pipeline as users write it: stages as functions, and what can be done with a running one."""

from __future__ import annotations

import signal
import time
import uuid
from collections.abc import Callable, Sequence
from threading import current_thread, main_thread
from typing import Any, overload

import msgspec
from pyspark.sql import SparkSession

from cutwater.cluster.config import ClusterConfig
from cutwater.cluster.opening import open_links
from cutwater.plan.assemble import WaitEnded, assemble, own_stages
from cutwater.plan.build import Builder, bind_sinks, register_sinks
from cutwater.plan.graph import StageDef, define
from cutwater.protocol.base.durations import seconds
from cutwater.protocol.base.errors import GraphChanged, UserError
from cutwater.protocol.base.wire import Request, RequestKind
from cutwater.protocol.leader.coordinator_actions import CoordinatorConfig
from cutwater.protocol.leader.leader import LeaderConfig
from cutwater.runtime.mailbox import answered, check_savepoint_name, new_id
from cutwater.runtime.restore import GraphMoved, check_topology, restore_before_start, whole_checkpoint
from cutwater.runtime.runtime import Runtime, Settings, member_config
from cutwater.runtime.second_process import claim
from cutwater.sinks.contract import Sink
from cutwater.spark.session import adopt_session, check_reach, end_session, hush, make_session
from cutwater.store.at_rest import read_journal
from cutwater.store.contract import Store
from cutwater.store.opening import open_store
from cutwater.store.status import Status

Function = Callable[..., Any]
ANSWER_S = 600.0
LEADER_ALONE_MS = 200
"""Silence after which a member tries to lead that has no peers whom it could hear."""


class Pipeline:
    """A named graph of stages.

    pipeline = cutwater.Pipeline("orders")

    @pipeline.stage(sinks=[cutwater.delta("out/big")])
    def big(spark):
        return spark.readStream.schema(ORDERS).parquet("in/orders").where("amount > 100")

    pipeline.run(store="./state", every="5s")
    """

    def __init__(self, name: str) -> None:
        if not name or not name.replace("-", "_").replace(".", "_").isidentifier():
            raise UserError(f"'{name}' cannot name a pipeline: use letters, digits, '_', '-' and '.'")
        self.name = name
        self.stages: dict[str, StageDef] = {}
        self._runtime: Runtime | None = None
        self._own_session: SparkSession | None = None
        self._is_leaving: Callable[[], bool] = lambda: False

    # --- stages ---------------------------------------------------------------------------------------

    @overload
    def stage(self, function: Function) -> Function: ...

    @overload
    def stage(
        self,
        *,
        name: str | None = None,
        sinks: Sequence[Sink] = (),
        output_mode: str = "append",
        trigger: str = "100ms",
        max_rows: int = 0,
        watermark_above_fan_in: bool = False,
        same_source: bool = False,
        member: str | None = None,
    ) -> Callable[[Function], Function]: ...

    def stage(
        self,
        function: Function | None = None,
        *,
        name: str | None = None,
        sinks: Sequence[Sink] = (),
        output_mode: str = "append",
        trigger: str = "100ms",
        max_rows: int = 0,
        watermark_above_fan_in: bool = False,
        same_source: bool = False,
        member: str | None = None,
    ) -> Any:
        """Makes a function a stage. It returns a streaming DataFrame; its parameter `spark` is the session,
        the others name the stages that it reads.

        `sinks`: where its rows go. `output_mode`: append, or for `cutwater.call` alone update and complete.
        `trigger`: how often it looks for new rows. `max_rows`: about how many rows of a channel it takes at
        once (0: all that are there; native sources have options of their own). `watermark_above_fan_in` and
        `same_source` accept what is refused otherwise; the messages say what that means.
        """

        def add(wrapped: Function) -> Function:
            stage = define(
                wrapped, name=name, sinks=sinks, output_mode=output_mode, trigger=trigger, max_rows=max_rows,
                watermark_above_fan_in=watermark_above_fan_in, same_source=same_source, member=member,
            )  # fmt: skip
            if stage.name in self.stages:
                raise UserError(f"there are two stages named '{stage.name}'; rename one, or give it name=")
            self.stages[stage.name] = stage
            return wrapped

        return add if function is None else add(function)

    # --- running --------------------------------------------------------------------------------------

    def start(
        self,
        store: str | Store = "./state",
        *,
        every: str | float = "10s",
        spark: SparkSession | None = None,
        master: str | None = None,
        conf: dict[str, str] | None = None,
        restore: str | int | None = None,
        drop: Sequence[str] = (),
        reset: Sequence[str] = (),
        force: bool = False,
        unaligned: bool = False,
        once: bool = False,
        member: str | None = None,
        wait_for: Sequence[str] = (),
        cluster: ClusterConfig | None = None,
        leader_timeout: str | float = "3s",
        timeout: str | float = "10m",
        alignment_timeout: str | float | None = None,
        retained: int = 3,
        tolerated_failures: int | None = 3,
        restarts: int = 5,
        idle_after: str | float = "10s",
        takeover: bool = False,
        tell: Callable[[str], None] | None = None,
    ) -> Pipeline:
        """Starts the pipeline, and returns when its stages have been told to run.

        `store`: a folder or an object store's URL; all that is durable lies there. `every`: from one
        checkpoint to the next. `spark`: your own session (else one is made, with `master` and `conf`).
        `restore`: go back to a checkpoint first: an epoch, a savepoint's name, or "latest"; with it the code
        may have changed: `drop` names stages that are gone, `reset` those that start without their state,
        and `force` undoes what others did to the tables since. `unaligned`: checkpoints do not wait for rows
        in channels. `once`: process what is there now, commit, publish, end. `takeover`: do not wait for
        another process that seems to run it. `tell` is given what happens, line by line.

        A pipeline of several processes: `member` is the name of this one, which hosts the stages that name it
        (or, if none names any, all stages of this file; parameters may then name stages of other members).
        `wait_for`: who else has to be there before it first begins, beside those whose stages are read here.
        `cluster`: how members reach each other. `leader_timeout`: silence of the leader after which another
        takes over.
        """
        given = {k: v for k, v in locals().items() if k not in ("self", "store")}
        if self._runtime is not None:
            raise UserError(f"pipeline '{self.name}' runs already; stop() it first")
        self._started: tuple[str | Store, dict[str, Any]] = store, given
        say = tell or (lambda line: None)
        where = store if not isinstance(store, str) else open_store(store, create=True)
        interval = max(1, int(seconds(every, "every") * 1000))
        deadline = int(seconds(timeout, "timeout") * 1000)
        patience = None
        if unaligned:
            patience = 0
        elif alignment_timeout is not None:
            patience = int(seconds(alignment_timeout, "alignment_timeout") * 1000)
        config = CoordinatorConfig(
            interval_ms=interval, timeout_ms=deadline, alignment_timeout_ms=patience, retained=retained,
        )  # fmt: skip
        name, own = own_stages(self.stages, member)
        boot = uuid.uuid4().hex[:8]
        claim(where, self.name, name, takeover, say)
        expected = {*wait_for, *(s.member for s in self.stages.values() if s.member is not None)}
        builder = self._builder(spark, master, conf, own, member is not None)
        reads = {name: stage.inputs for name, stage in own.items()}
        listen = cluster.reachable if cluster is not None else ()
        if restore is None and (drop or reset):
            raise UserError("drop and reset say what a restore does with stages; give restore= too")

        while True:
            assembled = assemble(where, name, builder, reads, expected, listen, say, self._is_leaving)
            built = builder.finish(assembled.topology)
            check_reach(built.spark, where.spark_url("any"))
            bind_sinks(built, where)
            if restore is None:
                break
            native = tuple(n for n, stage in built.stages.items() if stage.has_native_source)
            try:
                restore_before_start(
                    where, built.topology, str(restore), tuple(drop), tuple(reset), say, force, assembled.base,
                    native,
                )  # fmt: skip
                break
            except GraphMoved:
                say("another member has changed the graph meanwhile; putting it together again")
        check_topology(where, built.topology)
        register_sinks(built)
        endpoints = assembled.endpoints
        silence = LEADER_ALONE_MS
        if len(built.topology.members()) > 1:
            if cluster is None:
                raise UserError(
                    f"the members {', '.join(built.topology.members())} have to reach each other: say where this one "
                    "listens (--listen tcp/HOST:PORT) and where it finds another (--peer tcp/HOST:PORT)"
                )
            if cluster.gossip:
                cluster = msgspec.structs.replace(cluster, peers=tuple(sorted({*cluster.peers, *endpoints})))
            silence = max(100, int(seconds(leader_timeout, "leader_timeout") * 1000))
        links = open_links(cluster, self.name, name, boot, say)
        beat = 1_000 if silence == LEADER_ALONE_MS else min(1_000, silence // 3)
        leader = LeaderConfig(timeout_ms=silence, heartbeat_ms=beat, coordinator=config)
        settings = Settings(
            leader, member_config(where, cluster is None, restarts, tolerated_failures),
            idle_after_s=seconds(idle_after, "idle_after"), once=once, unaligned=unaligned,
        )  # fmt: skip
        self._runtime = Runtime(built, where, name, boot, settings, say, links)
        self._runtime.start()
        return self

    def _builder(
        self,
        spark: SparkSession | None,
        master: str | None,
        conf: dict[str, str] | None,
        own: dict[str, StageDef],
        elsewhere: bool,
    ) -> Builder:
        if spark is not None and (master or conf):
            raise UserError(
                "give either your own session (spark=) or settings for a new one (master=, conf=)"
            )
        if spark is None:
            existed = SparkSession.getActiveSession() is not None
            spark = make_session(self.name, master, conf)
            self._own_session = None if existed else spark
        adopt_session(spark)
        return Builder(self.name, own, spark, elsewhere)

    def run(self, store: str | Store = "./state", **options: Any) -> None:
        """Starts the pipeline and stays until it ends: drained, failed, or told so by Ctrl-C or SIGTERM
        (which drain it; a second one stops it at once, and of several members the first one does so). Takes
        what `start` takes. Raises what ended it."""
        options.setdefault("tell", _print)
        tell = options["tell"]
        self.start(store, **options)
        self.stay(tell)

    def stay(self, tell: Callable[[str], None], tick: Callable[[], None] | None = None) -> bool:
        """Waits until the running pipeline ends, and sees to signals meanwhile. `False` if it was stopped at
        once, before it had come to rest."""
        runtime = self._running()
        signals: list[int] = []
        before: dict[int, Any] = {}
        if current_thread() is main_thread():
            for which in (signal.SIGINT, signal.SIGTERM):
                before[which] = signal.signal(which, lambda n, _: signals.append(n))
        self._is_leaving = lambda: bool(signals)
        seen = 0
        try:
            while not runtime.wait(0.2) or self._starts_again(runtime, tell):
                runtime = self._running()
                if tick is not None:
                    tick()
                if len(signals) > seen:
                    seen = len(signals)
                    if len(runtime.built.topology.members()) > 1:
                        tell(f"member '{runtime.member.name}' leaves; the others wait until it is back")
                        break
                    if seen > 1:
                        tell("stopping at once; what is not committed will be done again")
                        break
                    tell(
                        "draining: every stage comes to rest, then a last checkpoint (again to stop at once)"
                    )
                    runtime.come_to_rest()
        except WaitEnded:
            tell(f"member '{runtime.member.name}' leaves, before it has become a part of the new graph")
            return False
        finally:
            self._is_leaving = lambda: False
            for number, handler in before.items():
                signal.signal(number, handler)
            self.stop()
        if runtime.failure is not None:
            raise runtime.failure
        return runtime.drained

    def _starts_again(self, runtime: Runtime, tell: Callable[[str], None]) -> bool:
        """A member whose pipeline has got another graph, by a restore of some other member with changed code,
        goes on as a part of that."""
        if not isinstance(runtime.failure, GraphChanged):
            return False
        tell("the pipeline's graph has changed; starting again as a part of the new one")
        session = runtime.built.spark
        self._runtime = None
        runtime.stop()
        store, options = self._started
        again = {"restore": None, "drop": (), "reset": (), "takeover": True, "master": None, "conf": None}
        self.start(store, **{**options, **again, "spark": session})
        return True

    def wait(self, timeout: str | float | None = None) -> bool:
        """Waits until the pipeline has ended by itself; `False` if it runs on. Raises what it failed of."""
        runtime = self._running()
        ended = runtime.wait(None if timeout is None else seconds(timeout, "timeout"))
        if runtime.failure is not None:
            self.stop()
            raise runtime.failure
        return ended

    def stop(self) -> None:
        """Ends at once. What was not committed will be done again by the next start."""
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            if not runtime.drained and self._own_session is not None:
                hush(self._own_session)
            runtime.stop()
        if self._own_session is not None:
            end_session(self._own_session)
            self._own_session = None

    def drain(self, timeout: str | float = ANSWER_S) -> int:
        """Comes to rest, takes a last checkpoint, publishes it, stops. Returns its epoch."""
        runtime = self._running()
        epoch = self._ask(Request(RequestKind.DRAIN, new_id()), timeout)
        deadline = time.monotonic() + seconds(timeout, "timeout")
        while not runtime.wait(max(0.0, deadline - time.monotonic())):
            raise UserError(
                f"epoch {epoch} is committed, but not published everywhere: {runtime.shell.last_trouble}"
            )
        failure = runtime.failure
        self.stop()
        if failure is not None:
            raise failure
        assert epoch is not None
        return epoch

    # --- while it runs --------------------------------------------------------------------------------

    def checkpoint(
        self, *, full: bool = False, unaligned: bool = False, timeout: str | float = ANSWER_S
    ) -> int:
        """Takes a checkpoint now; its epoch, when it is committed."""
        epoch = self._ask(Request(RequestKind.CHECKPOINT, new_id(), full=full, unaligned=unaligned), timeout)
        assert epoch is not None
        return epoch

    def savepoint(self, name: str, timeout: str | float = ANSWER_S) -> int:
        """Takes a full checkpoint that retention never removes; its epoch, when it is committed."""
        check_savepoint_name(name)
        epoch = self._ask(Request(RequestKind.SAVEPOINT, new_id(), name=name), timeout)
        assert epoch is not None
        return epoch

    def cancel(self, timeout: str | float = ANSWER_S) -> None:
        """Calls off the checkpoint that is under way."""
        self._ask(Request(RequestKind.CANCEL, new_id()), timeout)

    def restore(self, ref: str | int, *, force: bool = False, timeout: str | float = ANSWER_S) -> int:
        """Takes everything back to a checkpoint while the pipeline runs; its epoch. Nothing is done unless the
        checkpoint is whole. `force` undoes what others did to the tables since."""
        runtime = self._running()
        state = read_journal(runtime.store).state
        target = whole_checkpoint(runtime.store, state, str(ref), runtime.tell)
        name = str(ref) if str(ref) in state.savepoints else None
        request = Request(RequestKind.RESTORE, new_id(), name, target.epoch, force=force)
        found = self._ask(request, timeout)
        assert found is not None
        return found

    def status(self) -> Status:
        """How it fares now."""
        return self._running().reporter.status()

    @property
    def is_running(self) -> bool:
        return self._runtime is not None and not self._runtime.done.is_set()

    def _running(self) -> Runtime:
        if self._runtime is None:
            raise UserError(f"pipeline '{self.name}' does not run in this process; start() it first")
        return self._runtime

    def _ask(self, request: Request, timeout: str | float) -> int | None:
        return answered(self._running().request(request, seconds(timeout, "timeout")), request.kind)


def _print(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)
