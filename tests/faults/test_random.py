"""Random small pipelines over random input, killed at random failpoints."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.faults.random_pipelines import KINDS, PipelinePlan, StagePlan, save, sql_of
from tests.faults.runner import Bench, difference

pytestmark = pytest.mark.faults

EXAMPLES = int(os.environ.get("CUTWATER_EXAMPLES", "3"))
PLACES = [
    "before prepared", "after prepared", "after commit", "before batch entry", "after batch entry",
    "before barrier entry", "after barrier entry", "before part", "after manifest",
    "after journal entry@COMMITTED", "before publish", "after publish", "after mark", "during folder",
    "during delete",
]  # fmt: skip
CRASHES = st.lists(st.tuples(st.sampled_from(PLACES), st.integers(1, 6)), min_size=1, max_size=3)


@st.composite
def pipeline_plans(draw: st.DrawFn) -> PipelinePlan:
    """One to three stages on top of the two roots, each reading earlier stages; some of those that are read have no
    table."""
    plans: list[StagePlan] = []
    for count in range(2, 2 + draw(st.integers(1, 3))):
        what = draw(st.sampled_from(sorted(KINDS)))
        inputs = draw(st.permutations(range(count)))[: KINDS[what]]
        plans.append(StagePlan(what, tuple(inputs), draw(st.integers(2, 5))))
    read = sorted({i for plan in plans for i in plan.inputs})
    hidden = draw(st.sets(st.sampled_from(read)))
    return PipelinePlan(plans, frozenset(hidden), draw(st.booleans()))


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
@given(plan=pipeline_plans(), crashes=CRASHES, files=st.integers(1, 4), unaligned=st.booleans())
def test_any_pipeline_killed_anywhere_gives_what_a_batch_job_gives(
    plan: PipelinePlan, crashes: list[tuple[str, int]], files: int, unaligned: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), "random")
        save(bench.base, plan)
        for place, visit in crashes:
            bench.input.add(files)
            bench.run_perhaps_killed(f"{place}:{visit}", retained=1, unaligned=unaligned)
        bench.input.add(1)
        bench.run(retained=1, unaligned=unaligned)
        for stage in set(range(len(plan.stages) + 2)) - plan.hidden:
            found, wanted = bench.rows(f"s{stage}"), bench.input.query(sql_of(plan.stages, stage))
            assert found == wanted, f"{plan}, {crashes}: {difference(f's{stage}', found, wanted)}"
