"""Getting a pipeline out of a user's file: `FILE[:NAME]`."""

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
    """The pipeline that `FILE[:NAME]` means. Raises `UserError` that says why there is none."""
    file, _, name = target.partition(":")
    path = Path(file)
    if not path.is_file():
        raise UserError(f"there is no file {file}; give the Python file that describes the pipeline")
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
            f'{file} has no pipeline: write `pipeline = cutwater.Pipeline("name")` at its top level, and '
            "stages below @pipeline.stage"
        )
    if len(different) > 1:
        names = sorted(different.values())
        raise UserError(
            f"{file} has several pipelines ({', '.join(names)}); say which: `cutwater run {file}:{names[0]}`"
        )
    return next(iter(found.values()))


def _run(path: Path, shown: str) -> ModuleType:
    """Imports the file, with its folder on the path: here, and in Spark's Python workers, which get the file
    itself by value, for they cannot import it by name."""
    from cutwater.spark.internals.types import pickle_by_value

    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UserError(f"{shown} is no Python file; its name must end in .py")
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
        raise UserError(_story(error, path, shown)) from error
    pickle_by_value(module)
    return module


def _story(error: BaseException, path: Path, shown: str) -> str:
    """What went wrong in the user's file, and at which line of it."""
    what = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError) and error.filename == str(path):
        line = (error.text or "").strip()
        return f"{shown}, line {error.lineno}: {type(error).__name__}: {error.msg}\n    {line}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    if not frames:
        return f"{shown} cannot be imported: {what}"
    return f"{shown}, line {frames[-1].lineno}: {what}\n    {frames[-1].line}"
