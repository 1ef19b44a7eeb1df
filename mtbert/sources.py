"""Registered code from outside the package: files that register it, and its source, which names a run that uses it.

A user registers an adapter, a method, a sampler of their own in Python. No version of mtbert says what is in it, so its
source does: changed code is another run.
"""

import hashlib
import importlib.util
import inspect
import re
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

PACKAGE = __name__.partition(".")[0]


imported: list[str] = []  # files that `import_files` has run, as they were given


class SourceError(ValueError):
    """Registered code whose source cannot be found; the message names it."""


def import_files(files: Iterable[str | Path]) -> None:
    """Run Python files that register code of one's own, each once, as modules of their names.

    Raises SourceError for a file that is no Python, or whose name another module has.
    """
    for file in map(str, files):
        if file in imported:
            continue
        name = Path(file).stem
        spec = importlib.util.spec_from_file_location(name, file)
        if spec is None or not name.isidentifier() or not Path(file).is_file():
            raise SourceError(f"--import {file}: there is no such file, or it is no Python that can be imported")
        other = importlib.util.find_spec(name)
        if other and (other.origin is None or Path(other.origin).resolve() != Path(file).resolve()):
            raise SourceError(f"--import {file}: there is a module {name!r} already; give the file another name")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        imported.append(file)


def is_own(thing: Any) -> bool:
    """Whether a registered function or class is from outside the package."""
    return str(getattr(thing, "__module__", None)).partition(".")[0] != PACKAGE


def source_digest(thing: Any) -> str:
    """10 hex digits that name a function or class by its source; what it calls, reads or inherits does not count.

    Raises SourceError where there is no Python source.
    """
    try:
        text = textwrap.dedent(_source(thing))
    except (OSError, TypeError, SyntaxError) as error:
        name = getattr(thing, "__qualname__", type(thing).__name__)
        raise SourceError(
            f"{name} is from outside of mtbert and has no Python source that could name the run; put it in a file, as "
            "a function or a class"
        ) from error
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def _source(thing: Any) -> str:
    if not inspect.isclass(thing) or hasattr(inspect.getmodule(thing), "__file__"):
        return inspect.getsource(thing)
    for method in filter(inspect.isfunction, vars(thing).values()):  # of a notebook's class `inspect` finds these alone
        lines, _ = inspect.findsource(method)  # the whole cell
        for number, line in enumerate(lines):
            if re.match(rf"class {thing.__name__}\b", line):
                return "".join(inspect.getblock(lines[number:]))
    raise OSError(f"no source of class {thing.__name__}")
