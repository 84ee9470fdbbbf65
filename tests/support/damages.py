"""A stopped store with one object of every kind, and the ways to damage them."""

from __future__ import annotations

import re
import shutil
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import pyarrow.parquet as pq  # type: ignore[import-untyped]
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import cutwater as cw
from cutwater.cli.load import load
from cutwater.cli.main import app
from cutwater.protocol.base.errors import CutwaterError
from cutwater.spark.checkpoint.incarnations import list_folders
from cutwater.store.opening import open_store
from tests.faults.child import last_batch, until
from tests.support.spark_helpers import deliver, numbers

DEADLINE_S = 180.0
EVERY_HOUR = "1h"
SOURCE = """
import cutwater as cw

pipeline = cw.Pipeline("damaged")

@pipeline.stage(sinks=[cw.delta("{base}/out/first")])
def first(spark):
    reader = spark.readStream.schema("id long, amount double, ts timestamp").option("maxFilesPerTrigger", 1)
    return reader.parquet("{base}/in").dropDuplicates(["id"])

@pipeline.stage(sinks=[cw.parquet("{base}/out/second")]{lazy})
def second(first):
    return first.select("id", "amount")
"""

KINDS = {
    "format": r"format\.json",
    "journal": r"journal/.*",
    "stage log": r"stages/[^/]+/\d+/log/.*",
    "manifest": r"checkpoints/.*/manifest.json",
    "copied state": r"checkpoints/.*/state/.*",
    "rows in flight": r"checkpoints/.*/channels/.*",
    "mark": r"published/.*",
    "sink id": r"sinks/.*",
    "known source": r"sources/.*",
    "graph": r"graph/.*",
    "rows": r"stages/[^/]+/\d+/data/.*",
    "prepared": r"stages/.*/prepared/.*",
    "offsets": r"stages/.*/offsets/.*",
    "commits": r"stages/.*/commits/.*",
    "source log": r"stages/.*/sources/.*",
    "state": r"stages/.*/state/.*",
    "folder": r"stages/[^/]+/\d+/spark/\d+/(cutwater/.*|metadata)",
    "telemetry": r"(status|explain)/.*",
}
"""The kinds of objects in a store, by name."""

DAMAGES = ("flip", "truncate", "empty", "edit", "delete")

MIX_UPS = ("swap", "older")
"""Two objects of a kind are swapped; an object is replaced by an older one of its kind."""


@dataclass(frozen=True)
class Damage:
    """`again`: damages the store that was started again and has no checkpoint since then."""

    kind: str
    name: str
    how: str
    seed: int
    again: bool = False

    def __str__(self) -> str:
        store = ", started again" if self.again else ""
        return f"{self.how} {self.name} ({self.kind}{store}, seed {self.seed})"


def apply_damage(root: Path, damage: Damage, names: Sequence[str]) -> bool:
    """Damages one object below `root`; `names` are those of its kind. Returns whether that changed anything."""
    rng = Random(damage.seed)
    path = root / damage.name
    before = path.read_bytes()
    if damage.how not in MIX_UPS:
        after = damaged(before, damage.how, rng)
        path.unlink()
        if after is not None:
            path.write_bytes(after)
        return after != before
    others = [n for n in names if n != damage.name and Path(n).suffix == path.suffix]
    if damage.how == "older":
        folder = Path(damage.name).parent
        others = [n for n in others if n < damage.name and Path(n).parent == folder]
    if not others:
        return False
    other = root / rng.choice(others)
    instead = other.read_bytes()
    path.unlink()
    path.write_bytes(instead)
    if damage.how == "swap":
        other.unlink()
        other.write_bytes(before)
    return instead != before


def damaged(data: bytes, how: str, rng: Random) -> bytes | None:
    """The damaged bytes of an object; `None` if it is deleted."""
    match how:
        case "delete":
            return None
        case "empty":
            return b""
        case "truncate":
            return data[: rng.randrange(len(data))] if data else b""
        case "edit":
            digits = [m.start() for m in re.finditer(rb"\d", data)]
            if not digits:
                return b"something else"
            place = rng.choice(digits)
            return data[:place] + str((data[place] - 47) % 10).encode() + data[place + 1 :]
        case _:
            place = rng.randrange(len(data)) if data else 0
            return (
                data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]
                if data
                else b"x"
            )


class StoppedPipeline:
    """A pipeline in a folder, stopped in the middle of its work, which can be reset to that moment."""

    def __init__(self, base: Path, spark: SparkSession) -> None:
        self.base = base / "live"
        self.kept = base / "kept"
        self.spark = spark
        self.base.mkdir(parents=True)
        self.count = 0
        (self.base / "pipe.py").write_text(SOURCE.format(base=self.base, lazy=""))
        (self.base / "lazy.py").write_text(SOURCE.format(base=self.base, lazy=f', trigger="{EVERY_HOUR}"'))
        self._run_and_stop()
        shutil.copytree(self.base, self.kept)
        self.again = base / "again"
        self._start_again()
        shutil.copytree(self.base, self.again)

    @property
    def store(self) -> str:
        return str(self.base / "state")

    def _deliver(self) -> None:
        deliver(self.base / "in", f"part-{self.count:04d}", numbers(range(self.count, self.count + 20)))
        self.count += 20

    def _run_and_stop(self) -> None:
        """Drains once, takes checkpoints, then stops: with rows in flight in a checkpoint and after it, and batches
        after it."""
        self._deliver()
        self.run()
        self._deliver()
        pipeline = load(str(self.base / "lazy.py"))
        pipeline.start(self.store, every=EVERY_HOUR, spark=self.spark)
        until(lambda: last_batch(pipeline, "first") >= 1, "a batch")
        pipeline.checkpoint(unaligned=True, timeout=DEADLINE_S)
        pipeline.checkpoint(unaligned=True, full=True, timeout=DEADLINE_S)
        before = last_batch(pipeline, "first")
        self._deliver()
        until(lambda: last_batch(pipeline, "first") > before, "another batch")
        pipeline.stop()

    def _start_again(self) -> None:
        """Starts, and stops before a checkpoint: no checkpoint names the newest folders."""
        store = open_store(self.store)
        before = {stage: max(list_folders(store, stage, 1)) for stage in ("first", "second")}
        pipeline = load(str(self.base / "lazy.py"))
        pipeline.start(self.store, every=EVERY_HOUR, spark=self.spark)
        until(lambda: all(max(list_folders(store, s, 1)) > before[s] for s in before), "new folders")
        pipeline.stop()

    def reset(self, again: bool = False) -> None:
        """Resets everything to the state after the first or the second stop."""
        for folder in ("state", "out"):
            # Spark's background work may still write there.
            (self.base / folder).rename(self.base.with_name(f"gone-{uuid4().hex}"))
            shutil.copytree((self.again if again else self.kept) / folder, self.base / folder)
        for gone in self.base.parent.glob("gone-*"):
            shutil.rmtree(gone, ignore_errors=True)

    # --- damage ---------------------------------------------------------------------------------------

    def objects(self, again: bool = False) -> dict[str, list[str]]:
        """The objects that can be damaged, by kind."""
        found: dict[str, list[str]] = defaultdict(list)
        kept = self.again if again else self.kept
        for path in sorted((kept / "state").rglob("*")):
            name = str(path.relative_to(kept / "state"))
            if path.is_file() and not any(part.startswith(".") for part in Path(name).parts):
                kinds = [kind for kind, form in KINDS.items() if re.fullmatch(form, name)]
                found[kinds[0] if kinds else "other"].append(f"state/{name}")
        for path in sorted((kept / "out").rglob("*.parquet")):
            found["table file"].append(str(path.relative_to(kept)))
        return found

    def apply(self, damage: Damage) -> bool:
        """Damages one object. Returns whether that changed anything."""
        return apply_damage(self.base, damage, self.objects(damage.again)[damage.kind])

    # --- consequences ---------------------------------------------------------------------------------

    def verify(self) -> tuple[bool, str]:
        """Whether `cutwater verify` finds no problem, and its output."""
        shown = CliRunner().invoke(app, ["verify", "--store", self.store, "--tables", "--json"])
        assert shown.exception is None or isinstance(shown.exception, SystemExit), repr(shown.exception)
        assert "Traceback" not in shown.output, shown.output
        return shown.exit_code == 0, shown.output

    def run(self, **options: Any) -> str | None:
        """Runs to the end of the input. Returns the message if the run was refused. Anything else is a failure."""
        pipeline = load(str(self.base / "pipe.py"))
        options = {"restarts": 0, "tolerated_failures": 0, "takeover": True, **options}
        try:
            pipeline.start(self.store, every=EVERY_HOUR, once=True, spark=self.spark, **options)
            assert pipeline.awaitTermination(DEADLINE_S), "it hangs"
        except CutwaterError as error:
            return str(error)
        finally:
            pipeline.stop()
        return None

    def ids(self, table: str) -> list[int]:
        if table == "first":
            rows = DeltaTable(str(self.base / "out/first")).to_pyarrow_table()
        else:
            rows = pq.ParquetDataset(cw.parquet_files(str(self.base / "out/second"))).read()
        return sorted(rows.column("id").to_pylist())

    def check_tables(self) -> None:
        """Both tables have every row once."""
        for table in ("first", "second"):
            assert self.ids(table) == list(range(self.count)), f"table {table} is wrong"
