"""Which modules are mutated, and which tests should notice."""

from __future__ import annotations

from pathlib import Path

COMMANDS = (
    "tests/cli/",
    "tests/store/test_presence.py",
    "tests/store/test_old_store.py",
    "tests/protocol/leader/test_steering.py",
    "tests/protocol/leader/test_steering_returns.py",
    "tests/inspection/",
)
CHECKPOINTS = ("tests/spark/checkpoint/", "tests/inspection/test_integrity.py")
HOSTING = (
    "tests/spark/test_host.py",
    "tests/spark/test_host_draining.py",
    "tests/spark/test_host_idleness.py",
    "tests/spark/test_host_runtime.py",
)
LEFT_OUT = ("store/failpoints.py",)
"""Code that only tests use."""
RUNS = ("tests/api/test_running.py", "tests/sinks/test_foreach_epoch.py")

WITHOUT_SPARK: dict[str, tuple[str, ...]] = {
    "api/": (
        "tests/api/",
        "tests/plan/",
        "tests/cli/test_check.py",
        "tests/cli/test_load.py",
        "tests/cli/test_run.py",
        "tests/cli/test_checkpoints.py",
    ),
    "api/tables.py": ("tests/cli/test_checkpoints.py", "tests/inspection/test_integrity.py"),
    "cli/": COMMANDS,
    "cluster/": ("tests/cluster/", "tests/cli/test_cluster_options.py"),
    "documents/": ("tests/web/", "tests/cli/test_checkpoints.py", "tests/cli/test_explain.py"),
    "inspection/": ("tests/inspection/", "tests/cli/test_verify.py"),
    "plan/": ("tests/plan/", "tests/api/test_pipeline_errors.py", "tests/cli/test_load.py"),
    "plan/compare.py": ("tests/plan/test_compare.py", "tests/plan/test_assemble.py"),
    "runtime/": ("tests/runtime/", "tests/cli/test_status.py"),
    "runtime/store_requests.py": (
        "tests/runtime/test_mailbox.py",
        "tests/runtime/test_mailbox_following.py",
        "tests/runtime/test_store_requests.py",
        "tests/cli/test_drain.py",
        "tests/cli/test_gc.py",
    ),
    "runtime/dispatcher.py": ("tests/runtime/test_dispatcher.py",),
    "runtime/event_lines.py": ("tests/runtime/test_event_lines.py",),
    "runtime/local_word.py": ("tests/protocol/member/test_injector.py", "tests/runtime/test_shell.py"),
    "runtime/mailbox.py": (
        "tests/runtime/test_mailbox.py",
        "tests/runtime/test_mailbox_following.py",
        "tests/cli/test_drain.py",
    ),
    "runtime/restore.py": (
        "tests/protocol/leader/test_steering.py",
        "tests/protocol/leader/test_steering_returns.py",
        "tests/cli/test_control_stopped.py",
        "tests/plan/test_assemble.py",
    ),
    "runtime/runtime.py": (*HOSTING, "tests/runtime/", "tests/cli/test_drain.py"),
    "runtime/second_process.py": ("tests/store/test_presence.py",),
    "runtime/shell.py": ("tests/runtime/", *HOSTING),
    "runtime/status_facts.py": ("tests/runtime/test_status_facts.py",),
    "runtime/timings.py": ("tests/runtime/test_timings.py",),
    "sinks/": ("tests/sinks/", "tests/inspection/test_verify_tables.py"),
    "spark/": ("tests/spark/",),
    "spark/checkpoint/": CHECKPOINTS,
    "spark/internals/": (
        "tests/spark/internals/",
        "tests/spark/checkpoint/test_leaves.py",
        "tests/spark/test_channel_source.py",
        "tests/spark/test_errors.py",
        "tests/spark/test_kafka.py",
        "tests/spark/test_micro_batch.py",
        "tests/spark/test_plan.py",
        "tests/spark/test_query.py",
        "tests/spark/test_session_file_systems.py",
        "tests/spark/test_session_settings.py",
    ),
    "spark/checkpoint/folder.py": (*CHECKPOINTS, "tests/store/test_stores_s3.py"),
    "store/": ("tests/store/",),
    "store/at_rest.py": (
        "tests/protocol/leader/test_steering.py",
        "tests/protocol/leader/test_steering_returns.py",
        "tests/protocol/leader/test_in_flight.py",
        "tests/cli/test_checkpoints.py",
        "tests/cli/test_control_stopped.py",
        "tests/cli/test_verify.py",
        "tests/store/",
    ),
    "store/checkpoint_objects.py": ("tests/store/test_checkpoint_objects.py", "tests/cli/test_verify.py"),
    "store/perform.py": ("tests/store/", "tests/cli/test_control_stopped.py", "tests/cli/test_verify.py"),
    "store/presence.py": ("tests/store/test_presence.py", "tests/cli/test_drain.py"),
    "telemetry/": ("tests/telemetry/",),
    "web/": ("tests/web/",),
    "store/status.py": ("tests/store/", "tests/cli/test_status.py", "tests/runtime/test_live_status.py"),
}
"""Per module, or folder of modules, the tests without Spark, or folders of them. The most specific row counts."""

WITH_SPARK: dict[str, tuple[str, ...]] = {
    "inspection/": ("tests/inspection/test_integrity.py",),
    "api/": ("tests/api/test_snapshot.py", "tests/api/test_stopping.py", *RUNS),
    "plan/": ("tests/api/test_pipeline_errors.py", *RUNS),
    "runtime/runtime.py": RUNS,
    "sinks/": ("tests/sinks/", "tests/inspection/test_verify_tables.py"),
    "spark/": (
        "tests/spark/test_micro_batch.py",
        "tests/spark/test_channel_source.py",
        "tests/spark/test_channels.py",
        "tests/spark/test_plan.py",
        "tests/spark/internals/",
        "tests/spark/checkpoint/test_leaves.py",
        "tests/api/test_pipeline_errors.py",
        *RUNS,
    ),
    "spark/checkpoint/leaves.py": ("tests/spark/checkpoint/test_leaves.py",),
    "spark/files.py": ("tests/spark/test_channels.py", "tests/api/test_snapshot.py"),
    "spark/checkpoint/state_files.py": ("tests/spark/checkpoint/test_state_files.py",),
}
"""The same for those of which only tests with Spark, or that take long, show whether they are right."""


def row_of(module: str, table: dict[str, tuple[str, ...]]) -> str | None:
    """The name in the table that fits a module: its own, or that of the nearest folder."""
    place = Path(module)
    names = [module, *(f"{folder.as_posix()}/" for folder in place.parents)]
    return next((name for name in names if name in table), None)


def guards_of(tree: Path, module: str, table: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The test files that a table names for a module."""
    row = row_of(module, table)
    return (
        ()
        if row is None
        else tuple(sorted({file for name in table[row] for file in _test_files(tree, name)}))
    )


def mutated(tree: Path, names: list[str] | None = None) -> list[str]:
    """The modules that are mutated, each once, or those of them that are named or in a named folder."""
    sources = tree / "src" / "cutwater"
    found = [path.relative_to(sources).as_posix() for path in sorted(sources.rglob("*.py"))]
    wanted = [m for m in found if row_of(m, WITHOUT_SPARK) is not None and m not in LEFT_OUT]
    return [
        m for m in wanted if names is None or any(m == n or m.startswith(f"{n.rstrip('/')}/") for n in names)
    ]


def _test_files(tree: Path, name: str) -> list[str]:
    if not name.endswith("/"):
        return [name]
    return [path.relative_to(tree).as_posix() for path in sorted((tree / name).rglob("test_*.py"))]
