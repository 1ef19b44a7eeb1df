"""Sentences of findings, written by hand in notebooks and pages, with places for what the stored runs say.

`tell(sentence, gain=place(comparison, run, verdict, task))` fills the places and checks the verdict on which the
sentence rests. A place that the sentence does not show is checked all the same.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from mtbert_lab.report.tables import Comparison, said, signed, unsigned
from mtbert_lab.statistics import NO_DIFFERENCE, NOT_SHOWN, TOO_FEW, verdict_text
from mtbert_lab.store import MissingRun

SMALL = verdict_text("better", is_small=True)
SMALL_LOSS = verdict_text("worse", is_small=True)


@dataclass(frozen=True)
class Place:
    """A difference in a sentence: `{x}` is its size with the interval, `{x:+}` with its sign, `{x:size}` its size.

    `{x:2}` has two digits, and `{x:size4}` four, for a size that would round to the margin. A verdict that is not an
    order does not say the sign, so that such a place is `{x:+}` or `{x:more}`: its size and "more" or "less".
    """

    row: Any  # of `decide`; None where its runs are not stored
    verdict: str  # that the sentence rests on
    unknown: str = ""  # the name of a run that the comparison does not have, whatever is stored

    @property
    def now(self) -> str:
        """The verdict of the stored runs, with the seeds that would tell."""
        return said(self.row)

    @property
    def holds(self) -> bool:
        """Whether they still say what the sentence rests on."""
        return self.verdict == verdict_text(self.row.verdict, getattr(self.row, "is_small", False))

    def __format__(self, spec: str) -> str:
        if spec == "more":
            return f"{abs(self.row.value):.3f} {'more' if self.row.value > 0 else 'less'}"
        if spec == "+":
            return signed(self.row)
        if self.verdict in (NO_DIFFERENCE, NOT_SHOWN, TOO_FEW):
            raise ValueError(f"the size of {self.verdict!r} hides its sign: write {{x:more}} or {{x:+}}")
        if spec.startswith("size"):
            digits = spec.removeprefix("size") or "3"
            return f"{abs(self.row.value):.{digits}f}"
        if spec.isdigit():
            return unsigned(self.row, int(spec))
        if spec:
            raise ValueError(f"{spec!r} is no format of a place: {{x}}, {{x:2}}, {{x:size}}, {{x:more}} or {{x:+}}")
        return unsigned(self.row)


@dataclass(frozen=True)
class Fact:
    """What a sentence rests on that is no verdict, such as a word or whether something is so."""

    now: object
    verdict: object  # what it was when the sentence was written

    @property
    def holds(self) -> bool:
        return self.now == self.verdict


def tell(sentence: str, **places: Any) -> str:
    """A sentence with its places filled, by `Place`s or by texts; in red what the stored runs no longer say.

    Raises MissingRun where the runs of a place are not stored, and ValueError for a run that the comparison does not
    have, or a place that is not given.
    """
    judged = {name: place for name, place in places.items() if isinstance(place, Place | Fact)}
    differences = {name: place for name, place in judged.items() if isinstance(place, Place)}
    unknown = [f"{name}: no run {place.unknown!r} is compared" for name, place in differences.items() if place.unknown]
    if unknown:
        raise ValueError(f"{'; '.join(unknown)}; the sentence is: {sentence}")
    if missing := [name for name, place in differences.items() if place.row is None]:
        raise MissingRun(f"no stored runs for {', '.join(missing)} in: {sentence}")
    try:
        text = sentence.format(**places)
    except KeyError as error:
        raise ValueError(f"{error} is not among the places given for: {sentence}") from error
    wrong = [f"{name} is {place.now}, not {place.verdict}" for name, place in judged.items() if not place.holds]
    if not wrong:
        return text
    return f'{text} <b style="color: #c00">The stored runs no longer say this: {"; ".join(wrong)}.</b>'


def no_gain(differences: pd.DataFrame) -> dict[str, Any]:
    """The places of a sentence which says that no difference is a gain above the margin.

    It may show the `count` of the differences, and how many are `equal`, `worse`, or have too `few` runs to tell.
    """
    counts = differences["verdict"].value_counts()
    places: dict[str, Any] = {"count": len(differences)}
    for name, verdict in {"equal": NO_DIFFERENCE, "worse": "worse", "few": TOO_FEW}.items():
        places[name] = counts.get(verdict, 0)
    gains = differences[differences["verdict"] == "better"].sort_values("value", ascending=False)
    for number, row in enumerate(gains.itertuples(), 1):
        places[f"gain {number}"] = Place(row, SMALL)
    if differences.empty:
        places["any"] = Place(None, SMALL)
    return places


def the_verdict(differences: pd.DataFrame) -> str:
    """The verdicts of differences, one where all have the same."""
    return " or ".join(differences["verdict"].unique())


def place(comparison: Comparison, run: str, verdict: str, task: str | None = None) -> Place:
    """The place of a run's difference from its reference, on a task or overall."""
    if task is None:
        found = place_in(comparison.overall, verdict, run=run)
    else:
        found = place_in(comparison.differences, verdict, run=run, task=task)
    return found if run in comparison.references else replace(found, unknown=run)


def place_in(table: pd.DataFrame, verdict: str, **where: object) -> Place:
    """The place of the first row of a table of verdicts whose columns have these values; without a row if none has."""
    for column, value in where.items():
        is_it = np.array([found == value for found in table[column]], dtype=bool)  # `==` of a column takes no tuple
        table = table[is_it]
    return Place(next(table.itertuples(), None), verdict)


def row_of(comparison: Comparison, run: str, task: str | None = None) -> Any:
    """The difference of a run from its reference, on a task or overall; raises MissingRun where it is not stored."""
    row = place(comparison, run, "", task).row
    if row is None:
        raise MissingRun(f"no stored runs for {run}, {task or 'overall'}")
    return row


def told(sentence: Callable[..., str], *arguments: Any) -> str:
    """What a function of findings.py says of its arguments, nothing where its runs or claims.csv are not stored."""
    with suppress(MissingRun, FileNotFoundError):
        return sentence(*arguments)
    return ""
