"""Messages between members over the key-value seam.

Every message is one JSON object with its kind in `type`. Messages are fast and may be lost: they decide nothing.
An ack carries the content of a manifest; until the manifest is in the store, the epoch is not committed.
A message that cannot be decoded is an error for its reader, and never taken for another kind of message.

Each member writes only its own slots. A slot's key contains the checkpoint id, so messages about one checkpoint
never overwrite those about another.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import msgspec

from cutwater.protocol.base.barrier import Barrier, Flags
from cutwater.protocol.base.chain import check_checksum
from cutwater.protocol.base.errors import PeerError
from cutwater.protocol.base.records import StageReport, Topology
from cutwater.protocol.base.watermark import Watermark, WatermarkKind

Count = Annotated[int, msgspec.Meta(ge=0)]
MAX_CHECKPOINT_ID = 2**32 - 1
"""The highest id that fits into an injector's word."""
NO_ENTRY = msgspec.Raw(b"null")


class Phase(Enum):
    """What an announcement asks the members to do."""

    PREPARE = "prepare"
    COMMIT = "commit"
    ABORT = "abort"


class Announcement(msgspec.Struct, frozen=True, tag_field="type", tag="announcement"):
    """The leader's announcement about one checkpoint.

    `barrier` is the checkpoint's barrier in 24 bytes, with flags that were added while it is in progress.
    `index` is the journal index that a member must have applied before it acts on this, and `entry` the entry
    there: a member that knows all entries before it need not read it from the store.
    `watermark` is the pipeline-wide one; only COMMIT has it, because nothing is closed before the decision.
    `reason` says why, on ABORT.
    """

    phase: Phase
    barrier: bytes
    term: Count
    generation: Count
    index: Count
    watermark: int | None = None
    reason: str | None = None
    entry: msgspec.Raw = NO_ENTRY

    def __post_init__(self) -> None:
        if not 0 < self.checkpoint_id <= MAX_CHECKPOINT_ID:
            raise ValueError(f"{self.checkpoint_id} is not the id of a checkpoint")
        if self.watermark is not None and self.phase is not Phase.COMMIT:
            raise ValueError(f"a {self.phase.value} announcement cannot carry a watermark")

    @property
    def epoch(self) -> int:
        return Barrier.unpack(self.barrier).epoch

    @property
    def checkpoint_id(self) -> int:
        return Barrier.unpack(self.barrier).checkpoint_id

    @property
    def flags(self) -> Flags:
        return Barrier.unpack(self.barrier).flags


class Ack(msgspec.Struct, frozen=True, tag_field="type", tag="ack"):
    """One member's answer to PREPARE: its part of the checkpoint, once all its stages have cut, or the error.

    `boot` identifies the member's process. `watermark` is the lowest of its stages; `reports` are theirs.
    """

    member: str
    boot: str
    epoch: Count
    checkpoint_id: Count
    term: Count
    ok: bool
    error: str | None
    watermark: Watermark
    reports: dict[str, StageReport]

    def __post_init__(self) -> None:
        if self.watermark.kind is WatermarkKind.KNOWN and self.watermark.ms is None:
            raise ValueError(f"the ack of {self.member} has a known watermark without a time")


class Heartbeat(msgspec.Struct, frozen=True, tag_field="type", tag="heartbeat"):
    """A sign of life. `term` is the term in which the member leads, 0 if it does not; `index` is the last entry of the
    journal that it knows."""

    member: str
    boot: str
    term: Count
    index: Count


class LogGrown(msgspec.Struct, frozen=True, tag_field="type", tag="log_grown"):
    """The log of a stage has grown to `index`: its readers can read on."""

    stage: str
    generation: Count
    index: Count


class SourcesDone(msgspec.Struct, frozen=True, tag_field="type", tag="sources_done"):
    """With `once`: a member's stages have read everything that their sources had, in this generation."""

    member: str
    boot: str
    generation: Count


class RequestKind(Enum):
    """The kinds of requests to the leader."""

    CHECKPOINT = "checkpoint"
    SAVEPOINT = "savepoint"
    DRAIN = "drain"
    CANCEL = "cancel"
    RESTORE = "restore"
    FORGET = "forget"


class Request(msgspec.Struct, frozen=True, tag_field="type", tag="request"):
    """A request to the leader. `name` is the name of a savepoint to take (or, with `epoch`, to give to that
    checkpoint), to restore, or to forget.

    A restore goes to `epoch`; if it has a `name` too, that must still be the name of this epoch. The stages in
    `reset` start without their state, those in `drop` are gone, and `force` undoes what others did to the
    tables. `topology` is the graph from then on, made from the one whose hash is `base`; the stages in `native` read
    sources of their own (as every stage without inputs does), those in `rereads` begin to read one that the pipeline has
    read before that checkpoint. `moved`: where the queries of `topology` begin in which other stages run than at the
    checkpoint.

    `renewed` counts how often the requester, while it waits for the answer, has written the request again."""

    kind: RequestKind
    request_id: str
    name: str | None = None
    epoch: Count | None = None
    full: bool = False
    unaligned: bool = False
    reset: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    force: bool = False
    topology: Topology | None = None
    base: str | None = None
    native: tuple[str, ...] = ()
    rereads: tuple[str, ...] = ()
    moved: dict[str, StageReport] = {}
    renewed: Count = 0


class Reply(msgspec.Struct, frozen=True, tag_field="type", tag="reply"):
    """The result of a request: the resulting epoch, or the reason why it failed (`failures`)."""

    request_id: str
    ok: bool
    epoch: Count | None = None
    reason: str | None = None
    detail: str = ""


Message = Announcement | Ack | Heartbeat | LogGrown | SourcesDone | Request | Reply

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


def encode_message(message: Message) -> bytes:
    """Encodes a message."""
    return _encoder.encode(message)


def decode_message(data: bytes) -> Message:
    """Decodes a message. Raises `PeerError` if the bytes are not a message."""
    try:
        check_checksum(data)
        return _decoder.decode(data)
    except (PeerError, ValueError, RecursionError) as error:  # also: no text, nested too deep
        raise PeerError(
            f"not a message of this version of Cutwater ({error}): {data[:60]!r}; it was ignored."
            " If all members run the same version, look at the one that wrote it."
        ) from error


def announcement_key(checkpoint_id: int) -> str:
    """The slot in which the leader announces this checkpoint."""
    return f"announcement/{checkpoint_id}"


def ack_key(checkpoint_id: int) -> str:
    """The slot in which a member answers for this checkpoint."""
    return f"ack/{checkpoint_id}"
