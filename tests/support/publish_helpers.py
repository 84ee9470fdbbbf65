"""Helpers for tests of publishing. In these journals epoch N begins at 2N and is committed at 2N + 1."""

from __future__ import annotations

from cutwater.protocol.base import paths
from cutwater.protocol.base import records as r
from cutwater.protocol.base.chain import digest
from cutwater.protocol.member.publish import (
    CommitPermit,
    duties,
)
from tests.support.builders import Desk, committed, journal_of, manifest

LEADER = r.Leader(1, "m0")


def staged(*files: tuple[str, int | None]) -> tuple[r.StagedFile, ...]:
    return tuple(r.StagedFile(name, end) for name, end in files)


def epochs(*numbers: int, generation: int = 1) -> list[r.JournalBody]:
    bodies: list[r.JournalBody] = []
    for n in numbers:
        bodies += [r.Begun(1, generation, n, 2 * n, 0, "h"), committed(n, 2 * n, generation)]
    return bodies


def release(epoch: int, *files: str) -> r.Manifest:
    return manifest(epoch, 2 * epoch, release={"out": files})


def permit(desk: Desk, epoch: int, *files: str) -> CommitPermit:
    """The permit to publish these files as this epoch, whose manifest is in the store."""
    data = r.encode(release(epoch, *files))
    desk.objects[paths.manifest_name(epoch, 2 * epoch)] = data
    state = journal_of(
        LEADER,
        *[None] * (2 * epoch - 2),
        r.Begun(1, 1, epoch, 2 * epoch, 0, "h"),
        committed(epoch, 2 * epoch, manifest=digest(data)),
    )
    (duty,) = duties(state, 0)
    assert isinstance(duty, CommitPermit)
    return duty


def mark(desk: Desk, index: int) -> r.Published:
    name = paths.mark_name(index, "out")
    return r.decode(name, desk.objects[name], r.Published)


def commits(desk: Desk) -> list[int]:
    """The transactions of the table's commits, in order."""
    return [version.transaction for version in desk.tables["out"][1:]]
