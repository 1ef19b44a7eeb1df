"""Memory over one training step of a configuration: predicted from shapes, nothing is built.

Memory over a step: weights and AdamW's two moments are always there; the forward pass adds what each operation keeps
(footprint.py), the backward pass frees it again from the last operation to the first while gradients appear. The peak
is at the turn where activations weigh more, as they do for large batches, and at the end of the backward pass where
gradients do. PCGrad and GEM run a pass a task and hold one flat gradient for each (gradients.py).

Source: papers 000 (section 4: memory by plan), 001 (section 4.2: sizes), 002 (section 4: plans). Tables are in MiB.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import pandas as pd

from mtbert.bert import BertConfig, part_sizes
from mtbert.config import RunConfig
from mtbert.data import TASKS
from mtbert.footprint import BYTE, FLOAT, HALF, INDEX, Hidden, LayerPass, Operation, Pass, Shapes
from mtbert.gradients import CHUNK, DEVICE_CHUNK
from mtbert.heads import TaskHeads
from mtbert.multitask import parameter_counts
from mtbert.profiling import MIB
from mtbert.sharing import Level, SharingPlan
from mtbert.sizes import count_parameters, encoder_config, features_are_fixed, frozen_depth, heads_of, plan_of
from mtbert.updates import step_parts

DOUBLE = 8  # bytes of a float64, in which flat gradients are combined, chunk by chunk
PARTS = ["weights", "moments", "gradients", "task gradients", "activations", "temporary"]


# --- the operations of a pass ----------------------------------------------------------------------------------------


def operations(
    config: RunConfig,
    shapes: Shapes,
    encoder: BertConfig | None = None,
    *,
    cuda: bool = False,
    known: Collection[str] = (),
    training: bool = True,
) -> list[Operation]:
    """The operations of one pass over examples: shapes is task -> (examples, tokens of their longest sequence).

    known: the tasks whose states below the first trained layer are read from disk, as in a run of several passes over
    their data. training: False for an evaluation. Raises ValueError for a task that the configuration does not have.
    """
    if unknown := set(shapes) - set(config.scored):
        raise ValueError(f"shapes: {', '.join(sorted(unknown))}: not a task of the run, {', '.join(config.scored)}")
    encoder = encoder or encoder_config(config)
    plan, steps = plan_of(config, encoder), Pass(config, encoder, cuda, training)
    if not (training and features_are_fixed(config, encoder)):  # else the embeddings are kept on disk
        _add_encoder(steps, plan, _sequences(config, shapes), known)
    heads = heads_of(config, encoder)
    for task, (B, _) in shapes.items():
        _add_head(steps, heads, task, B)
    return steps.operations


def _sequences(config: RunConfig, shapes: Shapes) -> Shapes:
    apart = {task: TASKS[task].is_pair and config.two_encodings for task in shapes}
    return {task: (B * (2 if apart[task] else 1), T) for task, (B, T) in shapes.items()}


def _add_encoder(steps: Pass, plan: SharingPlan, shapes: Shapes, known: Collection[str]) -> None:
    first = frozen_depth(steps.config, steps.encoder)
    known = [task for task in shapes if task in known and first]
    read = {task: shapes[task] for task in shapes if task not in known}
    for copy, group in enumerate(plan.embeddings.groups):
        if present := {task: read[task] for task in group if task in read}:
            _add_words(steps, plan.embeddings, copy, present)
    hidden = {(task,): _add_embeddings(steps, plan.embeddings, task, *shape) for task, shape in read.items()}
    hidden = _add_layers(steps, plan, shapes, hidden, range(first))
    size = steps.encoder.hidden_size * FLOAT
    hidden |= {(task,): Hidden(f"states of {task}", shapes[task][0] * shapes[task][1] * size, False) for task in known}
    hidden = _add_layers(steps, plan, shapes, hidden, range(first, len(plan.layers)))
    all_states = sum(states.size for states in hidden.values())
    for group, states in hidden.items():
        for task in group:
            _add_pooling(steps, plan.pooler, task, *shapes[task], states, all_states)


def _add_layers(
    steps: Pass, plan: SharingPlan, shapes: Shapes, hidden: dict[tuple, Hidden], depths: range
) -> dict[tuple, Hidden]:
    """Some layers on the tasks whose hidden states are there; returns what comes out, group by group."""
    present = {task for group in hidden for task in group}
    for depth in depths:
        level = plan.layers[depth]
        groups = [tuple(task for task in group if task in present) for group in level.groups]
        hidden = _regroup(hidden, [group for group in groups if group], depth)
        for copy, group in enumerate(groups):
            if group:
                rows = {task: shapes[task] for task in group}
                hidden[group] = LayerPass(steps, depth, copy, rows, hidden[group], level.mode != "F").run()
    return hidden


def _regroup(hidden: dict[tuple, Hidden], groups: list[tuple], depth: int) -> dict[tuple, Hidden]:
    """The hidden states of other groups: a part of a storage keeps all of it; joined parts are a new one."""
    if set(hidden) == set(groups):
        return hidden
    source = {task: (group, states) for group, states in hidden.items() for task in group}
    result = {}
    for group in groups:
        parts = list(dict.fromkeys(source[task] for task in group))
        if len(group) == 1:
            result[group] = parts[0][1]
        else:
            size = sum(states.size for _, states in parts)
            name = f"joined before layer {depth + 1}: {', '.join(group)}"
            result[group] = Hidden(name, size, any(states.flows for _, states in parts))
    return result


def _copy_of(task: str, level: Level) -> int:
    return next(copy for copy, group in enumerate(level.groups) if task in group)


def _add_words(steps: Pass, level: Level, copy: int, shapes: Shapes) -> None:
    """One look-up for all tasks of a group; what it gives is gone when the last of them has its embeddings."""
    n, trained = sum(b * T for b, T in shapes.values()), level.mode != "F" and steps.training
    wide = n * steps.encoder.hidden_size * FLOAT
    kept = {"token ids": n * INDEX} if trained else {}
    gradients = {f"embeddings.{copy}": part_sizes(steps.encoder)["embeddings"] * FLOAT} if trained else {}
    steps.operations.append(Operation("embeddings", tuple(shapes), "words", kept, gradients, wide, trained * wide))


def _add_embeddings(steps: Pass, level: Level, task: str, b: int, T: int) -> Hidden:
    n, elements, trained = b * T, b * T * steps.encoder.hidden_size, level.mode != "F" and steps.training
    wide = elements * FLOAT
    kept = {}
    if trained:
        types = TASKS[task].is_pair and not steps.config.two_encodings and steps.encoder.type_vocab_size > 0
        drops = steps.encoder.hidden_dropout_prob > 0
        kept = {"norm input": wide, "mean and deviation": 2 * n * FLOAT}
        kept |= {"token types": n * INDEX} if types else {}
        kept |= {"dropout mask": elements * BYTE} if drops else {}
    steps.operations.append(Operation("embeddings", (task,), "norm", kept, {}, 2 * wide, trained * 2 * wide))
    return Hidden(f"embeddings of {task}", wide, trained)


def _add_pooling(steps: Pass, level: Level, task: str, b: int, T: int, states: Hidden, all_states: int) -> None:
    """What stands for a sentence; the backward pass spreads its gradient over the tokens of all tasks."""
    config, d = steps.config, steps.encoder.hidden_size
    graph, wide = states.flows, b * T * d * FLOAT
    kept, gradients = {}, {}
    if config.pooling == "mean" and graph:
        kept = {"token weights": b * T * FLOAT}
    trained = level.mode != "F" and steps.training
    if config.pooling == "pooler" and (graph or trained):
        weights, copy = part_sizes(steps.encoder)["pooler"], _copy_of(task, level)
        kept = {"pooler output": b * d * steps.width}
        if steps.is_half:
            kept["bfloat16 weights"] = steps.once(f"bfloat16 pooler {copy}", graph * (weights - d) * HALF)
        if trained:  # the [CLS] states are a view of all states
            kept["[CLS] states"] = b * d * HALF if steps.is_half else steps.once(states.storage, states.size)
            gradients = {f"pooler.{copy}": weights * FLOAT}
    steps.operations.append(
        Operation("pooling", (task,), config.pooling, kept, gradients, all_states + wide, graph * (all_states + wide))
    )


def _add_head(steps: Pass, heads: TaskHeads, task: str, B: int) -> None:
    """A task's head; what other heads feed it is left out, as too small to tell."""
    config = steps.config
    kept, gradients = {}, {}
    if norm := parameter_counts(heads.norm)["parameters"]:
        kept, gradients = {"norm input": B * heads.hidden_size * FLOAT}, {"norm of the heads": norm * FLOAT}
    if task in heads.by_task:
        widths = [linear.in_features for linear in heads.by_task[task].layers]
        places = {"inside": len(widths), "before": 1, "after": 0}[config.dropout_place] * (config.head_dropout > 0)
        kept["features"] = B * sum(widths) * FLOAT
        kept["dropout masks"] = B * sum(widths[:places]) * BYTE
        kept["ReLU outputs"] = B * sum(widths[1:places]) * FLOAT  # without dropout they are the features
        gradients[f"head of {task}"] = parameter_counts(heads.by_task[task])["parameters"] * FLOAT
    size = sum(kept.values())
    if not steps.training:
        kept, gradients = {}, {}
    kept = {name: count for name, count in kept.items() if count}
    backward = size * steps.training
    steps.operations.append(Operation("head", (task,), "head", kept, gradients, size, backward))


# --- memory over a step ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StepPasses:
    """The passes of one training step: over GEM's memory, then over the step's examples; each in its parts.

    is_flat: there is a pass for each task, and its gradient of the shared parameters becomes a flat vector.
    """

    memory: list[list[Shapes]]
    examples: list[list[Shapes]]
    shared: dict[str, int]  # bytes of the gradients that several tasks have a part in
    trained: dict[str, int]  # bytes of the gradients of all tasks' steps
    is_flat: bool


def step_passes(
    config: RunConfig,
    shapes: Shapes,
    encoder: BertConfig | None = None,
    memory: Shapes | None = None,
    cuda: bool = False,
) -> StepPasses:
    """The passes of a step; memory: shapes of what GEM draws, by default from the step's tasks."""
    every = operations(config, {task: (1, 1) for task in config.tasks}, encoder)
    trained = {name: size for op in every for name, size in op.gradients.items()}
    tasks: dict[str, set[str]] = {}
    for op in every:
        for name in op.gradients:
            tasks.setdefault(name, set()).update(op.tasks)
    shared = {name: trained[name] for name, of in tasks.items() if len(of) > 1}
    is_flat = bool(shared) and (config.gradients != "sum" or config.cosine_every is not None)
    if not is_flat:
        return StepPasses([], [_parts(config, shapes, cuda)], shared, trained, False)
    drawn = {}
    if config.gradients in ("gem", "agem"):
        drawn = memory or {task: (min(B, config.memory_batch), T) for task, (B, T) in shapes.items()}
    drawn = {task: shape for task, shape in drawn.items() if set(shapes) != {task}}
    by_task = [[_parts(config, {task: shape}, cuda) for task, shape in some.items()] for some in (drawn, shapes)]
    return StepPasses(*by_task, shared, trained, True)


def _parts(config: RunConfig, shapes: Shapes, cuda: bool) -> list[Shapes]:
    """The parts of a batch, as np.array_split cuts it in `updates`."""
    k = step_parts(config, shapes, cuda)
    parts = [{task: ((B + k - 1 - i) // k, T) for task, (B, T) in shapes.items()} for i in range(k)]
    return [some for part in parts if (some := {task: shape for task, shape in part.items() if shape[0]})]


@dataclass
class _Memory:
    """What is held while a step runs, and the moments recorded so far."""

    fixed: dict[str, int]  # weights, moments
    gradients: dict[str, int] = field(default_factory=dict)
    flat: int = 0  # task gradients
    rows: list[dict] = field(default_factory=list)

    def record(self, phase: str, op: Operation | None = None, activations: int = 0, temporary: int = 0) -> None:
        about = {"phase": phase, "level": "", "tasks": "", "operation": ""}
        if op is not None:
            about |= {"level": op.level, "tasks": ", ".join(op.tasks), "operation": op.name}
        held = {"gradients": sum(self.gradients.values()), "task gradients": self.flat}
        self.rows.append({**about, **self.fixed, **held, "activations": activations, "temporary": temporary})

    def run(self, steps: list[Operation]) -> None:
        """A forward and a backward pass; where a gradient is there already, the new one is added to it and goes."""
        live = 0
        for op in steps:
            live += sum(op.kept.values())
            self.record("forward", op, live, op.forward)
        for op in reversed(steps):
            new = {name: size for name, size in op.gradients.items() if name not in self.gradients}
            again = sum(op.gradients.values()) - sum(new.values())
            self.gradients |= new
            self.record("backward", op, live, op.backward + again)
            live -= sum(op.kept.values())

    def one_by_one(self, passes: list[list[Shapes]], shared: dict[str, int], make: Callable) -> None:
        """A flat gradient for each pass; there is room for all of them from the first one on."""
        self.flat += len(passes) * sum(shared.values())
        for parts in passes:
            for part in parts[:2]:
                self.run(make(part))
            self.record("task gradients")
            self.gradients = {name: size for name, size in self.gradients.items() if name not in shared}


def step_timeline(
    config: RunConfig,
    shapes: Shapes,
    encoder: BertConfig | None = None,
    memory: Shapes | None = None,
    *,
    cuda: bool = False,
    known: Collection[str] = (),
) -> pd.DataFrame:
    """Predicted memory over one training step, a row a moment, in MiB.

    shapes: task -> (examples, tokens), of the whole step before it is cut into parts (`updates.step_parts`), of
    which the first two are shown: later ones are no larger. memory: as in `step_passes`; cuda, known: as in
    `operations`.
    Columns: phase (forward, backward, task gradients, pull, update), level, tasks, operation; weights, moments,
    gradients, task gradients (the flat ones of PCGrad and GEM), activations, temporary; total.
    """
    encoder = encoder or encoder_config(config)
    passes = step_passes(config, shapes, encoder, memory, cuda)
    weights = count_parameters(config, encoder)["parameters"] * FLOAT
    state = _Memory({"weights": weights, "moments": 2 * sum(passes.trained.values())})

    def make(part: Shapes) -> list[Operation]:
        return operations(config, part, encoder, cuda=cuda, known=known)

    if passes.is_flat:
        state.one_by_one(passes.memory, passes.shared, make)
        state.gradients = {}
        state.one_by_one(passes.examples, passes.shared, make)
        summed = len(passes.examples) > 1  # or combined, by PCGrad
        projected = {"gem": 1, "agem": 2}.get(config.gradients, 0)  # A-GEM: and the mean of the memories
        flat = sum(passes.shared.values())
        state.flat += flat * (summed + projected)
        rows = {"gem": len(passes.memory) + 1, "agem": 2}.get(config.gradients, len(passes.examples))
        chunk = min(DEVICE_CHUNK if cuda else CHUNK["cpu"], flat // FLOAT)
        state.record("task gradients", temporary=rows * chunk * DOUBLE)
        state.flat, state.gradients = 0, state.gradients | passes.shared
    else:
        for part in passes.examples[0][:2]:
            state.run(make(part))
    if config.soft_sharing != "none":
        state.record("pull", temporary=_pull(config, encoder))
    state.record("update")
    table = pd.DataFrame(state.rows)
    table[PARTS] /= MIB
    return table.assign(total=table[PARTS].sum(axis=1))


def _pull(config: RunConfig, encoder: BertConfig) -> int:
    """Soft sharing works on one parameter at a time, its copies stacked (soft.py)."""
    d, copies = encoder.hidden_size, len(config.scored)
    individual = plan_of(config, encoder).embeddings.mode == "I"
    largest = encoder.vocab_size * d if individual else d * encoder.intermediate_size
    return copies * largest * FLOAT * (3 if config.soft_sharing == "l2" else 2)


def at_peak(timeline: pd.DataFrame) -> pd.Series:
    """The moment of a timeline at which most memory is held."""
    return timeline.loc[timeline["total"].idxmax()]


def kept_tensors(
    config: RunConfig, shapes: Shapes, encoder: BertConfig | None = None, cuda: bool = False
) -> pd.DataFrame:
    """What the forward pass keeps for the backward pass: level, tasks, operation, tensor, bytes."""
    return pd.DataFrame(
        [
            {"level": op.level, "tasks": ", ".join(op.tasks), "operation": op.name, "tensor": name, "bytes": size}
            for op in operations(config, shapes, encoder, cuda=cuda)
            for name, size in op.kept.items()
        ],
        columns=["level", "tasks", "operation", "tensor", "bytes"],
    )
