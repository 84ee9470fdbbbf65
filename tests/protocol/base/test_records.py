"""The durable records: they survive a round trip, name what they need, and report damage clearly."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cutwater.protocol.base.barrier import Flags
from cutwater.protocol.base.effects import Create, Effect, Read, put
from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.base.paths import (
    mark_name,
)
from cutwater.protocol.base.records import (
    BarrierAt,
    Batch,
    InFlight,
    Manifest,
    Open,
    Position,
    Prepared,
    Published,
    SinkSpec,
    StagedFile,
    StageReport,
    StageSpec,
    StageState,
    Topology,
    decode,
    encode,
    position_of,
    seal,
)
from cutwater.protocol.base.watermark import known
from tests.support.driver import Fault, Outcome, Store, drive

TOPOLOGY = Topology(
    {
        "clean": StageSpec("clean", (), "m1"),
        "paid": StageSpec("paid", (), "m2", schema="id STRING"),
        "matched": StageSpec(
            "matched", ("clean", "paid"), "m2", (SinkSpec("t1"), SinkSpec("t2", final=True))
        ),
    }
)


def report(stage: str, **state: str) -> StageReport:
    return StageReport(
        stage,
        3,
        7,
        False,
        consumed={"in": 6},
        offsets={"0": 11, "1": '{"p0": 3}'},
        watermark=known(100),
        state=state,
    )


MANIFEST = Manifest(
    epoch=4,
    checkpoint_id=12,
    generation=2,
    term=3,
    flags=int(Flags.FULL_SNAPSHOT),
    savepoint="before",
    topology_hash="t",
    stages={"clean": report("clean", s1="c1", s2="c2"), "matched": report("matched", s3="c3")},
    in_flight=(
        InFlight("clean", "matched", 5, 7, {6: ("f6",), 7: ("f7a", "f7b")}, {"f6": "c6", "f7b": "c7b"}),
        InFlight("paid", "matched", 1, 2, {2: ()}),
    ),
    release={"t1": ("r1",)},
    held={"t2": (StagedFile("h1", 50), StagedFile("h2", 60)), "t3": ()},
    watermark=100,
)
MARK = Published(4, "t1", 12, 9)


PREPARED = Prepared(
    7, ("f",), {}, consumed={"in": 6}, offsets={"0": 11, "1": "11"}, watermark=known(100), rows=3, size=90
)


@pytest.mark.parametrize("record", [MANIFEST, MARK, TOPOLOGY, PREPARED])
def test_a_record_survives_a_round_trip_and_always_has_the_same_bytes(record: Any) -> None:
    assert decode("name", encode(record), type(record)) == record
    assert encode(decode("name", encode(record), type(record))) == encode(record)


def test_a_manifest_names_every_object_that_a_restore_needs_with_its_checksum() -> None:
    """State, in-flight and held-back files; not what the epoch has released."""
    assert MANIFEST.objects() == {
        "s1": "c1",
        "s2": "c2",
        "s3": "c3",
        "f6": "c6",
        "f7a": None,
        "f7b": "c7b",
        "h1": None,
        "h2": None,
    }


def test_an_empty_manifest_names_nothing() -> None:
    assert msgspec.structs.replace(MANIFEST, stages={}, in_flight=(), held={}).objects() == {}


BAD = [
    b"",
    b"{",
    b"null",
    b"[]",
    encode(MARK)[:-1],
    encode(MARK).replace(b'"epoch":4', b'"epoch":"4"'),
    encode(MARK).replace(b'"version":9', b'"version":null'),
    encode(MARK).replace(b'"sink":"t1",', b""),
]


@pytest.mark.parametrize("record", [MARK, PREPARED])
def test_every_flipped_bit_of_a_sealed_record_is_detected(record: Any) -> None:
    data = seal(record)
    assert decode("name", data, type(record)) == record
    assert decode("name", encode(record), type(record)) == record, "an object from before checksums"
    for place in range(len(data)):
        for bit in range(8):
            spoilt = bytearray(data)
            spoilt[place] ^= 1 << bit
            with pytest.raises(StoreError, match="name is not a readable"):
                decode("name", bytes(spoilt), type(record))


@pytest.mark.parametrize("data", BAD)
def test_damage_is_an_error_that_names_the_object_and_gives_advice(data: bytes) -> None:
    with pytest.raises(StoreError, match=r"^published/t1/000000000012\.json is not a readable") as caught:
        decode(mark_name(12, "t1"), data, Published)
    assert "published" in str(caught.value)
    assert "run `cutwater verify`" in str(caught.value)
    assert "restore an older checkpoint" in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        encode(MARK).replace(b'"t1"', b'"\xff"'),
        encode(MARK)[:-1] + b',"more":' + b"[" * 50_000,
    ],
    ids=["not UTF-8", "nested too deep"],
)
def test_any_kind_of_damage_is_a_store_error(data: bytes) -> None:
    with pytest.raises(StoreError, match="not a readable published"):
        decode("name", data, Published)


def test_one_kind_of_record_is_not_mistaken_for_another() -> None:
    with pytest.raises(StoreError, match="not a readable manifest"):
        decode("name", encode(MARK), Manifest)


# --- positions ----------------------------------------------------------------------------------------------

AT: dict[str, Any] = {"consumed": {"in": 6}, "offsets": {"0": 11, "1": "x"}, "watermark": known(100)}
AS_WRITTEN = '"consumed":{"in":6},"offsets":{"0":11,"1":"x"},"watermark":{"kind":"known","ms":100}'

FLAT = {
    '{"type":"OPEN","incarnation":3,"batch":7,POSITION}': Open(3, 7, **AT),
    '{"batch":7,"files":["f"],"sinks":{},POSITION,"rows":3,"size":9,"checksums":{"a":"b"},"commit":"c"}': Prepared(
        7, ("f",), {}, 3, 9, {"a": "b"}, "c", **AT
    ),
    '{"type":"BATCH","incarnation":3,"batch":7,"files":[],"sinks":{},POSITION,"rows":3,"size":9,"commit":"c"}': Batch(
        3, 7, (), {}, 3, 9, "c", **AT
    ),
    '{"type":"BARRIER","incarnation":3,"epoch":2,"checkpoint_id":9,"term":1,"batch":7,"unaligned":true,POSITION}': (
        BarrierAt(3, 2, 9, 1, 7, True, **AT)
    ),
    '{"stage":"s","incarnation":3,"batch":7,"unaligned":false,POSITION,"state":{"a":"b"}}': StageReport(
        "s", 3, 7, False, {"a": "b"}, **AT
    ),
    '{"incarnation":3,"last":7,POSITION,"commit":"c","batches":{},"barriers":{}}': StageState(
        3, 7, **AT, commit="c"
    ),
}
"""Records with a position, as older versions have written them: its fields beside the others, some behind them."""


@pytest.mark.parametrize(("written", "record"), FLAT.items())
def test_a_position_is_read_as_older_versions_wrote_it_and_is_still_flat(written: str, record: Any) -> None:
    data = written.replace("POSITION", AS_WRITTEN).encode()
    assert decode("name", data, type(record)) == record
    assert msgspec.json.decode(encode(record)) == msgspec.json.decode(data)
    assert position_of(record) == AT == position_of(Position(**AT))


# --- putting a record ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", list(Outcome))
def test_a_record_is_put_despite_errors(outcome: Outcome) -> None:
    store = Store()
    assert drive(put("name", b"record"), store, faults=[Fault(Create, outcome), Fault(Read)]) is True
    assert store.objects == {"name": b"record"}


def test_putting_the_same_record_again_is_not_a_conflict_and_putting_another_is() -> None:
    store = Store({"name": b"record"})
    assert drive(put("name", b"record"), store) is True
    assert drive(put("name", b"other"), store) is False
    assert store.objects == {"name": b"record"}


def test_a_record_that_another_process_puts_meanwhile_is_not_overwritten() -> None:
    store = Store()

    def land(_: int, effect: Effect) -> None:
        if isinstance(effect, Read):
            store.objects["name"] = b"other"

    assert drive(put("name", b"record"), store, faults=[Fault(Create)], before=land) is False
    assert store.objects == {"name": b"other"}


# --- the pipeline ------------------------------------------------------------------------------------------


def test_a_topology_knows_members_hosts_readers_and_sinks() -> None:
    assert TOPOLOGY.members() == ("m1", "m2")
    assert TOPOLOGY.hosted("m2") == ("matched", "paid")
    assert TOPOLOGY.hosted("nobody") == ()
    assert TOPOLOGY.readers("clean") == ("matched",)
    assert TOPOLOGY.readers("matched") == ()
    assert TOPOLOGY.sinks() == {"t1": "matched", "t2": "matched"}
