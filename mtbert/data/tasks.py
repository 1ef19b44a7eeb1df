"""Tasks: the files, columns and labels of a dataset. The course's four (CS224N default project), and those of users.

A task of your own is a YAML file with the fields of `Task`, in params/tasks/ of a checkout or in the folder that
MTBERT_TASKS names:

    name: topics
    files: topics-{split}.csv      # train, dev and, to predict, test; next to the YAML file, or with a path
    sentence_columns: [headline]   # two columns: pairs of sentences
    label_column: topic
    kind: classes                  # or binary (two classes, one logit), similarity (of a pair), regression (a number)
    class_names: [sport, weather, science]    # of a number: label_range: [0, 5]
    metric: macro_f1               # selects models; default: accuracy, of a number pearson
    separator: ","                 # default: a tab; JSON Lines need none
    id_column: null                # default: id; null: the line numbers
    quoting: double                # default: a field in "..." may have separators; none: quotes are text
    missing: ["", NA]              # texts and labels that are missing; default: the empty one
    licence: CC BY 4.0             # of the data, for the model card of an export

With `files: topics.csv` and `dev_share: 0.1` one file has train and dev.
"""

import math
import reprlib
from collections import Counter, UserDict
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from torch import nn

from mtbert.metrics import METRICS, OWN_METRICS, metrics_for
from mtbert.names import CONTROL, composed, nearest
from mtbert.paths import CHECKOUT, folder_of
from mtbert.strict_yaml import YamlError, read_yaml

SPLITS = ("train", "dev", "test")
COLUMNS = ("id", "label", "task", "split", "predicted", "confidence")  # of the tables that mtbert makes itself
# What pandas writes or reads for a missing value; in the course's files a field with one of these values is missing.
MISSING = frozenset({"", "n/a", "N/A", "NA", "#N/A", "nan", "NaN", "null", "NULL", "None", "<NA>"})
# The fields that say what a head's output means; the others say how files are read and models selected.
DEFINITION = {"kind", "num_classes", "class_names", "label_range", "sentence_columns"}


class DataError(ValueError):
    """A dataset is missing or unusable; the message says which file, what is wrong and what to do."""


class Task(BaseModel):
    """A dataset: its files, its columns, the kind and the range of its labels.

    A field's description ends the message about a value that does not fit: "... is not <description>".
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: str = Field(
        pattern="^[a-z][a-z0-9_]*$", max_length=64,  # becomes part of the names of files
        description="a name of at most 64 lower-case letters, digits and _, a letter first",
    )  # fmt: skip
    files: str = Field(
        pattern=r"^[^\x00-\x1f]+$", max_length=1000,
        description="a path, with {split} where train and dev are different files",
    )  # fmt: skip
    sentence_columns: tuple[str, ...] = Field(
        min_length=1, max_length=2, description="a list of one column, or of two for pairs of sentences"
    )
    label_column: str = Field(description="the name of a column")
    kind: Literal["classes", "binary", "similarity", "regression"] = Field(
        description="one of classes, binary (two classes, one logit), similarity (of a pair), regression (a number)"
    )
    num_classes: int | None = Field(
        default=None, strict=True, ge=2, le=2**16, description="a whole number from 2 to 65536, without quotes"
    )
    class_names: tuple[str, ...] = Field(
        default=(), description="a list of the labels in the files, where they are words: the first one is class 0"
    )
    label_range: tuple[float, float] = Field(default=(0, 5), description="a list of two numbers, the range of labels")
    metric: str = Field(default="", description="the name of a metric, which selects models; default: the kind's first")
    id_column: str | None = Field(default="id", description="the name of a column, or null: the line numbers")
    separator: str = Field(default="\t", min_length=1, max_length=1, description="one character")
    quoting: Literal["double", "none"] = Field(
        default="double",
        description='one of double (a field in "..." may have separators and line breaks), none (quotes are text)',
    )
    missing: frozenset[str] = Field(
        default=frozenset({""}), description="a list of the texts and labels, in quotes, that mean a missing value"
    )
    dev_share: float | None = Field(
        default=None, gt=0, lt=1, description="a number between 0 and 1, the share of one file's rows that are dev"
    )
    test_split: str = Field(
        default="test", pattern=r"^[^\x00-\x1f/]+$", max_length=100,
        description="the name of the test split in `files`, without /",
    )  # fmt: skip
    folder: Path | None = Field(
        default=None,
        description="a folder, relative to the YAML file; default: the file's own, and without a file that of all data",
    )
    licence: str = Field(default="", description="a text: the licence of the data")

    @model_validator(mode="before")
    @classmethod
    def _derive(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """num_classes, label_range and metric, where they follow from other fields."""
        kind, names = str(fields.get("kind")), fields.get("class_names")
        derived = {}
        if kind in METRICS:
            derived["metric"] = next(iter(METRICS[kind]))
        if names and isinstance(names, list | tuple):
            derived["num_classes"] = len(names)
        elif kind == "binary":
            derived["num_classes"] = 2
        number = fields.get("num_classes", derived.get("num_classes"))
        if isinstance(number, int):
            derived["label_range"] = (0, number - 1)
        return derived | fields

    @model_validator(mode="after")
    def _consistent(self) -> "Task":
        is_taken = hasattr(nn.ModuleDict(), self.name) or hasattr(nn.ParameterDict(), self.name)
        if self.name in ("overall", "average", "score", "embeddings") or is_taken:
            raise ValueError(f"name: {self.name!r} means something else in mtbert; choose another name")
        if ("{split}" in self.files) != (self.dev_share is None):
            raise ValueError(
                f"files: is {self.files!r}, dev_share {self.dev_share}; either the name has {{split}}, for train and "
                "dev, or dev_share says what part of one file is dev"
            )
        if self.is_number and self.num_classes is not None:
            raise ValueError(f"class_names: labels of kind {self.kind!r} are numbers; leave out the classes")
        if not self.is_number and self.num_classes is None:
            raise ValueError(
                f"class_names: is missing; kind {self.kind!r} needs the list of its labels, or num_classes where they "
                "are the numbers 0, 1, ..."
            )
        if self.kind == "binary" and self.num_classes != 2:
            raise ValueError(f"class_names: {self.num_classes} are given; kind 'binary' has two, 'classes' more")
        if len(self.class_names) not in (0, self.num_classes):
            raise ValueError(f"num_classes: is {self.num_classes}, and there are {len(self.class_names)} class_names")
        if self.num_classes and self.label_range != (0, self.num_classes - 1):
            raise ValueError(f"label_range: is {self.label_range}; classes are 0 to {self.num_classes - 1}")
        if taken := ", ".join(name for name in self.sentence_columns if name in COLUMNS):
            raise ValueError(f"sentence_columns: {taken} has a meaning in mtbert; rename the column")
        if taken := ", ".join(f"p_{name}" for name in self.names if f"p_{name}" in self.sentence_columns):
            raise ValueError(f"sentence_columns: {taken} is the column of a class's probability; rename the column")
        if twice := _twice(self.columns):
            raise ValueError(f"columns: {twice} is given twice among those of sentences, label and id")
        if self.label_column == "id" or self.id_column == "label":
            raise ValueError("columns: the label's is named id, or the id's label; rename the column")
        if twice := _twice(map(composed, self.class_names)):
            raise ValueError(f"class_names: {twice} is given twice")
        if odd := [name for name in self.class_names if CONTROL.search(name)]:
            raise ValueError(f"class_names: {odd[0]!r} has a control character")
        if odd := [name for name in self.class_names if name != name.strip()]:
            raise ValueError(f"class_names: {odd[0]!r} begins or ends with a space; labels are read without")
        if self.kind == "similarity" and not self.is_pair:
            raise ValueError("kind: similarity is that of a pair; a number for each single text is kind 'regression'")
        if self.metric not in (known := (*metrics_for(self.kind, self.num_classes), *OWN_METRICS)):
            own = "for one of your own import the file that registers it"
            raise ValueError(f"metric: is {self.metric!r}; kind {self.kind!r} has {', '.join(known)}; {own}")
        low, high = self.label_range
        if not 0 < high - low < math.inf:
            raise ValueError(f"label_range: {self.label_range} is empty or endless")
        return self

    @property
    def is_own(self) -> bool:
        """Whether it is a user's, who can change its file and its data."""
        return self.name not in COURSE

    @property
    def columns(self) -> list[str]:
        """The columns that it reads: of sentences, of the label and, where it has some, of ids."""
        return [*self.sentence_columns, self.label_column, *([self.id_column] if self.id_column else [])]

    @property
    def is_pair(self) -> bool:
        """Whether an example has two sentences."""
        return len(self.sentence_columns) == 2

    @property
    def is_number(self) -> bool:
        """Whether labels are numbers of a range, not classes."""
        return self.kind in ("similarity", "regression")

    @property
    def names(self) -> list[str]:
        """The classes, by their names where they have some, else by their numbers."""
        return list(self.class_names) or [str(label) for label in range(self.num_classes or 0)]

    @property
    def definition(self) -> dict[str, Any]:
        """The parts of a task that a trained head relies on, as JSON: stored with models and runs (`changed_tasks`)."""
        return self.model_dump(mode="json", include=DEFINITION)

    def as_written(self, predicted: pd.Series) -> pd.Series:
        """Predictions as the files have labels: the names of classes, where they have names."""
        return predicted.map(dict(enumerate(self.class_names))) if self.class_names else predicted

    def splits(self, root: str | Path) -> tuple[str, ...]:
        """train, dev and test; tasks of users need not have a file for the last."""
        if self.dev_share is not None:
            return SPLITS[:2]
        has_test = not self.is_own or self.path("test", root).exists()
        return SPLITS if has_test else SPLITS[:2]

    def path(self, split: str, root: str | Path) -> Path:
        """The file of a split; root: the folder of all datasets."""
        name = self.test_split if split == "test" else split
        return Path(self.folder or root) / self.files.replace("{split}", name)


def _twice(names: Iterable[str]) -> str:
    """The names that occur more than once."""
    return ", ".join(name for name, count in Counter(names).items() if count > 1)


def read_tasks(folder: Path) -> dict[str, Task]:
    """The tasks of the YAML files in a folder, by name; raises DataError that names the file and the field.

    The folder may have grids of runs, too.
    """
    tasks = {}
    for path in sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")]):
        try:
            fields = read_yaml(path)
        except YamlError as error:
            raise DataError(str(error)) from None
        if not isinstance(fields, dict):
            raise DataError(f"{path}: not a YAML mapping; a task is lines like `name: topics`")
        if "runs" in fields:  # a grid
            continue
        named = fields.get("folder") or ""
        if isinstance(named, str):
            fields["folder"] = path.parent / Path(named).expanduser()
        try:
            task = Task.model_validate(fields)
        except ValidationError as error:
            raise DataError(f"{path}: {'; '.join(dict.fromkeys(map(_explain, error.errors())))}") from None
        if task.name in tasks or task.name in COURSE:
            raise DataError(f"{path}: there is a task {task.name!r} already; choose another name")
        tasks[task.name] = task
    return tasks


def _explain(problem: dict[str, Any]) -> str:
    """The fault of a task's field, from pydantic's description of it."""
    if problem["type"] == "value_error":  # of `_consistent`, which names the field itself
        return problem["msg"].removeprefix("Value error, ")
    name = str(problem["loc"][0])
    if problem["type"] in ("extra_forbidden", "invalid_key"):
        near = nearest(name, Task.model_fields)
        hint = f"; did you mean {near}?" if near else ""
        return f"{name}: there is no such field{hint}"
    about = Task.model_fields[name].description
    if problem["type"] == "string_type" and not isinstance(problem["input"], list | dict):
        given = "an entry" if len(problem["loc"]) > 1 else repr(problem["input"])
        return f"{name}: {given} is not read as text, but as {_yaml_kind(problem['input'])}; write it in quotes"
    if problem["type"] == "missing":
        return f"{name}: is missing; it is {about}"
    return f"{name}: {reprlib.repr(problem['input'])} is not {about}"


def _yaml_kind(value: Any) -> str:
    kinds = {bool: "true or false", int: "a number", float: "a number", type(None): "null"}
    return kinds.get(type(value), "a date")


def unknown_task(name: str) -> str:
    """A message that there is no task of this name, and where tasks come from."""
    return (
        f"unknown task {name!r}; known are {', '.join(TASKS)}; MTBERT_TASKS names the folder with the YAML files of "
        "tasks of your own"
    )


def changed_tasks(definitions: dict[str, dict[str, Any]]) -> str:
    """The differences between stored definitions of tasks, by name, and the tasks here; empty where they are equal."""
    changes = []
    for name, was in definitions.items():
        for field, value in TASKS[name].definition.items():
            if was.get(field) != value:
                changes.append(f"{name}: {field} was {was.get(field)!r}, is {value!r}")
    return "; ".join(changes)


_REVIEW = dict(
    sentence_columns=("sentence",), label_column="sentiment", kind="classes", test_split="test-student",
    licence="for research use", missing=MISSING,
)  # fmt: skip
_PAIR = dict(sentence_columns=("sentence1", "sentence2"), test_split="test-student", missing=MISSING)
COURSE = {
    "sst": Task(name="sst", files="ids-sst-{split}.csv", num_classes=5, **_REVIEW),
    "cfimdb": Task(name="cfimdb", files="ids-cfimdb-{split}.csv", num_classes=2, **_REVIEW),
    "quora": Task(
        name="quora",
        files="quora-{split}.csv",
        label_column="is_duplicate",
        kind="binary",
        licence="Quora's terms, non-commercial",
        **_PAIR,
    ),
    "sts": Task(
        name="sts",
        files="sts-{split}.csv",
        label_column="similarity",
        kind="similarity",
        licence="as of the SemEval shared tasks",
        **_PAIR,
    ),
}


class _Tasks(UserDict[str, Task]):
    """Tasks by name: the course's and those of users, whose files are read when the first task is asked for.

    Importing mtbert reads none of them, so that a bad file is an error of the call that needs it.
    """

    def __init__(self, tasks: dict[str, Task] | None = None) -> None:
        if tasks is not None:  # of `TASKS | {...}`
            self.data = dict(tasks)

    @cached_property
    def data(self) -> dict[str, Task]:
        folder = folder_of("MTBERT_TASKS") or (CHECKOUT and CHECKOUT / "params" / "tasks")
        if folder_of("MTBERT_TASKS") and not folder.is_dir():
            raise DataError(f"MTBERT_TASKS: there is no folder {folder}")
        return COURSE | (read_tasks(folder) if folder else {})


TASKS = _Tasks()
