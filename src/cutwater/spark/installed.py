"""Finds the Java and the Spark that a new session would start, without starting or importing them."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path


def java_command() -> Path | None:
    """The Java that Spark will start: that of `JAVA_HOME`, else the first on the PATH."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home, "bin", "java")) if home else shutil.which("java")
    return Path(found) if found is not None else None


def spark_home() -> Path | None:
    """The folder of the Spark that will be started."""
    if os.environ.get("SPARK_HOME"):
        return Path(os.environ["SPARK_HOME"])
    spec = find_spec("pyspark")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return Path(places[0]) if places else None
