"""Which modules are mutated, and which tests should notice."""

from __future__ import annotations

from pathlib import Path

STORES = "tests/test_stores.py", "tests/test_stores_s3.py", "tests/test_store_troubles.py"
SINKS = "tests/test_sinks_delta.py", "tests/test_sinks_parquet.py", "tests/test_sinks_call.py"
FOLDERS = (
    "tests/test_folders.py",
    "tests/test_sourcelogs.py",
    "tests/test_leaves.py",
    "tests/test_wholeness.py",
)
COMMANDS = (
    "tests/test_cli.py", "tests/test_commands.py", "tests/test_presence.py", "tests/test_draining.py",
    "tests/test_steering.py", "tests/test_cluster_options.py", "tests/test_old_store.py",
    "tests/test_wholeness.py",
)  # fmt: skip
HOSTING = ("tests/test_hosting.py",)
QUERIES = "tests/test_batches.py", "tests/test_channels.py", "tests/test_leaves.py"
RUNS = "tests/test_running.py", "tests/test_sinks_call.py"

FAST: dict[str, tuple[str, ...]] = {
    "assembly.py": ("tests/test_assembly.py",),
    "claim.py": ("tests/test_presence.py",),
    "commands/": COMMANDS,
    "folders.py": FOLDERS,
    "leaves.py": FOLDERS,
    "mailbox.py": ("tests/test_mailbox.py", "tests/test_draining.py"),
    "offline.py": ("tests/test_steering.py", "tests/test_cli.py", *STORES[2:], "tests/test_inflight.py"),
    "offsets.py": FOLDERS,
    "presence.py": ("tests/test_presence.py", "tests/test_draining.py"),
    "reading.py": ("tests/test_cli.py", "tests/test_wholeness.py"),
    "restoring.py": ("tests/test_steering.py", "tests/test_cli.py", "tests/test_assembly.py"),
    "runtime.py": (*HOSTING, "tests/test_mailbox.py", "tests/test_draining.py"),
    "sinks/": SINKS,
    "sourcelogs.py": FOLDERS,
    "sparkfolder.py": (*FOLDERS, "tests/test_stores_s3.py"),
    "spark/": (*HOSTING, *QUERIES),
    "statefiles.py": (*FOLDERS, "tests/test_statefiles.py"),
    "stores.py": STORES,
    "wholeness.py": ("tests/test_wholeness.py", "tests/test_cli.py"),
}
"""Per module, or folder of modules, the tests without Spark."""

WITH_SPARK: dict[str, tuple[str, ...]] = {
    "leaves.py": ("tests/test_leaves.py",),
    "runtime.py": RUNS,
    "sinks/": SINKS,
    "spark/": (*QUERIES, *RUNS, "tests/test_pipeline_errors.py"),
    "statefiles.py": ("tests/test_statefiles.py",),
    "wholeness.py": ("tests/test_wholeness.py",),
}
"""The same for those of which only tests with Spark, or that take long, show whether they are right."""


def tests_of(module: str, table: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The test files that a table names for a module; those of the module itself before those of its folder."""
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
