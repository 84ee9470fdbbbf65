"""Which faults occur in one schedule, and how often; drawn from its seed."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


@dataclass(slots=True)
class Faults:
    """Probabilities per occasion, and mean times between faults of the whole cluster in milliseconds."""

    write_failed: float = 0.0
    """A write fails without effect, and returns an error."""
    write_lost_answer: float = 0.0
    """A write takes effect, but returns an error."""
    write_late: float = 0.0
    """A write returns an error, and takes effect some time later."""
    write_stuck: float = 0.0
    """A write takes very long, and the process that requested it is paused or killed meanwhile."""
    false_exists: float = 0.0
    """A create answers "exists" although there is nothing."""
    read_failed: float = 0.0
    slow_io: float = 0.0
    """One operation on the store or a table takes very long."""
    publisher_sleeps: float = 0.0
    """A process sleeps just before it commits to a table, and its successor starts: a zombie that publishes."""
    message_lost: float = 0.0
    message_twice: float = 0.0
    message_slow: float = 0.0
    message_garbled: float = 0.0
    stray_ack: float = 0.0
    """An ack of an earlier checkpoint arrives with the current epoch's number."""
    query_failure: float = 0.0
    query_refused: float = 0.0
    """A query is refused when it starts: the configuration is wrong, or a catalog fails."""
    query_ends_at_rest: float = 0.0
    """A query ends while its stage is at rest for a drain."""
    stale_feed: float = 0.0

    crash_every_ms: float = 0.0
    pause_every_ms: float = 0.0
    replace_every_ms: float = 0.0
    """A paused process's successor starts, then the process resumes: a zombie."""
    partition_every_ms: float = 0.0
    store_down_every_ms: float = 0.0
    slow_stage_every_ms: float = 0.0
    sink_fails_every_ms: float = 0.0
    reply_lost: float = 0.0
    """An answer to a user is lost, so the request is delivered again."""
    asker_dies: float = 0.0
    """Whoever asks is killed before the answer: a command, or a process of the pipeline. Its request stays."""
    command_every_ms: float = 0.0
    """Somebody runs a command on the store: restores, with or without a changed graph, names or forgets."""
    table_forgets_every_ms: float = 0.0
    """A table forgets all its transactions."""
    others_write_every_ms: float = 0.0
    """Somebody else commits to a table."""
    discard_every_ms: float = 0.0
    """A member removes staged output that nobody will publish."""
    power_cut_every_ms: float = 0.0
    """All machines lose power at once, and everything not durable is gone."""
    stranger_every_ms: float = 0.0
    """A process that is not a member announces a forged entry, or claims to lead."""
    request_every_ms: float = 0.0
    """A user requests a savepoint, a restore, a drain, a cancellation or a checkpoint."""


PROBABILITIES = {
    "write_failed": 0.05,
    "write_lost_answer": 0.08,
    "write_late": 0.08,
    "write_stuck": 0.02,
    "false_exists": 0.04,
    "read_failed": 0.04,
    "slow_io": 0.02,
    "message_lost": 0.25,
    "message_twice": 0.15,
    "message_slow": 0.15,
    "message_garbled": 0.05,
    "stray_ack": 0.6,
    "query_failure": 0.03,
    "query_ends_at_rest": 0.5,
    "stale_feed": 0.6,
    "reply_lost": 0.4,
}
TIMES_MS = {
    "crash_every_ms": 700.0,
    "pause_every_ms": 900.0,
    "replace_every_ms": 1_200.0,
    "partition_every_ms": 1_200.0,
    "store_down_every_ms": 2_500.0,
    "slow_stage_every_ms": 1_200.0,
    "sink_fails_every_ms": 1_500.0,
    "request_every_ms": 250.0,
    "command_every_ms": 150.0,
    "table_forgets_every_ms": 100.0,
    "power_cut_every_ms": 900.0,
    "stranger_every_ms": 120.0,
    "others_write_every_ms": 200.0,
    "discard_every_ms": 80.0,
}


def draw(rng: Random, seed: int) -> Faults:
    """Draws a mix of faults: some kinds are absent, the others range from rare to frequent."""
    faults = Faults()
    for name, most in PROBABILITIES.items():
        if rng.random() < 0.6:
            setattr(faults, name, rng.random() ** 2 * most)
    for name, least in TIMES_MS.items():
        if rng.random() < 0.55:
            setattr(faults, name, least * rng.uniform(1, 5))
    if seed % 4 == 3:
        faults.publisher_sleeps = 0.06
    if seed % 4 == 1:
        faults.asker_dies = 0.5
    if seed % 8 == 3:
        faults.query_refused, faults.query_failure = 0.15, 0.05
    return faults
