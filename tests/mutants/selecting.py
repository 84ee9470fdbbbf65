"""Which modules are mutated, and which tests should catch the mutants."""

from __future__ import annotations

from pathlib import Path

STORES = (
    "tests/store/test_local.py",
    "tests/store/test_objects.py",
    "tests/store/test_opening.py",
    "tests/store/test_stores_s3.py",
    "tests/store/test_store_troubles.py",
)
SINKS = (
    "tests/sinks/test_contract.py",
    "tests/sinks/test_delta_commits.py",
    "tests/sinks/test_delta_existing_tables.py",
    "tests/sinks/test_delta_history.py",
    "tests/sinks/test_delta_staging.py",
    "tests/sinks/test_delta_files.py",
    "tests/sinks/test_footers.py",
    "tests/sinks/test_parquet.py",
    "tests/sinks/test_foreach_epoch.py",
    "tests/sinks/test_registry.py",
    "tests/inspection/test_verify_tables.py",
)
FOLDERS = (
    "tests/spark/checkpoint/test_incarnation_batches.py",
    "tests/spark/checkpoint/test_incarnation_folders.py",
    "tests/spark/checkpoint/test_incarnation_state.py",
    "tests/spark/checkpoint/test_incarnation_damage.py",
    "tests/spark/checkpoint/test_reads.py",
    "tests/spark/checkpoint/test_source_logs.py",
    "tests/spark/checkpoint/test_leaves.py",
    "tests/inspection/test_integrity.py",
)
COMMANDS = (
    "tests/cli",
    "tests/store/test_presence.py",
    "tests/protocol/leader/test_steering.py",
    "tests/store/test_old_store.py",
    "tests/inspection/test_integrity.py",
)
HOSTING = (
    "tests/spark/test_host.py",
    "tests/spark/test_host_draining.py",
    "tests/spark/test_host_idleness.py",
    "tests/spark/test_host_runtime.py",
    "tests/spark/test_errors.py",
    "tests/spark/test_session_settings.py",
)
QUERIES = (
    "tests/spark/test_micro_batch.py",
    "tests/spark/test_channel_source.py",
    "tests/spark/test_channels.py",
    "tests/spark/test_feed.py",
    "tests/spark/test_plan.py",
    "tests/spark/checkpoint/test_leaves.py",
)
RUNS = "tests/api/test_running.py", "tests/sinks/test_foreach_epoch.py"

FAST: dict[str, tuple[str, ...]] = {
    "plan/assemble.py": ("tests/plan/test_assemble.py",),
    "runtime/second_process.py": ("tests/store/test_presence.py",),
    "cli/": COMMANDS,
    "spark/checkpoint/incarnations.py": FOLDERS,
    "spark/checkpoint/leaves.py": FOLDERS,
    "runtime/dispatcher.py": ("tests/runtime/test_dispatcher.py",),
    "runtime/event_lines.py": ("tests/runtime/test_event_lines.py",),
    "runtime/status_facts.py": ("tests/runtime/test_status_facts.py",),
    "runtime/timings.py": ("tests/runtime/test_timings.py",),
    "runtime/mailbox.py": ("tests/runtime/test_mailbox.py", "tests/cli/test_drain.py"),
    "store/at_rest.py": (
        "tests/protocol/leader/test_steering.py",
        "tests/cli/test_checkpoints.py",
        "tests/cli/test_control_stopped.py",
        "tests/cli/test_verify.py",
        "tests/store/test_store_troubles.py",
        "tests/protocol/leader/test_in_flight.py",
    ),
    "spark/checkpoint/offsets.py": FOLDERS,
    "store/presence.py": ("tests/store/test_presence.py", "tests/cli/test_drain.py"),
    "api/tables.py": ("tests/cli/test_checkpoints.py", "tests/inspection/test_integrity.py"),
    "runtime/restore.py": (
        "tests/protocol/leader/test_steering.py",
        "tests/cli/test_control_stopped.py",
        "tests/plan/test_assemble.py",
    ),
    "runtime/runtime.py": (*HOSTING, "tests/runtime/test_mailbox.py", "tests/cli/test_drain.py"),
    "sinks/": SINKS,
    "spark/checkpoint/source_logs.py": FOLDERS,
    "spark/checkpoint/folder.py": (*FOLDERS, "tests/store/test_stores_s3.py"),
    "spark/": (*HOSTING, *QUERIES),
    "spark/checkpoint/state_files.py": (*FOLDERS, "tests/spark/checkpoint/test_state_files.py"),
    "store/contract.py": STORES,
    "store/local.py": STORES,
    "store/objects.py": STORES,
    "store/opening.py": STORES,
    "store/checkpoint_objects.py": ("tests/store/test_checkpoint_objects.py", "tests/cli/test_verify.py"),
    "inspection/integrity.py": ("tests/inspection/test_integrity.py", "tests/cli/test_verify.py"),
}
"""The tests without Spark, per module or folder of modules."""

WITH_SPARK: dict[str, tuple[str, ...]] = {
    "spark/checkpoint/leaves.py": ("tests/spark/checkpoint/test_leaves.py",),
    "runtime/runtime.py": RUNS,
    "sinks/": SINKS,
    "spark/": (*QUERIES, *RUNS, "tests/api/test_pipeline_errors.py"),
    "spark/checkpoint/state_files.py": ("tests/spark/checkpoint/test_state_files.py",),
    "inspection/integrity.py": ("tests/inspection/test_integrity.py",),
}
"""The same for modules that only slow tests or tests with Spark cover."""


def tests_of(module: str, table: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The test files in a table for a module; those of the module itself take precedence over those of its folder."""
    for name in (module, module.partition("/")[0] + "/"):
        if name in table:
            return table[name]
    return ()


def modules() -> list[str]:
    """The modules and folders that are mutated."""
    return list(FAST)


def files_of(tree: Path, name: str) -> list[Path]:
    """The files of a module or a folder of modules."""
    place = tree / "src" / "cutwater" / name
    return sorted(place.rglob("*.py")) if name.endswith("/") else [place]
