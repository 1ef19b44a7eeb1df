"""Fields of a run about its updates: AdamW and its learning rate, averaged weights, which step's weights are kept."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from mtbert.config.steps import StepFields
from mtbert.config.values import Count, Factor, Real, one_of
from mtbert.optim import SCHEDULES


class UpdateFields(StepFields):
    """What is done with a step's gradient, before and after the training on the tasks, and what is kept."""

    learning_rate: Real = Field(default=1e-4, gt=0, description="the schedule's peak")
    schedule: Annotated[str, one_of(SCHEDULES)] = Field(
        default="linear",
        description="of the learning rate: none, linear, cosine, onecycle, each but none with a warm-up",
    )
    warmup: Real = Field(default=0.1, ge=0, lt=1, description="fraction of the steps")
    layer_decay: Real = Field(
        default=1.0, gt=0, le=1, description="factor of the learning rate from a layer to the one below"
    )
    weight_decay: Real = Field(default=0.0, ge=0, description="of AdamW, times the learning rate in each step")
    max_grad_norm: Factor | None = Field(default=None, gt=0, description="clip the gradient's norm; none: no clipping")
    ema: Real | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="decay of the moving average of the weights, which is scored and kept; none: off",
    )

    pretrain: Literal["none", "before", "after", "both"] = Field(
        default="none", description="masked language modelling on the texts, before or after training on the tasks"
    )
    pretrain_epochs: int = Field(default=1, ge=1, le=1000, description="epochs of masked language modelling")
    pretrain_learning_rate: Real = Field(default=5e-5, gt=0, description="the peak of masked language modelling")

    evals_per_epoch: int = Field(default=1, ge=1, le=1000, description="points of the learning curve")
    eval_spacing: Literal["even", "log"] = Field(
        default="even",
        description="log: every point of the curve at half the steps of the next one, the last at the end",
    )
    curve_rows: Count | None = Field(
        default=None,
        description="dev examples of a task at a point of the learning curve, by which keep chooses; none: all",
    )
    keep: Literal["last", "best", "best_per_task"] = Field(
        default="best", description="the model kept: of the last step, of the best overall dev score, or task by task"
    )

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        is_one_encoder = self.plan_text == "1-bert" and self.adapter == "none"
        if self.pretrain in ("after", "both") and not is_one_encoder:
            yield f"pretrain: {self.pretrain!r} trains the one encoder of plan '1-bert' without adapters"
        if self.keep == "best_per_task" and (tie := self._what_ties_tasks()):
            yield f"keep: best_per_task needs tasks that share no trained weights, but {tie}"

    def _what_ties_tasks(self) -> str:
        """Why the weights of the training tasks cannot come from different steps; empty if they can."""
        for name, level in self.parsed_plan.levels.items():
            for group in level.groups:
                if level.mode != "F" and len(group) > 1:
                    return f"{', '.join(group)} share {name} under plan {self.plan_text!r}"
        if self.feeds or self.head_norm:
            return "feeds and head_norm tie the heads to one another"
        if self.pretrain in ("after", "both"):
            return "pretraining trains them together"
        return ""

    def _without_effect(self) -> set[str]:
        unused = super()._without_effect()
        if self.pretrain == "none":
            unused |= {"pretrain_epochs", "pretrain_learning_rate"}
        return unused
