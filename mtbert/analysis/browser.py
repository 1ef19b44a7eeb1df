"""The error browser, an interactive part of notebook 06; a static table beside it says the same without a kernel."""

from functools import cache
from pathlib import Path

import ipywidgets as widgets
import pandas as pd
from IPython.display import display

from mtbert.data import TASKS, load_table

ANY = "any"
WRAP = widgets.Layout(flex_flow="row wrap")
WIDE = widgets.Layout(width="100%")


def show(widget: widgets.Widget, without_kernel: str) -> None:
    """Display a widget, and a sentence where no kernel runs; its state does not enter the text of the output."""
    display(widget._repr_mimebundle_() | {"text/plain": without_kernel}, raw=True)


class ErrorBrowser(widgets.VBox):
    """Steps through errors: a row each, with task, model, id, label, predicted, confidence, kind, words.

    root: the folder of the tables with the sentences; None where there is none. Buttons or, where the slider has the
    focus, arrow keys go to the next one. Sentences are read and shown only while their box is ticked, so that the
    outputs of a notebook that is only executed hold none.
    """

    def __init__(self, errors: pd.DataFrame, root: Path | None) -> None:
        self.errors, self.root = errors, root
        choices = {"Task": [*errors["task"].unique()], "Model": [*errors["model"].unique()]}
        choices["Error"] = [ANY, *sorted(errors["kind"].unique())]
        dropdowns = [widgets.Dropdown(options=values, description=name) for name, values in choices.items()]
        self.task, self.model, self.kind = dropdowns
        longest = int(errors["words"].max())
        self.words = widgets.IntRangeSlider(value=(0, longest), max=longest, description="Words")
        self.place = widgets.IntSlider(value=1, min=1, max=1, description="Number")
        self.buttons = [widgets.Button(description=name) for name in ("Previous", "Next")]
        self.sentences = widgets.Checkbox(description="show the sentences")
        self.about, self.text = widgets.HTML(), widgets.Textarea(disabled=True, rows=4, layout=WIDE)
        for button, by in zip(self.buttons, (-1, 1), strict=True):
            button.on_click(lambda _, by=by: self.place.set_trait("value", self.place.value + by))  # within its limits
        filters = [*dropdowns, self.words]
        for part in filters:
            part.observe(self._filter, "value")
        for part in (self.place, self.sentences):
            part.observe(self._show, "value")
        self._filter()
        rows = [widgets.HBox(row, layout=WRAP) for row in (filters, [*self.buttons, self.place, self.sentences])]
        super().__init__([*rows, self.about, self.text])

    def _filter(self, _=None) -> None:
        table = self.errors
        keep = (table["task"] == self.task.value) & (table["model"] == self.model.value)
        keep &= table["words"].between(*self.words.value)
        if self.kind.value != ANY:
            keep &= table["kind"] == self.kind.value
        self.found = table[keep]
        self.place.max = max(1, len(self.found))
        self.place.value = 1
        self._show()

    def _show(self, _=None) -> None:
        self.about.value, self.text.value = "No such errors.", ""
        if len(self.found):
            row = self.found.iloc[self.place.value - 1]
            sure = "" if pd.isna(row["confidence"]) else f", confidence {row['confidence']:.2f}"
            self.about.value = (
                f"<b>{self.place.value} of {len(self.found)}</b>: {row['id']}, label {row['label']:g}, predicted "
                f"{row['predicted']:.3g}{sure}, {row['kind']}, {row['words']} words"
            )
            if self.sentences.value:
                self.text.value = _sentences(self.root, row["task"]).get(row["id"], "The data are not here.")


@cache
def _sentences(root: Path | None, task: str) -> dict[str, str]:
    """id -> the sentences of a dev example, a line each; empty without a folder."""
    if root is None:
        return {}
    table, _ = load_table(task, "dev", root)
    return dict(zip(table["id"], table[list(TASKS[task].sentence_columns)].agg("\n".join, axis=1), strict=True))
