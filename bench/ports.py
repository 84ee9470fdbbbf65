"""Endpoints on this machine for measurements with several processes."""

from __future__ import annotations

import socket


def free_endpoints(count: int) -> list[str]:
    """So many endpoints on the loopback interface that nobody listens on."""
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    endpoints = [f"tcp/127.0.0.1:{probe.getsockname()[1]}" for probe in probes]
    for probe in probes:
        probe.close()
    return endpoints
