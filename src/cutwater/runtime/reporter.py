"""Builds the status of a running member, sends it to the other members, and writes it to the store."""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Event, Thread
from typing import Any, Protocol

import msgspec

from cutwater.cluster.links import Links
from cutwater.plan.build import PlannedPipeline
from cutwater.protocol.base.events import OperationFailed
from cutwater.protocol.base.paths import status_name
from cutwater.protocol.base.watermark import WatermarkKind
from cutwater.protocol.leader.leader import Leader, LeaderPhase
from cutwater.protocol.member.member import Member
from cutwater.runtime.dispatcher import Dispatcher
from cutwater.runtime.settings import Settings
from cutwater.runtime.shell import Shell
from cutwater.runtime.status_facts import StatusFacts
from cutwater.sinks.contract import Sink
from cutwater.spark.host import StageHost
from cutwater.spark.lag import source_lags
from cutwater.store.contract import Store
from cutwater.store.local import LocalStore
from cutwater.store.process_identity import this_process
from cutwater.store.stage_status import SourceLag, StageStatus
from cutwater.store.status import REPORT_REMOTE_S, REPORT_S, Status, decode_status


class Reported(Protocol):
    """What the status needs from a running member."""

    boot: str
    planned: PlannedPipeline
    store: Store
    links: Links
    settings: Settings
    member: Member
    leader: Leader
    shell: Shell
    dispatcher: Dispatcher
    facts: StatusFacts
    sinks: Mapping[str, Sink]
    hosts: dict[str, StageHost]
    failure: BaseException | None
    drained: bool


class Reporter:
    """Reports the status of a member at an interval."""

    def __init__(self, runtime: Reported) -> None:
        self._runtime = runtime
        self._started_at = time.time()
        self._stopped = Event()
        self._rates: dict[str, tuple[float, float]] = {}
        self._lags: dict[str, tuple[SourceLag, ...]] = {}
        self.every_s = REPORT_S if isinstance(runtime.store, LocalStore) else REPORT_REMOTE_S
        self._process = this_process()
        self._beats = itertools.count(1)
        self._threads = (
            Thread(target=self._report, name="cutwater-status", daemon=True),
            Thread(target=self._measure_queries, name="cutwater-look", daemon=True),
        )

    def start(self) -> None:
        self.put(self.status("starting"))
        for thread in self._threads:
            thread.start()

    def stop(self, state: str) -> None:
        self._stopped.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout=10)
        if not self._has_successor():
            with suppress(TimeoutError):  # a turn that never ends must not keep the process from ending
                self.put(self.status("drained" if state == "stopped" and self._runtime.drained else state))

    def _has_successor(self) -> bool:
        """Whether another process of this member reports its status: this one must not overwrite it when it ends."""
        try:
            data = self._runtime.store.read(status_name(self._runtime.member.name))
        except OSError:
            return False
        found = decode_status(data) if data is not None else None
        return found is not None and found.boot != self._runtime.boot and not found.is_over

    def _report(self) -> None:
        """Reports without waiting for Spark: a member whose status does not change counts as gone."""
        self._repeat(lambda: self.put(self.status()))

    def _measure_queries(self) -> None:
        self._repeat(self._measure)

    def _repeat(self, task: Callable[[], None]) -> None:
        while not self._stopped.wait(self.every_s):
            try:
                task()
            except Exception as error:
                failed = OperationFailed("reporting the status", f"{type(error).__name__}: {error}")
                self._runtime.dispatcher.emit(failed)

    def put(self, status: Status) -> None:
        data = msgspec.json.encode(status)
        self._runtime.links.show("status", data)
        try:
            self._runtime.store.put(status_name(status.member), data)
        except OSError:
            return

    def _measure(self) -> None:
        for name, host in self._runtime.hosts.items():
            query = host.query
            try:
                is_active = query is not None and query.isActive
                progress: Any = query.lastProgress if is_active else None
            except Exception:
                is_active, progress = False, None
            if progress is not None:
                self._rates[name] = (
                    float(progress.get("processedRowsPerSecond") or 0.0),
                    float(progress.get("batchDuration") or 0.0) / 1000,
                )
            if is_active and host.planned.has_native_source:
                self._lags[name] = source_lags(query, progress or {}, time.time())

    def status(self, state: str | None = None) -> Status:
        """The status of this member at one moment, between two turns of the shell."""
        return self._runtime.shell.look(lambda: self._status(state))

    def _status(self, state: str | None) -> Status:
        runtime = self._runtime
        journal = runtime.member.journal.state
        open_epoch = max(journal.open, default=None)
        last = runtime.facts.last_commit
        if state is None:
            draining = any(s.draining for s in runtime.member.stages.values())
            alone = len(runtime.planned.topology.members()) == 1
            leads = runtime.leader.phase is LeaderPhase.LEADING
            ready = (leads if alone else journal.leader) and runtime.member.stages
            state = "draining" if draining else "running" if ready else "starting"
        head = journal.committed.get(journal.head) if journal.head is not None else None
        unpublished = {}
        if head is not None:
            published = runtime.member.ending.published
            for sink in runtime.sinks:
                waiting = sum(c.index > published.get(sink, 0) for c in journal.committed.values())
                if waiting and published.get(sink, 0) < head.index:
                    unpublished[sink] = waiting
        return Status(
            pipeline=runtime.planned.name,
            member=runtime.member.name,
            boot=runtime.boot,
            host=socket.gethostname(),
            pid=os.getpid(),
            state=state,
            started_at=self._started_at,
            updated_at=time.time(),
            generation=journal.generation,
            term=journal.term,
            epoch=journal.head,
            epoch_at=last.at if last is not None else None,
            epoch_s=last.duration_s if last is not None else None,
            open_epoch=open_epoch,
            open_since=runtime.facts.open_since(open_epoch) if open_epoch is not None else None,
            watermark=journal.watermark,
            every_s=runtime.settings.leader.coordinator.interval_ms / 1000,
            stages=tuple(self._stage(runtime.hosts[s]) for s in runtime.planned.stages if s in runtime.hosts),
            unpublished=unpublished,
            trouble=runtime.facts.trouble if runtime.failure is None else str(runtime.failure),
            leads=runtime.leader.phase is LeaderPhase.LEADING,
            process=self._process,
            beat=next(self._beats),
            report_s=self.every_s,
            ignored=runtime.links.ignored,
        )

    def _stage(self, host: StageHost) -> StageStatus:
        runtime = self._runtime
        stage = runtime.member.stages.get(host.name)
        rate, duration = self._rates.get(host.name, (0.0, 0.0))
        if stage is None:
            return StageStatus(host.name, "waiting", -1, 0, 0, 0, 0, None, "unknown")
        log = stage.log.state
        lag_batches = lag_rows = 0
        waits_for = []
        for name in host.planned.inputs:
            producer = runtime.member.log(name).state
            position = log.consumed.get(name, -1)
            unread = [b for n, b in producer.batches.items() if n > position and b.files]
            lag_batches += len(unread)
            lag_rows += sum(b.rows for b in unread)
            feed = host.feeds.get(name)
            if feed is not None and feed.limit < producer.last and unread:
                waits_for.append(name)
        state, tries = stage.phase.value, runtime.member.tries.get(host.name, 0)
        if host.name in runtime.member.failures:
            state = "failed"
        elif tries:
            state = "restarting"
        elif stage.phase.value == "running" and stage.idle:
            state = "idle"
        busy_ms = stage.activity.busy_ms(log.last, runtime.member.now_ms) if log.last < 0 else None
        mark = log.watermark
        return StageStatus(
            name=host.name,
            state=state,
            batch=log.last,
            rows_per_s=0.0 if stage.idle else round(rate, 1),
            batch_s=duration,
            lag_batches=lag_batches,
            lag_rows=lag_rows,
            watermark=mark.ms if mark.kind is not WatermarkKind.NONE else None,
            watermark_kind=mark.kind.value,
            restarts=tries,
            error=runtime.facts.stage_errors.get(host.name, "") if tries else "",
            waits_for=", ".join(waits_for),
            first_batch_s=busy_ms / 1000 if busy_ms is not None and state == "running" else None,
            sources=self._lags.get(host.name, ()),
        )
