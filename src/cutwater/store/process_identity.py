"""Which process that was: an identity that no two processes share by accident, and whether it has ended.

Host name and pid do not do: containers share the one and count the other anew, and pids are used again. A process is
known by its kernel's boot, its pid and time namespaces, its pid there, and when it began. Only where all of that can
be compared is there a proof; anywhere else (another machine, another container, no `/proc`) nothing is known.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

import msgspec

PROC = Path("/proc")
START_TIME = 19
"""The place of a process's start time in `/proc/PID/stat` behind the name, which may hold spaces and brackets."""


class ProcessId(msgspec.Struct, frozen=True):
    """One process of one boot of one kernel. `began` is in clock ticks since that boot."""

    host: str
    kernel: str
    pid_namespace: str
    time_namespace: str
    pid: int
    began: int


def this_process() -> ProcessId | None:
    """The identity of this process; `None` where the system does not tell."""
    try:
        return ProcessId(
            host=socket.gethostname(),
            kernel=(PROC / "sys/kernel/random/boot_id").read_text().strip(),
            pid_namespace=os.readlink(PROC / "self/ns/pid"),
            time_namespace=_time_namespace(),
            pid=os.getpid(),
            began=_began(PROC / "self/stat"),
        )
    except (OSError, ValueError, IndexError):
        return None


def exists(process: ProcessId | None) -> bool | None:
    """Whether that process is there: `True` and `False` are proofs, `None` says that it cannot be known here.

    A pid namespace's number may be given again when the namespace is gone, but then all its processes are too.
    """
    here = this_process()
    if process is None or here is None or _place(process) != _place(here):
        return None
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # it is there, and another user's
    try:
        if int(os.readlink(PROC / "self")) != here.pid:
            return None  # this /proc shows the processes of another namespace
        return _began(PROC / str(process.pid) / "stat") == process.began
    except (OSError, ValueError, IndexError):
        return None


def _place(process: ProcessId) -> tuple[str, ...]:
    """Within which a pid and a start time mean the same."""
    return process.host, process.kernel, process.pid_namespace, process.time_namespace


def _time_namespace() -> str:
    try:
        return os.readlink(PROC / "self/ns/time")
    except FileNotFoundError:
        return ""  # a kernel that has none: all processes count from the same moment


def _began(stat: Path) -> int:
    return int(stat.read_text(errors="replace").rpartition(")")[2].split()[START_TIME])
