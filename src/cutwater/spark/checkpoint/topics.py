"""What a Kafka source reads, from the place of its leaf: whether two sources have a topic in common, and which topics a
stage loses or begins to read when its list changes."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable

import msgspec

from cutwater.spark.checkpoint.offsets import topics_in

KAFKA = "kafka"
SERVERS = "kafka.bootstrap.servers"
_PATTERN = "subscribepattern"
_KINDS = ("subscribe", "assign", _PATTERN)
_JAVA_ONLY = re.compile(r"&&|\[[^\]]*\[")
"""Matches what Python compiles too, but with another meaning."""
_QUOTED = re.compile(r"\\Q|\(\?[A-Za-z]*x")
"""Matches the beginning of a quotation, or of a part with comments: what follows may have another meaning."""
_ESCAPED = re.compile(r"\\.")
_CLASS = re.compile(r"\[\^?\]?[^\]]*\]")
_LITERAL = re.compile(r"((?:[A-Za-z0-9_-]|\\[.-])*)")
_PART = re.compile(r", (?=[a-z]+=)")


class Subscription(msgspec.Struct, frozen=True):
    """The option `kind` says what is read: `parts`, which are topics with a partition (`None` for all of them), or the
    topics that match `pattern`."""

    kind: str
    parts: frozenset[tuple[str, int | None]] = frozenset()
    pattern: str = ""

    @property
    def value(self) -> str:
        """The option's value, in one spelling."""
        if self.kind == _PATTERN:
            return self.pattern
        names = sorted({name for name, _ in self.parts})
        if self.kind == "subscribe":
            return ",".join(names)
        assigned = {
            name: sorted(p for topic, p in self.parts if topic == name and p is not None) for name in names
        }
        return msgspec.json.encode(assigned).decode()

    def reads(self, topic: str, partition: int | None) -> bool:
        """Whether this may read rows of a partition, or of any partition of a topic."""
        if self.kind == _PATTERN:
            return _may_match(self.pattern, topic)
        return any(name == topic and (partition is None or p in (None, partition)) for name, p in self.parts)


def topics_at(place: str) -> Subscription | None:
    """What a Kafka source at this place reads; `None` if that is unknown."""
    for part in _PART.split(place):
        kind, _, value = part.partition("=")
        if kind in _KINDS:
            return parse_topics(kind, value)
    return None


def parse_topics(kind: str, value: str) -> Subscription | None:
    """What an option of a Kafka source says; `None` if that is unknown."""
    if kind == _PATTERN:
        return Subscription(kind, pattern=value)
    if kind == "subscribe":
        return Subscription(
            kind, frozenset((name.strip(), None) for name in value.split(",") if name.strip())
        )
    try:
        assigned = msgspec.json.decode(value, type=dict[str, list[int]])
    except ValueError:
        return None
    return Subscription(
        kind, frozenset((name, p) for name, partitions in assigned.items() for p in partitions)
    )


def share_topics(place: str, other_place: str) -> bool:
    """Whether two Kafka sources on the same servers may have rows in common; also if that is unknown."""
    one, other = topics_at(place), topics_at(other_place)
    if one is None or other is None:
        return True
    if one.kind == other.kind == _PATTERN:
        prefixes = _prefix(one.pattern), _prefix(other.pattern)
        return one.pattern == other.pattern or any(a.startswith(b) for a, b in (prefixes, prefixes[::-1]))
    if one.kind == _PATTERN:
        one, other = other, one
    return any(other.reads(*part) for part in one.parts)


def lost_topics(place: str, position: str | None, now: str) -> list[str] | None:
    """The topics, or partitions, that a source at `place` with this position has and a source at `now` would not read.
    `None` if `now` is another kind of source, so that it cannot continue at the position at all."""
    before, after = topics_at(place), topics_at(now)
    if before is None or after is None or before.kind != after.kind:
        return None if place != now else []
    if before.kind == _PATTERN:
        return None if before.pattern != after.pattern else []
    return _shown((before.parts | _parts_at(before.kind, position)) - after.parts)


def begun_topics(position: str, now: str) -> str | None:
    """The place of what a source at `now` reads from the beginning because it has no position there; `None` if there is
    nothing. (New topics that match a pattern are not known in advance.)"""
    after = topics_at(now)
    if after is None or after.kind == _PATTERN:
        return None
    begun = after.parts - _parts_at(after.kind, position)
    return f"{after.kind}={Subscription(after.kind, begun).value}" if begun else None


def reads_all(place: str, position: str) -> bool:
    """Whether a source at `place` reads everything that has a position."""
    found = topics_at(place)
    return found is not None and all(found.reads(topic, p) for topic, p in _parts_at("assign", position))


def _parts_at(kind: str, position: str | None) -> frozenset[tuple[str, int | None]]:
    found = topics_in(position) or {}
    return frozenset((t, p if kind == "assign" else None) for t, offsets in found.items() for p in offsets)


def _shown(parts: Iterable[tuple[str, int | None]]) -> list[str]:
    every = sorted(parts, key=lambda part: (part[0], part[1] or 0))
    return [f"'{name}'" if p is None else f"'{name}' (partition {p})" for name, p in every]


def _may_match(pattern: str, topic: str) -> bool:
    """Whether a topic matches one of Java's regular expressions; also if Python does not know."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return _JAVA_ONLY.search(pattern) is not None or re.fullmatch(pattern, topic) is not None
    except (re.error, Warning, OverflowError, RecursionError):
        return True


def _prefix(pattern: str) -> str:
    """Characters with which every match begins."""
    if _JAVA_ONLY.search(pattern) or _QUOTED.search(pattern):
        return ""
    depth = 0
    for character in _CLASS.sub("", _ESCAPED.sub("", pattern)):
        depth += (character == "(") - (character == ")")
        if character == "|" and depth == 0:
            return ""
    found = _LITERAL.match(pattern)
    text = found[1] if found is not None else ""
    if pattern[len(text) :][:1] in ("*", "?", "{", "+") and text:
        text = text[: -2 if text[-2:-1] == "\\" else -1]
    return text.replace("\\", "")
