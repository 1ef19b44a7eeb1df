"""Fields of a run about its steps: which tasks a step trains, on how many examples, and how their gradients combine."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from mtbert.config.heads import HeadFields
from mtbert.config.values import REGISTRIES, Count, Factor, Factors, Real, Size, TaskName, one_of
from mtbert.gradients import MEMORIES, PROJECTIONS, WEIGHTS, check_options
from mtbert.samplers import SAMPLERS


class StepFields(HeadFields):
    """What a step computes, up to its gradient."""

    scheme: Literal["sampled", "in_turn", "unified"] = Field(
        default="sampled",
        description="a step trains one sampled task, the tasks pass by pass in turn, or a batch of each",
    )
    sampling: Annotated[str, one_of(SAMPLERS)] = Field(
        default="proportional",
        description="which task a sampled step draws, by numbers of examples; loss: by the losses so far",
    )
    epochs: int = Field(default=3, ge=1, le=1000, description="of training on the tasks")
    steps_per_epoch: int | None = Field(
        default=None, ge=1, le=10**7, description="none: as many batches as the datasets hold"
    )
    batch_size: Size | dict[TaskName, Size] = Field(
        default=32, description="examples of a step, of each task in a unified one; or a number for each task"
    )
    accumulation: Size = Field(default=1, description="parts that a batch is computed in, to save memory")
    checkpoint_layers: bool = Field(
        default=False,
        description="compute each layer again in the backward pass: saves memory, takes a third more time",
    )
    precision: Literal["fp32", "bf16"] = Field(default="fp32", description="bf16: autocast, weights stay fp32")
    r_drop: Factor | dict[TaskName, Factor] = Field(
        default=0.0,
        description="weight of the divergence between two passes with other dropout masks; or a weight for each task",
    )
    weighting: Literal["fixed", "uncertainty", "loss_ratio"] = Field(
        default="fixed", description="of a unified step's losses"
    )
    task_weights: Factors = Field(
        default=(), description="fixed weights of the losses, in the order of tasks; empty: all 1"
    )

    gradients: Annotated[str, one_of(REGISTRIES["gradients"], "sum")] = Field(
        default="sum", description="what is done about conflicts between tasks: sum, pcgrad, cagrad, gem or agem"
    )
    gradient_options: dict[str, Real] = Field(
        default={}, description="constants of the method that gradients names, such as c of cagrad"
    )
    memory: Annotated[str, one_of(MEMORIES)] = Field(
        default="reservoir", description="how GEM keeps examples of a task: reservoir or ring"
    )
    memory_size: Count = Field(default=256, description="examples that GEM keeps of a task")
    memory_batch: Size = Field(default=32, description="of them, those that a step's constraint is computed on")
    gem_margin: Factor = Field(default=0.0, description="lower bound of GEM's dual variables")
    cosine_every: Count | None = Field(default=None, description="record the cosines of the tasks' gradients, in steps")

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        has_several = len(self.tasks) > 1
        if self.gradients != "sum" and not has_several:
            yield f"gradients: {self.gradients} needs at least two tasks"
        for name, default in (("weighting", "fixed"), ("task_weights", ()), ("cosine_every", None)):
            if getattr(self, name) != default and not (has_several and self.scheme == "unified"):
                yield f"{name}: needs scheme 'unified' and at least two tasks"
        try:
            check_options(self.gradients, self.gradient_options, len(self.tasks))
        except ValueError as error:
            yield f"gradient_options: {error}"
        if self.gradients in WEIGHTS and self.scheme != "unified":
            yield f"gradients: {self.gradients} needs several tasks in a step; scheme is {self.scheme!r}, not 'unified'"
        if self.task_weights and len(self.task_weights) != len(self.tasks):
            yield f"task_weights: {len(self.task_weights)} weights for {len(self.tasks)} tasks"
        if self.task_weights and self.weighting != "fixed":
            yield f"task_weights: are fixed, but weighting is {self.weighting!r}"
        if self.steps_per_epoch is not None and self.scheme == "in_turn" and has_several:
            yield "steps_per_epoch: an epoch of scheme 'in_turn' is one pass over every task"
        if isinstance(self.batch_size, dict) and set(self.batch_size) != set(self.tasks):
            yield f"batch_size: names {', '.join(self.batch_size)}; the tasks are {', '.join(self.tasks)}"
        if isinstance(self.r_drop, dict) and not (self.r_drop and set(self.r_drop) <= set(self.tasks)):
            named = ", ".join(self.r_drop) or "none"
            yield f"r_drop: names {named}; the tasks are {', '.join(self.tasks)}"
        smallest = min(self.batch_sizes.values())
        if self.accumulation > smallest:
            yield f"accumulation: {self.accumulation} parts of a batch of {smallest} examples"

    def _without_effect(self) -> set[str]:
        unused = super()._without_effect()
        if self.gradients not in PROJECTIONS:
            unused |= {"memory", "memory_size", "memory_batch", "gem_margin"}
        return unused

    @property
    def batch_sizes(self) -> dict[str, int]:
        """Training task -> examples of its batches."""
        if isinstance(self.batch_size, dict):
            return {task: self.batch_size[task] for task in self.tasks}
        return dict.fromkeys(self.tasks, self.batch_size)

    @property
    def r_drops(self) -> dict[str, float]:
        """Training task -> weight of its divergence, 0 for a task that `r_drop` does not name."""
        if isinstance(self.r_drop, dict):
            return {task: self.r_drop.get(task, 0.0) for task in self.tasks}
        return dict.fromkeys(self.tasks, self.r_drop)
