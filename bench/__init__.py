"""Benchmarks. Each module prints JSON as its last line."""
