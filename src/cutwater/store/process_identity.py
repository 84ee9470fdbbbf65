"""Identifies a process uniquely, and tells whether it has ended.

Host name and pid are not enough: containers share the host name and have their own pids, and pids are reused. A process
is identified by the kernel's boot id, its pid and time namespaces, its pid there, and its start time. Only where all of
these can be compared is there proof; anywhere else (another machine, another container, no `/proc`) nothing is known.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

import msgspec

PROC = Path("/proc")
START_TIME = 19
"""The index of the start time in `/proc/PID/stat`, counted after the name, which may contain spaces and brackets."""


class ProcessId(msgspec.Struct, frozen=True):
    """A process of one boot of a kernel. `began` is in clock ticks since that boot."""

    host: str
    kernel: str
    pid_namespace: str
    time_namespace: str
    pid: int
    began: int


def this_process() -> ProcessId | None:
    """The identity of this process, or `None` where the system does not provide it."""
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
    """Whether the process exists. `True` and `False` are certain; `None` means that it cannot be known here.

    The number of a pid namespace may be reused once the namespace is gone, but then all its processes are gone too.
    """
    here = this_process()
    if process is None or here is None or _place(process) != _place(here):
        return None
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # it exists, and belongs to another user
    try:
        if int(os.readlink(PROC / "self")) != here.pid:
            return None  # this /proc shows the processes of another namespace
        return _began(PROC / str(process.pid) / "stat") == process.began
    except (OSError, ValueError, IndexError):
        return None


def _place(process: ProcessId) -> tuple[str, ...]:
    """The scope within which pids and start times can be compared."""
    return process.host, process.kernel, process.pid_namespace, process.time_namespace


def _time_namespace() -> str:
    try:
        return os.readlink(PROC / "self/ns/time")
    except FileNotFoundError:
        return ""  # a kernel without time namespaces: all processes count from the same moment


def _began(stat: Path) -> int:
    return int(stat.read_text(errors="replace").rpartition(")")[2].split()[START_TIME])
