"""Deterministic simulator."""
