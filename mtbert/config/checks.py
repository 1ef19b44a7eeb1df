"""What does not fit together in the fields of a run: a function for each section of RunConfig that has checks.

A problem is a sentence that begins with the field it is about.
"""

import reprlib
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

from mtbert.data import TASKS
from mtbert.gradients import WEIGHTS, check_options
from mtbert.names import nearest
from mtbert.pairs import PAIR_FEATURES
from mtbert.sharing import ADAPTERS, PLACES, PlanError

if TYPE_CHECKING:  # run.py imports this file
    from mtbert.config.run import RunConfig


def problems(config: "RunConfig") -> Iterator[str]:
    """The problems of a run, in the order of its fields. Ask for the first alone: a check relies on those before it."""
    yield from _of_tasks(config)
    yield from _of_sharing(config)
    yield from _of_heads(config)
    yield from _of_steps(config)
    yield from _of_pretraining(config)
    yield from _of_evaluation(config)
    yield from _of_teachers(config)


def _of_tasks(config: "RunConfig") -> Iterator[str]:
    if not config.tasks:
        yield "tasks: at least one task to train on is needed"
    for name in ("tasks", "score_tasks"):
        tasks = getattr(config, name)
        if len(set(tasks)) != len(tasks):
            yield f"{name}: a task is given twice in {reprlib.repr(list(tasks))}"
    if config.augment == "swap" and not any(TASKS[task].is_pair for task in config.tasks):
        yield f"augment: swap is for pairs, and {', '.join(config.tasks)} reads single sentences"


def _of_sharing(config: "RunConfig") -> Iterator[str]:
    if config.frozen and config.plan != "1-bert":
        yield f"frozen: is the plan 'frozen', and plan is {config.plan!r}; set one of the two"
    try:
        levels = config.used_levels
    except PlanError as error:
        yield f"plan: {error}"
        return
    has_copies = len(config.tasks) > 1 and any(level.mode == "I" for level in levels.values())
    if config.soft_sharing != "none" and not has_copies:
        yield f"soft_sharing: the plan {config.plan_text!r} has no individual copies of several training tasks"
    adapter = ADAPTERS.get(config.adapter)
    if isinstance(adapter, type):
        yield from _of_adapter(config.adapter, adapter)
    if config.adapter == "pal" and config.adapter_heads > config.adapter_size:
        yield f"adapter_heads: {config.adapter_heads} heads are more than adapter_size {config.adapter_size}"


def _of_adapter(name: str, adapter: type) -> Iterator[str]:
    if not any(getattr(adapter, place, None) for place in PLACES):
        yield f"adapter: {name} has none of an adapter's methods, {', '.join(PLACES)}"
    for method in sorted(vars(adapter).keys() - PLACES):
        meant = nearest(method, PLACES, cutoff=0.85)
        if meant and not getattr(adapter, meant, None):  # else a helper of that one
            yield f"adapter: {name} has a method {method}, which nothing calls; did you mean {meant}?"


def _of_heads(config: "RunConfig") -> Iterator[str]:
    parts = config.pairs.split("+")
    is_known = set(parts) <= PAIR_FEATURES.keys() and len(set(parts)) == len(parts)
    if config.is_bi_encoder and not is_known:
        yield f"pairs: {config.pairs!r} is neither 'joint' nor some of {', '.join(PAIR_FEATURES)} joined by +"
    if config.similarity == "sigmoid_cosine":
        yield from _of_cosine(config)
    yield from _of_feeds(config)


def _of_cosine(config: "RunConfig") -> Iterator[str]:
    if not config.is_bi_encoder:
        yield "similarity: sigmoid_cosine compares two embeddings, but pairs is 'joint'"
    kinds = {TASKS[task].kind for task in config.tasks}
    is_fixed = config.encoder_is_frozen and config.adapter == "none" and not config.head_norm
    if is_fixed and "similarity" in kinds:
        yield "similarity: sigmoid_cosine has no parameters of its own, and on a frozen encoder nothing to train"
    if config.pos_features and kinds == {"similarity"}:
        yield "pos_features: nothing reads them, as similarity sigmoid_cosine has no head"


def _of_feeds(config: "RunConfig") -> Iterator[str]:
    fed: dict[str, set[str]] = {}  # task -> the tasks whose heads feed its own
    for feed in config.feeds:
        upstream, arrow, task = feed.partition(">")
        if not arrow or {upstream, task} - set(config.scored) or upstream == task:
            yield f"feeds: {feed!r} is not 'upstream>task' with two different tasks of {list(config.scored)}"
        if upstream in fed.setdefault(task, set()):
            yield f"feeds: {feed!r} is given twice"
        if config.is_bi_encoder and TASKS[upstream].is_pair and not TASKS[task].is_pair:
            yield f"feeds: {feed!r}: the head of a pair task needs two sentences, and {task} has one"
        for name in (upstream, task):
            if config.similarity == "sigmoid_cosine" and TASKS[name].kind == "similarity":
                yield f"feeds: {feed!r}: with similarity sigmoid_cosine {name} has no head"
        fed[task].add(upstream)
    if config.feeds and config.pos_features:
        yield "feeds: a head that feeds others reads no part-of-speech tags; leave out feeds or pos_features"
    try:
        TopologicalSorter(fed).prepare()
    except CycleError as error:
        circle = sorted(set(error.args[1]))
        yield f"feeds: {', '.join(circle)} feed one another in a circle"


def _of_steps(config: "RunConfig") -> Iterator[str]:
    has_several = len(config.tasks) > 1
    if config.gradients != "sum" and not has_several:
        yield f"gradients: {config.gradients} needs at least two tasks"
    for name, default in (("weighting", "fixed"), ("task_weights", ()), ("cosine_every", None)):
        if getattr(config, name) != default and not (has_several and config.scheme == "unified"):
            yield f"{name}: needs scheme 'unified' and at least two tasks"
    try:
        check_options(config.gradients, config.gradient_options, len(config.tasks))
    except ValueError as error:
        yield f"gradient_options: {error}"
    if config.gradients in WEIGHTS and config.scheme != "unified":
        yield f"gradients: {config.gradients} needs several tasks in a step; scheme is {config.scheme!r}, not 'unified'"
    if config.task_weights and len(config.task_weights) != len(config.tasks):
        yield f"task_weights: {len(config.task_weights)} weights for {len(config.tasks)} tasks"
    if config.task_weights and config.weighting != "fixed":
        yield f"task_weights: are fixed, but weighting is {config.weighting!r}"
    if config.steps_per_epoch is not None and config.scheme == "in_turn" and has_several:
        yield "steps_per_epoch: an epoch of scheme 'in_turn' is one pass over every task"
    yield from _of_batches(config)


def _of_batches(config: "RunConfig") -> Iterator[str]:
    tasks = ", ".join(config.tasks)
    if isinstance(config.batch_size, dict) and set(config.batch_size) != set(config.tasks):
        yield f"batch_size: names {', '.join(config.batch_size)}; the tasks are {tasks}"
    if isinstance(config.r_drop, dict) and not (config.r_drop and set(config.r_drop) <= set(config.tasks)):
        named = ", ".join(config.r_drop) or "none"
        yield f"r_drop: names {named}; the tasks are {tasks}"
    smallest = min(config.batch_sizes.values())
    if config.accumulation > smallest:
        yield f"accumulation: {config.accumulation} parts of a batch of {smallest} examples"


def _of_pretraining(config: "RunConfig") -> Iterator[str]:
    is_one_encoder = config.plan_text == "1-bert" and config.adapter == "none"
    if config.pretrain in ("after", "both") and not is_one_encoder:
        yield f"pretrain: {config.pretrain!r} trains the one encoder of plan '1-bert' without adapters"
    if config.pretrain != "none" and config.augment == "swap":
        yield "pretrain: reads the first sentence of a pair, and augment: swap makes a first one of both"


def _of_evaluation(config: "RunConfig") -> Iterator[str]:
    if config.keep == "best_per_task" and (tie := _what_ties_tasks(config)):
        yield f"keep: best_per_task needs tasks that share no trained weights, but {tie}"


def _what_ties_tasks(config: "RunConfig") -> str:
    """Why the weights of the training tasks cannot come from different steps; empty if they can."""
    for name, level in config.used_levels.items():
        for group in level.groups:
            trained = [task for task in group if task in config.tasks]
            if not level.is_frozen and len(trained) > 1:
                return f"{', '.join(trained)} share {name} under plan {config.plan_text!r}"
    if config.feeds or config.head_norm:
        return "feeds and head_norm tie the heads to one another"
    if config.pretrain in ("after", "both"):
        return "pretraining trains them together"
    return ""


def _of_teachers(config: "RunConfig") -> Iterator[str]:
    if len(set(config.teachers)) != len(config.teachers):
        yield f"teachers: one is given twice in {[teacher.digest for teacher in config.teachers]}"
    for teacher in config.teachers:
        if missing := [task for task in config.tasks if task not in teacher.tasks]:
            trained = ", ".join(teacher.tasks)
            yield f"teachers: {teacher.digest} is trained on {trained}, not on {', '.join(missing)}"
        if teacher.corpus != config.corpus:
            yield f"teachers: {teacher.digest} is trained on corpus {teacher.corpus!r}, not {config.corpus!r}"
    for name in ("distil", "temperature"):
        if not config.teachers and getattr(config, name) != type(config).model_fields[name].default:
            yield f"{name}: needs teachers"
