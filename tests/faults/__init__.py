"""Pipelines that are really killed, paused and restored, and what must be true of their tables afterwards."""
