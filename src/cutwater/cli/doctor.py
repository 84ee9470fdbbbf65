"""`cutwater doctor`: the versions of everything that matters, what is missing, and what to do about it."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote, urlsplit

import msgspec
import typer
from rich.text import Text

from cutwater import __version__
from cutwater.cli.output import AsJson, command, show, table, waiting
from cutwater.cli.run import settings_of
from cutwater.protocol.base.errors import CutwaterError
from cutwater.spark import class_archive
from cutwater.spark.installed import java_command, spark_home
from cutwater.store.figures import plural, size

JAVA_FROM = 17
PYTHON_FROM = (3, 11)
CONNECTORS = {
    "Kafka": "spark-sql-kafka-0-10",
    "S3": "hadoop-aws",
    "Azure": "hadoop-azure",
    "Google Cloud Storage": "gcs-connector",
    "Google Cloud Storage, of Hadoop": "hadoop-gcp",
    "Delta in Spark": "delta-spark",
}
"""The jars with which Spark reaches other systems. Only pipelines that use one need it."""


class Part(msgspec.Struct, frozen=True):
    """One thing that a run needs or uses. `problem` says what is wrong with it and what to do."""

    name: str
    version: str | None
    where: str = ""
    problem: str = ""


@command
def doctor(
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            "-s",
            help="Also try this store: write, read, list and delete an object. With --spark, also through it.",
        ),
    ] = None,
    spark: Annotated[
        bool, typer.Option("--spark", help="Also start Spark, check this build of it, and run a small job.")
    ] = False,
    master: Annotated[str | None, typer.Option("--master", help="With --spark: Spark's master.")] = None,
    conf: Annotated[
        list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="With --spark: Spark's settings.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the versions of everything that matters, and what is missing or not supported. Exits with 1 if something that
    every run needs is missing."""
    parts = [Part("cutwater", __version__, str(Path(__file__).parent.parent)), python(), java()]
    parts += [*packages(), *spark_jars(), archive(), *system()]
    with _leaving_no_folder(store):
        if store is not None:
            parts.append(_tried("store", lambda: _try_store(store), as_json))
        if spark:
            parts.append(
                _tried("Spark session", lambda: _try_spark(master, settings_of(conf or []), store), as_json)
            )
    problems = [part for part in parts if part.problem]
    shown = table("part", "version", "where")
    for part in parts:
        mark = Text(part.name, style="red" if part.problem else "")
        shown.add_row(mark, Text(part.version or "missing"), Text(part.where, style="dim"))
    verdict = [f"{part.name}: {part.problem}" for part in problems]
    summary = plural(len(problems), "problem") if problems else "nothing is missing"
    document = {"ok": not problems, "parts": msgspec.to_builtins(parts)}
    show(as_json, document, shown, Text(), *(Text(line) for line in verdict), Text(summary))
    if problems:
        raise typer.Exit(1)


# --- this machine -------------------------------------------------------------------------------------


def python() -> Part:
    """The Python of this process."""
    old = sys.version_info[:2] < PYTHON_FROM
    problem = f"Cutwater needs Python {'.'.join(map(str, PYTHON_FROM))} or later; install it" if old else ""
    return Part("Python", platform.python_version(), sys.executable, problem)


def java() -> Part:
    """The Java that Spark will start: that of `JAVA_HOME`, else the first on the PATH."""
    home, command = os.environ.get("JAVA_HOME"), java_command()
    found = str(command) if command is not None else None
    install = "install it (Debian: apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17)"
    if found is None:
        return Part("Java", None, "", f"Spark needs Java {JAVA_FROM} or later; {install} or set JAVA_HOME")
    try:
        done = subprocess.run(
            [found, "-version"], capture_output=True, text=True, timeout=60, check=True, errors="replace"
        )
    except (OSError, subprocess.SubprocessError) as error:
        advice = f"correct JAVA_HOME, which is {home}, or unset it" if home else install
        return Part("Java", None, found, f"{found} cannot be run ({error}); {advice}")
    return _java(done.stderr + done.stdout, str(Path(found).resolve()), f"{install} and set JAVA_HOME")


def _java(said: str, where: str, advice: str) -> Part:
    match = re.search(r'version "((?:1\.)?(\d+)[^"]*)"', said)
    if match is None:
        return Part("Java", "unknown", where)
    problem = "" if int(match[2]) >= JAVA_FROM else f"Spark needs Java {JAVA_FROM} or later; {advice}"
    return Part("Java", match[1], where, problem)


def system() -> list[Part]:
    """The operating system, its processors and its memory."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    parts = [Part("system", platform.platform()), Part("cores", str(cores))]
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return parts
    return [*parts, Part("memory", size(memory))]


# --- packages and jars --------------------------------------------------------------------------------


def packages() -> list[Part]:
    """The Python packages that Cutwater declares as needed, each checked against the declared versions."""
    try:
        declared = requires("cutwater") or []
    except PackageNotFoundError:  # it was not installed, but put on the path: spark-submit --py-files
        declared = []
    return [package(need) for need in declared if ";" not in need]


def package(need: str) -> Part:
    """One declared need, such as `pyspark<4.4,>=4.0`."""
    match = re.match(r"[\w.-]+", need)
    assert match is not None, need
    name = match[0]
    bounds = re.findall(r"([<>]=?)\s*([\d.]+)", need[match.end() :])
    wanted = ",".join(f"{how}{bound}" for how, bound in bounds)
    try:
        found = version(name)
    except PackageNotFoundError:
        return Part(name, None, "", f"it is not installed; run: pip install '{name}{wanted}'")
    fits = all(_holds(_numbers(found), how, _numbers(bound)) for how, bound in bounds)
    problem = "" if fits else f"{found} is not supported; run: pip install '{name}{wanted}'"
    return Part(name, found, "", problem)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", re.split(r"[a-z+-]", text)[0]))


def _holds(found: tuple[int, ...], how: str, bound: tuple[int, ...]) -> bool:
    if how.startswith("<"):
        return found < bound or (how == "<=" and found[: len(bound)] == bound)
    return found >= bound if how == ">=" else found > bound


def spark_jars() -> list[Part]:
    """Spark itself, its Hadoop, its connectors and its settings, according to the files in its folder."""
    home = spark_home()
    if home is None:
        return []
    jars = sorted(path.name for path in (home / "jars").glob("*.jar"))
    spark, hadoop = _jar_version(jars, "spark-core"), _jar_version(jars, "hadoop-client-api")
    parts = [Part("Spark", spark, str(home), _spark_problem(home, spark)), Part("Hadoop", hadoop)]
    for system_name, jar in CONNECTORS.items():
        found = _jar_version(jars, jar)
        if found is not None:
            parts.append(Part(f"connector: {system_name}", found, jar))
    if not any(part.name.startswith("connector") for part in parts):
        parts.append(Part("connectors", "none", "spark.jars.packages fetches those that a pipeline needs"))
    settings = Path(os.environ.get("SPARK_CONF_DIR") or home / "conf") / "spark-defaults.conf"
    if settings.is_file():
        parts.append(Part("Spark's settings", "found", str(settings)))
    return parts


def archive() -> Part:
    """The archive of Java's classes with which Spark starts in less time."""
    folder = class_archive.folder()
    if folder is None:
        return Part("class archive", "off")
    found = class_archive.find()
    if found is not None:
        return Part("class archive", size(found.stat().st_size), str(found))
    with suppress(OSError):
        if not class_archive.is_private(folder):
            problem = (
                f"others may write to {folder}: `chmod go-w` it, or name another in {class_archive.SWITCH}"
            )
            return Part("class archive", "none", problem)
    return Part("class archive", "none yet", f"a run makes it after half a minute, in {folder}")


def _jar_version(jars: list[str], name: str) -> str | None:
    found = (re.fullmatch(rf"{re.escape(name)}(?:_2\.\d+)?-(\d[\w.-]*)\.jar", jar) for jar in jars)
    return next((match[1] for match in found if match is not None), None)


def _spark_problem(home: Path, found: str | None) -> str:
    if found is None:
        return (
            f"{home} has no Spark in jars/; set SPARK_HOME to a Spark, or unset it to use the one of pyspark"
        )
    try:
        python_side = version("pyspark")
    except PackageNotFoundError:
        return ""
    if _numbers(found)[:2] == _numbers(python_side)[:2]:
        return ""
    return (
        f"{home} has Spark {found}, and the Python side is pyspark {python_side}: unset SPARK_HOME, or run: "
        f"pip install 'pyspark=={found}'"
    )


# --- attempts -----------------------------------------------------------------------------------------


def _tried(name: str, attempt: Callable[[], Part], as_json: bool) -> Part:
    with waiting(f"trying the {name}", as_json):
        try:
            return attempt()
        except (CutwaterError, OSError) as error:
            return Part(name, "unusable", "", str(error))


@contextmanager
def _leaving_no_folder(url: str | None) -> Iterator[None]:
    """A folder that is made to be tried is removed again: it may be misspelled."""
    root = _folder_of(url)
    made = [place for place in (root, *root.parents) if not place.exists()] if root is not None else []
    try:
        yield
    finally:
        inside = sorted(made[0].rglob("*"), reverse=True) if made else []
        with suppress(OSError):  # somebody else has begun to use it
            for place in (*inside, *made):
                place.rmdir()


def _folder_of(url: str | None) -> Path | None:
    """The folder that a store's URL or path names, if it names one."""
    if not url or not url.strip():
        return None
    if "://" not in url and not url.startswith("file:"):
        return Path(url).resolve()
    parts = urlsplit(url)
    return Path(unquote(parts.path)).resolve() if parts.scheme == "file" else None


def _try_store(url: str) -> Part:
    from cutwater.store.format import check_format
    from cutwater.store.opening import open_place
    from cutwater.store.probe import try_store

    folder = _folder_of(url)
    is_new = folder is not None and not folder.exists()
    place = open_place(url, create=True)
    check_format(place, create=False)
    try_store(place)
    return Part(
        "store", "works", f"{place.url} (no such folder yet; a run makes it)" if is_new else place.url
    )


def _try_spark(master: str | None, settings: dict[str, str], store: str | None) -> Part:
    from cutwater.spark.internals.gateway import end_session
    from cutwater.spark.session import make_session, try_file_systems
    from cutwater.store.opening import open_place

    session = make_session("doctor", master, settings)
    try:
        if store is not None:
            try_file_systems(session, [open_place(store).spark_url("any").removesuffix("/any")])
        session.range(10).count()
        return Part("Spark session", session.version, str(session.sparkContext.master))
    finally:
        end_session(session)
