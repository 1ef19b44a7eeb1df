"""Python files that register code of one's own: an adapter, a gradient method, a sampler."""

import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path

from mtbert.sources import SourceError

imported: list[str] = []  # files that `import_files` has run, as they were given


def import_files(files: Iterable[str | Path]) -> None:
    """Run Python files that register code of one's own, each once, as modules of their names.

    Raises SourceError for a file that is not there, that imports a module which is missing, or whose name is no name of
    a module or that of another one.
    """
    for file in map(str, files):
        if Path(file).resolve() in [Path(other).resolve() for other in imported]:
            continue
        name = Path(file).stem
        spec = importlib.util.spec_from_file_location(name, file)
        if not Path(file).is_file():
            raise SourceError(f"--import {file}: there is no such file")
        if spec is None or not name.isidentifier():
            raise SourceError(f"--import {file}: is no name of a Python module; use letters, digits and _, and .py")
        other = importlib.util.find_spec(name)
        if other and (other.origin is None or Path(other.origin).resolve() != Path(file).resolve()):
            raise SourceError(f"--import {file}: there is a module {name!r} already; give the file another name")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException as error:
            del sys.modules[name]  # half a module would be found by its name
            if isinstance(error, ModuleNotFoundError):
                raise SourceError(f"--import {file}: {error}") from error
            raise
        imported.append(file)
