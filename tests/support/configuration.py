"""`python -m tests.support.configuration`: writes docs/configuration.md from the configuration classes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cutwater.api.config import Option, RunConfig, options_of
from cutwater.cluster.config import ClusterConfig
from cutwater.protocol.base.errors import UserError

INTRO = """\
# Configuration

<!-- Written by `make docs` from RunConfig and ClusterConfig: change the descriptions there. -->

Every option of a run, with its default. In Python the options are keyword arguments of `Pipeline.start` and
`Pipeline.run`, or one `cutwater.RunConfig`; on the command line they are flags of `cutwater run`.

```python
pipeline.run("./state", every="5s", retained=10)
pipeline.run("./state", cw.RunConfig(every="5s", retained=10))     # the same
```

```console
$ cutwater run orders.py --store ./state --every 5s --retained 10
```

Durations are written `500ms`, `5s`, `2m`, `1h`; a bare number is seconds. The store has no default in Python; for
commands it is `--store`, else the environment variable `CUTWATER_STORE`, else `./state`. A flag that takes one name may
be repeated. `spark=` gives a session of your own; see `Pipeline.start` for what it shares with the pipeline."""

CLUSTER = """\
## ClusterConfig

How members reach each other: `pipeline.run(store, member="billing", cluster=cw.ClusterConfig(listen=(...), ...))`."""

ENVIRONMENT = """\
## Environment variables

| variable | meaning |
|---|---|
| `CUTWATER_STORE` | the store of every command, unless `--store` is given |
| `CUTWATER_SECRET` | the members' secret, or `@FILE` |
| `CUTWATER_HTTP_TOKEN` | the token that lets [the page](web.md) control the pipeline, or `@FILE` |
| `CUTWATER_TLS_CA`, `CUTWATER_TLS_CERT`, `CUTWATER_TLS_KEY` | the files of TLS, for every command |
| `CUTWATER_TRACE` | a folder to which a run writes what it does, for `python -m cutwater.sim --check FOLDER` |
| `SPARK_MASTER` | Spark's master, unless `master` is given or one was submitted |
| `AWS_REGION`, `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_ENDPOINT_URL` ... | S3: see [Buckets](s3.md) |
"""

ONLY_IN_PYTHON = {"cluster", "gossip", "lease_s", "grace_s"}
FLAGS = {"peers": "--peer"}
"""Flags whose name differs from that of their option."""


def page() -> str:
    parts = [INTRO]
    options = options_of(RunConfig).values()
    for group in dict.fromkeys(option.group for option in options):
        parts.append(f"## {group}\n\n{_table(o for o in options if o.group == group)}")
    parts.append(f"{CLUSTER}\n\n{_table(options_of(ClusterConfig).values())}")
    parts.append(ENVIRONMENT)
    return "\n\n".join(parts)


def _table(options: Iterable[Option]) -> str:
    lines = ["| option | flag | default | meaning |", "|---|---|---|---|"]
    for option in options:
        flag = "" if option.name in ONLY_IN_PYTHON else f"`{FLAGS.get(option.name, option.flag)}`"
        lines.append(f"| `{option.name}` | {flag} | {_shown(option.default)} | {option.description} |")
    return "\n".join(lines)


def _shown(default: Any) -> str:
    if default is None or default == "" or default == () or default == {}:
        return ""
    return f"`{default}`"


def check(path: Path) -> None:
    """Raises `UserError` if the page is not up to date with the code."""
    if path.read_text("utf-8") != page():
        raise UserError(f"{path.name} is not up to date with the code; run `make docs`")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.configuration", description=__doc__)
    duty = parser.add_mutually_exclusive_group(required=True)
    duty.add_argument("--write", type=Path, metavar="PAGE", help="write the page")
    duty.add_argument("--check", type=Path, metavar="PAGE", help="fail if it is not up to date")
    options = parser.parse_args(arguments)
    try:
        if options.write is not None:
            options.write.parent.mkdir(parents=True, exist_ok=True)
            options.write.write_text(page(), "utf-8")
        else:
            check(options.check)
    except (UserError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
