"""RunConfig: everything that decides the numbers of a run; strict, typed, printable, hashable."""

import difflib
import hashlib
import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

TASK_NAMES = ("sst", "cfimdb", "quora", "sts")
TaskName = Literal["sst", "cfimdb", "quora", "sts"]


class ConfigError(ValueError):
    """A configuration with an unknown key, a wrong type, or a value out of its range; the message names the key."""


def _number(value: Any) -> Any:
    """YAML reads `1e-5` as a string; take it for the number it says."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _sequence(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


Real = Annotated[float, BeforeValidator(_number)]
Tasks = Annotated[tuple[TaskName, ...], BeforeValidator(_sequence)]


class RunConfig(BaseModel):
    """One training run. Where the data lie and which device computes are no part of it: they do not name a run."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    corpus: Literal["demo", "course"] = Field("demo", description="embedded demo corpus, or the course's datasets")
    tasks: Tasks = Field(("sst",), description="the task to train on")
    score_tasks: Tasks = Field((), description="tasks scored on dev; empty: those trained on")

    encoder: str = Field("minilm", min_length=1, description="'minilm', a checkpoint folder, or a name on the hub")
    weights: Literal["pretrained", "random"] = Field("pretrained", description="random: the control, same sizes")
    frozen: bool = Field(False, description="train the heads only, on features computed once")
    pooling: Literal["pooler", "cls", "mean"] = Field("mean", description="what stands for a sentence")
    pairs: Literal["joint", "sum", "concat"] = Field(
        "joint", description="joint: one sequence with [SEP]; sum, concat: of the two sentences' embeddings"
    )
    head_dropout: Real = Field(0.1, ge=0, lt=1, description="dropout in front of the linear head")
    attention_dropout: Real | None = Field(
        None,
        ge=0,
        lt=1,
        description="of the attention weights; none: the checkpoint's; 0 saves much time on long texts",
    )
    max_length: int = Field(512, ge=4, description="tokens of a sequence, [CLS] and [SEP] included")

    epochs: int = Field(3, ge=1)
    batch_size: int = Field(32, ge=1, description="examples of a step")
    learning_rate: Real = Field(1e-4, gt=0, description="the schedule's peak")
    schedule: Literal["none", "linear", "cosine", "onecycle"] = "linear"
    warmup: Real = Field(0.1, ge=0, lt=1, description="fraction of the steps")
    weight_decay: Real = Field(0.0, ge=0)
    max_grad_norm: Real | None = Field(None, gt=0, description="clip the gradient's norm; none: no clipping")
    precision: Literal["fp32", "bf16"] = Field("fp32", description="bf16: autocast, weights stay fp32")
    evals_per_epoch: int = Field(1, ge=1, description="points of the learning curve")
    train_rows: int | None = Field(None, ge=1, description="a random subset of the training rows; none: all")
    seed: int = Field(1, ge=0)

    @model_validator(mode="after")
    def _consistent(self) -> "RunConfig":
        if len(self.tasks) != 1:
            raise ValueError(f"tasks: a run trains on exactly one task, got {list(self.tasks)}")
        if len(set(self.score_tasks)) != len(self.score_tasks):
            raise ValueError(f"score_tasks: a task stands twice in {list(self.score_tasks)}")
        return self

    @property
    def train_task(self) -> str:
        """The task that the run trains on."""
        return self.tasks[0]

    @property
    def scored(self) -> tuple[str, ...]:
        """The tasks scored on the dev split; the training task, which selects the best model, is always among them."""
        return tuple(dict.fromkeys(self.tasks + self.score_tasks))

    @classmethod
    def from_params(cls, params: dict[str, Any]) -> "RunConfig":
        """Build a configuration from papermill parameters or a YAML mapping.

        Raises ConfigError naming every unknown key (with the nearest known one), wrong type and bad value.
        """
        try:
            return cls.model_validate(params)
        except ValidationError as error:
            raise ConfigError("; ".join(_explain(problem) for problem in error.errors())) from None

    def but(self, **changes: Any) -> "RunConfig":
        """A copy with some fields changed, checked again."""
        return RunConfig.from_params({**self.model_dump(), **changes})

    @property
    def digest(self) -> str:
        """10 hex digits that name this configuration.

        Only fields that differ from their defaults count, so that a field added later, whose default keeps the old
        behaviour, renames no stored run. A default must therefore never change its meaning.
        """
        text = json.dumps(self.model_dump(mode="json", exclude_defaults=True), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    def __str__(self) -> str:
        return "\n".join(f"{name}: {value}" for name, value in self.model_dump(mode="json").items())


def _explain(problem: dict) -> str:
    key = ".".join(str(part) for part in problem["loc"][:1]) or "configuration"
    if problem["type"] == "extra_forbidden":
        near = difflib.get_close_matches(key, RunConfig.model_fields, n=1)
        return f"{key}: unknown key" + (f"; did you mean {near[0]}?" if near else "")
    if problem["type"] == "value_error":
        return problem["msg"].removeprefix("Value error, ")
    return f"{key}: {problem['msg']}, got {problem['input']!r}"
