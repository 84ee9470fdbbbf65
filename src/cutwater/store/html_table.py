"""A small table in HTML, as notebooks show it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

_CELL = 'style="text-align: left"'


def html_table(lines: Sequence[str], columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lines of text, the first in bold, above a table. All text is escaped."""
    first, *others = [escape(line) for line in lines]
    head = "".join(f"<th {_CELL}>{escape(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td {_CELL}>{escape(c)}</td>" for c in row) + "</tr>" for row in rows)
    text = "<br>".join([f"<b>{first}</b>", *others])
    return f"<div>{text}</div><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
