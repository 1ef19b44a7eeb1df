"""Fields of a run about its data: which tasks, and how many of their rows."""

import reprlib
from collections.abc import Iterator
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from mtbert.config.values import Count, Tasks
from mtbert.data import TASKS


class TaskFields(BaseModel):
    """What is trained on, and what is scored."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    corpus: Literal["demo", "course"] = Field(
        default="demo", description="embedded demo corpus, or the course's datasets"
    )
    tasks: Tasks = Field(default=("sst",), description="the tasks to train on")
    score_tasks: Tasks = Field(default=(), description="tasks scored on dev; empty: those trained on")
    train_rows: Count | None = Field(
        default=None, description="a random subset of each task's training rows; none: all"
    )
    augment: Literal["none", "swap"] = Field(
        default="none", description="swap: every training pair is also there with its sentences swapped"
    )

    def _problems(self) -> Iterator[str]:
        """What does not fit together, the key first. What comes later may rely on what came before."""
        if not self.tasks:
            yield "tasks: at least one task to train on is needed"
        for name in ("tasks", "score_tasks"):
            tasks = getattr(self, name)
            if len(set(tasks)) != len(tasks):
                yield f"{name}: a task is given twice in {reprlib.repr(list(tasks))}"

        if self.augment == "swap" and not any(TASKS[task].is_pair for task in self.tasks):
            yield f"augment: swap is for pairs, and {', '.join(self.tasks)} reads single sentences"

    def _without_effect(self) -> set[str]:
        """Fields about a part that this run does not have."""
        return set()

    @property
    def scored(self) -> tuple[str, ...]:
        """The tasks scored on the dev split: the training tasks, which select the best model, then `score_tasks`."""
        return tuple(dict.fromkeys(self.tasks + self.score_tasks))
