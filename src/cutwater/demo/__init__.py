"""Demos of what Cutwater does, with real processes that are really killed."""
