"""Local endpoints for benchmarks with several processes."""

from __future__ import annotations

import socket


def free_endpoints(count: int) -> list[str]:
    """`count` unused endpoints on the loopback interface."""
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    endpoints = [f"tcp/127.0.0.1:{probe.getsockname()[1]}" for probe in probes]
    for probe in probes:
        probe.close()
    return endpoints
