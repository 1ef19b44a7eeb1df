"""RunConfig: the fields of a run in the order of a run, what follows from them, the name that they give it."""

import hashlib
import json
import reprlib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SerializationInfo,
    ValidationError,
    model_validator,
)

from mtbert.bert import MINILM, NAMED_ENCODERS, content_name
from mtbert.config.checks import problems
from mtbert.config.values import (
    OWN_CODE,
    REGISTRIES,
    ConfigError,
    Count,
    Dropout,
    EncoderName,
    Factor,
    FactorByTask,
    Factors,
    Names,
    PlanText,
    Real,
    Size,
    SizeByTask,
    Tasks,
    one_of,
)
from mtbert.data import TASKS
from mtbert.gradients import PROJECTIONS
from mtbert.metrics import OWN_METRICS, metrics_for
from mtbert.names import nearest
from mtbert.optim import SCHEDULES
from mtbert.samplers import SAMPLERS
from mtbert.sharing import ADAPTERS, Level, SharingPlan
from mtbert.sources import SourceError, is_own, source_digest

LONGEST = 2000  # characters of an error, which quotes what it is about


def _teachers(value: Any) -> Any:
    """Lists of teachers as tuples of configurations, whose fields may be given instead."""
    if not isinstance(value, list | tuple):
        raise ValueError(f"a list of configurations is needed, got {reprlib.repr(value)}")
    for one in value:
        if not isinstance(one, dict | RunConfig):
            raise ValueError(
                f"a teacher is a RunConfig or its fields, got {reprlib.repr(one)}; names such as "
                "'hybrids.yaml:3-bert' are read in grids alone"
            )
    return tuple(one if isinstance(one, RunConfig) else RunConfig.from_params(one) for one in value)


def _without_defaults(config: "RunConfig", info: SerializationInfo) -> dict[str, Any]:
    return config.model_dump(mode=info.mode, exclude_defaults=True)


Teachers = tuple[Annotated["RunConfig", PlainSerializer(_without_defaults)], ...]


class RunConfig(BaseModel):
    """One training run. Where the data lie and which device computes are no part of it: they do not name a run."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    # What is trained on, and what is scored.
    corpus: Literal["demo", "course"] = Field(
        default="demo", description="embedded demo corpus, or the course's datasets"
    )
    tasks: Tasks = Field(default=("sst",), description="the tasks to train on")
    score_tasks: Tasks = Field(default=(), description="tasks scored on dev besides those trained on")
    train_rows: Count | None = Field(
        default=None, description="a random subset of each task's training rows; none: all"
    )
    augment: Literal["none", "swap"] = Field(
        default="none", description="swap: every training pair is also there with its sentences swapped"
    )

    # Encoder: what turns tokens into an embedding.
    encoder: EncoderName = Field(
        default="minilm", description="'minilm', 'mpnet', a checkpoint folder, or a name on the hub"
    )
    weights: Literal["pretrained", "random"] = Field(
        default="pretrained", description="random: the control, same sizes"
    )
    layers: Size | None = Field(default=None, description="use the first n layers of the encoder; none: all")
    max_length: int = Field(default=512, ge=4, le=2**16, description="tokens of a sequence, [CLS] and [SEP] included")
    attention_dropout: Dropout | None = Field(
        default=None, description="of the attention weights; none: the checkpoint's; 0 saves much time on long texts"
    )
    pooling: Literal["pooler", "cls", "mean"] = Field(default="mean", description="the embedding of a sentence")

    # Sharing: which layers of the encoder the tasks share, and what each has to itself.
    frozen: bool = Field(
        default=False,
        description="the plan 'frozen': train only heads and adapters; a run has another id than with plan: frozen",
    )
    plan: PlanText = Field(
        default="1-bert", description="what is frozen, shared, individual: a preset or segments such as S4 I2"
    )
    soft_sharing: Literal["none", "l2", "trace"] = Field(
        default="none", description="what pulls the tasks' individual copies together"
    )
    soft_strength: Factor = Field(default=0.01, gt=0, description="factor of that pull in the loss")

    adapter: Annotated[str, one_of(ADAPTERS, "none", source=OWN_CODE)] = Field(
        default="none", description="of each task's own; houlsby_pals: as the code of the PALs' authors has Houlsby's"
    )
    adapter_size: Size = Field(default=204, description="s, the width inside an adapter")
    adapter_heads: Size = Field(
        default=12, description="attention heads of a PAL, each of adapter_size / adapter_heads, rounded down"
    )

    # Heads: what turns embeddings into an output.
    pairs: str = Field(
        default="joint",
        description="joint: one sequence with [SEP] (cross-encoder); or, of embeddings of the two sentences "
        "(bi-encoder), some joined by +: sum, concat, product (Hadamard), difference (absolute), cosine",
    )
    pos_features: bool = Field(
        default=False, description="append the shares of the part-of-speech tags to the features"
    )
    similarity: Literal["mse", "sigmoid_cosine"] = Field(
        default="mse",
        description="of a pair: squared error of a head, or of sigmoid(cosine of the embeddings) on the labels' scale",
    )
    head_layers: int = Field(default=1, ge=1, le=100, description="linear layers of a head, ReLU between them")
    head_width: Size = Field(default=256, description="of a head's hidden layers")
    head_norm: bool = Field(default=False, description="layer norm of the embeddings in front of the heads")
    head_dropout: Dropout = Field(default=0.1, description="dropout of the heads")
    dropout_place: Literal["before", "inside", "after"] = Field(
        default="before", description="before the head, before each of its linear layers, or after the last one"
    )
    feeds: Names = Field(
        default=(), description="progressive heads: 'sst>quora' shows the sst head's output to quora's head"
    )
    upstream: Literal["frozen", "slow", "free"] = Field(
        default="frozen",
        description="weights of the head that feeds while the fed task trains; slow: a tenth of the rate",
    )
    combine: Literal["concat", "attention"] = Field(
        default="concat", description="how a head takes in what is fed to it"
    )

    # Steps: which tasks a step trains, on how many examples, and the sum of their losses.
    scheme: Literal["sampled", "in_turn", "unified"] = Field(
        default="sampled",
        description="a step trains one sampled task, the tasks pass by pass in turn, or a batch of each",
    )
    sampling: Annotated[str, one_of(SAMPLERS, source=OWN_CODE)] = Field(
        default="proportional",
        description="which task a sampled step draws, by the numbers of examples",
    )
    epochs: int = Field(default=3, ge=1, le=1000, description="of training on the tasks")
    steps_per_epoch: int | None = Field(
        default=None, ge=1, le=10**7, description="none: as many batches as the datasets hold"
    )
    batch_size: SizeByTask = Field(
        default=32, description="examples of a step, of each task in a unified one; or a number for each task"
    )
    accumulation: Size = Field(default=1, description="parts that a batch is computed in, to save memory")
    precision: Literal["fp32", "bf16"] = Field(default="fp32", description="bf16: autocast, weights stay fp32")
    r_drop: FactorByTask = Field(
        default=0.0,
        description="weight of the divergence between two passes with other dropout masks; or a weight for each task",
    )
    weighting: Literal["fixed", "uncertainty", "loss_ratio"] = Field(
        default="fixed", description="of a unified step's losses"
    )
    task_weights: Factors = Field(
        default=(), description="fixed weights of the losses, in the order of tasks; empty: all 1"
    )

    # Gradients: how those of a step's tasks combine.
    gradients: Annotated[str, one_of(REGISTRIES["gradients"], "sum", source=OWN_CODE)] = Field(
        default="sum", description="what is done about conflicts between tasks: sum, pcgrad, cagrad, gem or agem"
    )
    gradient_options: dict[str, Real] = Field(
        default={}, description="constants of the method that gradients names: c of cagrad, margin of gem"
    )
    memory_size: Count = Field(default=256, description="examples that GEM keeps of a task")
    memory_batch: Size = Field(default=32, description="of them, those that a step's constraint is computed on")
    cosine_every: Count | None = Field(
        default=None, description="every so many steps, record the cosines of the tasks' gradients; none: never"
    )

    # Update: AdamW, its learning rate, averaged weights.
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
        description="decay of an exponential moving average of the weights, which is scored and kept; it begins with "
        "those after the first step; none: off",
    )

    # Masked language modelling before or after the training on the tasks.
    pretrain: Literal["none", "before", "after", "both"] = Field(
        default="none", description="masked language modelling on the texts, before or after training on the tasks"
    )
    pretrain_epochs: int = Field(default=1, ge=1, le=1000, description="epochs of masked language modelling")
    pretrain_learning_rate: Real = Field(default=5e-5, gt=0, description="the peak of masked language modelling")

    # Evaluation, and which step's weights are kept.
    evals_per_epoch: int = Field(
        default=1,
        ge=1,
        le=1000,
        description="points of the learning curve in an epoch; with log spacing times epochs in all",
    )
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

    # Teachers, from whose predictions the run learns.
    teachers: Annotated[Teachers, BeforeValidator(_teachers)] = Field(
        default=(), description="runs whose mean prediction this one learns. A grid names them"
    )
    distil: Literal["teacher", "annealed"] | Annotated[Real, Field(ge=0, le=1)] = Field(
        default="teacher", description="weight of the teachers against the labels; teacher: 1; annealed: from 1 to 0"
    )
    temperature: Real = Field(
        default=1.0, gt=0, le=100, description="of class probabilities, the teachers' and the student's"
    )

    # Chance.
    seed: int = Field(default=1, ge=0, lt=2**32, description="of new weights, batches and dropout")

    @model_validator(mode="after")
    def _consistent(self) -> "RunConfig":
        if problem := next(problems(self), None):
            raise ValueError(problem)
        return self

    @property
    def scored(self) -> tuple[str, ...]:
        """The tasks scored on the dev split: the training tasks, which select the best model, then `score_tasks`."""
        return tuple(dict.fromkeys(self.tasks + self.score_tasks))

    @property
    def plan_text(self) -> str:
        """The sharing plan, `frozen` taken into account."""
        return "frozen" if self.frozen else self.plan

    @property
    def used_levels(self) -> dict[str, Level]:
        """Name -> level of the plan of the scored tasks, without the pooler where `pooling` does not read it.

        Without `layers` the plan has as many as it names. Raises PlanError if it cannot be read.
        """
        levels = SharingPlan.parse(self.plan_text, self.scored, self.layers).levels
        if self.pooling != "pooler":
            del levels["pooler"]
        return levels

    @property
    def encoder_is_frozen(self) -> bool:
        """Whether training leaves every level of the encoder that is read as it is; adapters may train."""
        return all(level.is_frozen for level in self.used_levels.values())

    @property
    def has_deep_heads(self) -> bool:
        """Whether a head has several layers, its own or attention in front of them, and starts as torch's do."""
        return self.head_layers > 1 or (bool(self.feeds) and self.combine == "attention")

    @property
    def is_bi_encoder(self) -> bool:
        """Whether the sentences of a pair are encoded apart."""
        return self.pairs != "joint"

    def encodings(self, task: str) -> int:
        """k, the embeddings of an example of a task: 2 for a pair whose sentences are encoded apart, else 1."""
        return 2 if self.is_bi_encoder and TASKS[task].is_pair else 1

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

    @classmethod
    def from_params(cls, params: dict[str, Any]) -> "RunConfig":
        """Build a configuration from papermill parameters or a YAML mapping.

        Raises ConfigError naming every unknown key (with the nearest known one), wrong type and bad value; DataError
        for a bad file of a user's task.
        """
        len(TASKS)  # reads users' tasks, outside of the validation, whose errors are about this configuration
        try:
            return cls.model_validate(params)
        except ValidationError as error:
            raise ConfigError("; ".join(map(_explain, error.errors()))[:LONGEST]) from None

    def but(self, **changes: Any) -> "RunConfig":
        """A copy with some fields changed, checked again."""
        return RunConfig.from_params({**self.model_dump(), **changes})

    @property
    def changed_fields(self) -> dict[str, Any]:
        """The fields that differ from their defaults and may change the numbers, as JSON; of teachers the digests."""
        fields = self.model_dump(mode="json", exclude_defaults=True, exclude=self._without_effect())
        if self.teachers:
            fields["teachers"] = self._teacher_digests
        return fields

    def _without_effect(self) -> set[str]:
        """Some fields about a part that this run does not have; it is the same run whatever they say.

        Others, such as `warmup` without a schedule, name another run that trains alike.
        """
        unused = set()
        if self.scheme != "sampled" or len(self.tasks) == 1:
            unused |= {"sampling"}
        if self.adapter == "none":
            unused |= {"adapter_size", "adapter_heads"}
        if self.soft_sharing == "none":
            unused |= {"soft_strength"}
        if not self.has_deep_heads:
            unused |= {"head_width"}
        if not self.feeds:
            unused |= {"upstream", "combine"}
        if self.gradients not in PROJECTIONS:
            unused |= {"memory_size", "memory_batch"}
        if self.pretrain == "none":
            unused |= {"pretrain_epochs", "pretrain_learning_rate"}
        return unused

    @property
    def _teacher_digests(self) -> list[str]:
        return [teacher.digest for teacher in self.teachers]

    @property
    def chosen_metrics(self) -> dict[str, str]:
        """Training task -> the metric by which its kept model is chosen, where it is not the first of its kind."""
        chosen = {}
        for task in self.tasks if self.keep != "last" else ():
            _, *others = metrics_for(TASKS[task].kind, TASKS[task].num_classes)
            if TASKS[task].metric in others:  # one of a user's own is `own_code`
                chosen[task] = TASKS[task].metric
        return chosen

    @property
    def own_code(self) -> dict[str, str]:
        """Registered code from outside the package that the run uses, such as 'adapter mine' -> digest of its source.

        Raises ConfigError for code without Python source.
        """
        used = []
        for field, registry in REGISTRIES.items():
            used += [(field, name, registry) for name in getattr(self, field).split("+")]
        used += [("metric", TASKS[task].metric, OWN_METRICS) for task in self.scored]
        found = {}
        for field, name, registry in used:
            if name in registry and is_own(registry[name]):
                try:
                    found[f"{field} {name}"] = source_digest(registry[name])
                except SourceError as error:
                    raise ConfigError(f"{field}: {error}") from error
        return found

    @property
    def digest(self) -> str:
        """10 hex digits that name this configuration.

        Only fields that differ from their defaults count, so that a field added later, whose default keeps the old
        behaviour, renames no stored run. A default must therefore never change its meaning. Of an encoder in a folder
        the content counts, not the path; 'mpnet' and a folder with its files are one encoder. A name on the hub means
        what is published under it. Of teachers their digests count. Of registered code from outside the package the
        source counts; raises ConfigError where there is none.
        Heads of several layers were drawn from N(0, .02) until version 0.10; with torch's default they are other runs.
        """
        fields = self.changed_fields
        if self.has_deep_heads:
            fields["deep_heads"] = "torch"
        if self.encoder not in NAMED_ENCODERS and Path(self.encoder).is_dir():
            fields["encoder"] = content_name(self.encoder)
            if fields["encoder"] == MINILM:
                del fields["encoder"]
        if chosen := self.chosen_metrics:
            fields["metrics"] = chosen
        if own := self.own_code:
            fields["own_code"] = own
        text = json.dumps(fields, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    def __hash__(self) -> int:
        return hash(json.dumps(self.model_dump(mode="json"), sort_keys=True))  # a mapping of batch sizes has none

    def __str__(self) -> str:
        fields = self.model_dump(mode="json") | {"teachers": self._teacher_digests}
        return "\n".join(f"{name}: {value}" for name, value in fields.items())


def _explain(problem: dict) -> str:
    """A problem that pydantic found, as a user reads it."""
    key = str(problem["loc"][0]) if problem["loc"] else "configuration"
    if problem["type"] == "extra_forbidden":
        near = nearest(key, RunConfig.model_fields)
        hint = f"; did you mean {near}?" if near else ""
        return f"{key}: unknown key{hint}"
    if problem["type"] == "value_error":
        message = problem["msg"].removeprefix("Value error, ")
        return f"{key}: {message}" if problem["loc"] else message  # a check of several fields names them itself
    tasks = [part for part in problem["loc"][1:] if part in TASKS]  # of a value for each task
    where = f"for {tasks[0]}: " if tasks else ""
    return f"{key}: {where}{problem['msg']}, got {reprlib.repr(problem['input'])}"
