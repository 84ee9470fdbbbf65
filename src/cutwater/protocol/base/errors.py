"""Error types, by who caused the error. Each message says what happened, to what, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence

LISTED = 5


def listed(things: Sequence[str]) -> str:
    """The first few items, and the number of the others."""
    more = f"; and {len(things) - LISTED} more" if len(things) > LISTED else ""
    return "; ".join(things[:LISTED]) + more


VERIFY_FIRST = "run `cutwater verify` to see what else is damaged, then "
"""Begins the advice in an error about a damaged store. `cutwater verify` itself leaves it out."""


class CutwaterError(Exception):
    """Base class of all errors that Cutwater raises."""


class UserError(CutwaterError):
    """The caller asked for something impossible; the message says what to do instead."""


class Mistakes(UserError):
    """Several mistakes, found together; `found` has a text for each."""

    def __init__(self, found: Sequence[str]) -> None:
        super().__init__("\n".join([f"{len(found)} mistakes:", *(f"- {text}" for text in found)]))
        self.found = tuple(found)


def refuse(found: Sequence[str]) -> None:
    """Raises `UserError` if there are mistakes, with all of them."""
    if len(found) == 1:
        raise UserError(found[0])
    if found:
        raise Mistakes(found)


def mistakes_in(error: CutwaterError) -> tuple[str, ...]:
    """The mistakes that an error is about."""
    return error.found if isinstance(error, Mistakes) else (str(error),)


class GraphChanged(UserError):
    """The graph in the journal differs from the one this member was started with."""


class PeerError(CutwaterError):
    """Another member sent something invalid. It was ignored."""


class StoreError(CutwaterError):
    """An object in the store is missing, damaged or unexpected."""


class PublishingFailed(CutwaterError):
    """The pipeline is drained, and a sink keeps failing to publish what it has committed. `sink` is its name."""

    def __init__(self, sink: str, tries: int) -> None:
        super().__init__(
            f"sink '{sink}' could not publish the last epochs: {tries} tries in a row have failed"
        )
        self.sink = sink


class IllegalStep(CutwaterError):
    """A state machine was asked for a step that its table does not have. Its state is unchanged."""


class InvariantBroken(CutwaterError):
    """An invariant does not hold. This is a bug in Cutwater, never in a pipeline."""
