"""Errors, split by whose fault it is. Each says what happened, to what, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence

LISTED = 5


def listed(things: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    more = f"; and {len(things) - LISTED} more" if len(things) > LISTED else ""
    return "; ".join(things[:LISTED]) + more


class CutwaterError(Exception):
    """The base of every error that Cutwater raises on purpose."""


class UserError(CutwaterError):
    """The caller asked for something that cannot be; the message says what to ask for instead."""


class GraphChanged(UserError):
    """The journal has another graph than the one this member was started with."""


class PeerError(CutwaterError):
    """Another member sent something that cannot be believed or understood. It changed nothing here."""


class StoreError(CutwaterError):
    """The store holds, or fails to hold, something that it must not."""


class IllegalStep(CutwaterError):
    """A state machine was asked for a step that its table does not have. The machine did not change."""


class InvariantBroken(CutwaterError):
    """Something that must always hold does not. This is a bug in Cutwater, never in a pipeline."""
