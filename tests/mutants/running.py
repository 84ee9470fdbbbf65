"""Runs tests against mutants, each in a forked process and in a copy of the tree."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from tests.mutants.child import STARTS_SPARK_S, Known, run_tests
from tests.mutants.making import Mutant
from tests.mutants.selecting import WITH_SPARK, WITHOUT_SPARK, guards_of, mutated

HEAVY = (
    "deltalake", "duckdb", "hypothesis", "msgspec", "obstore", "pandas", "pyarrow.dataset", "pyarrow.parquet",
    "pyspark.sql", "pyspark.sql.functions", "pytest", "rich.live", "typer", "zenoh",
)  # fmt: skip
"""Imported once, before the forks."""
COPIED = (
    "src", "tests", "examples", "bench", "docs", "pyproject.toml", "Makefile", "LICENSE",
    "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "README.md", "SECURITY.md",
)  # fmt: skip
TIMED_OUT = "+ Timeout +"
"""What pytest-timeout prints when a test takes too long."""


class Verdict(Enum):
    CAUGHT = "caught"
    HUNG = "hung"
    """Which is noticed as well."""
    SURVIVED = "survived"
    UNREACHED = "unreached"
    """It survives because no test runs its line."""


class Job(NamedTuple):
    """Tests to run in a process of their own, and how long that may take."""

    files: tuple[str, ...]
    with_spark: bool
    chosen: dict[str, float] | None
    limit_s: float
    mutant: Mutant | None = None
    trace: Path | None = None


class Copy:
    """A copy of the tree, for one process at a time."""

    def __init__(self, tree: Path, folder: Path) -> None:
        self.folder = folder
        self.job: Job | None = None
        self._pid = 0
        self._deadline = 0.0
        self._changes = 0
        for name in COPIED:
            place = tree / name
            if place.is_dir():
                shutil.copytree(place, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(place, folder / name)
        if (tree / ".tools").exists():
            (folder / ".tools").symlink_to((tree / ".tools").resolve())

    def start(self, job: Job) -> None:
        self.job = job
        if job.mutant is not None:
            file = self.folder / "src/cutwater" / job.mutant.module
            source = file.read_text()
            self._write(file, job.mutant.apply(source))
            self._undo: Callable[[], None] = lambda: self._write(file, source)
        else:
            self._undo = lambda: None
        self._deadline = time.monotonic() + job.limit_s
        sys.stdout.flush()
        self._pid = os.fork()
        if self._pid == 0:
            code = 70
            try:
                code = run_tests(self.folder, job.files, job.with_spark, job.chosen, job.trace)
            finally:
                os._exit(code)

    def ended(self) -> int | None:
        """The exit code of the process, -1 if it took too long; `None` while it runs."""
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        late = time.monotonic() > self._deadline
        if pid == 0 and not late:
            return None
        if pid == 0:
            self.end()
            return -1
        self._clear_away()
        is_stuck = TIMED_OUT in (self.folder / "output.txt").read_text(errors="replace")
        return -1 if is_stuck else os.waitstatus_to_exitcode(status)

    def end(self) -> None:
        """Ends the process, if there is one."""
        if self.job is not None:
            os.kill(self._pid, signal.SIGKILL)
            self._clear_away()
            with suppress(ChildProcessError):
                os.waitpid(self._pid, 0)

    def _clear_away(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)  # what its tests have started
        self._undo()
        self.job = None

    def _write(self, file: Path, text: str) -> None:
        file.write_text(text)
        self._changes += 1
        at = time.time() + 10 * self._changes  # else Python may take the compiled file for that of this text
        os.utime(file, (at, at))


class Runner:
    """Knows which tests run which lines, and judges mutants."""

    def __init__(self, tree: Path, temp: Path, jobs: int, with_spark: bool) -> None:
        self._tree = tree
        self._temp = temp
        self._with_spark = with_spark
        self._known: dict[tuple[str, bool], Known] = {}
        for name in HEAVY:
            with suppress(ImportError):
                importlib.import_module(name)
        self._all_copies = self._copies = [Copy(tree, temp / f"copy-{n}") for n in range(jobs)]

    def learn(self, modules: set[str], tell: Callable[[str], None]) -> None:
        """Runs the tests of some modules as they are."""
        wanted = {(f, False) for m in modules for f in guards_of(self._tree, m, WITHOUT_SPARK)}
        if self._with_spark:
            wanted |= {(f, True) for m in modules for f in guards_of(self._tree, m, WITH_SPARK)}
        cache = self._tree / ".mutants"
        cache.mkdir(exist_ok=True)
        jobs: dict[Job, tuple[str, bool, Path]] = {}
        for file, with_spark in sorted(wanted):
            if not (self._tree / file).exists():
                continue
            place = cache / f"{self._hash(file)}{'-spark' * with_spark}.json"
            if place.exists():
                self._known[file, with_spark] = Known(*json.loads(place.read_text()))
            else:
                jobs[Job((file,), with_spark, None, 1800.0, trace=self._temp / place.name)] = (
                    file,
                    with_spark,
                    place,
                )
        for job, code in self._run(iter(list(jobs))):
            file, with_spark, place = jobs[job]
            if job.trace is None or not job.trace.exists():
                raise SystemExit(
                    f"{file} cannot be run without any mutant (exit {code}): see `pytest {file}`"
                )
            known = self._known[file, with_spark] = Known(*json.loads(job.trace.read_text()))
            tell(f"{file}: {len(known.seconds)} tests {'with' if with_spark else 'without'} Spark")
            for test in known.failed:
                tell(f"  left out, it fails without any mutant: {test}")
            for test in known.long:
                tell(f"  left out, it takes too long: {test}")
            if not known.failed:
                shutil.copy(job.trace, place)

    def judge(self, mutants: list[Mutant]) -> Iterator[tuple[Mutant, Verdict]]:
        """A verdict for each mutant, when it is known: by the tests without Spark, and if need be by those with it."""
        left: list[Mutant] = []
        for mutant, verdict in self._judge(mutants, WITHOUT_SPARK, with_spark=False):
            if (
                verdict in (Verdict.SURVIVED, Verdict.UNREACHED)
                and self._with_spark
                and guards_of(self._tree, mutant.module, WITH_SPARK)
            ):
                left.append(mutant)
            else:
                yield mutant, verdict
        self._copies = self._copies[:1]  # one Spark at a time
        yield from self._judge(left, WITH_SPARK, with_spark=True)

    def _judge(
        self, mutants: list[Mutant], table: dict[str, tuple[str, ...]], with_spark: bool
    ) -> Iterator[tuple[Mutant, Verdict]]:
        ready: list[Job] = []
        for mutant in mutants:
            files = guards_of(self._tree, mutant.module, table)
            chosen = self._chosen(mutant, files, with_spark)
            if chosen:
                named = tuple(sorted({name.partition("::")[0] for name in chosen}))
                limit_s = 60 + 6 * sum(chosen.values()) + STARTS_SPARK_S * with_spark
                ready.append(Job(named, with_spark, chosen, limit_s, mutant))
            else:
                yield mutant, Verdict.UNREACHED
        self._check_unchanged(ready[:1])
        for job, code in self._run(iter(ready)):
            assert job.mutant is not None
            yield (
                job.mutant,
                Verdict.SURVIVED if code == 0 else Verdict.HUNG if code == -1 else Verdict.CAUGHT,
            )

    def _check_unchanged(self, jobs: list[Job]) -> None:
        """Raises `SystemExit` if tests fail without a change: then no verdict means anything."""
        for job, code in self._run(job._replace(mutant=None) for job in jobs):
            if code != 0:
                raise SystemExit(
                    f"tests that are to judge fail without any mutant (exit {code}): {job.files}"
                )

    def _chosen(self, mutant: Mutant, files: tuple[str, ...], with_spark: bool) -> dict[str, float]:
        """The tests that run a mutant's lines, with their seconds; all of the files for what an import does."""
        chosen: dict[str, float] = {}
        for file in files:
            known = self._known.get((file, with_spark), Known({}, {}, []))
            for test in known.useful:
                seconds = known.seconds[test]
                ran = known.lines.get(test, {}).get(mutant.module, [])
                if not mutant.function or any(line in mutant.lines for line in ran):
                    chosen[test] = seconds
        return chosen

    def close(self) -> None:
        """Ends the processes that are still running."""
        for copy in self._all_copies:
            copy.end()

    def _run(self, jobs: Iterator[Job]) -> Iterator[tuple[Job, int]]:
        """Keeps all copies busy, and gives each job with its exit code when it has ended."""
        is_over = False
        while not is_over or any(copy.job is not None for copy in self._copies):
            for copy in self._copies:
                job = copy.job
                if job is not None:
                    code = copy.ended()
                    if code is not None:
                        yield job, code
                if copy.job is None and not is_over:
                    following = next(jobs, None)
                    is_over = following is None
                    if following is not None:
                        copy.start(following)
            time.sleep(0.02)

    def _hash(self, file: str) -> str:
        """Of a test file and the modules that it is to guard."""
        digest = hashlib.sha256(file.encode())
        guarded = [
            module
            for module in mutated(self._tree)
            if any(file in guards_of(self._tree, module, table) for table in (WITHOUT_SPARK, WITH_SPARK))
        ]
        sources = [self._tree / "src" / "cutwater" / module for module in guarded]
        for place in [self._tree / file, *sources]:
            digest.update(place.read_bytes())
        return digest.hexdigest()[:24]
