"""Why a request cannot be carried out."""

from __future__ import annotations

from cutwater.protocol.base.failures import FailureReason


class Refusal(Exception):
    """A request cannot be carried out, and nothing was written. `steering.py` turns it into an answer."""

    def __init__(self, reason: FailureReason, detail: str) -> None:
        self.reason, self.detail = reason, detail
