"""What members tell each other over the key-value seam.

Every message is one JSON object with its kind in `type`. It is fast, and it may be lost: nothing is decided by it.
An ack carries what a manifest is made of, and until that stands in the store, the epoch is as good as not begun.
A message that cannot be understood is an error for whoever reads it, and never a message of some other kind.

Each member writes only its own slots. A slot's key holds the checkpoint id, so what is said about one
checkpoint never hides what was said about another.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import msgspec

from cutwater.protocol.base.barrier import Flags
from cutwater.protocol.base.chain import check
from cutwater.protocol.base.errors import PeerError
from cutwater.protocol.base.records import StageReport, Topology
from cutwater.protocol.base.watermark import Watermark, WatermarkKind

Count = Annotated[int, msgspec.Meta(ge=0)]
CheckpointId = Annotated[int, msgspec.Meta(ge=1, le=2**32 - 1)]
"""What an injector's word can hold; anything else never was a checkpoint's id."""
NO_ENTRY = msgspec.Raw(b"null")


class Phase(Enum):
    """What an announcement asks of the members."""

    PREPARE = "prepare"
    COMMIT = "commit"
    ABORT = "abort"


class Announcement(msgspec.Struct, frozen=True, tag_field="type", tag="announcement"):
    """The leader's word on one checkpoint.

    `index` is the journal index that a member must have applied before it acts on this, and `entry` what stands
    there: whoever knows all before it need not read it. `flags` are the checkpoint's (`barrier.Flags`).
    `watermark` is the pipeline-wide one; only COMMIT has it, because nothing is closed before the decision.
    `reason` says why, on ABORT.
    """

    phase: Phase
    epoch: Count
    checkpoint_id: CheckpointId
    term: Count
    generation: Count
    flags: Count
    index: Count
    watermark: int | None = None
    reason: str | None = None
    entry: msgspec.Raw = NO_ENTRY

    def __post_init__(self) -> None:
        Flags(self.flags)  # Raises ValueError for a flag that this version does not know.
        if self.watermark is not None and self.phase is not Phase.COMMIT:
            raise ValueError(f"a {self.phase.value} announcement cannot carry a watermark")


class Ack(msgspec.Struct, frozen=True, tag_field="type", tag="ack"):
    """One member's answer to PREPARE: its part of the checkpoint, once all its stages have cut, or why not.

    `boot` names the member's process. `watermark` is the lowest of its stages'. `reports` are theirs.
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
    """A member is there. `term` is the one in which it leads, 0 if it does not; `index` is its journal's."""

    member: str
    boot: str
    term: Count
    index: Count


class LogGrown(msgspec.Struct, frozen=True, tag_field="type", tag="log_grown"):
    """The log of a stage has grown to `index`: whoever reads it may look."""

    stage: str
    generation: Count
    index: Count


class SourcesDone(msgspec.Struct, frozen=True, tag_field="type", tag="sources_done"):
    """With `once`: the sources of a member's stages have given everything that was there, in this generation."""

    member: str
    boot: str
    generation: Count


class RequestKind(Enum):
    """What can be asked of the leader."""

    CHECKPOINT = "checkpoint"
    SAVEPOINT = "savepoint"
    DRAIN = "drain"
    CANCEL = "cancel"
    RESTORE = "restore"
    FORGET = "forget"


class Request(msgspec.Struct, frozen=True, tag_field="type", tag="request"):
    """Something asked of whoever leads. `name` is a savepoint's: to take (or, with `epoch`, to give to that
    checkpoint), to restore, or to forget.

    A restore goes to `epoch`; if it has a `name` too, that must still be the name of this epoch. The stages in
    `reset` start without their state, those in `drop` are gone, and `force` undoes what others did to the
    tables. `topology` is the graph from then on, made from the one whose hash is `base`; the stages in `native` read
    sources of their own (as every stage without inputs does).

    `renewed` counts how often whoever waits for the answer has written the request again."""

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
    renewed: Count = 0


class Reply(msgspec.Struct, frozen=True, tag_field="type", tag="reply"):
    """What became of a request: the epoch that it led to, or why it came to nothing (`failures`)."""

    request_id: str
    ok: bool
    epoch: Count | None = None
    reason: str | None = None
    detail: str = ""


Message = Announcement | Ack | Heartbeat | LogGrown | SourcesDone | Request | Reply

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


def encode(message: Message) -> bytes:
    """The bytes of a message."""
    return _encoder.encode(message)


def decode(data: bytes) -> Message:
    """The message that these bytes are. Raises `PeerError` if they are none."""
    try:
        check(data)
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
