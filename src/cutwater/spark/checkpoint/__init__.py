"""Spark's checkpoint folders in the store: offsets, commits, source logs, state files."""
