"""Whether two native sources have rows in common, however their locations are spelled.

Positions are matched more strictly (`leaves.py`): to Spark's file source, a file under another spelling is a new file.
"""

from __future__ import annotations

import os
import posixpath
import re
from fnmatch import fnmatchcase

from cutwater.spark.checkpoint.leaves import GENERATED, PACE, PLACES, Leaf
from cutwater.spark.checkpoint.topics import KAFKA, SERVERS, parse_topics, share_topics

_PART = re.compile(rf", (?=(?:{'|'.join(PLACES)})=)")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/]*)(.*)")
_GLOB = re.compile(r"[*?\[{]")
_SAME_SCHEMES = {"s3a": "s3", "s3n": "s3", "abfss": "abfs", "wasbs": "wasb"}
_HOW = re.compile(
    "^(max|min|start|initial|offset|poll|fetch|read|batch|retry|retries|prefetch|num)|"
    "(timeout|interval|retries|pertrigger|perbatch|parallelism|millis|seconds)$"
)
"""Matches the names of options that seem to say how a source is read, or from where it begins."""
_FILES = frozenset({"parquet", "json", "csv", "text", "orc", "avro", "xml", "binaryfile"})
_CHOOSE_FILES = frozenset({"pathglobfilter", "recursivefilelookup", "modifiedbefore", "modifiedafter"})
"""The options of a file source that choose among the files below its path; the others say how to read them."""


def is_rereadable(leaf: Leaf) -> bool:
    """Whether a leaf is a native source whose rows another one could have too."""
    return leaf.channel is None and leaf.format not in GENERATED


def identifying(leaf: Leaf) -> dict[str, str]:
    """The digests of the options that may say which source it is, if it has no place: all but those that are known, or
    seem by their names, to say how it is read or from where it begins."""
    return {
        name: value
        for name, value in (leaf.digests or {}).items()
        if name not in PACE and not _HOW.search(name.rpartition(".")[2])
    }


def may_share_rows(one: Leaf, other: Leaf) -> bool:
    """Whether nothing distinguishes two sources. Their places do, if both have one. Otherwise an option that both have
    does, if its values differ: the names of options are the connector's own, so none of them is known to be the place."""
    if one.place and other.place:
        return share_place(one.format, one.place, other.format, other.place)
    if one.format != other.format:
        return False
    mine, yours = identifying(one), identifying(other)
    return all(mine[name] == yours[name] for name in mine.keys() & yours.keys())


def normal_place(place: str) -> str:
    """A source's place in one spelling: its path absolute, without links, `.`, `..`, `//` and `file:`; Kafka's topics
    sorted."""
    parts = [part.partition("=") for part in _PART.split(place)]
    return ", ".join(f"{name}={_normal_value(name, value)}" for name, _, value in parts)


def _normal_value(name: str, value: str) -> str:
    if name == "path":
        return _normal(value)
    topics = parse_topics(name, value) if name in ("subscribe", "assign") else None
    return topics.value if topics is not None else value


def share_rows(one: Leaf, other: Leaf) -> bool:
    """Whether two sources read some of the same rows, at whatever pace. Options that select rows distinguish them."""
    if not share_place(one.format, one.place, other.format, other.place):
        return False
    if one.format == KAFKA and one.servers and other.servers:
        return not set(one.servers).isdisjoint(other.servers)
    if one.format != other.format:
        return _chosen_files(one) == _chosen_files(other)
    return _choice(one) == _choice(other)


def share_place(format: str, place: str, other_format: str, other_place: str) -> bool:
    """Whether two sources are at the same place, or at places that may have a part in common. (Kafka's servers are not
    part of a place: they move.) Files have the same rows in whatever format they are read."""
    if format == other_format == KAFKA:
        return share_topics(place, other_place)
    one, other = (_PART.split(normal_place(text)) for text in (place, other_place))
    paths = [
        [part.removeprefix("path=") for part in parts if part.startswith("path=")] for parts in (one, other)
    ]
    if all(paths) and (format in _FILES or format != other_format):
        return _may_meet(paths[0][0], paths[1][0])
    return format == other_format and one == other


def reads_table(leaf: Leaf, path: str) -> bool:
    """Whether a source reads the table in a folder: all of it, or files or partitions of it."""
    found = [part.removeprefix("path=") for part in _PART.split(leaf.place) if part.startswith("path=")]
    if leaf.format not in _FILES | {"delta"} or not found:
        return False
    table, parts = _normal(path).split("/"), _normal(found[0]).split("/")
    below = parts[len(table) :]
    return parts[: len(table)] == table and all("=" in part or _GLOB.search(part) for part in below)


def _chosen_files(leaf: Leaf) -> frozenset[tuple[str, str]]:
    return frozenset(item for item in (leaf.digests or {}).items() if item[0] in _CHOOSE_FILES)


def _choice(leaf: Leaf) -> frozenset[tuple[str, str]]:
    chosen = (leaf.digests or {}).items()
    if leaf.format in _FILES:
        return _chosen_files(leaf)
    if leaf.format == KAFKA:
        return frozenset((name, value) for name, value in chosen if name == SERVERS)
    return frozenset((name, value) for name, value in chosen if name not in PACE)


def _normal(path: str) -> str:
    url = _URL.fullmatch(path)
    if url is not None and url[1].lower() != "file":
        scheme = _SAME_SCHEMES.get(url[1].lower(), url[1].lower())
        return f"{scheme}://{url[2]}{posixpath.normpath('/' + url[3].lstrip('/'))}".rstrip("/")
    local = f"/{url[3].lstrip('/')}" if url is not None else re.sub(r"^file:/*", "/", path)
    parts = local.split("/")
    first = next((number for number, part in enumerate(parts) if _GLOB.search(part)), len(parts))
    root = os.path.realpath("/".join(parts[:first]) or ("/" if local.startswith("/") else "."))
    return posixpath.join(root, *(part for part in parts[first:] if part not in ("", ".")))


def _may_meet(one: str, other: str) -> bool:
    """Whether a file can be below both paths, each of which may be a pattern."""
    for mine, yours in zip(one.split("/"), other.split("/"), strict=False):
        if "{" in mine or "{" in yours:  # alternatives, perhaps of several parts
            return True
        if _GLOB.search(mine) and _GLOB.search(yours):
            continue
        pattern, name = (mine, yours) if _GLOB.search(mine) else (yours, mine)
        if not (mine == yours or (_GLOB.search(pattern) and fnmatchcase(name, pattern.replace("[^", "[!")))):
            return False
    return True
