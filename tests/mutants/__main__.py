"""`python -m tests.mutants`: breaks the runtime in small ways (mutation testing), and lists breaks that no test notices.

A mutant is one small change of one line (`making.py`). The tests that execute that line are run against it, in a copy
of the tree (`running.py`); a test that fails or hangs has caught it. A surviving mutant that matters needs a test; one
that does not matter is listed in `equivalent.toml`, with the reason.
"""

from __future__ import annotations

import argparse
import itertools
import random
import signal
import sys
import tempfile
import time
import tomllib
from collections import Counter
from pathlib import Path

from tests.mutants.making import Mutant, mutants_of
from tests.mutants.running import Runner, Verdict
from tests.mutants.selecting import mutated

TREE = Path(__file__).resolve().parents[2]
SOURCES = TREE / "src" / "cutwater"
EQUIVALENT = Path(__file__).with_name("equivalent.toml")


def main() -> int:
    wanted = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    made = [m for module in mutated(TREE, wanted.module) for m in mutants_of(module, SOURCES / module)]
    reasons = _reasons()
    excluded = [m for m in made if _reason(m, reasons) is not None]
    candidates = [m for m in made if _reason(m, reasons) is None]
    if wanted.line:
        candidates = [m for m in candidates if f"{m.module}:{m.line}" in wanted.line]
    if wanted.list:
        for mutant in candidates:
            print(_shown(mutant))
        print(f"{len(candidates)} mutants, and {len(excluded)} that do not matter")
        return 0
    count = min(wanted.count or len(candidates), len(candidates))
    sources = {m.module: (SOURCES / m.module).read_text() for m in candidates}
    drawn = random.Random(wanted.seed).sample(candidates, len(candidates))
    sample = list(itertools.islice((m for m in drawn if m.is_valid(sources[m.module])), count))
    print(f"{count} of {len(candidates)} mutants, and {len(excluded)} that do not matter", flush=True)
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as temp:
        runner = Runner(TREE, Path(temp), wanted.jobs, wanted.spark)
        try:
            runner.learn({m.module for m in sample}, lambda line: print(f"  {line}", flush=True))
            verdicts = _judge(runner, sample)
        finally:
            runner.close()
    _report(verdicts, Counter(m.module for m in excluded))
    return 0


def _judge(runner: Runner, sample: list[Mutant]) -> dict[Mutant, Verdict]:
    began, verdicts = time.monotonic(), dict[Mutant, Verdict]()
    for mutant, verdict in runner.judge(sample):
        verdicts[mutant] = verdict
        took, done = time.monotonic() - began, len(verdicts)
        left_min = took / done * (len(sample) - done) / 60
        print(
            f"[{done}/{len(sample)}, {left_min:.0f} min left] {verdict.value}: {_shown(mutant)}", flush=True
        )
    return verdicts


def _report(verdicts: dict[Mutant, Verdict], excluded: Counter[str]) -> None:
    survivors = sorted(m for m, v in verdicts.items() if v in (Verdict.SURVIVED, Verdict.UNREACHED))
    print("\nsurvivors:")
    for mutant in survivors:
        print(f"{mutant.module}:{mutant.line} ({verdicts[mutant].value})")
        print(f"  - {mutant.before}\n  + {mutant.after}")
    print(f"\n{'module':<28}{'made':>6}{'caught':>8}{'hung':>6}{'survived':>10}{'share':>8}{'excluded':>10}")
    lived = Counter(m.module for m in survivors)
    hung = Counter(m.module for m, v in verdicts.items() if v is Verdict.HUNG)
    made = Counter(m.module for m in verdicts)
    for module in [*sorted(made), "all"]:
        is_sum = module == "all"
        n, dead, stuck, out = (
            c.total() if is_sum else c[module] for c in (made, made - lived, hung, excluded)
        )
        print(f"{module:<28}{n:>6}{dead - stuck:>8}{stuck:>6}{n - dead:>10}{dead / max(1, n):>8.0%}{out:>10}")


def _shown(mutant: Mutant) -> str:
    return f"{mutant.module}:{mutant.line}  {mutant.before}  ->  {mutant.after}"


def _reasons() -> list[dict[str, str]]:
    entries: list[dict[str, str]] = tomllib.loads(EQUIVALENT.read_text()).get("equivalent", [])
    return entries


def _reason(mutant: Mutant, reasons: list[dict[str, str]]) -> str | None:
    """Why a mutant does not matter, if an entry matches it."""
    seen = {
        "file": mutant.module,
        "function": mutant.function,
        "line": mutant.before,
        "becomes": mutant.after,
    }
    for entry in reasons:
        if all(entry.get(key, value) == value for key, value in seen.items()):
            return entry["reason"]
    return None


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument(
        "--module", action="append", help="only this module, such as runtime/mailbox.py or sinks/"
    )
    parser.add_argument(
        "--line", action="append", help="only the mutants of this line, such as runtime/mailbox.py:120"
    )
    parser.add_argument("--count", type=int, default=0, help="how many, drawn at random; all by default")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time")
    parser.add_argument(
        "--spark",
        action="store_true",
        help="also run the tests that need Spark, for mutants that survive the others",
    )
    parser.add_argument("--list", action="store_true", help="show the mutants and run nothing")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
