"""Retention and compaction."""

from __future__ import annotations

from typing import Any

import msgspec

from cutwater.protocol.base import effects as fx
from cutwater.protocol.base import log, paths
from cutwater.protocol.base import records as r
from cutwater.protocol.leader import (
    housekeeping,
    leader,
)
from cutwater.protocol.member import (
    cleanup,
    retention,
    stage_log,
)
from tests.support.planted.registry import Patch, bug


@bug
def retention_ignores_unpublished_sinks(patch: Patch) -> None:
    patch.setattr(retention, "is_settled", lambda state, index, settled: True)


@bug
def savepoints_expire(patch: Patch) -> None:
    real = retention.kept_epochs

    def kept_epochs(state: Any, retained: int, settled: Any) -> set[int]:
        bare = msgspec.structs.replace(state, savepoints={})
        return real(bare, retained, settled)

    patch.setattr(retention, "kept_epochs", kept_epochs)


@bug
def the_target_of_a_restore_is_not_retained(patch: Patch) -> None:
    real = retention.kept_epochs

    def kept_epochs(state: Any, retained: int, settled: Any) -> set[int]:
        newest = max(state.committed, default=None)
        kept = real(state, retained, settled)
        return kept - {state.head} if state.head != newest else kept

    patch.setattr(retention, "kept_epochs", kept_epochs)
    real_expire = retention.expire

    def expire(state: Any, retained: int, settled: Any, manifests: Any) -> Any:
        head = state.head
        if head is not None and head != max(state.committed):
            gone = tuple(sorted(state.committed.keys() - kept_epochs(state, retained, settled)))
            return r.Expired(state.term, state.generation, gone, (), {}, ()) if gone else None
        return real_expire(state, retained, settled, manifests)

    patch.setattr(housekeeping, "expire", expire)


@bug
def objects_are_deleted_before_their_expiry_is_durable(patch: Patch) -> None:
    real = leader.Leader.record

    def record(self: Any, term: int, make: Any) -> Any:
        body = make(self.member.journal.index + 1)
        if isinstance(body, r.Expired):
            for epoch in body.epochs:
                checkpoint = self.member.journal.state.committed[epoch]
                name = paths.manifest_name(epoch, checkpoint.checkpoint_id)
                yield from fx.insist(fx.Delete((name,)))
        return (yield from real(self, term, make))

    patch.setattr(leader.Leader, "record", record)


@bug
def batches_that_a_slow_reader_needs_are_deleted(patch: Patch) -> None:
    patch.setattr(
        retention,
        "stage_floors",
        lambda state, head: {name: head.stages[name].batch for name in state.topology.stages},
    )


@bug
def state_of_an_undecided_cut_is_deleted(patch: Patch) -> None:
    patch.setattr(
        cleanup,
        "deletable_states",
        lambda state, name, generation, logged, found, named: [
            f.name for f in found if f.batch < logged.last and not f.unknown
        ],
    )


@bug
def files_in_a_folder_without_a_mark_are_deleted(patch: Patch) -> None:
    real = retention.deletable_states

    def deletable_states(state: Any, name: str, generation: int, logged: Any, found: Any, named: Any) -> Any:
        return real(state, name, generation, logged, found, ())

    patch.setattr(cleanup, "deletable_states", deletable_states)


@bug
def attempts_that_may_be_inherited_are_deleted(patch: Patch) -> None:
    real = retention.deletable_data

    def deletable_data(state: Any, name: str, logged: Any, found: Any) -> list[str]:
        found = list(found)
        return real(state, name, logged, found) + [f.name for f in found if f.batch > logged.last]

    patch.setattr(cleanup, "deletable_data", deletable_data)


@bug
def compaction_drops_open_barriers(patch: Patch) -> None:
    patch.setattr(cleanup, "trimmed", lambda state, floor, undecided: stage_log.trimmed(state, floor, ()))


@bug
def compaction_deletes_before_the_snapshot_is_durable(patch: Patch) -> None:
    real = log.compact

    def compact(view: Any, body: Any, nonce: str) -> Any:
        names = yield from fx.insist(fx.List(view.prefix))
        yield from fx.insist(fx.Delete(tuple(names)))
        return (yield from real(view, body, nonce))

    for module in (housekeeping, cleanup):
        patch.setattr(module, "compact", compact)


@bug
def what_was_in_flight_at_a_restore_expires_before_it_is_read(patch: Patch) -> None:
    patch.setattr(retention, "_still_read", lambda state, manifests: set())
