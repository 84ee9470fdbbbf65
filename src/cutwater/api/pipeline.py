"""The pipeline as users define and control it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from threading import Timer
from types import TracebackType
from typing import Any, Literal, Unpack, overload

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from cutwater.api.archive_maker import make_later
from cutwater.api.config import RunConfig, RunOptions
from cutwater.api.log_lines import lines_printed, log_of
from cutwater.api.signals import Signals, caught_signals
from cutwater.api.starting import Starting, new_session
from cutwater.plan.assemble import WaitEnded, own_stages
from cutwater.plan.chaining import Wish
from cutwater.plan.given import check_truth
from cutwater.plan.graph import StageDef, define, in_order
from cutwater.protocol.base.durations import seconds
from cutwater.protocol.base.errors import GraphChanged, UserError
from cutwater.protocol.base.options import named_options, refuse_unknown
from cutwater.protocol.base.wire import Request, RequestKind
from cutwater.runtime.restore import whole_checkpoint
from cutwater.runtime.runtime import Runtime
from cutwater.runtime.second_process import ensure_not_running
from cutwater.runtime.store_requests import answered, check_savepoint_name, new_id
from cutwater.sinks.contract import Sink
from cutwater.sinks.quarantine import Quarantine
from cutwater.spark.internals.gateway import end_session
from cutwater.spark.session import hush
from cutwater.store.at_rest import read_journal
from cutwater.store.contract import Store
from cutwater.store.opening import is_on_s3, open_store
from cutwater.store.status import ALONE, Status

Function = Callable[..., Any]
ANSWER_S = 600.0


class Pipeline:
    """A named graph of stages.

    pipeline = cutwater.Pipeline("orders")

    @pipeline.stage(sinks=[cutwater.delta("out/big")])
    def big(spark):
        return spark.readStream.schema(ORDERS).parquet("in/orders").where("amount > 100")

    pipeline.run("./state", every="5s")
    """

    def __init__(self, name: str, *, chain: bool = True) -> None:
        """`chain`: whether stages run inside the query of the stage that reads them, where that changes no row of any
        table; `chain=` of a stage decides otherwise for that stage. A store that exists keeps its queries."""
        if not name or not name.replace("-", "_").replace(".", "_").isidentifier():
            raise UserError(f"'{name}' cannot name a pipeline: use letters, digits, '_', '-' and '.'")
        check_truth(chain, "chain")
        self.name = name
        self.chain = chain
        self.stages: dict[str, StageDef] = {}
        self._runtime: Runtime | None = None
        self._session: SparkSession | None = None
        self._owns_session = False
        self._archive_timer: Timer | None = None
        self._log = log_of(name, ALONE)
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
        trigger: str | None = None,
        max_rows: int | None = None,
        allow_watermark_above_fan_in: bool = False,
        allow_shared_source: bool = False,
        member: str | None = None,
        commit_group: str | None = None,
        chain: bool | None = None,
        expect: Mapping[str, str] | None = None,
        on_violation: Literal["fail", "drop"] | Quarantine | None = None,
    ) -> Callable[[Function], Function]: ...

    @named_options
    def stage(
        self,
        function: Function | None = None,
        *,
        name: str | None = None,
        sinks: Sequence[Sink] = (),
        output_mode: str = "append",
        trigger: str | None = None,
        max_rows: int | None = None,
        allow_watermark_above_fan_in: bool = False,
        allow_shared_source: bool = False,
        member: str | None = None,
        commit_group: str | None = None,
        chain: bool | None = None,
        expect: Mapping[str, str] | None = None,
        on_violation: Literal["fail", "drop"] | Quarantine | None = None,
    ) -> Any:
        """Make a function a stage. It returns a streaming DataFrame; its parameter `spark` is the session, the others
        name the stages that it reads.

        `sinks`: where its rows go. `output_mode`: `append`; also `update` if all sinks are `cutwater.delta` with keys
        or `cutwater.foreach_epoch`, and `complete` if all are the latter. `trigger`: how often it looks for new rows
        (`None`: a stage that reads only other stages takes them as soon as there are some; others look every 100 ms).
        `max_rows`: roughly how many rows of a channel a batch reads (`None`: all that exist; native sources have
        options of their own for this). `member`: which of several members runs it. `allow_watermark_above_fan_in` and
        `allow_shared_source` allow what is otherwise refused; the error messages explain the consequences.
        `commit_group`: for a stage that reads Kafka, a consumer group to which the positions of each committed epoch
        are committed, for tools that show lag.
        `chain`: whether it runs inside the query of the stage that reads it; `True` is an error if that is not possible,
        `None` means what the pipeline says. `expect`: rules for its rows, a SQL condition by name; a row for which one is
        not true is bad. `on_violation`: what happens then: `"fail"` ends the run (without `on_violation`, too), `"drop"`
        leaves bad rows out, and `cutwater.quarantine(path)` writes them to a table.
        """

        def add(wrapped: Function) -> Function:
            stage = define(
                wrapped, name=name, sinks=sinks, output_mode=output_mode, trigger=trigger, max_rows=max_rows,
                allow_watermark_above_fan_in=allow_watermark_above_fan_in, allow_shared_source=allow_shared_source,
                member=member, commit_group=commit_group, wish=self._wish(chain), expect=expect,
                on_violation=on_violation,
            )  # fmt: skip
            if stage.name in self.stages:
                raise UserError(
                    f"there are two stages named '{stage.name}'; rename one of them, or pass name= to the decorator. If "
                    "you have run a cell of a notebook again, make the Pipeline in the same cell, above its stages, and "
                    "run that cell: each run then begins with a new pipeline"
                )
            self.stages[stage.name] = stage
            return wrapped

        return add if function is None else add(function)

    def _wish(self, chain: bool | None) -> Wish:
        if chain is None:
            return Wish.MAY if self.chain else Wish.NEVER
        check_truth(chain, "chain")
        return Wish.MUST if chain else Wish.NEVER

    # --- running --------------------------------------------------------------------------------------

    def start(
        self,
        store: str | Store,
        config: RunConfig | None = None,
        *,
        spark: SparkSession | None = None,
        **options: Unpack[RunOptions],
    ) -> Pipeline:
        """Start the pipeline, and return when its stages are starting.

        `store`: a folder or the URL of an object store, which holds everything durable. The options are those of
        `RunConfig`, given as `config`, as keyword arguments, or both; keyword arguments win.

        `spark`: your own session, which is not changed. Queries run in a copy of it, and stage functions get that copy
        as their parameter `spark`. The copy has the settings, temporary views, functions, query listeners, and current
        catalog and database that your session has at the start. It shares the SparkContext, catalogs, tables, global
        temporary views and cached data. The pipeline does not see what you set or register in your session later. Its
        queries are in `queries`, not in your `spark.streams`. Without `spark`, a session is created from `master` and
        `conf` and stopped with the pipeline. This is refused if the process already has a SparkContext, since it can
        have only one.

        Progress is logged by the standard logger `cutwater`. Raises `UserError` if the pipeline cannot run.
        """
        if self.is_running:
            raise UserError(f"pipeline '{self.name}' is already running; stop() it first")
        if self._runtime is not None:  # its run has ended, and nobody has called stop()
            self.stop()
        refuse_unknown("start()", options, RunConfig.__struct_fields__)
        chosen = msgspec.structs.replace(config or RunConfig(), **options)
        try:
            if is_on_s3(store):  # Spark's settings say how to reach it
                self._open_session(chosen, spark)
            where = store if not isinstance(store, str) else open_store(store, create=True)
            self._begin(where, chosen, spark)
        except BaseException:
            self.stop()
            raise
        return self

    def _begin(self, store: Store, config: RunConfig, spark: SparkSession | None) -> None:
        self._config = config
        member, own = own_stages(self.stages, config.member)
        self._log = log_of(self.name, member)
        ordered = in_order(own, config.member is not None)
        ensure_not_running(store, self.name, member, config.takeover, self._log.info)
        self._open_session(config, spark)
        assert self._session is not None
        starting = Starting(self.name, store, config, member, self._log.info, self._is_leaving)
        self._runtime = starting.new_runtime(self._session, self.stages, ordered)
        self._runtime.start()
        if self._owns_session and self._archive_timer is None:
            self._archive_timer = make_later(self._log.info)

    def _open_session(self, config: RunConfig, spark: SparkSession | None) -> None:
        if self._session is None:
            self._session = new_session(self.name, config, spark, self._log.info)
            self._owns_session = spark is None

    def run(
        self,
        store: str | Store,
        config: RunConfig | None = None,
        *,
        spark: SparkSession | None = None,
        **options: Unpack[RunOptions],
    ) -> None:
        """Start the pipeline and wait until it ends. Ctrl-C and SIGTERM drain it, and a second one stops it at once; one
        of several members is stopped by the first. Takes the arguments of `start`. Raises the error that ended it.
        Prints the log unless logging is configured."""
        with lines_printed():
            self.start(store, config, spark=spark, **options)
            runtime = self._runtime
            if runtime is not None:  # another thread may have called stop()
                self._run_to_end(runtime, None)

    def stay(self, tick: Callable[[], None] | None = None) -> bool:
        """Wait until the running pipeline ends, handling signals and calling `tick` a few times a second. Returns
        `False` if it was stopped before it was drained."""
        return self._run_to_end(self._running(), tick)

    def _run_to_end(self, runtime: Runtime, tick: Callable[[], None] | None) -> bool:
        try:
            with caught_signals(self._session) as signals:
                self._is_leaving = lambda: signals.count > 0
                runtime = self._stay(runtime, signals, tick)
        except WaitEnded:
            self._log.info(f"member '{runtime.member.name}' is leaving before it has joined the new graph")
            return False
        finally:
            self._is_leaving = lambda: False
            self.stop()
        if runtime.failure is not None:
            raise runtime.failure
        return runtime.drained

    def _stay(self, runtime: Runtime, signals: Signals, tick: Callable[[], None] | None) -> Runtime:
        """Wait until the run has ended or is to be stopped; the runtime that it ended with."""
        seen = 0
        while not self._has_ended(runtime, 0.2):
            runtime = self._runtime or runtime
            if tick is not None:
                tick()
            if signals.count > seen:
                seen = signals.count
                if not _is_alone(runtime):
                    self._log.info(
                        f"member '{runtime.member.name}' is leaving; the others wait until it is back"
                    )
                    break
                if seen > 1:
                    self._log.info("stopping at once; the next start repeats what is not committed")
                    break
                self._log.info(
                    "draining: stages finish, then a last checkpoint (interrupt again to stop at once)"
                )
                runtime.come_to_rest()
        return runtime

    def _has_ended(self, runtime: Runtime, timeout_s: float | None) -> bool:
        """Wait until a run has ended, by itself or because another thread has called `stop`, or for `timeout_s`. If it
        ended because another member has restored the pipeline with changed code, restart it in the new graph, however
        long that takes."""
        if not runtime.wait(timeout_s):
            return False
        if not isinstance(runtime.failure, GraphChanged) or self._runtime is not runtime:
            return True
        self._log.info("the pipeline's graph has changed; restarting in the new one")
        self._runtime = None
        runtime.stop()
        try:
            self._begin(runtime.store, self._config.for_changed_graph(), None)
        except BaseException:
            self.stop()
            raise
        return False

    def awaitTermination(self, timeout: str | float | None = None) -> bool:
        """Wait until the pipeline has ended by itself. Returns `False` if it is still running after `timeout`. Raises
        the error that ended it. If another member has changed the graph, the pipeline is restarted in the new one
        meanwhile."""
        deadline = None if timeout is None else time.monotonic() + seconds(timeout, "timeout")
        runtime = self._running()
        while not self._has_ended(
            runtime, None if deadline is None else max(0.0, deadline - time.monotonic())
        ):
            if deadline is not None and time.monotonic() >= deadline:
                return False
            runtime = self._runtime or runtime
        if runtime.failure is not None:
            self.stop()
            raise runtime.failure
        return True

    def stop(self) -> None:
        """Stop at once. The next start repeats what was not committed."""
        runtime, self._runtime = self._runtime, None
        session, self._session = self._session, None
        owns_session, self._owns_session = self._owns_session, False
        timer, self._archive_timer = self._archive_timer, None
        if timer is not None:
            timer.cancel()
        if session is not None and owns_session and (runtime is None or not runtime.drained):
            hush(session)
        if runtime is not None:
            runtime.stop()
        if session is not None and owns_session:
            end_session(session)

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Drain the running pipeline, as one Ctrl-C does. After an error, or if it is one of several members, stop it at
        once. Raises the error that ended the pipeline, unless another one is already being raised."""
        runtime = self._runtime
        if runtime is None:
            return
        try:
            if error is None and _is_alone(runtime):
                runtime.come_to_rest()
                runtime.wait()
        finally:
            self.stop()
        if error is None and runtime.failure is not None:
            raise runtime.failure

    def drain(self, timeout: str | float = ANSWER_S) -> int:
        """Let all stages finish, take and publish a last checkpoint, and stop. Returns its epoch."""
        runtime = self._running()
        epoch = self._ask(Request(RequestKind.DRAIN, new_id()), timeout)
        deadline = time.monotonic() + seconds(timeout, "timeout")
        while not runtime.wait(max(0.0, deadline - time.monotonic())):
            raise UserError(
                f"epoch {epoch} is committed, but not published everywhere: {runtime.facts.trouble}"
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
        """Take a checkpoint now. Returns its epoch when it is committed."""
        epoch = self._ask(Request(RequestKind.CHECKPOINT, new_id(), full=full, unaligned=unaligned), timeout)
        assert epoch is not None
        return epoch

    def savepoint(self, name: str, timeout: str | float = ANSWER_S) -> int:
        """Take a full checkpoint that retention never deletes. Returns its epoch when it is committed."""
        check_savepoint_name(name)
        epoch = self._ask(Request(RequestKind.SAVEPOINT, new_id(), name=name), timeout)
        assert epoch is not None
        return epoch

    def cancel_checkpoint(self, timeout: str | float = ANSWER_S) -> None:
        """Cancel the checkpoint in progress."""
        self._ask(Request(RequestKind.CANCEL, new_id()), timeout)

    def restore(self, ref: str | int, *, force: bool = False, timeout: str | float = ANSWER_S) -> int:
        """Roll everything back to a checkpoint while the pipeline runs. Returns its epoch. Changes nothing unless the
        checkpoint is intact. `force` also undoes changes that others have made to the tables since then."""
        runtime = self._running()
        state = read_journal(runtime.store).state
        target = whole_checkpoint(runtime.store, state, str(ref), self._log.info)
        name = str(ref) if str(ref) in state.savepoints else None
        request = Request(RequestKind.RESTORE, new_id(), name, target.epoch, force=force)
        found = self._ask(request, timeout)
        assert found is not None
        return found

    def status(self) -> Status:
        """The status of this member and its stages, now."""
        return self._running().reporter.status()

    @property
    def queries(self) -> dict[str, StreamingQuery]:
        """The Spark query of each stage that this member runs and that has one now. A stage that restarts, after an
        error or a restore, gets a new query: look it up when you need it."""
        found = {name: host.query for name, host in self._running().hosts.items()}
        return {name: query for name, query in found.items() if query is not None}

    @property
    def is_running(self) -> bool:
        return self._runtime is not None and not self._runtime.done.is_set()

    @property
    def watched(self) -> Runtime | None:
        """The member that runs in this process, as a web server beside it shows it (`telemetry/routes.py`); `None` while
        there is none. Another one takes its place when the graph has changed."""
        return self._runtime

    def _running(self) -> Runtime:
        if self._runtime is None:
            raise UserError(f"pipeline '{self.name}' is not running in this process; start() it first")
        return self._runtime

    def _ask(self, request: Request, timeout: str | float) -> int | None:
        return answered(self._running().request(request, seconds(timeout, "timeout")), request.kind)


def _is_alone(runtime: Runtime) -> bool:
    return len(runtime.planned.topology.members()) == 1
