"""Measurements: each module prints JSON as its last line."""
