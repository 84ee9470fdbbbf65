"""What sinks with a table share: its path, and the sink's own folder and transactions in it."""

from __future__ import annotations

from collections.abc import Sequence

from cutwater.sinks.contract import FOLDER, Sink, last_part
from cutwater.store.contract import Store
from cutwater.store.opening import open_place


class TableSink(Sink):
    """A sink whose target is a table at a path, with versions of its own."""

    path: str

    def __init__(
        self, path: str, partition_by: Sequence[str] | str | None, final_by: str | None, name: str | None
    ) -> None:
        super().__init__(name or last_part(path), partition_by, final_by)
        self.path = path

    def _forget(self) -> None:
        super()._forget()
        self._published: set[str] = set()
        """The attempts with files in a version up to `_looked_up_to`."""
        self._looked_up_to = -1

    def _place(self, create: bool) -> tuple[Store, str]:
        own = self._own_id()
        self._app = f"cutwater/{self.name}/{own}"
        return open_place(self.path, create=create), f"{FOLDER}{own}/"
