"""Registered code from outside the package: its source names a run that uses it.

A user registers an adapter, a method, a sampler of their own in Python. No version of mtbert says what is in it, so its
source does: changed code is another run.
"""

import hashlib
import inspect
import re
import textwrap
from typing import Any

PACKAGE = __name__.partition(".")[0]


class SourceError(ValueError):
    """Registered code whose source cannot be found; the message names it."""


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
