"""MultitaskBert = encoder under a sharing plan + adapters + a head for every task."""

import json
import logging
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from mtbert.bert import MINILM, Batch, BertConfig, BertModel, CheckpointError, copy_tokenizer, locate, write_tensors
from mtbert.config import ConfigError, RunConfig, unknown_names
from mtbert.data import COURSE, TASKS, UNDECODED, changed_tasks, pos_features, tokenize
from mtbert.multitask.heads import TaskHeads, output_width, sentence_embedding
from mtbert.multitask.losses import class_probabilities, predict
from mtbert.paths import CHECKSUMS, checksum_faults, replacing, write_checksums, write_json
from mtbert.runtime import Trimmer
from mtbert.samplers import eval_batches
from mtbert.sharing import ADAPTERS, Adapter, AdapterSizes, SharedEncoder, SharingPlan

log = logging.getLogger(__name__)
EVAL_TOKENS = 8192  # padded tokens of an evaluation batch; of each sentence where those of a pair are apart
FILES = ("run_config.json", "encoder.json", "model.safetensors")
DEFINITIONS = "tasks.json"  # models of version 0.9.0 and earlier have neither this nor a tokenizer
TOKENIZER = "tokenizer"


class MultitaskBert(nn.Module):
    """Encoder, sharing plan, adapters and one head a task, as a RunConfig describes them.

    Adapters and heads are drawn from torch's generator: seed it before building the model. Raises CheckpointError or
    PlanError where the encoder does not fit the configuration.
    """

    def __init__(self, config: RunConfig, encoder: BertModel | None = None) -> None:
        super().__init__()
        self.run_config = config
        self.tokenizer = config.encoder  # the checkpoint that has it; of a loaded model a folder of its own
        base = build_encoder(config) if encoder is None else encoder
        if config.max_length > base.config.positions:
            raise CheckpointError(
                f"max_length is {config.max_length}, but the encoder {config.encoder!r} has "
                f"{base.config.positions} positions; lower max_length"
            )
        plan = SharingPlan.parse(config.plan_text, config.scored, base.config.num_hidden_layers)
        adapters = {task: build_adapter(config, base.config) for task in config.scored}
        self.encoder = SharedEncoder(base, plan, {task: a for task, a in adapters.items() if a is not None})
        self.encoder.freeze()
        self.encoder.checkpoint_layers = config.checkpoint_layers
        self.heads = TaskHeads(config, base.config.hidden_size)
        if config.weighting == "uncertainty":  # s_t = log sigma_t^2
            self.log_variances = nn.ParameterDict({task: torch.zeros(()) for task in config.tasks})

    @property
    def plan(self) -> SharingPlan:
        """The sharing plan, for this encoder's number of layers."""
        return self.encoder.plan

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    @property
    def features_are_fixed(self) -> bool:
        """Whether training changes the heads alone, so that embeddings are a function of the text."""
        return self.plan.is_frozen and not self.encoder.adapters

    def embed(self, batches: dict[str, Batch], below: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Task -> embeddings (B, k, d) in the weights' type; k is 2 where a pair's sentences are encoded one by one.

        The encoder runs at the configured precision. below: the outputs of some tasks' frozen layers, as in
        `SharedEncoder.forward`.
        """
        config, result = self.run_config, {}
        weights = next(self.parameters())
        with autocast(config, self.device):
            for task, states in self.encoder(batches, below).items():
                if config.pooling == "pooler":
                    embeddings = self.encoder.pool(task, states)
                else:
                    embeddings = sentence_embedding(states, batches[task].attention_mask, config.pooling)
                k = config.encodings(task)
                by_sentence = embeddings.view(k, -1, embeddings.size(-1))  # the first sentences of all pairs come first
                result[task] = by_sentence.transpose(0, 1).to(weights.dtype)
        return result

    def forward(
        self,
        batches: dict[str, Batch],
        tags: dict[str, Tensor] | None = None,
        below: dict[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Logits of every task of the batch: (B, classes), or (B,) for binary tasks and numbers.

        tags: part-of-speech features (B, p) by task, where the configuration asks for them. below: as in `embed`.
        """
        tags = tags or {}
        embeddings = self.embed(batches, below)
        return {task: self.heads(task, part, tags.get(task)) for task, part in embeddings.items()}

    def checked(self, task: str | None) -> str:
        """The task; None is the only one. Raises ConfigError if the model does not have it, or several."""
        known = self.run_config.scored
        if task is None and len(known) > 1:
            raise ConfigError(f"this model has several tasks; name one with --task (task=...): {', '.join(known)}")
        if task not in (*known, None):
            raise ConfigError(f"task is {task!r}; this model has {', '.join(known)}")
        return task or known[0]

    def predict(
        self,
        texts: Sequence[str] | Sequence[tuple[str, str]],
        task: str | None = None,
        probabilities: bool = False,
    ) -> pd.DataFrame:
        """Predictions of a task for sentences or pairs of them: a row an example, predicted and confidence.

        Where classes have names, `predicted` are names; a number has no confidence. probabilities: a further column for
        every class, p_<class>.
        Raises ConfigError for a task without a head, for texts that are not what the task takes, and for probabilities
        of a number.
        """
        if isinstance(texts, str):
            raise ConfigError("texts: one string; pass a list of sentences or of pairs")
        config = self.run_config
        task = self.checked(task)
        about = TASKS[task]
        if probabilities and about.is_number:
            raise ConfigError(f"probabilities: {task} predicts a number and has none")
        columns = about.sentence_columns
        examples = [(text,) if isinstance(text, str) or not isinstance(text, Iterable) else (*text,) for text in texts]
        if wrong := [i for i, example in enumerate(examples) if len(example) != len(columns)]:
            raise ConfigError(f"texts: {task} takes {len(columns)} sentence(s) an example; not so: number {wrong[0]}")
        if wrong := [i for i, example in enumerate(examples) if not all(map(_is_text, example))]:
            raise ConfigError(f"texts: number {wrong[0]} is no text in UTF-8")
        if not examples:
            return pd.DataFrame({"predicted": []} if about.is_number else {"predicted": [], "confidence": []})
        table = pd.DataFrame(examples, columns=list(columns))
        tokens = tokenize(task, table, self.tokenizer, config.pairs, config.max_length)
        tags = torch.from_numpy(pos_features(task, table)).to(self.device) if config.pos_features else None

        def logits(rows: np.ndarray) -> Tensor:
            batches = {task: tokens.batch(rows).to(self.device)}
            return self(batches, {} if tags is None else {task: tags[rows]})[task]

        found = in_order(self.in_batches(tokens.lengths, logits))
        predicted, confidence = (p.cpu().numpy() for p in predict(about, found))
        result = pd.DataFrame({"predicted": about.as_written(pd.Series(predicted))})
        if not about.is_number:
            result["confidence"] = confidence
        if probabilities:
            result[[f"p_{name}" for name in about.names]] = class_probabilities(about, found).cpu().numpy()
        return result

    def in_batches(
        self, lengths: np.ndarray, compute: Callable[[np.ndarray], Any], chosen: slice = slice(None)
    ) -> Iterator[tuple[np.ndarray, Any]]:
        """Indices of examples of these lengths (tokens) and compute(indices), in batches of similar length.

        They are computed without dropout and gradients. chosen: the batches to compute, among all.
        """
        trim = Trimmer()
        for part in list(eval_batches(lengths, EVAL_TOKENS))[chosen]:
            with self._evaluating():  # until the result is there: the caller may train, or take no further batch
                result = compute(part)
            yield part, result
            trim()

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """A context without dropout and gradients."""
        was_training = self.training
        self.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self.train(was_training)

    def shared_parameters(self) -> dict[str, Tensor]:
        """The parameters that more than one of the training tasks trains, by their names in this module."""
        trained = set(self.run_config.tasks)
        shared: set[int] = set()
        for name, (level, copies) in self.encoder.levels().items():
            if name == "pooler" and self.run_config.pooling != "pooler":
                continue
            for group, module in zip(level.groups, copies, strict=True):
                if len(trained & set(group)) > 1:
                    shared.update(map(id, module.parameters()))
        encoder = {name: p for name, p in self.named_parameters() if p.requires_grad and id(p) in shared}
        return encoder | {f"heads.{name}": p for name, p in self.heads.shared_parameters().items()}

    def own_weights(self, task: str) -> set[str]:
        """Names in the `state_dict` that one task alone uses: its copies of levels, its adapter and its head."""
        own: set[int] = set()
        for level, copies in self.encoder.levels().values():
            if (task,) in level.groups:
                own.update(map(id, copies[level.groups.index((task,))].parameters()))
        parts = (f"encoder.adapters.{task}.", f"heads.by_task.{task}.", f"log_variances.{task}.")
        return {name for name, p in self.named_parameters() if id(p) in own or f"{name}.".startswith(parts)}

    def individual_copies(self) -> list[list[nn.Module]]:
        """The training tasks' copies of every individual level, for soft sharing."""
        trained = [task in self.run_config.tasks for task in self.run_config.scored]
        levels = self.encoder.levels().values()
        return [list(compress(copies, trained)) for level, copies in levels if level.mode == "I"]

    def table(self) -> pd.DataFrame:
        """`SharingPlan.table` for this encoder, and rows for adapters and heads."""
        tasks = self.run_config.scored
        rows = [self.plan.table(self.encoder.config)]
        for name, part in (("adapters", self.encoder.adapters), ("heads", self.heads)):
            if count := parameter_counts(part)["parameters"]:
                about = dict(mode="individual", groups=" | ".join(tasks), copies=len(tasks))
                rows.append(pd.DataFrame({**about, "parameters": count, "trained": count}, index=[name]))
        return pd.concat(rows).rename_axis("level")

    def save(self, folder: str | Path) -> None:
        """Write all that predictions depend on; for transformers see `export_task`.

        These are the weights, the encoder's sizes, its tokenizer, the configuration and the definitions of the tasks.
        """
        folder = Path(folder)
        config = self.run_config
        (folder / "run_config.json").unlink(missing_ok=True)  # without it this is no model: it is written last
        write_tensors(folder / "model.safetensors", self.state_dict())
        write_json(folder / "encoder.json", asdict(self.encoder.config))
        write_json(folder / DEFINITIONS, {task: TASKS[task].definition for task in config.scored})
        names = ["encoder.json", "model.safetensors", DEFINITIONS, *self._save_tokenizer(folder)]
        with replacing(folder / "run_config.json") as partial:
            write_json(partial, config.model_dump(mode="json"))
            write_checksums(folder, names, {"run_config.json": partial})

    def _save_tokenizer(self, folder: Path) -> list[str]:
        """Write the tokenizer next to the weights; returns the names of its files."""
        try:
            return [f"{TOKENIZER}/{name}" for name in copy_tokenizer(locate(self.tokenizer), folder / TOKENIZER)]
        except CheckpointError as error:
            log.warning("%s: the model is saved without its tokenizer: %s", folder, error)
            return []

    @classmethod
    def load(cls, folder: str | Path) -> "MultitaskBert":
        """Read what `save` wrote; raises CheckpointError if a part is missing or damaged, or a task was changed.

        Of models of version 0.9.0 and earlier, which lack their tokenizer and their tasks' definitions, the tokenizer
        is that of the encoder of today, and only the sizes of the heads are compared.
        """
        folder = Path(folder)
        if missing := [name for name in FILES if not (folder / name).exists()]:
            raise CheckpointError(f"{folder}: no trained model; {', '.join(missing)} missing")
        _check_files(folder)
        try:
            params = _read_json(folder / "run_config.json")
            if unknown := unknown_names(params):
                raise CheckpointError(f"{folder}: {unknown}")
            config = RunConfig.from_params(params)
            tensors = load_file(folder / "model.safetensors")
            if changed := _changed_tasks(config, folder / DEFINITIONS, tensors):
                raise CheckpointError(
                    f"{folder}: the model was trained with other tasks than those here: {changed}; restore the file "
                    "of the task, or give the changed task another name and train it"
                )
            model = cls(config, BertModel(BertConfig(**_read_json(folder / "encoder.json"))))
            model.load_state_dict(tensors)
        except CheckpointError:
            raise
        except Exception as error:  # of many types
            reason = textwrap.shorten(str(error), 200)
            raise CheckpointError(f"{folder}: a file is damaged ({reason}); delete the folder, train again") from error
        if (folder / TOKENIZER).is_dir():
            model.tokenizer = str(folder / TOKENIZER)
        elif config.encoder != MINILM:
            log.warning("%s: was saved without a tokenizer; that of %s is used as it is now", folder, config.encoder)
        return model.eval()


def _is_text(value: Any) -> bool:
    """Whether a value is a string without the surrogates that stand for bytes that are no UTF-8."""
    return isinstance(value, str) and not UNDECODED.search(value)


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf8"))


def _check_files(folder: Path) -> None:
    """Raise CheckpointError unless the checksums of a saved model cover all of its files and are right."""
    parts = [path.relative_to(folder).as_posix() for path in (folder / DEFINITIONS, *(folder / TOKENIZER).glob("*"))]
    own = [name for name in parts if (folder / name).exists()]
    if not own and not (folder / CHECKSUMS).exists():
        log.warning("%s: not checked: it has no %s, as models of version 0.4.0 and earlier", folder, CHECKSUMS)
    elif faults := checksum_faults(folder, [*FILES, *own]):
        raise CheckpointError(f"{folder}: {'; '.join(faults)}; delete the folder, train again")


def _changed_tasks(config: RunConfig, definitions: Path, tensors: dict[str, Tensor]) -> str:
    """What has changed in a saved model's tasks; without their definitions, as far as its heads show it."""
    if definitions.exists():
        stored = _read_json(definitions)
        return changed_tasks({task: stored[task] for task in config.scored})
    if own := [task for task in config.scored if task not in COURSE]:
        log.warning("%s: saved without the definition of %s; was it changed since?", definitions.parent, ", ".join(own))
    changes = []
    for task in config.scored:
        bias = tensors.get(f"heads.by_task.{task}.layers.{config.head_layers - 1}.bias")
        if bias is not None and len(bias) != output_width(TASKS[task]):
            changes.append(f"{task}: its head has {len(bias)} outputs, the task {output_width(TASKS[task])}")
    return "; ".join(changes)


def in_order(batches: Iterable[tuple[np.ndarray, Tensor]]) -> Tensor:
    """What `MultitaskBert.in_batches` computed, in the order of the examples."""
    order, parts = zip(*batches, strict=True)
    result = torch.cat(parts)
    place = torch.as_tensor(np.concatenate(order), device=result.device)
    return torch.empty_like(result).index_copy_(0, place, result)


def encoder_config(config: RunConfig) -> BertConfig:
    """The sizes of a configuration's encoder; raises CheckpointError, and ConfigError for too many `layers`."""
    encoder = BertConfig.from_json(locate(config.encoder) / "config.json")
    L = encoder.num_hidden_layers
    if (config.layers or 0) > L:
        raise ConfigError(f"layers: {config.layers}, but the encoder {config.encoder!r} has {L}")
    dropout = encoder.attention_probs_dropout_prob if config.attention_dropout is None else config.attention_dropout
    return replace(encoder, num_hidden_layers=config.layers or L, attention_probs_dropout_prob=dropout)


def build_encoder(config: RunConfig) -> BertModel:
    """The encoder that a configuration starts from; raises as `encoder_config` does."""
    sizes = encoder_config(config)
    if config.weights == "pretrained":
        encoder = BertModel.from_pretrained(config.encoder)
    else:
        encoder = BertModel(BertConfig.from_json(locate(config.encoder) / "config.json"))
    encoder.layers = encoder.layers[: sizes.num_hidden_layers]
    encoder.config = sizes
    for layer in encoder.layers:
        layer.attention.dropout = sizes.attention_probs_dropout_prob
    return encoder


def meta_model(config: RunConfig, encoder: BertConfig | None = None) -> MultitaskBert:
    """The configuration's model without numbers; encoder: other sizes than its checkpoint's. Raises as the model."""
    with torch.device("meta"):
        return MultitaskBert(config.but(weights="random"), BertModel(encoder) if encoder else None)


def build_adapter(config: RunConfig, encoder: BertConfig) -> Adapter | None:
    """One task's adapter, drawn from torch's generator; None where the configuration has none."""
    if config.adapter == "none":
        return None
    return ADAPTERS[config.adapter](encoder, AdapterSizes(config.adapter_size, config.adapter_heads))


def parameter_counts(model: nn.Module) -> dict[str, int]:
    """Numbers of parameters: all, and those that are trained."""
    parameters = list(model.parameters())
    return {
        "parameters": sum(p.numel() for p in parameters),
        "trained_parameters": sum(p.numel() for p in parameters if p.requires_grad),
    }


def autocast(config: RunConfig, device: torch.device) -> torch.autocast:
    """The context in which an encoder runs at the configured precision."""
    return torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bf16")
