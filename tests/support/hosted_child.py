"""`python -m tests.support.hosted_child FOLDER BEGAN`: a member in a process of its own, to be killed. Its source has ten
numbers per second since BEGAN, so it goes on where it was."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tests.support.hosted_pipeline import HostedPipeline


def main(folder: str, began: str) -> None:
    shop = HostedPipeline(Path(folder))
    shop.start(every_ms=100, retained=1_000)
    while True:
        shop.numbers.available = 3 + int(10 * (time.time() - float(began)))
        time.sleep(0.05)


if __name__ == "__main__":
    main(*sys.argv[1:])
