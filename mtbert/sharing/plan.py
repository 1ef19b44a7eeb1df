"""SharingPlan: which layer is frozen, shared or individual, for which tasks.

A plan is a line of segments from the input upward: `F2 S4 I6` is two frozen layers, four shared by all tasks and six
of every task's own. `S4(sst,quora|sts)` shares the layers among some tasks and not with the others. The embeddings
follow the first segment and the pooler the last; `emb:F` in front and `pool:S` at the end set them apart.

Source: paper 000 (every mix of frozen, shared and individual layers), paper 002 (1-bert, 3-bert, hybrid-bert).
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import pandas as pd

from mtbert.bert import BertConfig, part_sizes

MODES = {"F": "frozen", "S": "shared", "I": "individual"}
GRAMMAR = "a segment is F, S or I and its number of layers, such as F2, S4, I6 or S4(sst,quora|sts)"
PRESETS = "presets are 1-bert, 3-bert, frozen and hybrid-K"
_SEGMENT = re.compile(r"(?:(?P<part>emb|pool):)?(?P<mode>[FSI])(?P<layers>\d{0,3})(?:\((?P<groups>[^()]*)\))?$")


class PlanError(ValueError):
    """A plan that cannot be read; the message points at the character."""


@dataclass(frozen=True)
class Level:
    """How one depth of the encoder is held: its mode and the groups of tasks, each with a copy of its own."""

    mode: Literal["F", "S", "I"]
    groups: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        explicit = self.mode == "S" and len(self.groups) > 1
        return "(" + "|".join(",".join(group) for group in self.groups) + ")" if explicit else ""


@dataclass(frozen=True)
class Segment:
    """Consecutive layers of one level."""

    level: Level
    layers: int

    def __str__(self) -> str:
        return f"{self.level.mode}{self.layers}{self.level}"


@dataclass(frozen=True)
class SharingPlan:
    """The level of the embeddings, of every layer from the input upward, and of the pooler."""

    tasks: tuple[str, ...]
    embeddings: Level
    segments: tuple[Segment, ...]
    pooler: Level

    @classmethod
    def parse(cls, text: str, tasks: Sequence[str], num_layers: int | None = None) -> "SharingPlan":
        """Read a plan or a preset (1-bert, 3-bert, hybrid-K, frozen) for an encoder of `num_layers` layers.

        num_layers: None reads the plan without holding it to an encoder; a preset then has as few layers as it can.
        Raises PlanError, pointing at the character: a segment that cannot be read, a wrong sum of layers, an unknown
        task, a task in two groups or in none.
        """
        tasks = tuple(tasks)
        if not tasks or len(set(tasks)) < len(tasks):
            raise PlanError(f"a plan is for one or more different tasks, got {list(tasks)}")
        segments: list[tuple[int, Segment]] = []  # with the position of each in the text
        parts: dict[str, Level] = {}
        reader = _Reader(_expand(text, num_layers), tasks)
        for start, part, segment in reader.segments():
            if part is None and "pool" in parts:
                raise reader.error(start, "a segment after pool:")
            if part == "emb" and (segments or parts):
                raise reader.error(start, "emb: must come before all segments")
            if part in parts:
                raise reader.error(start, f"{part}: is given twice")
            if part is None:
                segments.append((start, segment))
            else:
                parts[part] = segment.level
        if not segments:
            raise reader.error(0, f"no layers; {GRAMMAR}; {PRESETS}")
        if num_layers is not None:
            reader.check_layers(segments, num_layers)
        merged = _merged(segment for _, segment in segments)
        first, last = merged[0].level, merged[-1].level
        return cls(tasks, parts.get("emb", first), tuple(merged), parts.get("pool", last))

    @property
    def layers(self) -> tuple[Level, ...]:
        """The level of each layer, from the input upward."""
        levels: list[Level] = []
        for segment in self.segments:
            levels += [segment.level] * segment.layers
        return tuple(levels)

    @property
    def levels(self) -> dict[str, Level]:
        """Name -> level, from the input upward: embeddings, layer 1, layer 2, ..., pooler."""
        layers = {f"layer {i}": level for i, level in enumerate(self.layers, start=1)}
        return {"embeddings": self.embeddings, **layers, "pooler": self.pooler}

    @property
    def is_frozen(self) -> bool:
        """Whether every level is frozen."""
        return all(level.mode == "F" for level in self.levels.values())

    @property
    def frozen_depth(self) -> int:
        """Layers from the input upward that are frozen, embeddings included; else 0."""
        if self.embeddings.mode != "F":
            return 0
        trained = (depth for depth, level in enumerate(self.layers) if level.mode != "F")
        return next(trained, len(self.layers))

    def __str__(self) -> str:
        words = [str(segment) for segment in self.segments]
        if self.embeddings != self.segments[0].level:
            words.insert(0, f"emb:{self.embeddings.mode}{self.embeddings}")
        if self.pooler != self.segments[-1].level:
            words.append(f"pool:{self.pooler.mode}{self.pooler}")
        return " ".join(words)

    def table(self, config: BertConfig | None = None) -> pd.DataFrame:
        """A row per level: mode, groups of tasks, copies, parameters of all copies, and those that are trained.

        config: the encoder's BertConfig; default: the sizes of bert-base-uncased.
        """
        sizes = part_sizes(config or BertConfig())
        rows = []
        for name, level in self.levels.items():
            one = sizes["layer" if name.startswith("layer") else name]
            copies = len(level.groups)
            groups = " | ".join(", ".join(group) for group in level.groups)
            trained = 0 if level.mode == "F" else copies * one
            rows.append(dict(level=name, mode=MODES[level.mode], groups=groups, copies=copies,
                             parameters=copies * one, trained=trained))  # fmt: skip
        return pd.DataFrame(rows).set_index("level")


def _merged(segments: Iterable[Segment]) -> list[Segment]:
    """Neighbours of one level as one segment: S2 S4 is S6."""
    merged: list[Segment] = []
    for segment in segments:
        if merged and merged[-1].level == segment.level:
            merged[-1] = replace(segment, layers=merged[-1].layers + segment.layers)
        else:
            merged.append(segment)
    return merged


def _expand(text: str, num_layers: int | None) -> str:
    """A preset's segments; any other text as it is."""
    name = text.strip()
    if mode := {"1-bert": "S", "3-bert": "I", "frozen": "F"}.get(name):
        return f"{mode}{num_layers or 1}"
    if not (match := re.fullmatch(r"hybrid-(\d{1,3})", name)):
        return text
    shared = int(match[1])
    total = num_layers or shared + 1
    if not 1 <= shared < total:
        raise PlanError(f"{name}: shares {shared} layers; an encoder of {total} layers can share 1 to {total - 1}")
    return f"S{shared} I{total - shared}"


class _Reader:
    """Reads the segments of a text, and knows how to point into it."""

    def __init__(self, text: str, tasks: tuple[str, ...]) -> None:
        self.text, self.tasks = text, tasks

    def error(self, position: int, reason: str) -> PlanError:
        return PlanError(f"{reason}, at character {position + 1}\n  {self.text}\n  {' ' * position}^")

    def segments(self) -> Iterator[tuple[int, str | None, Segment]]:
        """(position, 'emb', 'pool' or None, segment): words end at spaces outside of brackets."""
        for word in re.finditer(r"(?:[^\s(]|\([^)]*\)?)+", self.text):
            match = _SEGMENT.match(word[0])
            start = word.start()
            if match is None:
                raise self.error(start, f"{word[0]!r} cannot be read: {GRAMMAR}; {PRESETS}")
            part, mode, layers = match["part"], match["mode"], match["layers"]
            if part is None and (not layers or int(layers) == 0):
                raise self.error(start, f"{word[0]!r} has no layers: {GRAMMAR}")
            if part is not None and layers:
                raise self.error(start + match.start("layers"), f"{part}: is not layers and takes no number")
            if match["groups"] is not None and mode != "S":
                raise self.error(start + match.start("groups") - 1, f"groups are for S; {MODES[mode]} layers have none")
            if match["groups"] is not None:
                groups = self._groups(start + match.start("groups"), match["groups"])
            else:
                groups = tuple((task,) for task in self.tasks) if mode == "I" else (self.tasks,)
            yield start, part, Segment(Level(mode, groups), int(layers or 0))

    def check_layers(self, segments: list[tuple[int, Segment]], num_layers: int) -> None:
        """Raises PlanError where the segments, each with its position, have not as many layers as the encoder."""
        total = 0
        for start, segment in segments:
            total += segment.layers
            if total > num_layers:
                raise self.error(start, f"{total} layers up to here, but the encoder has {num_layers}")
        if total < num_layers:
            raise self.error(len(self.text), f"{total} layers in all, but the encoder has {num_layers}")

    def _groups(self, start: int, text: str) -> tuple[tuple[str, ...], ...]:
        """sst,quora|sts -> (('sst', 'quora'), ('sts',)), in the order of the tasks."""
        group_of: dict[str, int] = {}
        for number, group in enumerate(re.finditer(r"[^|]*(?:\||$)", text)):
            for name in re.finditer(r"[^,|]+", group[0]):
                task = name[0].strip()
                position = start + group.start() + name.start() + len(name[0]) - len(name[0].lstrip())
                if task not in self.tasks:
                    raise self.error(position, f"unknown task {task!r}; the run's tasks are {', '.join(self.tasks)}")
                if task in group_of:
                    raise self.error(position, f"task {task!r} is given twice")
                group_of[task] = number
        if missing := [task for task in self.tasks if task not in group_of]:
            raise self.error(start + len(text), f"{', '.join(missing)} in no group")
        groups: dict[int, tuple[str, ...]] = dict.fromkeys(group_of.values(), ())
        for task in self.tasks:
            groups[group_of[task]] += (task,)
        return tuple(groups.values())
