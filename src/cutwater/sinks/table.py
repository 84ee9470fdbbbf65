"""What sinks with a table share: its path, and the sink's own folder and transactions in it."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence

from cutwater.protocol.base.errors import UserError
from cutwater.sinks.contract import FOLDER, Sink, last_part, new_target
from cutwater.sinks.records import has_marks
from cutwater.store.contract import Store
from cutwater.store.opening import look_at, open_place

APPEND = "append"
CATALOG_NAME = re.compile(r"`?[A-Za-z_]\w*`?(\.`?[A-Za-z_]\w*`?){1,2}")
"""`database.table` or `catalog.database.table`."""
FOLDER_ENDS = (".delta", ".parquet")
"""Endings of names that are folders, not tables in a catalog."""


class TableSink(Sink):
    """A sink whose target is a table at a path, with versions of its own."""

    path: str
    existing_word = APPEND
    """The value of `existing` with which it takes a table of others."""

    def __init__(
        self,
        path: str,
        partition_by: Sequence[str] | str | None,
        final_by: str | None,
        name: str | None,
        existing: str | None = None,
    ) -> None:
        super().__init__(name or last_part(path), partition_by, final_by)
        if existing not in (None, self.existing_word):
            raise UserError(
                f"sink {self.name}: existing={existing!r}; give existing='{self.existing_word}' to "
                f"{self._what_it_does} a table that others have made, or leave it out"
            )
        self.path = path
        self._existing = existing

    def bind(
        self, store: Store, sink_name: str, schema_json: str, register: bool = True, create: bool = True
    ) -> None:
        if CATALOG_NAME.fullmatch(self.path) and not self.path.endswith(FOLDER_ENDS):
            raise UserError(
                f"sink {sink_name} writes to {self.path!r}, which looks like the name of a table in a catalog. A sink "
                "takes the table's location: its folder or the URL of a bucket (in Spark, DESCRIBE DETAIL shows it as "
                f"location). If it is the name of a folder, write './{self.path}'"
            )
        super().bind(store, sink_name, schema_json, register, create)

    @property
    def _what_it_does(self) -> str:
        """What it does to a table, before the table's name."""
        return "add to"

    def _forget(self) -> None:
        super()._forget()
        self._published: set[str] = set()
        """The attempts with files in a version up to `_looked_up_to`."""
        self._looked_up_to = -1

    def _place(self, create: bool) -> tuple[Store, str]:
        return open_place(self.path, create=create), self._own_prefix()

    def _look(self) -> tuple[Store, str]:
        return look_at(self.path), self._own_prefix()

    def _own_prefix(self) -> str:
        own = self._own_id()
        self._app = f"cutwater/{self.name}/{own}"
        return f"{FOLDER}{own}/"

    def _refuse_existing(self) -> None:
        found = self._rows_of_others() if self._existing is None else None
        if found is not None:
            raise UserError(
                f"sink {self.name} writes to {self.path}, where there is {found}, which no run on the store "
                f"{self._store.url} has made. To {self._what_it_does} it, write existing='{self.existing_word}' in the "
                "sink. If it is the table of "
                "this pipeline, start with the store that it was written with; if that was removed to start over, "
                "remove the table too"
            )

    def _another_place(self) -> str:
        """How to begin with another target."""
        if not has_marks(self._store, self.name):
            return "give the sink another path"
        return f"give the sink {new_target(self.name)}"

    @abstractmethod
    def _rows_of_others(self) -> str | None:
        """A description of what is at this path, if something else has written rows there."""
