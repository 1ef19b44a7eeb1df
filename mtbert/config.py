"""RunConfig: everything that decides the numbers of a run; strict, typed, printable, hashable."""

import difflib
import hashlib
import itertools
import json
import re
import reprlib
from collections import ChainMap
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SerializationInfo,
    ValidationError,
    model_validator,
)

from mtbert.bert import MINILM, content_digest
from mtbert.data import OWN_METRICS, TASKS
from mtbert.gradients import MEMORIES, PROJECTIONS, WEIGHTS, check_options
from mtbert.optim import SCHEDULES
from mtbert.pairs import PAIR_FEATURES
from mtbert.samplers import SAMPLERS
from mtbert.sharing import ADAPTERS, PlanError, SharingPlan
from mtbert.sources import SourceError, is_own, source_digest

NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|nan|[-+]?inf")  # float() takes more: 1_0
LONGEST = 2000  # characters of an error, which quotes what it is about
# Field -> where its names come from; what is registered there later is known, too.
REGISTRIES: dict[str, Mapping[str, Any]] = {
    "adapter": ADAPTERS,
    "gradients": ChainMap(WEIGHTS, PROJECTIONS),
    "sampling": SAMPLERS,
    "pairs": PAIR_FEATURES,
}


# Fields of version 0.10 and earlier, which stored runs name -> the values under which a run is as it is without them.
REMOVED: dict[str, tuple] = {
    "adapter_bias": (True,),
    "adapter_layers": ([], ()),
    "upstream_rate": (0.1,),
    "mask_rate": (0.15,),
    "weight_decay_on": ("all",),
    "tensorboard": (False, True),
}


class ConfigError(ValueError):
    """A configuration with an unknown key, a wrong type, or a value out of its range; the message names the key."""


def _number(value: Any) -> Any:
    """YAML reads `1e-5` as a string; take it for the number it says."""
    return float(value) if isinstance(value, str) and NUMBER.fullmatch(value) else value


def _sequence(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _one_of(registry: Collection[str], *more: str, source: str = "") -> AfterValidator:
    """A name that a registry has when it is asked, or one of some more; the error for another gives the nearest.

    source: where names come from, for the error.
    """

    def check(name: str) -> str:
        names = [*more, *registry]
        if name in names:
            return name
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(names)}"
        raise ValueError("; ".join(filter(None, (f"{name!r} is not known", source, hint))))

    return AfterValidator(check)


def _teachers(value: Any) -> Any:
    """Lists of teachers as tuples of configurations, whose fields may be given instead."""
    if isinstance(value, dict):
        return {task: _teachers(some) for task, some in value.items()}
    if not isinstance(value, list | tuple):
        raise ValueError(f"a list of configurations is needed, or one for each task, got {reprlib.repr(value)}")
    for one in value:
        if not isinstance(one, dict | RunConfig):
            raise ValueError(
                f"a teacher is a RunConfig or its fields, got {reprlib.repr(one)}; names such as "
                "'hybrids.yaml:3-bert' are read in grids alone"
            )
    return tuple(one if isinstance(one, RunConfig) else RunConfig.from_params(one) for one in value)


def _without_defaults(config: "RunConfig", info: SerializationInfo) -> dict[str, Any]:
    return config.model_dump(mode=info.mode, exclude_defaults=True)


TaskName = Annotated[str, _one_of(TASKS, source="MTBERT_TASKS names the folder of tasks of your own")]
Real = Annotated[float, BeforeValidator(_number)]
Tasks = Annotated[tuple[TaskName, ...], BeforeValidator(_sequence)]
# Far above any use, and below what breaks later: a width that no memory holds, a loop that never ends.
Encoder = Annotated[str, Field(min_length=1, max_length=1000, pattern=r"^[^\x00-\x1f]*$")]
Plan = Annotated[str, Field(max_length=1000)]
Dropout = Annotated[Real, Field(ge=0, le=0.9)]
Factor = Annotated[Real, Field(ge=0, le=1e6)]
Size = Annotated[int, Field(ge=1, le=2**16)]
Count = Annotated[int, Field(ge=1, le=10**9)]
Reals = Annotated[tuple[Annotated[Factor, Field(gt=0)], ...], BeforeValidator(_sequence)]
Names = Annotated[tuple[str, ...], BeforeValidator(_sequence)]
Teachers = tuple[Annotated["RunConfig", PlainSerializer(_without_defaults)], ...]


class RunConfig(BaseModel):
    """One training run. Where the data lie and which device computes are no part of it: they do not name a run."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    corpus: Literal["demo", "course"] = Field(
        default="demo", description="embedded demo corpus, or the course's datasets"
    )
    tasks: Tasks = Field(default=("sst",), description="the tasks to train on")
    score_tasks: Tasks = Field(default=(), description="tasks scored on dev; empty: those trained on")

    encoder: Encoder = Field(default="minilm", description="'minilm', a checkpoint folder, or a name on the hub")
    weights: Literal["pretrained", "random"] = Field(
        default="pretrained", description="random: the control, same sizes"
    )
    layers: Size | None = Field(default=None, description="use the first n layers of the encoder; none: all")
    frozen: bool = Field(default=False, description="train the heads only; another name of the plan 'frozen'")
    plan: Plan = Field(
        default="1-bert", description="what is frozen, shared, individual: a preset or segments such as S4 I2"
    )
    soft_sharing: Literal["none", "l2", "trace"] = Field(
        default="none", description="what pulls the tasks' individual copies together"
    )
    soft_strength: Factor = Field(default=0.01, gt=0, description="factor of that pull in the loss")

    adapter: Annotated[str, _one_of(ADAPTERS, "none")] = Field(
        default="none", description="of each task's own; houlsby_pals: as the code of the PALs' authors has Houlsby's"
    )
    adapter_size: Size = Field(default=204, description="s, the width inside an adapter")
    adapter_heads: Size = Field(
        default=12, description="attention heads of a PAL, each of adapter_size / adapter_heads, rounded down"
    )

    pooling: Literal["pooler", "cls", "mean"] = Field(default="mean", description="the embedding of a sentence")
    pairs: str = Field(
        default="joint",
        description="joint: one sequence with [SEP] (cross-encoder); or, of embeddings of the two sentences "
        "(bi-encoder), some joined by +: sum, concat, product (Hadamard), difference (absolute), cosine",
    )
    pos_features: bool = Field(
        default=False, description="append the shares of the part-of-speech tags to the features"
    )
    similarity: Literal["mse", "sigmoid_cosine"] = Field(
        default="mse", description="STS: squared error of a head, or of 5 sigmoid(cosine of the two embeddings)"
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
    attention_dropout: Dropout | None = Field(
        default=None, description="of the attention weights; none: the checkpoint's; 0 saves much time on long texts"
    )
    max_length: int = Field(default=512, ge=4, le=2**16, description="tokens of a sequence, [CLS] and [SEP] included")

    scheme: Literal["sampled", "in_turn", "unified"] = Field(
        default="sampled",
        description="a step trains one sampled task, the tasks pass by pass in turn, or a batch of each",
    )
    sampling: Annotated[str, _one_of(SAMPLERS)] = Field(
        default="proportional",
        description="which task a sampled step draws, by numbers of examples; loss: by the losses so far",
    )
    steps_per_epoch: int | None = Field(
        default=None, ge=1, le=10**7, description="none: as many batches as the datasets hold"
    )
    weighting: Literal["fixed", "uncertainty", "loss_ratio"] = Field(
        default="fixed", description="of a unified step's losses"
    )
    task_weights: Reals = Field(
        default=(), description="fixed weights of the losses, in the order of tasks; empty: all 1"
    )
    gradients: Annotated[str, _one_of(REGISTRIES["gradients"], "sum")] = Field(
        default="sum", description="what is done about conflicts between tasks: sum, pcgrad, cagrad, gem or agem"
    )
    gradient_options: dict[str, Real] = Field(
        default={}, description="constants of the method that gradients names, such as c of cagrad"
    )
    memory: Annotated[str, _one_of(MEMORIES)] = Field(
        default="reservoir", description="how GEM keeps examples of a task: reservoir or ring"
    )
    memory_size: Count = Field(default=256, description="examples that GEM keeps of a task")
    memory_batch: Size = Field(default=32, description="of them, those that a step's constraint is computed on")
    gem_margin: Factor = Field(default=0.0, description="lower bound of GEM's dual variables")
    cosine_every: Count | None = Field(default=None, description="record the cosines of the tasks' gradients, in steps")

    pretrain: Literal["none", "before", "after", "both"] = Field(
        default="none", description="masked language modelling on the texts, before or after training on the tasks"
    )
    pretrain_epochs: int = Field(default=1, ge=1, le=1000, description="epochs of masked language modelling")
    pretrain_learning_rate: Real = Field(default=5e-5, gt=0, description="the peak of masked language modelling")

    epochs: int = Field(default=3, ge=1, le=1000, description="of training on the tasks")
    batch_size: Size | dict[TaskName, Size] = Field(
        default=32, description="examples of a step, of each task in a unified one; or a number for each task"
    )
    accumulation: Size = Field(default=1, description="parts that a batch is computed in, to save memory")
    checkpoint_layers: bool = Field(
        default=False,
        description="compute each layer again in the backward pass: saves memory, takes a third more time",
    )
    learning_rate: Real = Field(default=1e-4, gt=0, description="the schedule's peak")
    schedule: Annotated[str, _one_of(SCHEDULES)] = Field(
        default="linear",
        description="of the learning rate: none, linear, cosine, onecycle, each but none with a warm-up",
    )
    warmup: Real = Field(default=0.1, ge=0, lt=1, description="fraction of the steps")
    layer_decay: Real = Field(
        default=1.0, gt=0, le=1, description="factor of the learning rate from a layer to the one below"
    )
    weight_decay: Real = Field(default=0.0, ge=0, description="of AdamW, times the learning rate in each step")
    max_grad_norm: Factor | None = Field(default=None, gt=0, description="clip the gradient's norm; none: no clipping")
    teachers: Annotated[Teachers | dict[TaskName, Teachers], BeforeValidator(_teachers)] = Field(
        default=(), description="runs whose mean prediction this one learns; or some for each task. A grid names them"
    )
    distil: Literal["teacher", "annealed"] | Annotated[Real, Field(ge=0, le=1)] = Field(
        default="teacher", description="weight of the teachers against the labels; teacher: 1; annealed: from 1 to 0"
    )
    temperature: Real = Field(
        default=1.0, gt=0, le=100, description="of class probabilities, the teachers' and the student's"
    )
    r_drop: Factor = Field(
        default=0.0, description="weight of the divergence between two passes with other dropout masks"
    )
    ema: Real | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="decay of the moving average of the weights, which is scored and kept; none: off",
    )
    precision: Literal["fp32", "bf16"] = Field(default="fp32", description="bf16: autocast, weights stay fp32")
    evals_per_epoch: int = Field(default=1, ge=1, le=1000, description="points of the learning curve")
    eval_spacing: Literal["even", "log"] = Field(
        default="even",
        description="log: every point of the curve at half the steps of the next one, the last at the end",
    )
    keep: Literal["last", "best", "best_per_task"] = Field(
        default="best", description="the model kept: of the last step, of the best overall dev score, or task by task"
    )
    curve_rows: Count | None = Field(
        default=None,
        description="dev examples of a task at a point of the learning curve, by which keep chooses; none: all",
    )
    train_rows: Count | None = Field(
        default=None, description="a random subset of each task's training rows; none: all"
    )
    seed: int = Field(default=1, ge=0, lt=2**32, description="of new weights, batches and dropout")

    @model_validator(mode="before")
    @classmethod
    def _without_removed(cls, fields: Any) -> Any:
        if not isinstance(fields, dict):
            return fields
        return {name: value for name, value in fields.items() if value not in REMOVED.get(name, ())}

    @model_validator(mode="after")
    def _consistent(self) -> "RunConfig":
        # The first problem ends the search: what comes later may rely on what came before.
        checks = (self._task_problems, self._model_problems, self._step_problems, self._teacher_problems)
        for problem in itertools.chain.from_iterable(check() for check in checks):
            raise ValueError(problem)
        return self

    def _task_problems(self) -> Iterator[str]:
        if not self.tasks:
            yield "tasks: at least one task to train on is needed"
        for name in ("tasks", "score_tasks"):
            if len(set(getattr(self, name))) != len(getattr(self, name)):
                yield f"{name}: a task is given twice in {reprlib.repr(list(getattr(self, name)))}"
        if self.frozen and self.plan != "1-bert":
            yield f"frozen: is the plan 'frozen', and plan is {self.plan!r}; set one of the two"
        try:
            plan = SharingPlan.parse(self.plan_text, self.scored)
        except PlanError as error:
            yield f"plan: {error}"
        has_copies = len(self.tasks) > 1 and any(level.mode == "I" for level in plan.levels.values())
        if self.soft_sharing != "none" and not has_copies:
            yield f"soft_sharing: the plan {self.plan_text!r} has no individual copies of several training tasks"

    def _model_problems(self) -> Iterator[str]:
        parts = self.pairs.split("+")
        if self.two_encodings and (set(parts) - PAIR_FEATURES.keys() or len(set(parts)) < len(parts)):
            yield f"pairs: {self.pairs!r} is neither 'joint' nor some of {', '.join(PAIR_FEATURES)} joined by +"
        if self.adapter == "pal" and self.adapter_heads > self.adapter_size:
            yield f"adapter_heads: {self.adapter_heads} heads are more than adapter_size {self.adapter_size}"
        if self.similarity == "sigmoid_cosine" and not self.two_encodings:
            yield "similarity: sigmoid_cosine compares two embeddings, but pairs is 'joint'"
        fixed = self._encoder_is_fixed and self.adapter == "none" and not self.head_norm
        if self.similarity == "sigmoid_cosine" and fixed and any(TASKS[t].kind == "similarity" for t in self.tasks):
            yield "similarity: sigmoid_cosine has no parameters of its own, and on a frozen encoder nothing to train"
        fed: dict[str, set[str]] = {}
        for feed in self.feeds:
            upstream, arrow, task = feed.partition(">")
            if not arrow or {upstream, task} - set(self.scored) or upstream == task:
                yield f"feeds: {feed!r} is not 'upstream>task' with two different tasks of {list(self.scored)}"
            if upstream in fed.setdefault(task, set()):
                yield f"feeds: {feed!r} is given twice"
            if self.two_encodings and TASKS[upstream].is_pair and not TASKS[task].is_pair:
                yield f"feeds: {feed!r}: the head of a pair task needs two sentences, and {task} has one"
            for name in (upstream, task) if self.similarity == "sigmoid_cosine" else ():
                if TASKS[name].kind == "similarity":
                    yield f"feeds: {feed!r}: with similarity sigmoid_cosine {name} has no head"
            fed[task].add(upstream)
        while ready := [task for task in fed if not fed[task] & set(fed)]:
            for task in ready:
                del fed[task]
        if fed:
            yield f"feeds: {', '.join(sorted(fed))} feed one another in a circle"

    def _step_problems(self) -> Iterator[str]:
        several = len(self.tasks) > 1
        if self.gradients != "sum" and not several:
            yield f"gradients: {self.gradients} needs at least two tasks"
        for name, default in (("weighting", "fixed"), ("task_weights", ()), ("cosine_every", None)):
            if getattr(self, name) != default and not (several and self.scheme == "unified"):
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
        if self.steps_per_epoch is not None and self.scheme == "in_turn" and several:
            yield "steps_per_epoch: an epoch of scheme 'in_turn' is one pass over every task"
        if isinstance(self.batch_size, dict) and set(self.batch_size) != set(self.tasks):
            yield f"batch_size: names {', '.join(self.batch_size)}; the tasks are {', '.join(self.tasks)}"
        smallest = min(self.batch_sizes.values())
        if self.accumulation > smallest:
            yield f"accumulation: {self.accumulation} parts of a batch of {smallest} examples"
        whole = self.plan_text == "1-bert" and self.adapter == "none"
        if self.pretrain in ("after", "both") and not whole:
            yield f"pretrain: {self.pretrain!r} trains the one encoder of plan '1-bert' without adapters"
        if self.keep == "best_per_task" and (problem := self._what_ties_tasks()):
            yield f"keep: best_per_task needs tasks that share no trained weights, but {problem}"

    def _teacher_problems(self) -> Iterator[str]:
        if isinstance(self.teachers, dict) and (not self.teachers or set(self.teachers) - set(self.tasks)):
            yield f"teachers: name {list(self.teachers)}, not some of the tasks {list(self.tasks)}"
        for task, teachers in self.teachers_by_task.items():
            if not teachers:
                yield f"teachers: {task} has none; leave it out"
            if len(set(teachers)) != len(teachers):
                yield f"teachers: {task} has one twice in {[teacher.digest for teacher in teachers]}"
            for teacher in teachers:
                if task not in teacher.tasks:
                    yield f"teachers: {teacher.digest} is trained on {', '.join(teacher.tasks)}, not on {task}"
                if teacher.corpus != self.corpus:
                    yield f"teachers: {teacher.digest} is trained on corpus {teacher.corpus!r}, not {self.corpus!r}"
        for name in ("distil", "temperature") if not self.teachers else ():
            if getattr(self, name) != RunConfig.model_fields[name].default:
                yield f"{name}: needs teachers"

    def _what_ties_tasks(self) -> str:
        """Why the weights of the training tasks cannot come from different steps; empty if they can."""
        levels = SharingPlan.parse(self.plan_text, self.scored).levels
        for name, level in levels.items():
            for group in level.groups if level.mode != "F" else ():
                if len(group) > 1:
                    return f"{', '.join(group)} share {name} under plan {self.plan_text!r}"
        if self.feeds or self.head_norm:
            return "feeds and head_norm tie the heads to one another"
        return "pretraining trains them together" if self.pretrain in ("after", "both") else ""

    @property
    def _encoder_is_fixed(self) -> bool:
        """Whether the plan freezes every level that an embedding comes from."""
        levels = SharingPlan.parse(self.plan_text, self.scored).levels
        return all(level.mode == "F" for name, level in levels.items() if name != "pooler" or self.pooling == "pooler")

    @property
    def plan_text(self) -> str:
        """The sharing plan, `frozen` taken into account."""
        return "frozen" if self.frozen else self.plan

    @property
    def two_encodings(self) -> bool:
        """Whether the sentences of a pair are encoded apart."""
        return self.pairs != "joint"

    def encodings(self, task: str) -> int:
        """k, the embeddings of an example of a task: 2 for a pair whose sentences are encoded apart, else 1."""
        return 2 if self.two_encodings and TASKS[task].is_pair else 1

    @property
    def batch_sizes(self) -> dict[str, int]:
        """Training task -> examples of its batches."""
        size = self.batch_size
        return {task: size[task] if isinstance(size, dict) else size for task in self.tasks}

    @property
    def scored(self) -> tuple[str, ...]:
        """The tasks scored on the dev split: the training tasks, which select the best model, then `score_tasks`."""
        return tuple(dict.fromkeys(self.tasks + self.score_tasks))

    @property
    def teachers_by_task(self) -> dict[str, Teachers]:
        """Training task -> its teachers, of those that have some."""
        if isinstance(self.teachers, dict):
            return self.teachers
        return dict.fromkeys(self.tasks, self.teachers) if self.teachers else {}

    @property
    def generation(self) -> int:
        """0 without teachers, else one more than the teachers have."""
        teachers = itertools.chain.from_iterable(self.teachers_by_task.values())
        return max((1 + teacher.generation for teacher in teachers), default=0)

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
        fields = self.model_dump(mode="json", exclude_defaults=True, exclude=self._fields_without_effect)
        return fields | ({"teachers": self._teacher_digests} if self.teachers else {})

    @property
    def _fields_without_effect(self) -> set[str]:
        """Fields about a part that this run does not have."""
        unused: set[str] = set()
        if self.adapter == "none":
            unused |= {"adapter_size", "adapter_heads"}
        if self.soft_sharing == "none":
            unused |= {"soft_strength"}
        if self.head_layers == 1:
            unused |= {"head_width"}
        if not self.feeds:
            unused |= {"upstream", "combine"}
        if self.gradients not in PROJECTIONS:
            unused |= {"memory", "memory_size", "memory_batch", "gem_margin"}
        if self.pretrain == "none":
            unused |= {"pretrain_epochs", "pretrain_learning_rate"}
        return unused

    @property
    def _teacher_digests(self) -> list[str] | dict[str, list[str]]:
        if isinstance(self.teachers, dict):
            return {task: [teacher.digest for teacher in some] for task, some in self.teachers.items()}
        return [teacher.digest for teacher in self.teachers]

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
        the content counts, not the path; a name on the hub means what is published under it. Of teachers their digests
        count. Of registered code from outside the package the source counts; raises ConfigError where there is none.
        """
        fields = self.changed_fields
        if self.encoder != MINILM and Path(self.encoder).is_dir():
            fields["encoder"] = content_digest(self.encoder)
            if fields["encoder"] == content_digest(MINILM):
                del fields["encoder"]
        if self.own_code:
            fields["own_code"] = self.own_code
        text = json.dumps(fields, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    def __hash__(self) -> int:
        return hash(json.dumps(self.model_dump(mode="json"), sort_keys=True))  # a mapping of batch sizes has none

    def __str__(self) -> str:
        fields = self.model_dump(mode="json") | {"teachers": self._teacher_digests}
        return "\n".join(f"{name}: {value}" for name, value in fields.items())


SOURCES = {  # of fields: the papers of this project that propose or use them, and the publications of methods
    "tasks": "paper 000, section 4",
    "score_tasks": "paper 000, section 3.3",
    "frozen": "paper 000, section 3.3; paper 002, section 4.1",
    "plan": "paper 000, section 2 (frozen, shared, individual); paper 002, sections 4.2.1 to 4.4 (the presets)",
    "soft_sharing": "paper 001, section 3; Duong et al. 2015 (l2), Yang and Hospedales 2017 (trace)",
    "adapter": "paper 001, section 4.2, and paper 003, section 2.2.1 (PALs: Stickland and Murray 2019); "
    "Houlsby et al. 2019; Swietojanski and Renals 2014 (LHUC)",
    "adapter_size": "paper 001, section 5.2",
    "adapter_heads": "paper 001, section 5.2",
    "pooling": "paper 001, section 4.1, and paper 004, section 4 (pooler)",
    "pairs": "paper 000, section 3.3 (sum); paper 001, equation 4 (concat); paper 002, section 4.2 (product, joint)",
    "pos_features": "paper 001, section 5.3",
    "similarity": "paper 002, section 4.1 (mse); paper 001, equation 5 (sigmoid_cosine)",
    "head_layers": "paper 002, section 4.2; paper 004, section 4",
    "head_width": "paper 002, section 4.2",
    "head_norm": "paper 004, section 4",
    "head_dropout": "paper 000, section 3.3; paper 002, section 5.3",
    "dropout_place": "paper 002, section 5.3 (before, inside); paper 004, section 4 (after)",
    "feeds": "paper 004, section 4",
    "upstream": "paper 004, section 4 (frozen), section 5.2 (free), section 7 (slow)",
    "combine": "paper 004, section 4 (concat), section 7 (attention)",
    "scheme": "paper 001, section 4.3 (sampled); paper 002, section 4.1 (in_turn), section 4.2.1 (unified)",
    "sampling": "paper 001, section 4.3 (Stickland and Murray 2019)",
    "steps_per_epoch": "paper 001, section 5.2; paper 003, section 3.3",
    "weighting": "paper 002, section 7; Kendall, Gal and Cipolla 2018 (uncertainty); Liu et al. 2019 (loss_ratio)",
    "gradients": "paper 002, section 4.2 (pcgrad: Yu et al. 2020); paper 003, section 2.2.2 (gem: Lopez-Paz and "
    "Ranzato 2017); Chaudhry et al. 2019 (agem); Liu et al. 2021 (cagrad)",
    "gradient_options": "Liu et al. 2021 (c)",
    "memory": "Lopez-Paz and Ranzato 2017 (ring); Vitter 1985 (reservoir)",
    "memory_size": "paper 003, section 2.2.2",
    "gem_margin": "Lopez-Paz and Ranzato 2017",
    "pretrain": "paper 001, section 4.4; Devlin et al. 2018",
    "checkpoint_layers": "Chen et al. 2016",
    "schedule": "paper 002, sections 4.1 and 5.3",
    "layer_decay": "Howard and Ruder 2018",
    "weight_decay": "paper 001, section 5.2; paper 002, sections 4.1 and 5.3; Loshchilov and Hutter 2017",
    "teachers": "Hinton, Vinyals and Dean 2015",
    "distil": "Clark et al. 2019 (annealed)",
    "temperature": "Hinton, Vinyals and Dean 2015",
    "r_drop": "Liang et al. 2021",
    "ema": "Polyak and Juditsky 1992",
    "evals_per_epoch": "paper 000, section 4 (scores at time steps)",
    "keep": "paper 004, section 5.2 (best)",
}


class FieldRow(NamedTuple):
    """What users read about a field of a RunConfig; the default is written as in YAML."""

    name: str
    type: str
    default: str
    description: str
    source: str  # the paper that proposes it, else the publication of the method; empty where there is none

    def __str__(self) -> str:
        source = f"\n    Source: {self.source}" if self.source else ""
        return f"{self.name}: {self.type} = {self.default}\n    {self.description}{source}"


def field_table() -> list[FieldRow]:
    """Every field of a RunConfig."""
    return [
        FieldRow(
            name,
            _type_text(field.annotation),
            json.dumps(field.default),
            field.description or "",
            SOURCES.get(name, ""),
        )
        for name, field in RunConfig.model_fields.items()
    ]


def _type_text(annotation: Any) -> str:
    """A field's type as its users write it, without what checks the values."""
    kind = get_origin(annotation)
    parts = get_args(annotation)
    if kind is Annotated:
        return _type_text(parts[0])
    if kind is Literal:
        return " | ".join(map(repr, parts))
    if kind in (Union, UnionType):
        return " | ".join(map(_type_text, parts))
    if kind:
        return f"{kind.__name__}[{', '.join(map(_type_text, parts))}]"
    return "..." if annotation is ... else "None" if annotation is NoneType else annotation.__name__


RunConfig.__doc__ = "\n\n".join([RunConfig.__doc__ or "", *map(str, field_table())])


def unknown_names(params: dict) -> str:
    """What stored parameters of a RunConfig, or of its teachers, name and is not known here; empty if nothing is."""
    if tasks := ", ".join({*params.get("tasks", ()), *params.get("score_tasks", ())} - TASKS.keys()):
        return f"there is no task {tasks} here; is MTBERT_TASKS set?"
    for field, registry in REGISTRIES.items():
        default = RunConfig.model_fields[field].default
        names = set(str(params.get(field, default)).split("+"))
        if names := ", ".join(sorted(names - registry.keys() - {"none", "sum", "joint"})):
            return f"{field}: {names} is not registered here; import the code that does it"
    teachers = params.get("teachers", ())
    lists = teachers.values() if isinstance(teachers, dict) else [teachers]
    return next(filter(None, map(unknown_names, itertools.chain.from_iterable(lists))), "")


def _explain(problem: dict) -> str:
    key = ".".join(str(part) for part in problem["loc"][:1]) or "configuration"
    if problem["type"] == "extra_forbidden":
        near = difflib.get_close_matches(key, RunConfig.model_fields, n=1)
        return f"{key}: unknown key" + (f"; did you mean {near[0]}?" if near else "")
    if problem["type"] == "value_error":
        message = problem["msg"].removeprefix("Value error, ")
        return f"{key}: {message}" if problem["loc"] else message  # a check of several fields names them itself
    return f"{key}: {problem['msg']}, got {reprlib.repr(problem['input'])}"
