"""What to know of tables that have no fault, for `mtbert data check`."""

import pandas as pd

from mtbert.data import TASKS, empty_classes, remarks_on_range


def remarks_of(task: str, table: pd.DataFrame) -> list[str]:
    """What to know of a table that is trained on or scored, a sentence each."""
    remarks = []
    if len(table) == 1:
        remarks.append("one row says nothing of a model")
    if TASKS[task].is_number:
        remarks += remarks_on_range(task, table)
    elif empty := empty_classes(task, table):
        rule = "macro F1 is the mean over classes with a row or a prediction"
        remarks.append(f"no row is of class {empty}; {rule}")
    return remarks


def remarks_on_overlap(task: str, train: pd.DataFrame, dev: pd.DataFrame) -> list[str]:
    """A remark that examples of dev are trained on, or none. Both tables are of this task."""
    columns = list(TASKS[task].sentence_columns)
    known = {*train[columns].itertuples(index=False, name=None)}
    count = sum(texts in known for texts in dev[columns].itertuples(index=False, name=None))
    if not count:
        return []
    return [f"{count} of {len(dev)} examples are in train, too, and say little of new ones"]
