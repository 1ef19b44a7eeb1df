"""Names that users give to tasks, classes and files: they may have any characters."""

import difflib
import re
import unicodedata
from collections.abc import Iterable

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")  # nothing that can be seen


def composed(text: str) -> str:
    """A text in the form NFC: a letter with an accent may be one character or two, which look and mean the same."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The known name that is most like another one; empty where none is as near as the cutoff, from 0 to 1 (equal)."""
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=cutoff)), "")
