"""Whether the files of a source are still where they were read.

Spark's file source remembers files by their absolute paths, which it makes of a relative path with the folder in which
Spark was started. So if a project's folder moves, or is started from another one, every file is a new file to Spark,
although the code is the same. The source's own log says where its files were.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from urllib.parse import unquote, urlsplit

from cutwater.spark.checkpoint.folder import SparkFolder
from cutwater.spark.checkpoint.leaves import Leaf, SourcesChanged, is_same_place, with_stages


class FilesMoved(SourcesChanged):
    """A query would read files again, because they have other paths now. `old`: the path that they had; `new`: that of
    the source now."""

    def __init__(self, leaf: Leaf, old: str, new: str) -> None:
        super().__init__(
            f"it reads {leaf}, which is {new} now, but it has read its files at {old}: a folder has moved, or the "
            "pipeline was started from another one. To Spark a file under another path is a new file, so rows would be "
            "read twice"
        )
        self.old = old

    def advice(self, stage: str, ref: str = "REF") -> str:
        return (
            f"Move the files back to {self.old}, and start from the same folder as before. Or make that path valid "
            "again: with a bind mount, from which you start; or with a symbolic link, if the code of stage "
            f"'{stage}' names the old path in full"
        )


def refuse_moved(folder: SparkFolder, leaves: Sequence[Leaf]) -> None:
    """Raises `FilesMoved` if a plan reads a source of files as before, and the files that it has read last have other
    paths now."""
    recorded = folder.recorded_leaves()
    recorded = with_stages(recorded, leaves) if recorded is not None else None
    for number, leaf in enumerate(leaves):
        if not leaf.absolute or leaf.log is None:
            continue
        before = recorded[number] if recorded is not None and number < len(recorded) else None
        refuse_moved_files_of(folder, leaf, before, leaf.log)


def refuse_moved_files_of(folder: SparkFolder, leaf: Leaf, before: Leaf | None, log: int) -> None:
    """The same for one source. `before`: what the folder records of it, and `log` the number of its log there."""
    if not leaf.absolute or (before is not None and not is_same_place(before, leaf)):
        return  # another source, which `refuse_changed` is about
    for file in folder.last_read(log):
        if not _is_below(leaf.absolute, file):
            raise FilesMoved(leaf, _shown(_path_before(leaf, before, file)), _shown(leaf.absolute))


def _path_before(leaf: Leaf, before: Leaf | None, file: str) -> str:
    """The path that a source had when it read a file, as far as it is known: at least the file's folder."""
    if before is not None and _is_below(before.absolute, file):
        return before.absolute
    spelled = "/" + leaf.place.removeprefix("path=").removeprefix("./").strip("/")
    start, found, _ = unquote(file).partition(f"{spelled}/")
    return start + spelled if found else unquote(file).rpartition("/")[0]


def _is_below(path: str, file: str) -> bool:
    """Whether a file, given as a URL, is at a path or below it. The path may be a pattern."""
    if not path:
        return False
    scheme, _, rest = path.partition(":")
    at = urlsplit(file)
    server, place = "", rest
    if rest.startswith("//"):
        server, _, place = rest[2:].partition("/")
        place = f"/{place}"
    if (scheme.lower(), server) != (at.scheme, at.netloc):
        return False
    parts, names = place.rstrip("/").split("/"), unquote(at.path).split("/")
    for part, name in zip(parts, names, strict=False):
        if "{" in part or "\\" in part:  # alternatives, perhaps of several parts
            return True
        if part != name and not fnmatchcase(name, part.replace("[^", "[!")):
            return False
    return len(names) >= len(parts)


def _shown(path: str) -> str:
    return f"/{path.removeprefix('file:').lstrip('/')}" if path.startswith("file:") else path
