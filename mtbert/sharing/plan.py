"""SharingPlan: which layer is frozen, shared or individual, for which tasks.

A plan is a line of segments from the input upward: `F2 S4 I6` is two frozen layers, four shared by all tasks and six
of every task's own. `S4(sst,quora|sts)` shares the layers among some tasks and not with the others. The embeddings
follow the first segment and the pooler the last; `emb:F` in front and `pool:S` at the end set them alone.

Source: paper 000 (every mix of frozen, shared and individual layers), paper 002 (1-bert, 3-bert, hybrid-bert).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import pandas as pd

from mtbert.bert import BertConfig, part_sizes

Group = tuple[str, ...]  # tasks that share a layer
MODES = {"F": "frozen", "S": "shared", "I": "individual"}
GRAMMAR = "a segment is F, S or I and its number of layers, such as F2, S4, I6 or S4(sst,quora|sts)"
PRESETS = "presets are 1-bert, 3-bert, frozen and hybrid-K"
_SEGMENT = re.compile(r"(?:(?P<part>emb|pool):)?(?P<mode>[FSI])(?P<layers>\d{0,3})(?:\((?P<groups>[^()]*)\))?")
_TASK = re.compile(r"[^,|]+")
_WORD = re.compile(r"(?:[^\s(]|\([^)]*\)?)+")  # ends at a space outside of brackets


class PlanError(ValueError):
    """A plan that cannot be read; the message points at the character."""


@dataclass(frozen=True)
class Level:
    """How tasks share one depth of the encoder: its mode, and the groups of tasks, each with a copy of its own."""

    mode: Literal["F", "S", "I"]
    groups: tuple[Group, ...]

    @property
    def is_frozen(self) -> bool:
        return self.mode == "F"

    def written(self, layers: int | None = None) -> str:
        """The level in the text of a plan, as a segment of so many layers."""
        word = self.mode if layers is None else f"{self.mode}{layers}"
        if self.mode == "S" and len(self.groups) > 1:
            groups = [",".join(group) for group in self.groups]
            word += f"({'|'.join(groups)})"
        return word


@dataclass(frozen=True)
class SharingPlan:
    """The level of the embeddings, of every layer from the input upward, and of the pooler."""

    tasks: tuple[str, ...]
    embeddings: Level
    layers: tuple[Level, ...]
    pooler: Level

    @classmethod
    def parse(cls, text: str, tasks: Sequence[str], num_layers: int | None = None) -> "SharingPlan":
        """Read a plan or a preset (1-bert, 3-bert, hybrid-K, frozen) for an encoder of `num_layers` layers.

        num_layers: None reads the plan for an encoder of any size; a preset then has as few layers as it can.
        Raises PlanError, pointing at the character: a segment that cannot be read, a wrong sum of layers, an unknown
        task, a task in two groups or in none.
        """
        if isinstance(tasks, str):
            raise PlanError(f"tasks are a sequence of names, such as ({tasks!r},), not one text")
        tasks = tuple(tasks)
        if not tasks or len(set(tasks)) < len(tasks):
            raise PlanError(f"a plan is for one or more different tasks, got {list(tasks)}")
        reader = _Reader(_expand(text, num_layers), tasks)
        layers, parts = reader.read(num_layers)
        embeddings = parts.get("emb", layers[0])
        pooler = parts.get("pool", layers[-1])
        return cls(tasks, embeddings, tuple(layers), pooler)

    @property
    def levels(self) -> dict[str, Level]:
        """Name -> level, from the input upward: embeddings, layer 1, layer 2, ..., pooler."""
        layers = {f"layer {i}": level for i, level in enumerate(self.layers, start=1)}
        return {"embeddings": self.embeddings, **layers, "pooler": self.pooler}

    @property
    def frozen_depth(self) -> int:
        """How many layers from the input upward are frozen; 0 where the embeddings are not."""
        if not self.embeddings.is_frozen:
            return 0
        depth = 0
        while depth < len(self.layers) and self.layers[depth].is_frozen:
            depth += 1
        return depth

    def __str__(self) -> str:
        words = []
        if self.embeddings != self.layers[0]:
            words.append(f"emb:{self.embeddings.written()}")
        for level, segment in groupby(self.layers):
            layers = len(list(segment))
            words.append(level.written(layers))
        if self.pooler != self.layers[-1]:
            words.append(f"pool:{self.pooler.written()}")
        return " ".join(words)

    def table(self, config: BertConfig | None = None) -> pd.DataFrame:
        """A row per level: mode, groups of tasks, copies, parameters of all copies, and those that are trained.

        config: the encoder's BertConfig; default: the sizes of bert-base-uncased.
        """
        sizes = part_sizes(config or BertConfig())
        rows = []
        for name, level in self.levels.items():
            part = "layer" if name.startswith("layer") else name
            groups = [", ".join(group) for group in level.groups]
            parameters = len(groups) * sizes[part]
            row = {
                "level": name,
                "mode": MODES[level.mode],
                "groups": " | ".join(groups),
                "copies": len(groups),
                "parameters": parameters,
                "trained": 0 if level.is_frozen else parameters,
            }
            rows.append(row)
        return pd.DataFrame(rows).set_index("level")


def _expand(text: str, num_layers: int | None) -> str:
    """A preset's segments; any other text as it is."""
    name = text.strip()
    modes = {"1-bert": "S", "3-bert": "I", "frozen": "F"}
    if name in modes:
        return f"{modes[name]}{num_layers or 1}"
    match = re.fullmatch(r"hybrid-(\d{1,3})", name)
    if match is None:
        return text
    shared = int(match[1])
    if shared == 0:
        raise PlanError(f"{name}: a hybrid shares one layer or more; 3-bert shares none")
    total = num_layers or shared + 1
    if total == 1:
        raise PlanError(f"{name}: an encoder of one layer has no hybrid; 1-bert shares the layer, 3-bert does not")
    if shared >= total:
        raise PlanError(f"{name}: shares {shared} layers; an encoder of {total} layers can share 1 to {total - 1}")
    return f"S{shared} I{total - shared}"


class _Reader:
    """Reads the text of a plan, and knows how to point into it."""

    def __init__(self, text: str, tasks: tuple[str, ...]) -> None:
        self.text = text
        self.tasks = tasks

    def error(self, position: int, reason: str) -> PlanError:
        """An error that points at a position, counted from 0."""
        return PlanError(f"{reason}, at character {position + 1}\n  {self.text}\n  {' ' * position}^")

    def read(self, num_layers: int | None) -> tuple[list[Level], dict[str, Level]]:
        """The levels of the layers from the input upward, and of the parts that are set alone, emb and pool."""
        layers: list[Level] = []
        parts: dict[str, Level] = {}
        for word in _WORD.finditer(self.text):
            start = word.start()
            match = self._match(word)
            level = self._level(match)
            part = match["part"]
            if part is None and "pool" in parts:
                raise self.error(start, "a segment after pool:")
            if part == "emb" and (layers or parts):
                raise self.error(start, "emb: must come before all segments")
            if part in parts:
                raise self.error(start, f"{part}: is given twice")
            if part is not None:
                parts[part] = level
                continue
            layers += [level] * int(match["layers"])
            if num_layers is not None and len(layers) > num_layers:
                raise self.error(start, f"{len(layers)} layers up to here, but the encoder has {num_layers}")
        if not layers:
            raise self.error(0, f"no layers; {GRAMMAR}; {PRESETS}")
        if num_layers is not None and len(layers) < num_layers:
            raise self.error(len(self.text), f"{len(layers)} layers in all, but the encoder has {num_layers}")
        return layers, parts

    def _match(self, word: re.Match) -> re.Match:
        """The fields of a word: part, mode, layers, groups."""
        start = word.start()
        match = _SEGMENT.fullmatch(self.text, start, word.end())
        if match is None:
            raise self.error(start, f"{word[0]!r} cannot be read: {GRAMMAR}; {PRESETS}")
        part = match["part"]
        mode = match["mode"]
        layers = match["layers"]
        if part is None and int(layers or 0) == 0:
            raise self.error(start, f"{word[0]!r} has no layers: {GRAMMAR}")
        if part is not None and layers:
            raise self.error(match.start("layers"), f"{part}: is not layers and takes no number")
        if match["groups"] is not None and mode != "S":
            raise self.error(match.start("groups") - 1, f"groups are for S; {MODES[mode]} layers have none")
        return match

    def _level(self, match: re.Match) -> Level:
        mode = match["mode"]
        if match["groups"] is not None:
            return Level(mode, self._groups(*match.span("groups")))
        if mode == "I":
            groups = tuple((task,) for task in self.tasks)
            return Level(mode, groups)
        return Level(mode, (self.tasks,))

    def _groups(self, start: int, stop: int) -> tuple[Group, ...]:
        """sst,quora|sts -> (('sst', 'quora'), ('sts',)), in the order of the tasks."""
        if not all(name.strip() for name in re.split(r"[,|]", self.text[start:stop])):
            raise self.error(start, "a group or the name of a task is empty")
        group_of: dict[str, int] = {}
        for name in _TASK.finditer(self.text, start, stop):
            task = name[0].strip()
            indent = len(name[0]) - len(name[0].lstrip())
            position = name.start() + indent
            if task not in self.tasks:
                raise self.error(position, f"unknown task {task!r}; the run's tasks are {', '.join(self.tasks)}")
            if task in group_of:
                raise self.error(position, f"task {task!r} is given twice")
            group_of[task] = self.text.count("|", start, position)
        missing = [task for task in self.tasks if task not in group_of]
        if missing:
            raise self.error(stop, f"{', '.join(missing)} in no group")
        groups = []
        for number in sorted(set(group_of.values())):
            group = tuple(task for task in self.tasks if group_of[task] == number)
            groups.append(group)
        return tuple(groups)
