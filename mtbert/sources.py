"""Registered code from outside the package: files that register it, and its source, which names a run that uses it.

A user registers an adapter, a method, a sampler of their own in Python. No version of mtbert says what is in it, so its
source does: changed code is another run.
"""

import ast
import hashlib
import importlib.util
import inspect
import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

PACKAGE = __name__.partition(".")[0]
PLAIN = (bool, int, float, str)


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
    return _project(thing) != PACKAGE


def source_digest(thing: Any) -> str:
    """10 hex digits that name a function or class by its source and by what that uses of its own project.

    These are, recursively: base classes, functions, classes, and constants (numbers, texts, values of a closure), as
    far as the code reads them by their plain name. What it reads as `module.name`, and other packages, do not count.
    Raises SourceError for a part without Python source.
    """
    text = "\n".join(_parts(thing, set()))
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def _project(thing: Any) -> str:
    """The first part of the name of the module that a thing was defined in."""
    return str(getattr(thing, "__module__", None)).partition(".")[0]


def _parts(thing: Any, seen: set[int]) -> Iterator[str]:
    """The texts that say what a function or class does, each thing once."""
    if id(thing) in seen:
        return
    seen.add(id(thing))
    yield _source(thing)
    functions = [thing]
    if inspect.isclass(thing):
        functions = [_function_of(value) for value in vars(thing).values()]
        for base in thing.__bases__:
            if _project(base) == _project(thing):
                yield from _parts(base, seen)
    for function in map(inspect.unwrap, functions):
        if not isinstance(function, FunctionType):
            continue
        for name, value in sorted(_used(function).items()):
            if isinstance(value, PLAIN):
                yield f"{name} = {value!r}"
            elif isinstance(value, FunctionType | type) and _project(value) == _project(thing):
                yield from _parts(value, seen)


def _function_of(value: Any) -> Any:
    """The function of a property or a class method; any other attribute of a class as it is."""
    value = getattr(value, "fget", value)
    return getattr(value, "__func__", value)


def _used(function: FunctionType) -> dict[str, Any]:
    """The globals and the values of the closure that a function reads, by name."""
    names = set(_names(function.__code__))
    found = {name: value for name, value in function.__globals__.items() if name in names}
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    for name, cell in cells:
        if name != "__class__":
            found[name] = cell.cell_contents
    return found


def _names(code: CodeType) -> Iterator[str]:
    """The names that a function and the functions inside it read."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _source(thing: Any) -> str:
    """The text of a function or class; raises SourceError where there is none."""
    try:
        if inspect.isclass(thing) and thing.__module__ == "__main__":
            return _source_in_main(thing)
        if isinstance(thing, FunctionType | type):
            return textwrap.dedent(inspect.getsource(thing))
    except (OSError, TypeError, SyntaxError):
        pass
    name = getattr(thing, "__qualname__", type(thing).__name__)
    raise SourceError(
        f"{name} is from outside of mtbert and has no Python source that could name the run; define a function or a "
        "class in a file or in a cell of a notebook"
    )


def _source_in_main(thing: type) -> str:
    """The text of a class of a notebook or script, which `inspect` finds for functions alone: by its first method."""
    methods = [value for value in vars(thing).values() if isinstance(value, FunctionType)]
    if not methods:
        return inspect.getsource(thing)
    lines, _ = inspect.findsource(methods[0])
    text = "".join(lines)
    first_line = methods[0].__code__.co_firstlineno
    classes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)]
    named = [node for node in classes if node.name == thing.__name__]
    around = [node for node in named if node.lineno <= first_line <= node.end_lineno]
    if not around:
        raise OSError(f"no class {thing.__name__}")
    return textwrap.dedent(ast.get_source_segment(text, around[-1]))  # the innermost
