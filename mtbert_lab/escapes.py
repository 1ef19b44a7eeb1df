"""Names that users give to runs, tasks, classes and files, as a terminal and Markdown show them.

They may have any characters: a terminal would obey an escape sequence, and Markdown may be a script.
"""

import re

from mtbert.names import CONTROL

MARKUP = re.compile(r"[\\`*_{}\[\]<>$&|~#!]")  # of Markdown, MyST and HTML


def printable(text: str) -> str:
    """A text for a terminal: control characters as Python writes them, but for the ends of lines."""
    return CONTROL.sub(lambda found: "\n" if found[0] == "\n" else repr(found[0])[1:-1], text)


def escaped(name: str) -> str:
    """A name in a sentence, a heading or a table of Markdown: what would be markup has a backslash."""
    return MARKUP.sub(r"\\\g<0>", name)


def code(text: str) -> str:
    """A line as code in a sentence of Markdown."""
    quotes = fence(text, 1)
    return f"{quotes}{text}{quotes}"


def fence(text: str, least: int = 3) -> str:
    """The backquotes that enclose a text as code in Markdown: more than it has in a row."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    return "`" * max(least, longest + 1)
