"""Makes the archive of Java's classes (`spark/class_archive.py`), in a process of its own with the lowest priority
(`archive_training.py`).

The archive is put in place by a rename, so two makers do no harm; a lock saves the second one the work. A maker that is
killed leaves a temporary file, which a later one removes. After a few attempts that failed no other is made.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Timer

from cutwater.spark import class_archive

AFTER_S = 30.0
"""How long a run lasts before the archive is made: first the run itself starts."""
ATTEMPTS = 3
ROOM = 1_000_000_000
"""The bytes that must be free."""
MEMORY = 3_000_000_000
"""The bytes of memory that must be free: a second Java must not push out the first one."""
MEMINFO, CGROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")
STALE_S = 3_600.0
FORGIVEN_S = 30 * 24 * 3_600.0
"""After this time failed attempts for other versions of Java and Spark are forgotten."""


def make_later(log: Callable[[str], None]) -> Timer | None:
    """Let an archive be made in the background soon, if the next start could use one and there is none. The timer can be
    cancelled."""
    if "PYSPARK_GATEWAY_PORT" in os.environ or class_archive.folder() is None:
        return None
    timer = Timer(AFTER_S, _launch, (log,))
    timer.daemon = True
    timer.start()
    return timer


def _launch(log: Callable[[str], None]) -> None:
    place = class_archive.folder()
    with suppress(OSError):
        if place is None or not is_wanted(place):
            return
        log(f"archiving Java's classes in the background for quicker starts, in {place}")
        subprocess.Popen(
            [sys.executable, "-P", "-m", "cutwater.api.archive_training"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip


def is_wanted(place: Path) -> bool:
    """Whether an archive is missing, and no reason is known why it cannot be made. Raises `OSError`."""
    wanted = class_archive.key()
    if wanted is None or class_archive.find() is not None:
        return False
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not class_archive.is_private(place):
        return False
    info = os.statvfs(place)
    if info.f_bavail * info.f_frsize < ROOM or not os.access(place, os.W_OK) or free_memory() < MEMORY:
        return False
    is_rejected = (place / f"{wanted}.rejected").exists()
    return not is_rejected and len(list(place.glob(f"{wanted}.attempt-*"))) < ATTEMPTS


def free_memory() -> float:
    """The bytes of memory that this machine and this container can still give, as far as Linux says."""
    found = [float("inf")]
    with suppress(OSError, ValueError, StopIteration):
        lines = MEMINFO.read_text().splitlines()
        found.append(int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]) * 1024)
    with suppress(OSError, ValueError):
        found.append(int((CGROUP / "memory.max").read_text()) - int((CGROUP / "memory.current").read_text()))
    return min(found)


def make(place: Path, train: Callable[[Path], None]) -> Path | None:
    """Make the archive, unless it is there, or another process is making it. `train` lets Java write one to a path.
    Returns where it is. Raises `OSError`."""
    if not is_wanted(place):
        return None
    wanted = class_archive.key()
    assert wanted is not None
    with _lock(place) as is_ours:
        if not is_ours or not is_wanted(place):  # another process may just have made it
            return None
        _remove_stale(place)
        attempt = place / f"{wanted}.attempt-{time.time_ns()}"
        attempt.touch()
        made = place / f"{wanted}.{os.getpid()}.tmp"
        try:
            train(made)
            path = class_archive.put(made, wanted)
        finally:
            made.unlink(missing_ok=True)
        for old in place.glob(f"{wanted}.attempt-*"):
            old.unlink(missing_ok=True)
        return path


@contextmanager
def _lock(place: Path) -> Iterator[bool]:
    """Whether this process is the only one that makes an archive. The lock ends with the process, however that ends."""
    import fcntl

    with open(place / "making", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def _remove_stale(place: Path) -> None:
    for pattern, age_s in {"*.tmp": STALE_S, "*.attempt-*": FORGIVEN_S, "*.rejected": FORGIVEN_S}.items():
        for path in place.glob(pattern):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > age_s:
                    path.unlink()
