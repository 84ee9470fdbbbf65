"""`python -m tests.support.metrics_page`: writes docs/metrics.md from the definitions of the metrics."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from cutwater.protocol.base.errors import UserError
from cutwater.telemetry.definitions import DURATION_BUCKETS_S, METRICS, Group

INTRO = """\
# Metrics

<!-- Written by `make docs` from src/cutwater/telemetry/definitions.py: change the descriptions there. -->

`cutwater run --http HOST:PORT` serves a member's metrics at `/metrics`, in Prometheus' format, beside [the page](web.md).
It needs the extra `cutwater[web]`. Let Prometheus scrape every member:

```yaml
scrape_configs:
  - job_name: cutwater
    authorization: {credentials_file: cutwater-token}  # the server's token, if it listens outside of the loopback
    static_configs: [{targets: ["orders-ingest:8080", "orders-billing:8080"]}]
rule_files: [alerts.yml]
```

`deploy/prometheus/alerts.yml` has alert rules, `deploy/grafana/cutwater.json` a dashboard.

- Every metric has the labels `pipeline` and `member`, besides its own. No label holds an epoch.
- What concerns the whole pipeline (`cutwater_checkpoints_total`, `cutwater_restores_total`, `cutwater_generation` ...) is
  in the journal, which every member follows, so every member shows it: take `max by (pipeline)`, not `sum`.
- Counters begin at 0 with each process. What was decided before a process had caught up is not counted.
- Gauges come from the status that a member reports every second, on a bucket every five. A scrape makes no member wait.
- Reading the metrics costs a pipeline nothing, with one exception: the leader asks the store for the size of each new
  object of a checkpoint, while somebody reads its metrics."""

HEALTH = """\
## Health

| path | 200 means | else |
|---|---|---|
| `/healthz` | the process is alive: no turn blocks it | 503: restart it |
| `/readyz` | it has caught up, its stages run, and the last commit is at most 10 intervals old, or a minute | 503: the \
answer says why; it needs time, or help |

`/readyz?intervals=20` allows more. Use `/healthz` for liveness and `/readyz` for readiness; never kill a process because
it is not ready: a restart makes a slow checkpoint slower. `deploy/kubernetes/` and `deploy/systemd/` have examples.

## Traces

With the extra `cutwater[otel]` and an OpenTelemetry SDK that the application has set up, each epoch is a span with one
child per stage (from its first barrier to its cut) and per sink (from the commit until it shows the epoch), and each
start, restore or restart of a query is a span `recovery`. With several members an epoch's spans are in one trace. Without
an SDK nothing is made, and nothing is paid.

```python
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter()))
trace.set_tracer_provider(provider)  # before pipeline.run()
```
"""


def page() -> str:
    parts = [INTRO]
    for group in Group:
        parts.append(f"## {group.value}\n\n{_table(group)}")
    buckets = ", ".join(f"{bound:g}" for bound in DURATION_BUCKETS_S)
    parts.append(f"The buckets of the histogram, in seconds: {buckets}.")
    parts.append(HEALTH)
    return "\n\n".join(parts)


def _table(group: Group) -> str:
    lines = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    for metric in METRICS.values():
        if metric.group is group:
            labels = ", ".join(f"`{label}`" for label in metric.labels)
            lines.append(f"| `{metric.name}` | {metric.kind.value} | {labels} | {metric.meaning} |")
    return "\n".join(lines)


def check(path: Path) -> None:
    """Raises `UserError` if the page is not up to date with the code."""
    if path.read_text("utf-8") != page():
        raise UserError(f"{path.name} is not up to date with the code; run `make docs`")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.metrics_page", description=__doc__)
    duty = parser.add_mutually_exclusive_group(required=True)
    duty.add_argument("--write", type=Path, metavar="PAGE", help="write the page")
    duty.add_argument("--check", type=Path, metavar="PAGE", help="fail if it is not up to date")
    options = parser.parse_args(arguments)
    try:
        if options.write is not None:
            options.write.write_text(page(), "utf-8")
        else:
            check(options.check)
    except (UserError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
