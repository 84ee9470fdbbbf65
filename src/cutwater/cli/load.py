"""Loads a pipeline from a user's file: `FILE[:NAME]`."""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from cutwater.protocol.base.errors import UserError

if TYPE_CHECKING:
    from cutwater.api.pipeline import Pipeline


def load(target: str) -> Pipeline:
    """The pipeline at `FILE[:NAME]`. Raises `UserError` if there is none, or if the file cannot be imported."""
    file, _, name = target.partition(":")
    path = Path(file)
    if not path.is_file():
        raise UserError(f"there is no file {file}; give the Python file that defines the pipeline")
    module = _run(path.resolve(), file)
    from cutwater.api.pipeline import Pipeline

    found = {k: v for k, v in vars(module).items() if isinstance(v, Pipeline) and not k.startswith("_")}
    if name:
        if name not in found:
            known = ", ".join(found) or "none"
            raise UserError(f"{file} has no pipeline named {name}; it has: {known}")
        return found[name]
    different = {id(v): k for k, v in reversed(found.items())}
    if not different:
        raise UserError(
            f'{file} has no pipeline: add `pipeline = cutwater.Pipeline("name")` at its top level, and '
            "functions with @pipeline.stage"
        )
    if len(different) > 1:
        names = sorted(different.values())
        raise UserError(
            f"{file} has several pipelines ({', '.join(names)}); choose one: `cutwater run {file}:{names[0]}`"
        )
    return next(iter(found.values()))


def _run(path: Path, shown: str) -> ModuleType:
    """Import the file, with its folder on the path both here and in Spark's Python workers. Workers get the module
    itself by value, since they cannot import it by name."""
    from cutwater.spark.internals.types import pickle_by_value

    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UserError(f"{shown} is not a Python file; its name must end in .py")
    folder = str(path.parent)
    sys.path.insert(0, folder)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise UserError(_describe_error(error, path, shown)) from error
    pickle_by_value(module)
    return module


def _lacks_spark(error: BaseException) -> bool:
    """Whether pyspark was asked for something that needs a session, and there is none. It often only asserts that."""
    if "SESSION_OR_CONTEXT_NOT_EXISTS" in str(error):
        return True
    frames = traceback.extract_tb(error.__traceback__)
    return isinstance(error, AssertionError) and "pyspark" in Path(frames[-1].filename).parts


def _describe_error(error: BaseException, path: Path, shown: str) -> str:
    """What failed in the user's file, and at which line."""
    what = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    if _lacks_spark(error):
        what = "this needs Spark, which is not running yet: move it into the stage function that uses it"
    if isinstance(error, SyntaxError) and error.filename == str(path):
        line = (error.text or "").strip()
        return f"{shown}, line {error.lineno}: {type(error).__name__}: {error.msg}\n    {line}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    if not frames:
        return f"{shown} cannot be imported: {what}"
    return f"{shown}, line {frames[-1].lineno}: {what}\n    {frames[-1].line}"
