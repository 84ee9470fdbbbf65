"""The archive of Java's classes with which Spark's JVM starts in less time.

Loading and checking classes is most of what a start costs. Java can map them from an archive of an earlier run
(`-XX:SharedArchiveFile`). `api/archive_maker.py` makes one in the background, and the next start uses it.

A damaged archive can crash a JVM, so its name has its digest, which is checked before each use. An archive belongs to
one Java and one Spark: their digest is in the name too, and Java itself refuses an archive that
was made with other jars. Nothing here raises: whatever is wrong with the folder, Spark starts without an archive.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from cutwater.spark.installed import java_command, spark_home

SWITCH = "CUTWATER_CLASS_ARCHIVE"
"""The environment variable: `off`, or the folder for archives."""
OFF = "off"
KEPT = 2
"""How many archives are kept, of about 200 MB each: those used last."""
TRAINING = "1"
"""Counts what is run to make an archive: increase it when that changes."""
_ON_CLASS_PATH = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH")


def folder() -> Path | None:
    """Where the archives are: in the user's folder for caches, if that is not switched off."""
    wanted = os.environ.get(SWITCH, "")
    if wanted.lower() == OFF or os.name != "posix":
        return None
    if wanted:
        return Path(wanted)
    if caches := os.environ.get("XDG_CACHE_HOME"):
        return Path(caches, "cutwater")
    home = os.path.expanduser("~")
    if not os.path.isabs(home):
        return None
    return Path(home, "Library/Caches" if sys.platform == "darwin" else ".cache", "cutwater")


def find() -> Path | None:
    """The archive for the next start, intact and our own; `None` if there is none. Removes a damaged one."""
    with suppress(OSError):
        place, wanted = folder(), key()
        for path in _archives(place) if place is not None and wanted is not None else ():
            if path.name.startswith(f"{wanted}-") and _is_private(path):
                if path.name == f"{wanted}-{digest(path)}.jsa":
                    os.utime(path)  # used just now
                    return path
                path.unlink()
    return None


def options(archive: Path) -> tuple[str, ...]:
    """The options of a JVM that uses this archive. If it cannot, it starts without and says nothing."""
    return f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"


def key() -> str | None:
    """What an archive must have been made with: a digest of this Java and this Spark. `None` if one of them is
    missing."""
    java, spark = java_command(), spark_home()
    if java is None or spark is None:
        return None
    java = java.resolve()
    parts = [TRAINING, str(java), _stamp(java), str(spark.resolve())]
    with suppress(OSError):
        parts.append((java.parent.parent / "release").read_text())
    parts += [f"{jar.name} {_stamp(jar)}" for jar in sorted((spark / "jars").glob("*.jar"))]
    parts += [f"{name}={os.environ[name]}" for name in _ON_CLASS_PATH if name in os.environ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def digest(path: Path) -> str:
    """The digest of an archive's content."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:32]


def put(made: Path, wanted: str) -> Path:
    """Put an archive in place that was made in the same folder, and remove those that were not used for longest. Raises
    `OSError`."""
    path = made.with_name(f"{wanted}-{digest(made)}.jsa")
    made.chmod(0o600)
    made.rename(path)
    by_use = sorted(_archives(path.parent), key=lambda archive: archive.stat().st_mtime, reverse=True)
    for old in [archive for archive in by_use if archive != path][KEPT - 1 :]:
        old.unlink(missing_ok=True)
    return path


def reject(archive: Path) -> None:
    """Remove an archive with which Java did not start, and let no other be made for this Java and Spark."""
    with suppress(OSError):
        archive.with_name(f"{archive.name.partition('-')[0]}.rejected").touch()
        archive.unlink()


def _archives(place: Path) -> Iterator[Path]:
    return iter(sorted(place.glob("*.jsa")))


def _is_private(path: Path) -> bool:
    """Whether nobody else can have written it: it is code that Java will run."""
    return all(
        info.st_uid == os.getuid() and not info.st_mode & 0o022 for info in (path.stat(), path.parent.stat())
    )


def _stamp(path: Path) -> str:
    info = path.stat()
    return f"{info.st_size} {info.st_mtime_ns}"
