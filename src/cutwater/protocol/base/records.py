"""The durable records: bodies of journal and stage log entries, manifests, published marks.

This file only declares formats. `paths.py` has the names of the objects that contain them. `journal.py` and
`stage_log.py` derive all state from the records; no other state is stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, TypeVar

import msgspec

from cutwater.protocol.base.chain import Codec, check_checksum, digest, with_checksum
from cutwater.protocol.base.errors import VERIFY_FIRST, PeerError, StoreError
from cutwater.protocol.base.paths import mark_name, mark_of
from cutwater.protocol.base.watermark import UNKNOWN, Watermark

# --- the pipeline ---------------------------------------------------------------------------------


class SinkSpec(msgspec.Struct, frozen=True):
    """A two-phase output of a stage. `final`: a row is published only when its window is closed in all stages."""

    name: str
    final: bool = False


class StageSpec(msgspec.Struct, frozen=True):
    """One stage: the stages it reads, the member that hosts it, its sinks. `schema` describes the rows of its
    channel; the protocol does not interpret it."""

    name: str
    inputs: tuple[str, ...]
    member: str
    sinks: tuple[SinkSpec, ...] = ()
    schema: str | None = None


class ChainedStage(msgspec.Struct, frozen=True):
    """A stage that runs inside the query of `reader`, the only stage that reads it; that one may be chained, too.
    `inputs` are the stages that it reads itself."""

    name: str
    inputs: tuple[str, ...]
    reader: str
    schema: str | None = None


class Topology(msgspec.Struct, frozen=True, dict=True, omit_defaults=True):
    """The whole graph, by stage name. `stages` are the stages that have a query of their own, with the channels that the
    query reads: to the protocol there are no others. `chained` are the stages that run inside those queries. (Nothing is
    chained in the graphs of older stores, and the encoding of such a graph does not mention it.)"""

    stages: dict[str, StageSpec]
    chained: dict[str, ChainedStage] = {}

    def members(self) -> tuple[str, ...]:
        """The names of all members, sorted."""
        return tuple(sorted({s.member for s in self.stages.values()}))

    def hosted(self, member: str) -> tuple[str, ...]:
        """The stages of one member, sorted by name."""
        return tuple(sorted(s.name for s in self.stages.values() if s.member == member))

    def readers(self, stage: str) -> tuple[str, ...]:
        """The stages that read this one's channel, sorted by name."""
        return self._readers.get(stage, ())

    @cached_property
    def _readers(self) -> dict[str, tuple[str, ...]]:
        inputs = {name for s in self.stages.values() for name in s.inputs}
        return {i: tuple(sorted(s.name for s in self.stages.values() if i in s.inputs)) for i in inputs}

    def dangling(self) -> dict[str, tuple[str, ...]]:
        """The stages with inputs that do not exist, by name, with those inputs."""
        missing = {n: tuple(i for i in s.inputs if i not in self.stages) for n, s in self.stages.items()}
        return {name: inputs for name, inputs in sorted(missing.items()) if inputs}

    def query_of(self, stage: str) -> str:
        """The stage in whose query this one runs: itself unless it is chained."""
        while stage in self.chained:
            stage = self.chained[stage].reader
        return stage

    def chain(self, query: str) -> tuple[str, ...]:
        """The stages that are chained into a query, each after those that it reads."""
        return tuple(
            s
            for name, stage in sorted(self.chained.items())
            if stage.reader == query
            for s in (*self.chain(name), name)
        )

    def written(self) -> dict[str, StageSpec]:
        """All stages with the inputs that their functions have, as if nothing were chained."""
        found = dict(self.stages)
        for name in {stage.reader for stage in self.chained.values()} & self.stages.keys():
            inputs = tuple(s.name for s in self.chained.values() if s.reader == name)
            found[name] = StageSpec(name, inputs, found[name].member, found[name].sinks, found[name].schema)
        for name, stage in self.chained.items():
            found[name] = StageSpec(name, stage.inputs, found[self.query_of(name)].member, (), stage.schema)
        return found

    def sinks(self) -> dict[str, str]:
        """The stage of each sink, by sink name."""
        return {k.name: s.name for s in self.stages.values() for k in s.sinks}


def columns(schema: str | None) -> str:
    """A digest of a channel's columns."""
    return digest((schema or "").encode())


# --- the journal: written by the leader only --------------------------------------------------------


class Leader(msgspec.Struct, frozen=True, tag="LEADER"):
    """From this entry on, `name` leads, in `term`. Every open epoch is void. A command leads only for the duration of its
    request, and does not restart a drained pipeline (`resumes`)."""

    term: int
    name: str
    resumes: bool = True


class TopologySet(msgspec.Struct, frozen=True, tag="TOPOLOGY"):
    """The graph from this entry on."""

    term: int
    generation: int
    hash: str
    topology: Topology


class Begun(msgspec.Struct, frozen=True, tag="BEGUN"):
    """An epoch begins. `checkpoint_id` is the index of this entry, so it is unique per attempt. Its commit answers
    `requests`."""

    term: int
    generation: int
    epoch: int
    checkpoint_id: int
    flags: int
    topology_hash: str
    savepoint: str | None = None
    requests: tuple[str, ...] = ()


class Committed(msgspec.Struct, frozen=True, tag="COMMITTED"):
    """The commit. `manifest` is the hash of the manifest; `cuts` the batch at which each stage was cut."""

    term: int
    generation: int
    epoch: int
    checkpoint_id: int
    manifest: str
    watermark: int | None
    cuts: dict[str, int]


class Aborted(msgspec.Struct, frozen=True, tag="ABORTED"):
    """The epoch ends without a checkpoint; its batches belong to the next one that commits. `request` is the request
    that cancelled it, if any. `late` are the members that had not answered when its deadline passed."""

    term: int
    generation: int
    epoch: int
    checkpoint_id: int
    reason: str
    detail: str = ""
    request: str = ""
    late: tuple[str, ...] = ()


class Savepoint(msgspec.Struct, frozen=True, tag="SAVEPOINT"):
    """Names a committed epoch (`kept`), or removes the name, on behalf of `request`."""

    term: int
    generation: int
    name: str
    epoch: int
    kept: bool = True
    request: str = ""


class Restored(msgspec.Struct, frozen=True, tag="RESTORED"):
    """A new generation begins at the cut of `epoch`, as requested by `request`. `forks`: each stage's last batch before
    it. The stages in `reset` start without their state. `force`: tables go back even if that undoes later changes by
    others. `topology` is the graph from here on, if it changes. All of this is one entry, so that no crash can leave
    the new graph in the old generation. `moved`: where queries begin that other stages run in than at the checkpoint."""

    term: int
    generation: int
    epoch: int
    forks: dict[str, int]
    reset: tuple[str, ...] = ()
    force: bool = False
    topology: Topology | None = None
    topology_hash: str = ""
    request: str = ""
    moved: dict[str, StageReport] = {}


class Expired(msgspec.Struct, frozen=True, tag="EXPIRED"):
    """What may be deleted from now on: the epochs, the whole generations, and in the current generation every stage's
    batches up to its floor, except the files in `pinned`."""

    term: int
    generation: int
    epochs: tuple[int, ...]
    generations: tuple[int, ...]
    floors: dict[str, int]
    pinned: tuple[str, ...]


class Checkpoint(msgspec.Struct, frozen=True):
    """A committed epoch in the journal's state. `parent` is the committed epoch before it in its timeline; `index` the
    index of its COMMITTED entry."""

    epoch: int
    checkpoint_id: int
    generation: int
    index: int
    flags: int
    manifest: str
    watermark: int | None
    cuts: dict[str, int]
    parent: int | None


class Generation(msgspec.Struct, frozen=True):
    """One timeline: the journal entry at which it began, and the epoch and generation that it forked from.
    `transaction` is the index of that epoch's COMMITTED entry, by which tables know it. `force` and `moved` are the
    restore's."""

    number: int
    index: int = 0
    epoch: int | None = None
    parent: int | None = None
    transaction: int = 0
    forks: dict[str, int] = {}
    reset: tuple[str, ...] = ()
    force: bool = False
    moved: dict[str, StageReport] = {}


class JournalState(msgspec.Struct):
    """The state of the journal, derived by applying its entries in order (see `journal.py`)."""

    term: int = 0
    leader: str = ""
    generation: int = 1
    topology: Topology | None = None
    topology_hash: str = ""
    next_epoch: int = 1
    open: dict[int, Begun] = {}
    committed: dict[int, Checkpoint] = {}
    head: int | None = None
    head_cuts: dict[str, int] = {}
    watermark: int | None = None
    generations: dict[int, Generation] = msgspec.field(default_factory=lambda: {1: Generation(1)})
    savepoints: dict[str, int] = {}
    floors: dict[str, int] = {}
    pinned: tuple[str, ...] = ()
    drained: bool = False
    aborted: list[Aborted] = []
    answers: dict[str, int | None] = {}
    """The latest completed requests, with the epoch of each, so that none is carried out twice."""


class Snapshot(msgspec.Struct, frozen=True, tag="SNAPSHOT"):
    """Compaction: the whole state at this entry. All entries before it may be deleted."""

    term: int
    generation: int
    state: JournalState


JournalBody = Leader | TopologySet | Begun | Committed | Aborted | Savepoint | Restored | Expired | Snapshot

# --- a stage's log: written by the one appender of the member that hosts it ---------------------------


Offset = int | str
"""A position in a native source, in the source's own format."""


class StagedFile(msgspec.Struct, frozen=True):
    """A file staged for a sink. `end` is the window end that all its rows share, for `final` sinks."""

    name: str
    end: int | None = None


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a stage: the last batch that it has consumed of each input, its offsets in native sources, and
    its watermark. The records of a stage inherit these fields. They come last, while records of older versions may have
    them in the middle. That is safe: readers find fields by name, and hashes are computed over the bytes as written."""

    consumed: dict[str, int]
    offsets: dict[str, Offset]
    watermark: Watermark


class Open(Position, frozen=True, tag="OPEN"):
    """A new incarnation, numbered by the index of this entry. In a generation's first entry, `batch`,
    the positions and the watermark are those of the cut that it starts from."""

    incarnation: int
    batch: int


class Prepared(Position, frozen=True):
    """What a batch did, written next to Spark's own files before Spark commits it: its output and the size of it, and
    how far it has consumed each input and native source. `checksums`: of the files that Spark had written by then, by
    name in its folder. `commit`: the checksum of Spark's commit, filled in when the record is read back."""

    batch: int
    files: tuple[str, ...]
    sinks: dict[str, tuple[StagedFile, ...]]
    rows: int = 0
    size: int = 0
    checksums: dict[str, str] = {}
    commit: str = ""


class Batch(Position, frozen=True, tag="BATCH"):
    """A batch that Spark has committed; readers see it from this entry on. `commit` is the checksum of Spark's commit
    file, which no other record covers before the next checkpoint."""

    incarnation: int
    batch: int
    files: tuple[str, ...]
    sinks: dict[str, tuple[StagedFile, ...]]
    rows: int = 0
    size: int = 0
    commit: str = ""


class BarrierAt(Position, frozen=True, tag="BARRIER"):
    """The stage's cut for an epoch, after `batch`, with its positions at that point."""

    incarnation: int
    epoch: int
    checkpoint_id: int
    term: int
    batch: int
    unaligned: bool


class StageState(msgspec.Struct):
    """The state of a stage's log, derived by applying its entries (see `stage_log.py`). It has the fields of a
    `Position`, and changes, which a `Position` does not."""

    incarnation: int = 0
    last: int = -1
    consumed: dict[str, int] = {}
    offsets: dict[str, Offset] = {}
    watermark: Watermark = UNKNOWN
    commit: str = ""
    batches: dict[int, Batch] = {}
    barriers: dict[int, BarrierAt] = {}


class StageSnapshot(msgspec.Struct, frozen=True, tag="SNAPSHOT"):
    """Compaction of a stage's log: the state that is still needed."""

    incarnation: int
    state: StageState


StageBody = Open | Batch | BarrierAt | StageSnapshot


def position_of(found: Position | StageState) -> dict[str, Any]:
    """The fields of a position, for another record of the same one: `Open(..., **position_of(report))`."""
    return {field: getattr(found, field) for field in Position.__struct_fields__}


# --- a checkpoint -----------------------------------------------------------------------------------


class StageReport(Position, frozen=True):
    """One stage's part of a cut. `state`: the names of its state files with their checksums."""

    stage: str
    incarnation: int
    batch: int
    unaligned: bool
    state: dict[str, str]


class InFlight(msgspec.Struct, frozen=True):
    """Batches `after` < b <= `upto` of `producer` that the cut has produced and `reader` not consumed,
    with their files (none for a batch without rows) and these files' checksums. The files are pinned in place; a
    full checkpoint has copies. `columns` is a digest of the columns that they were written with."""

    producer: str
    reader: str
    after: int
    upto: int
    batches: dict[int, tuple[str, ...]]
    checksums: dict[str, str] = {}
    columns: str | None = None

    def names(self) -> list[str]:
        """All its files."""
        return [name for files in self.batches.values() for name in files]


class Manifest(msgspec.Struct, frozen=True):
    """The complete cut. `release`: per sink, the staged files that the epoch publishes. `held`: per final sink, those
    that wait for the pipeline-wide watermark. `chained`: the stages that ran inside the queries in `stages`."""

    epoch: int
    checkpoint_id: int
    generation: int
    term: int
    flags: int
    savepoint: str | None
    topology_hash: str
    stages: dict[str, StageReport]
    in_flight: tuple[InFlight, ...]
    release: dict[str, tuple[str, ...]]
    held: dict[str, tuple[StagedFile, ...]]
    watermark: int | None
    chained: dict[str, ChainedStage] = {}

    def chain(self, query: str) -> frozenset[str]:
        """The stages that ran inside a query at this checkpoint."""
        inside = [s.name for s in self.chained.values() if s.reader == query]
        return frozenset(inside).union(*(self.chain(name) for name in inside))

    def query_of(self, stage: str) -> str | None:
        """The query that a stage ran in; `None` if the checkpoint does not have the stage."""
        while stage in self.chained:
            stage = self.chained[stage].reader
        return stage if stage in self.stages else None

    def moved_queries(self, graph: Topology) -> tuple[str, ...]:
        """The queries of a graph in which other stages run than at this checkpoint, among them known ones."""
        return tuple(
            name
            for name in graph.stages
            for now in [{name, *graph.chain(name)}]
            if any(self.query_of(s) is not None for s in now)
            and (name not in self.stages or now != {name, *self.chain(name)})
        )

    def with_moved(self, moved: Mapping[str, StageReport], graph: Topology) -> Manifest:
        """The same cut for the queries of this graph, of which those in `moved` run other stages than at the cut."""
        if not moved:
            return self
        stages = {name: report for name, report in self.stages.items() if name not in graph.chained}
        return msgspec.structs.replace(self, stages={**stages, **moved})

    def objects(self) -> dict[str, str | None]:
        """Every object that a restore needs, with its checksum where one is recorded."""
        names: dict[str, str | None] = {}
        for report in self.stages.values():
            names.update(report.state)
        for flight in self.in_flight:
            names.update({name: flight.checksums.get(name) for name in flight.names()})
        for staged in self.held.values():
            names.update(dict.fromkeys(f.name for f in staged))
        return names


class Published(msgspec.Struct, frozen=True):
    """The mark that a sink has published an epoch (or has gone back to it), with the resulting table version.
    `index` is the index of the COMMITTED (or RESTORED) entry that ordered it. `transaction` is the sink's transaction
    in that version: `index`, or an earlier one if the epoch had no rows; `files` is the number of published files. Both
    are 0 in marks of versions that did not record them."""

    epoch: int
    sink: str
    index: int
    version: int
    transaction: int = 0
    files: int = 0


JOURNAL: Codec[JournalBody] = Codec(JournalBody)
STAGE: Codec[StageBody] = Codec(StageBody)

T = TypeVar("T")
_ENCODE = msgspec.json.Encoder().encode


def encode(record: object) -> bytes:
    """Encodes a record whose checksum is stored elsewhere."""
    return _ENCODE(record)


def seal(record: object) -> bytes:
    """Encodes a record that is an object of its own, with its checksum."""
    return with_checksum(_ENCODE(record))


WRITTEN_AGAIN = "remove it: the next run of the pipeline writes it again"
"""What to do about a damaged record that every run can write again."""


def decode(
    name: str, data: bytes, kind: type[T], advice: str = f"{VERIFY_FIRST}restore an older checkpoint"
) -> T:
    """Decodes the record in the object `name`; raises a `StoreError` with the name and the advice if that is not
    possible."""
    try:
        check_checksum(data)
        return msgspec.json.decode(data, type=kind)
    except (PeerError, ValueError, RecursionError) as error:  # msgspec's own errors are ValueErrors
        raise StoreError(f"{name} is not a readable {kind.__name__.lower()} ({error}); {advice}") from error


# --- marks --------------------------------------------------------------------------------------


def settled(marks: list[str]) -> dict[str, int]:
    """The highest journal index per sink among these marks. Names that are not marks are skipped."""
    highest: dict[str, int] = {}
    for name in marks:
        if found := mark_of(name):
            highest[found.sink] = max(highest.get(found.sink, 0), found.index)
    return highest


def decode_mark(name: str, data: bytes) -> Published:
    """Decodes the mark in the object `name`; raises `StoreError` if it is not a mark, or of another entry or sink."""
    try:
        check_checksum(data)
        mark = msgspec.json.decode(data, type=Published)
        if mark_name(mark.index, mark.sink) != name:
            raise ValueError(f"it says that it is {mark_name(mark.index, mark.sink)}")
    except (PeerError, ValueError, RecursionError) as error:
        raise StoreError(
            f"the mark {name} cannot be read ({error}): its table is not affected, but it is unknown which version of "
            "the table belongs to the epoch. If it is the newest mark of its sink, the next run writes it again"
        ) from error
    return mark
