"""Sentences of findings, written by hand in notebooks and pages, with places for what the stored runs say.

`tell(sentence, place=Place(row, verdict))` fills the places and checks the verdict on which the sentence rests.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtbert_lab.report.tables import Comparison, said, signed, unsigned
from mtbert_lab.statistics import verdict_text

SMALL = verdict_text("better", is_small=True)


@dataclass(frozen=True)
class Place:
    """A difference in a sentence: `{x}` is its size with the interval, `{x:+}` with its sign, `{x:size}` its size."""

    row: Any  # of `decide`
    verdict: str  # that the sentence rests on; "better" includes SMALL

    def __format__(self, spec: str) -> str:
        if spec == "size":
            return f"{abs(self.row.value):.3f}"
        return signed(self.row) if spec == "+" else unsigned(self.row)


def tell(sentence: str, **places: Any) -> str:
    """A sentence with its places filled, by `Place`s or by texts; in red what the stored runs no longer say."""
    text = sentence.format(**places)
    judged = {name: place for name, place in places.items() if isinstance(place, Place)}
    wrong = [
        f"{name} is {said(place.row)}, not {place.verdict}"
        for name, place in judged.items()
        if not said(place.row).startswith(place.verdict)
    ]
    if not wrong:
        return text
    return f'{text} <b style="color: #c00">The stored runs no longer say this: {"; ".join(wrong)}.</b>'


def row_of(comparison: Comparison, run: str, task: str | None = None) -> Any:
    """The difference of a run from its reference, on a task or overall; raises KeyError where it is not stored."""
    rows = comparison.overall if task is None else comparison.differences
    rows = rows[rows["run"] == run]
    if task is not None:
        rows = rows[rows["task"] == task]
    if rows.empty:
        raise KeyError(f"{run}, {task or 'overall'}")
    return next(rows.itertuples())


def told(sentence: Callable[[Path | None], str], store: Path | None = None) -> str:
    """What a function of findings.py says, nothing where its runs are not stored."""
    with suppress(KeyError, FileNotFoundError):
        return sentence(store)
    return ""
