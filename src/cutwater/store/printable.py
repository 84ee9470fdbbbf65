"""Texts of others, such as errors, made fit for a terminal: a control character in them could recolour it, move what was
written, or make one line look like two."""

from __future__ import annotations

import re

_PICTURES = 0x2400
"""Where Unicode has a picture of each of the first 32 characters."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_BREAK = re.compile(r"\s*[\n\r\v\f\x85\u2028\u2029]\s*")


def printable(text: str) -> str:
    """The text with pictures in place of control characters, except line ends and tabs, and in place of those that
    change the direction of writing."""
    return _CONTROL.sub(_picture, text)


def one_line(text: str) -> str:
    """The text in one line, without control characters."""
    return printable(_BREAK.sub(" ", text.strip()).replace("\t", " "))


def _picture(found: re.Match[str]) -> str:
    code = ord(found[0])
    return chr(_PICTURES + code) if code < 0x20 else "\N{REPLACEMENT CHARACTER}"
