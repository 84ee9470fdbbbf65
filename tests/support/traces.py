"""Recorded runs that a test can change: lines are altered, dropped, moved or forged, and everything that depends on them
(hashes, sequence numbers) is recomputed, so that only the intended error remains."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from cutwater.protocol.base.chain import digest, with_checksum
from cutwater.sim.checker import Report, check_recording
from cutwater.sim.world import World

Object = dict[str, Any]


@functools.cache
def recorded(seed: int) -> bytes:
    """The trace of a simulated schedule."""
    lines: list[bytes] = []
    result = World(seed, record=lines.append).run()
    assert result.violation is None
    return b"".join(lines)


def _sealed(record: Object) -> str:
    """Recomputes a record's own checksum, if it has one, and returns the hash of the whole record."""
    if record.pop("sum", None) is not None:
        plain = msgspec.json.encode(record)
        record["sum"] = msgspec.json.decode(with_checksum(plain))["sum"]
    return digest(msgspec.json.encode(record))


class Edit:
    """An editable trace. Lines are JSON objects; changed and forged ones are in `touched`."""

    def __init__(self, seed: int) -> None:
        self.lines: list[Object] = [msgspec.json.decode(line) for line in recorded(seed).splitlines()]
        self.touched: list[Object] = []

    # --- finding --------------------------------------------------------------------------------------

    def of(self, type_: str, **fields: Any) -> Iterator[Object]:
        """The lines of a type with these fields."""
        for line in self.lines:
            if line["type"] == type_ and all(line.get(name) == value for name, value in fields.items()):
                yield line

    def entries(self, prefix: str = "journal/", kind: str | None = None) -> list[Object]:
        """The entries of a log, in order, each as one of the lines that contain it."""
        found: dict[str, Object] = {}
        for line in self.lines:
            if not line.get("name", "").startswith(prefix) or not line.get("record"):
                continue
            if kind is None or line["record"]["body"]["type"] == kind:
                found.setdefault(line["name"], line)
        return [found[name] for name in sorted(found)]

    def entry(self, index: int) -> Object:
        return next(e for e in self.entries() if e["record"]["index"] == index)

    def writes(self, line: Object) -> Object:
        """The line in which an object was created."""
        return next(self.of("create", name=line["name"], hash=line["hash"], answer="created"))

    def commits(self) -> list[Object]:
        """The COMMITTED entries whose creation was answered, newest last."""
        names = {line["name"] for line in self.of("create", answer="created")}
        return [line for line in self.entries(kind="COMMITTED") if line["name"] in names]

    def manifest(self, commit: Object) -> Object:
        return next(line for line in self.lines if line.get("hash") == commit["record"]["body"]["manifest"])

    # --- changing -------------------------------------------------------------------------------------

    def alter(self, line: Object, change: Callable[[Object], object]) -> None:
        """Changes the content of an object wherever it is recorded."""
        for other in self.lines:
            if other.get("name") == line["name"] and other.get("hash") == line["hash"]:
                change(other["record"])
                self.touched.append(other)

    def set(self, line: Object, **fields: Any) -> None:
        """Changes a line."""
        line.update(fields)
        self.touched.append(line)

    def drop(self, *lines: Object) -> None:
        gone = {id(line) for line in lines}
        self.lines = [line for line in self.lines if id(line) not in gone]

    def move(self, line: Object, *, before: Object) -> None:
        """Puts a line before another one of its process."""
        assert line["process"] == before["process"]
        self.drop(line)
        place = next(i for i, other in enumerate(self.lines) if other is before)
        self.lines.insert(place, line)
        self.touched.append(line)

    def add(self, process: str, after: Object | None = None, **fields: Any) -> Object:
        """Forges a line, at the end or after another one."""
        line: Object = {"process": process, "n": 0, "at_ms": 0, "knows": 10_000, **fields}
        place = len(self.lines)
        if after is not None:
            place = 1 + next(i for i, other in enumerate(self.lines) if other is after)
        self.lines.insert(place, line)
        self.touched.append(line)
        return line

    def append(self, body: Object, prefix: str = "journal/", process: str | None = None) -> Object:
        """Forges an entry at the end of a log, by the writer of the last one."""
        last = self.entries(prefix)[-1]
        writer = process or last["record"]["nonce"].rpartition("-")[0]
        index = last["record"]["index"] + 1
        snapshot = index if body["type"] == "SNAPSHOT" else last["record"]["snapshot"]
        record = {
            "index": index,
            "prev": last["hash"],
            "snapshot": snapshot,
            "nonce": f"{writer}-9999",
            "body": copy.deepcopy(body),
        }
        name = f"{prefix}{index:012d}.json"
        return self.add(writer, type="create", name=name, hash=f"new {name}", answer="created", record=record)

    # --- results --------------------------------------------------------------------------------------

    def reseal(self) -> None:
        """Recomputes every hash, and all references to it."""
        new: dict[str, str] = {}
        records: dict[str, Any] = {}
        written = [line for line in self.lines if line.get("record")]
        for line in sorted(
            written, key=lambda line: (line["name"].startswith(("stages/", "journal/")), line["name"])
        ):
            record = line["record"]
            if "prev" in record:
                record["prev"] = new.get(record["prev"], record["prev"])
                if record["body"]["type"] == "COMMITTED":
                    manifest = record["body"]["manifest"]
                    record["body"]["manifest"] = new.get(manifest, manifest)
            old = line["hash"]
            line["hash"] = _sealed(record)
            new.setdefault(old, line["hash"])
            records.setdefault(old, record)
        for message in (line["message"] for line in self.lines if line.get("message")):
            if message.get("entry") is not None:
                old = digest(msgspec.json.encode(message["entry"]))
                message["entry"] = records.get(old, message["entry"])

    def renumber(self) -> None:
        counts: dict[str, int] = {}
        for line in self.lines:
            counts[line["process"]] = line["n"] = counts.get(line["process"], 0) + 1

    def bytes(self) -> bytes:
        return b"".join(msgspec.json.encode(line) + b"\n" for line in self.lines)

    def check(self, folder: Path) -> Report:
        """Recomputes everything else, and checks the trace."""
        self.reseal()
        self.renumber()
        return self.check_as_is(folder)

    def check_as_is(self, folder: Path) -> Report:
        path = folder / "trace.jsonl"
        path.write_bytes(self.bytes())
        return check_recording(path)
