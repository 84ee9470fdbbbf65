"""Pipelines whose stages run in several processes."""
