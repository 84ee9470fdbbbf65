"""What requests and housekeeping use of the leader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from cutwater.protocol.base.effects import Procedure
from cutwater.protocol.base.records import JournalBody
from cutwater.protocol.member.member import Member


class Lead(Protocol):
    """A leader, for its requests and its housekeeping."""

    member: Member

    def leads(self, term: int) -> bool:
        """Whether it still leads in this term, as far as it knows."""
        ...

    def record(self, term: int, make: Callable[[int], JournalBody]) -> Procedure[bool]:
        """Appends what `make` returns for the next place; `False` if the term is over."""
        ...
