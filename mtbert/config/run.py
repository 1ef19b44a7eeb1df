"""RunConfig: all fields of a run, the name that they give it, and its errors."""

import difflib
import hashlib
import itertools
import json
import reprlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, SerializationInfo, ValidationError, model_validator

from mtbert.bert import MINILM, NAMED_ENCODERS, content_name
from mtbert.config.updates import UpdateFields
from mtbert.config.values import REGISTRIES, ConfigError, Real, TaskName
from mtbert.data import TASKS
from mtbert.metrics import OWN_METRICS
from mtbert.sources import SourceError, is_own, source_digest

LONGEST = 2000  # characters of an error, which quotes what it is about
# Fields of version 0.10 and earlier, which stored runs name -> the values under which a run is as it is without them.
REMOVED: dict[str, tuple] = {
    "adapter_bias": (True,),
    "adapter_layers": ([], ()),
    "upstream_rate": (0.1,),
    "mask_rate": (0.15,),
    "weight_decay_on": ("all",),
    "tensorboard": (False, True),
}


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


Teachers = tuple[Annotated["RunConfig", PlainSerializer(_without_defaults)], ...]


class RunConfig(UpdateFields):
    """One training run. Where the data lie and which device computes are no part of it: they do not name a run."""

    teachers: Annotated[Teachers | dict[TaskName, Teachers], BeforeValidator(_teachers)] = Field(
        default=(), description="runs whose mean prediction this one learns; or some for each task. A grid names them"
    )
    distil: Literal["teacher", "annealed"] | Annotated[Real, Field(ge=0, le=1)] = Field(
        default="teacher", description="weight of the teachers against the labels; teacher: 1; annealed: from 1 to 0"
    )
    temperature: Real = Field(
        default=1.0, gt=0, le=100, description="of class probabilities, the teachers' and the student's"
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
        for problem in self._problems():
            raise ValueError(problem)
        return self

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
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
        for name in ("distil", "temperature"):
            if not self.teachers and getattr(self, name) != RunConfig.model_fields[name].default:
                yield f"{name}: needs teachers"

    @property
    def teachers_by_task(self) -> dict[str, Teachers]:
        """Training task -> its teachers, of those that have some."""
        if isinstance(self.teachers, dict):
            return self.teachers
        if self.teachers:
            return dict.fromkeys(self.tasks, self.teachers)
        return {}

    @property
    def all_teachers(self) -> Teachers:
        """The teachers of all tasks, each once."""
        teachers = itertools.chain.from_iterable(self.teachers_by_task.values())
        return tuple(dict.fromkeys(teachers))

    @property
    def generation(self) -> int:
        """0 without teachers, else one more than the teachers have."""
        return max((1 + teacher.generation for teacher in self.all_teachers), default=0)

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
        if self.own_code:
            fields["own_code"] = self.own_code
        text = json.dumps(fields, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    def __hash__(self) -> int:
        return hash(json.dumps(self.model_dump(mode="json"), sort_keys=True))  # a mapping of batch sizes has none

    def __str__(self) -> str:
        fields = self.model_dump(mode="json") | {"teachers": self._teacher_digests}
        return "\n".join(f"{name}: {value}" for name, value in fields.items())


def unknown_names(params: dict) -> str:
    """What stored parameters of a RunConfig, or of its teachers, name and is not known here; empty if nothing is."""
    tasks = {*params.get("tasks", ()), *params.get("score_tasks", ())}
    if unknown := tasks - TASKS.keys():
        return f"there is no task {', '.join(unknown)} here; is MTBERT_TASKS set?"
    for field, registry in REGISTRIES.items():
        default = RunConfig.model_fields[field].default
        names = set(str(params.get(field, default)).split("+"))
        if unknown := names - registry.keys() - {"none", "sum", "joint"}:
            return f"{field}: {', '.join(sorted(unknown))} is not registered here; import the file that registers it"
    teachers = params.get("teachers", ())
    lists = teachers.values() if isinstance(teachers, dict) else [teachers]
    for teacher in itertools.chain.from_iterable(lists):
        if message := unknown_names(teacher):
            return message
    return ""


def _explain(problem: dict) -> str:
    """A problem that pydantic found, as a user reads it."""
    key = str(problem["loc"][0]) if problem["loc"] else "configuration"
    if problem["type"] == "extra_forbidden":
        near = difflib.get_close_matches(key, RunConfig.model_fields, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return f"{key}: unknown key{hint}"
    if problem["type"] == "value_error":
        message = problem["msg"].removeprefix("Value error, ")
        return f"{key}: {message}" if problem["loc"] else message  # a check of several fields names them itself
    return f"{key}: {problem['msg']}, got {reprlib.repr(problem['input'])}"
