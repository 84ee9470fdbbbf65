"""Plans that Spark refuses when their query starts. They are detected earlier, with a message that says what to do."""

from __future__ import annotations

import re

from pyspark.sql import DataFrame

from cutwater.spark.internals.plans import unsupported

_WITH_CHANGES = "with sinks=[cutwater.delta(path, keys=...)] or sinks=[cutwater.foreach_epoch(function)]"
_ADVICE = (
    (
        r"append.*aggregations without watermark",
        "group by the event time too, or by a window of it: "
        '.withWatermark("ts", "1 minute").groupBy(F.window("ts", "1 minute"), ...). A result that changes with every row '
        f"needs output_mode='update' {_WITH_CHANGES}",
    ),
    (r"session window", "use output_mode='append'"),
    (r"complete.*no streaming aggregations", "use output_mode='append', or aggregate"),
    (
        r"late rows|[Mm]ultiple|in update mode is not supported with aggregation|supported after aggregation",
        "make two stages of it, each with one of the operators: the second has the first as its parameter, and its own "
        "withWatermark()",
    ),
    (
        r"[Ss]orting",
        "leave orderBy() out, and sort where the table is read. The rows of an epoch can be sorted in "
        "cutwater.foreach_epoch(function)",
    ),
    (r"Limits", "use output_mode='append'"),
    (r"Distinct aggregations", "or use dropDuplicates() in a stage before this one, and count in this one"),
    (
        r"without a watermark in the join keys",
        "add withWatermark() on both inputs, and a condition that bounds the time between their rows, as in "
        "b.ts BETWEEN a.ts AND a.ts + INTERVAL 1 HOUR",
    ),
    (
        r"only in Append|only in Append and Update",
        "use output_mode='append'",
    ),
    (
        r"joins? .*static",
        "put the stream on the side whose rows are all kept: stream.join(static, ..., 'left')",
    ),
    (
        r"Union between streaming and batch",
        "read the other side with spark.readStream too, or load its rows into the table with a batch job",
    ),
    (
        r"Window function|NON_TIME_WINDOW",
        "use a time window (F.window), or transformWithState for the newest row of a key",
    ),
    (r"[Ww]atermark must be specified|without watermark", "add withWatermark() before it"),
)
"""What to do, by Spark's message; the first match counts."""


_PLAN = re.compile(
    r"(?:; line \d+,? pos \d+)?;\n(?=['~!]?[A-Z])|; line \d+,? pos \d+;?\s*$|\s*\n+== SQL.*==\n"
)
"""What separates a message from the plan, or from the text of the expression, that Spark adds."""
_FRAME = re.compile(r"\s*(?:at [\w.$/<>]+\(|\.\.\. \d+ more$)")


def why_refused(frame: DataFrame, output_mode: str) -> str | None:
    """Why Spark would refuse to start a query with this plan, and what to do; `None` if it would not."""
    said = unsupported(frame, output_mode)
    if said is None:
        return None
    reason = first_sentences(said)
    advice = next((advice for pattern, advice in _ADVICE if re.search(pattern, said)), None)
    return f"{reason}: {advice}" if advice is not None else reason


def without_plan(said: str) -> str:
    """What Spark says, without the plan and the stack frames that follow it, and without the SQL state."""
    text = _PLAN.split(said, maxsplit=1)[0]
    text = "\n".join(line for line in text.splitlines() if not _FRAME.match(line))
    return re.sub(r"\s*SQLSTATE: \w{5}\b", "", text)


def first_sentences(said: str) -> str:
    """What Spark says, without the name of the error condition, the SQL state and the plan."""
    text = re.sub(r"^\[[A-Z0-9_.]+\] ", "", without_plan(said).strip())
    text = " ".join(text.split())
    return text.partition(" Please refer ")[0].rstrip(".;: ")
