"""From the acks of a checkpoint to its manifest, in the store: everything that comes before COMMITTED."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from cutwater.protocol.base.barrier import Flags
from cutwater.protocol.base.effects import Procedure, put
from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.base.failures import FailureReason
from cutwater.protocol.base.logs import follow_all
from cutwater.protocol.base.paths import manifest_name
from cutwater.protocol.base.records import Begun, Manifest, seal
from cutwater.protocol.base.wire import Ack
from cutwater.protocol.leader import in_flight
from cutwater.protocol.leader.cut import check_cut, make_manifest, merge_reports
from cutwater.protocol.leader.refusal import Refusal
from cutwater.protocol.member.member import Member
from cutwater.protocol.member.stage_log import StageLog


def write_manifest(
    member: Member, begun: Begun, acks: Mapping[str, Ack], leads: Callable[[], bool]
) -> Procedure[tuple[Manifest, bytes] | None]:
    """Checks that the acks form a consistent cut, makes its rows in flight durable, and writes its manifest; returns it
    with its bytes, or `None` if the term ended first. Raises `Refusal` if the checkpoint cannot be committed."""
    with _refusing_damage():
        yield from follow_all([log.view for log in _behind(member, begun)])
        previous = yield from member.head_manifest()
    if not leads():
        return None
    manifest = _checked(member, begun, acks, previous)
    with _refusing_damage():
        if begun.flags & Flags.FULL_SNAPSHOT:
            manifest = yield from in_flight.copied(manifest)
        manifest = yield from in_flight.secured(manifest, previous)
    data = seal(manifest)
    name = manifest_name(begun.epoch, begun.checkpoint_id)
    if not (yield from put(name, data)):
        raise Refusal(FailureReason.INCONSISTENT_CUT, f"{name} is not what this leader wrote")
    return manifest, data


@contextmanager
def _refusing_damage() -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        raise Refusal(FailureReason.STORE_DAMAGED, str(error)) from error


def _checked(member: Member, begun: Begun, acks: Mapping[str, Ack], previous: Manifest | None) -> Manifest:
    logs = {name: member.log(name).state for name in member.topology.stages}
    parts = {name: ack.reports for name, ack in acks.items()}
    reports, problems = merge_reports(member.topology, parts)
    problems += check_cut(member.topology, begun, reports, logs, previous)
    if problems:
        raise Refusal(FailureReason.INCONSISTENT_CUT, "; ".join(problems))
    return make_manifest(member.journal.state, begun, reports, logs, previous)


def _behind(member: Member, begun: Begun) -> list[StageLog]:
    """The logs that are not known up to their barriers; nothing after a barrier belongs to its epoch."""
    logs = [member.log(name) for name in sorted(member.topology.stages)]
    barriers = [(log, log.state.barriers.get(begun.epoch)) for log in logs]
    return [log for log, at in barriers if at is None or at.checkpoint_id != begun.checkpoint_id]
