"""Verification of a store at rest: everything that the next run or a restore would read."""
