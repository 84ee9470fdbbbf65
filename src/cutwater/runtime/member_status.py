"""Builds the status of a running member, from the protocol core, the events and the hosts. Pure; decides nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from cutwater.protocol.base.watermark import WatermarkKind
from cutwater.protocol.leader.leader import Leader, LeaderPhase
from cutwater.protocol.member.member import Member
from cutwater.protocol.member.stage import Stage
from cutwater.runtime.status_facts import StatusFacts
from cutwater.spark.query_meter import QueryFacts
from cutwater.store.process_identity import ProcessId
from cutwater.store.stage_status import ChannelLag, RuleStatus, StageStatus
from cutwater.store.status import Status


class About(msgspec.Struct, frozen=True):
    """What a process consists of: the version of Cutwater and of Spark, and the address of Spark's own pages."""

    version: str = ""
    spark: str = ""
    spark_ui: str | None = None


class StageRules(msgspec.Struct, frozen=True):
    """The rules of a stage, with the rows that violate them, and what happens to those."""

    rules: tuple[RuleStatus, ...]
    on_violation: str


class Report(msgspec.Struct, frozen=True):
    """What the reporter knows of a status: which report it is, and of which process. `state` is `None` while the member
    runs: then the status says how far it is. The other fields are those of `Status`."""

    state: str | None
    beat: int
    host: str
    pid: int
    process: ProcessId | None
    started_at: float
    updated_at: float
    report_s: float
    ignored: int
    about: About = About()


def status_of(
    report: Report,
    pipeline: str,
    member: Member,
    leader: Leader,
    facts: StatusFacts,
    failure: BaseException | None,
    sinks: Collection[str],
    queries: Mapping[str, QueryFacts],
    rules: Mapping[str, StageRules] = {},
) -> Status:
    """The status of a member. `failure`: why its run has failed; `sinks`: those that it publishes to; `queries`: those
    of its stages, in the order in which the status shows them; `rules`: those of its stages that have some. Callers must
    keep turns from happening meanwhile."""
    journal = member.journal.state
    open_epoch = max(journal.open, default=None)
    last = facts.last_commit
    return Status(
        pipeline=pipeline,
        member=member.name,
        boot=member.boot,
        host=report.host,
        pid=report.pid,
        state=report.state if report.state is not None else _state(member, leader),
        started_at=report.started_at,
        updated_at=report.updated_at,
        generation=journal.generation,
        term=journal.term,
        epoch=journal.head,
        epoch_at=last.at if last is not None else None,
        epoch_s=last.duration_s if last is not None else None,
        open_epoch=open_epoch,
        open_since=facts.open_since(open_epoch) if open_epoch is not None else None,
        watermark=journal.watermark,
        every_s=leader.config.coordinator.interval_ms / 1000,
        stages=tuple(
            _with_rules(s, rules.get(s.name))
            for name, query in queries.items()
            for s in _stages_of(name, member, facts, query)
        ),
        unpublished=_unpublished(member, sinks),
        trouble=facts.trouble if failure is None else str(failure),
        leads=leader.phase is LeaderPhase.LEADING,
        process=report.process,
        beat=report.beat,
        report_s=report.report_s,
        ignored=report.ignored,
        version=report.about.version,
        spark=report.about.spark,
        spark_ui=report.about.spark_ui,
        catching_up=_catching_up(member),
    )


def _catching_up(member: Member) -> tuple[int, int] | None:
    session = member.catch_up.session
    if session is None:
        return None
    progress = session.progress()
    return progress.done, progress.total


def _state(member: Member, leader: Leader) -> str:
    if any(stage.draining for stage in member.stages.values()):
        return "draining"
    is_alone = len(member.topology.members()) == 1
    has_leader = leader.phase is LeaderPhase.LEADING if is_alone else member.journal.state.leader
    return "running" if has_leader and member.stages else "starting"


def _unpublished(member: Member, sinks: Collection[str]) -> dict[str, int]:
    """How many epochs each sink lacks, if it lacks the newest."""
    journal, published = member.journal.state, member.ending.published
    head = journal.committed.get(journal.head) if journal.head is not None else None
    found = {}
    if head is not None:
        for sink in sinks:
            waiting = sum(c.index > published.get(sink, 0) for c in journal.committed.values())
            if waiting and published.get(sink, 0) < head.index:
                found[sink] = waiting
    return found


def _stages_of(name: str, member: Member, facts: StatusFacts, query: QueryFacts) -> tuple[StageStatus, ...]:
    """The stages that run in one query, each after those that it reads."""
    own = _stage_status(name, member, facts, query)
    return *(_chained(stage, own, query) for stage in member.topology.chain(name)), own


def _with_rules(stage: StageStatus, known: StageRules | None) -> StageStatus:
    if known is None:
        return stage
    return msgspec.structs.replace(stage, rules=known.rules, on_violation=known.on_violation)


def _chained(name: str, own: StageStatus, query: QueryFacts) -> StageStatus:
    speed = query.chained_rows_per_s.get(name, 0.0) if own.state != "idle" else 0.0
    return StageStatus(name, "chained", own.batch, speed, own.batch_s, 0, 0, None, "none", runs_in=own.name)


def _stage_status(name: str, member: Member, facts: StatusFacts, query: QueryFacts) -> StageStatus:
    stage = member.stages.get(name)
    if stage is None:
        return StageStatus(name, "waiting", -1, 0, 0, 0, 0, None, "unknown")
    log = stage.log.state
    channels = []
    waits_for = []
    for source in member.topology.stages[name].inputs:
        producer = member.log(source).state
        position = log.consumed.get(source, -1)
        unread = [b for n, b in producer.batches.items() if n > position and b.files]
        channels.append(ChannelLag(source, len(unread), sum(b.rows for b in unread)))
        if unread and query.limits.get(source, producer.last) < producer.last:
            waits_for.append(source)
    state, tries = _stage_state(stage, name, member), member.tries.get(name, 0)
    busy_ms = stage.activity.busy_ms(log.last, member.now_ms) if log.last < 0 else None
    mark = log.watermark
    return StageStatus(
        name=name,
        state=state,
        batch=log.last,
        rows_per_s=0.0 if stage.idle else round(query.rows_per_s, 1),
        batch_s=query.batch_s,
        lag_batches=sum(c.batches for c in channels),
        lag_rows=sum(c.rows for c in channels),
        watermark=mark.ms if mark.kind is not WatermarkKind.NONE else None,
        watermark_kind=mark.kind.value,
        restarts=tries,
        error=facts.stage_errors.get(name, "") if tries else "",
        waits_for=", ".join(waits_for),
        first_batch_s=busy_ms / 1000 if busy_ms is not None and state == "running" else None,
        sources=query.lags,
        channels=tuple(channels),
        cut=max(log.barriers, default=None),
    )


def _stage_state(stage: Stage, name: str, member: Member) -> str:
    if name in member.failures:
        return "failed"
    if member.tries.get(name, 0):
        return "restarting"
    return "idle" if stage.phase.value == "running" and stage.idle else stage.phase.value
