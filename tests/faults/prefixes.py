"""Checks by time travel that in every published epoch all tables show the same prefix of every source."""

from __future__ import annotations

from collections import defaultdict

import msgspec

from cutwater.protocol.base.records import Published
from cutwater.store.at_rest import read_journal
from cutwater.store.opening import open_store
from tests.faults.inputs import BIG, MATCHED, ORDERS, PAYMENTS, ROWS, SMALL, TIMES, windows
from tests.faults.runner import Bench, difference


def check_prefixes(bench: Bench) -> int:
    """Checks every epoch that all sinks have published. Returns the number of different prefixes."""
    journal = read_journal(open_store(str(bench.base / "store"))).state
    sinks = {path.name for path in (bench.base / "store" / "published").iterdir()}
    epochs: dict[int, dict[str, int]] = defaultdict(dict)
    for path in (bench.base / "store" / "published").glob("*/*.json"):
        mark = msgspec.json.decode(path.read_bytes(), type=Published)
        epochs[mark.epoch][mark.sink] = mark.version
    sizes = [len(bench.input.query(PAYMENTS, payments=n)) for n in range(bench.input.files + 1)]
    shown: dict[tuple[int | None, ...], int] = {}
    for epoch, versions in sorted(epochs.items()):
        if versions.keys() == sinks and epoch in journal.committed:
            of_tables = [versions[sink] for sink in sorted(sinks)]
            shown.setdefault((journal.committed[epoch].watermark, *of_tables), epoch)
    for epoch in shown.values():
        _check_epoch(bench, epoch, epochs[epoch], journal.committed[epoch].watermark, sizes)
    return len(shown)


def _check_epoch(
    bench: Bench, epoch: int, versions: dict[str, int], watermark_ms: int | None, sizes: list[int]
) -> None:
    """`sizes`: the number of payments, by the number of first files."""
    tables = {sink: bench.rows(sink, version) if version >= 0 else [] for sink, version in versions.items()}
    orders = len(tables["orders"]) // ROWS
    payments = 0
    if "payments" in tables:
        count = len(tables["payments"])
        assert count in sizes, f"epoch {epoch}: {count} payments are not a prefix of the source ({sizes})"
        payments = sizes.index(count)
    watermark_us = -1 if watermark_ms is None else watermark_ms * 1000
    truth = {
        "orders": ORDERS,
        "payments": PAYMENTS,
        "big": BIG,
        "small": SMALL,
        "matched": MATCHED,
        "revenue": windows(MATCHED if "payments" in tables else TIMES, f"{watermark_us}"),
    }
    for sink, rows in tables.items():
        wanted = bench.input.query(truth[sink], orders, payments)
        assert rows == wanted, f"epoch {epoch}: {difference(sink, rows, wanted)}"
