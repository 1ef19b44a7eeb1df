"""The LaTeX math of Markdown text as MathML, which browsers draw without a script."""

import html
import re

from latex2mathml.converter import convert

# Code comes first, so that a dollar sign in it is left alone; an escaped dollar sign is no delimiter either.
_CODE_OR_MATH = re.compile(
    r"(?P<code>^(?P<fence>```+|~~~+).*?^(?P=fence)|(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`)|\\\$)"
    r"|\$\$(?P<display>.+?)\$\$"
    r"|\$(?!\s)(?P<inline>(?:\\.|[^$\\\n]|\n(?!\n))+?)(?<!\s)\$(?!\d)",
    re.DOTALL | re.MULTILINE,
)


class MathTokens:
    """Takes `$...$` and `$$...$$` out of Markdown before it is rendered and puts MathML into the HTML after.

    The renderer sees a plain word in place of each formula and so cannot misread the formula's characters.
    """

    def __init__(self) -> None:
        self.formulas: list[str] = []  # MathML

    def take(self, markdown: str) -> str:
        """The Markdown text with a token for each formula; code stays as it is."""
        return _CODE_OR_MATH.sub(self._token, markdown)

    def put(self, page: str) -> str:
        """The HTML text with the formulas in place of their tokens."""
        # Headings repeat their text in the attributes id and href: a token before a closing `>` stays.
        return re.sub(r"mathml(\d+)token(?![^<>]*>)", lambda match: self.formulas[int(match[1])], page)

    def _token(self, match: re.Match) -> str:
        if match["code"]:
            return match[0]
        latex, display = match["inline"] or match["display"], "inline" if match["inline"] else "block"
        try:
            self.formulas.append(convert(latex.strip(), display=display))
        except Exception:  # latex2mathml raises many kinds; an unreadable formula is shown as it was written
            self.formulas.append(f"<code>{html.escape(match[0])}</code>")
        return f"mathml{len(self.formulas) - 1}token"
