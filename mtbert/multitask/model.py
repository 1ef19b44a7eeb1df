"""MultitaskBert = encoder under a sharing plan + adapters + a head for every task."""

import reprlib
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy import ndarray
from torch import Tensor, nn

from mtbert.batches import eval_batches
from mtbert.bert import Batch, BertConfig, BertModel, CheckpointError, checkpoint_sizes, init_empty_weights
from mtbert.config import ConfigError, RunConfig
from mtbert.data import TASKS, UNDECODED, pos_features, tokenize
from mtbert.multitask.heads import TaskHeads, sentence_embedding
from mtbert.multitask.losses import class_probabilities, predict
from mtbert.multitask.saved_model import check_files, read_model, saved_tokenizer, write_model
from mtbert.runtime import Trimmer
from mtbert.sharing import ADAPTERS, AdapterSizes, SharedEncoder, SharingPlan

EVAL_TOKENS = 8192  # padded tokens of an evaluation batch; for pairs encoded one by one, of either sentence
GPU_EVAL_TOKENS = 32768  # the same on a GPU, which small batches leave idle


class MultitaskBert(nn.Module):
    """Encoder, sharing plan, adapters and one head a task, as a RunConfig describes them.

    Adapters and heads are drawn from torch's generator: seed it before building the model. Raises CheckpointError,
    PlanError or ConfigError where the encoder does not fit the configuration.
    """

    def __init__(self, config: RunConfig, encoder: BertModel | None = None) -> None:
        super().__init__()
        self.run_config = config
        self.tokenizer_source = config.encoder  # the checkpoint that has it; of a loaded model a folder of its own
        base = build_encoder(config) if encoder is None else _fitting(encoder, config)
        if config.max_length > base.config.positions:
            raise CheckpointError(
                f"max_length is {config.max_length}, but the encoder {config.encoder!r} has "
                f"{base.config.positions} positions; lower max_length"
            )
        plan = SharingPlan.parse(config.plan_text, config.scored, base.config.num_hidden_layers)
        adapters = {}
        if config.adapter != "none":
            sizes = AdapterSizes(config.adapter_size, config.adapter_heads)
            adapters = {task: ADAPTERS[config.adapter](base.config, sizes) for task in config.scored}
        self.encoder = SharedEncoder(base, plan, adapters)
        self.heads = TaskHeads(config, base.config.hidden_size)
        if config.weighting == "uncertainty":  # s_t = log sigma_t^2
            self.log_variances = nn.ParameterDict({task: torch.zeros(()) for task in config.tasks})

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    @property
    def embeddings_are_fixed(self) -> bool:
        """Whether training changes the heads alone, so that embeddings are a function of the text."""
        return self.run_config.encoder_is_frozen and not self.encoder.adapters

    def embed(self, batches: dict[str, Batch], prefix: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Task -> embeddings (B, k, d) in the weights' type; k is 2 where a pair's sentences are encoded one by one.

        The encoder runs at the configured precision. prefix: the outputs of some tasks' frozen layers, as in
        `SharedEncoder.forward`.
        """
        config = self.run_config
        dtype = next(self.parameters()).dtype
        result = {}
        with autocast(config, self.device):
            for task, states in self.encoder(batches, prefix).items():
                if config.pooling == "pooler":
                    embeddings = self.encoder.pool(task, states)  # (k B, d)
                else:
                    embeddings = sentence_embedding(states, batches[task].attention_mask, config.pooling)
                k = config.encodings(task)
                by_sentence = embeddings.view(k, -1, embeddings.size(-1))  # the first sentences of all pairs come first
                result[task] = by_sentence.transpose(0, 1).to(dtype)  # (B, k, d)
        return result

    def forward(
        self,
        batches: dict[str, Batch],
        tags: dict[str, Tensor] | None = None,
        prefix: dict[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Logits of every task of the batch: (B, classes), or (B,) for binary tasks and numbers.

        tags: part-of-speech features (B, p) by task, where the configuration asks for them. prefix: as in `embed`.
        """
        tags = tags or {}
        logits = {}
        for task, embeddings in self.embed(batches, prefix).items():
            logits[task] = self.heads(task, embeddings, tags.get(task))
        return logits

    def resolve_task(self, task: str | None) -> str:
        """The task; None is the only one. Raises ConfigError if the model does not have it, or several."""
        known = self.run_config.scored
        if task is None and len(known) > 1:
            raise ConfigError(f"this model has several tasks; name one with task=...: {', '.join(known)}")
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
        if isinstance(texts, str | Mapping | pd.DataFrame):  # iteration gives characters, keys, names of columns
            raise ConfigError(f"texts: one {type(texts).__name__}; pass a list of sentences or of pairs")
        task = self.resolve_task(task)
        about = TASKS[task]
        if probabilities and about.is_number:
            raise ConfigError(f"probabilities: {task} predicts a number and has none")
        table = _table_of(texts, task)
        columns = [f"p_{name}" for name in about.names] if probabilities else []
        if table.empty:
            names = ["predicted"] if about.is_number else ["predicted", "confidence", *columns]
            return pd.DataFrame({name: [] for name in names})
        logits = self._logits_of(task, table)
        predicted, confidence = predict(about, logits)
        labels = pd.Series(predicted.cpu().numpy())
        result = pd.DataFrame({"predicted": about.as_written(labels)})
        if not about.is_number:
            result["confidence"] = confidence.cpu().numpy()
        if probabilities:
            result[columns] = class_probabilities(about, logits).cpu().numpy()
        return result

    def _logits_of(self, task: str, table: pd.DataFrame) -> Tensor:
        """A task's logits for the sentences of a table, row by row."""
        config = self.run_config
        tokens = tokenize(task, table, self.tokenizer_source, config.pairs, config.max_length)
        tags = None
        if config.pos_features:
            tags = torch.from_numpy(pos_features(task, table)).to(self.device)

        def compute(rows: ndarray) -> Tensor:
            batches = {task: tokens.batch(rows).to(self.device)}
            own_tags = None if tags is None else {task: tags[rows]}
            return self(batches, own_tags)[task]

        return in_order(self.in_batches(tokens.lengths, compute))

    def in_batches(self, lengths: ndarray, compute: Callable[[ndarray], Any]) -> Iterator[tuple[ndarray, Any]]:
        """Indices of examples of these lengths (tokens) and compute(indices), in batches of similar length.

        They are computed without dropout and gradients.
        """
        trim = Trimmer()
        budget = EVAL_TOKENS if self.device.type == "cpu" else GPU_EVAL_TOKENS
        for part in eval_batches(lengths, budget):
            was_training = self.training
            self.eval()
            try:
                with torch.no_grad():
                    result = compute(part)
            finally:  # before the result goes out: the caller may train, or take no further batch
                self.train(was_training)
            yield part, result
            trim()

    def shared_parameters(self) -> dict[str, Tensor]:
        """The parameters that more than one of the training tasks trains, by their names in this module."""
        shared: set[nn.Parameter] = set()
        for name, copies in self.encoder.levels().items():
            if name == "pooler" and self.run_config.pooling != "pooler":
                continue
            for users, module in copies.used_by(self.run_config.tasks).items():
                if len(users) > 1:
                    shared.update(module.parameters())
        parameters = {name: p for name, p in self.named_parameters() if p.requires_grad and p in shared}
        for name, p in self.heads.shared_parameters().items():
            parameters[f"heads.{name}"] = p
        return parameters

    def own_weights(self, task: str) -> set[str]:
        """Names in the `state_dict` of what one task alone has: its copies of levels, its adapter and its head."""
        own: set[nn.Parameter] = set()
        for copies in self.encoder.levels().values():
            for users, module in copies.used_by(self.run_config.tasks).items():
                if users == (task,):
                    own.update(module.parameters())
        parts = (
            f"encoder.adapters.{task}.",
            f"heads.by_task.{task}.",
            f"heads.attention.{task}.",
            f"log_variances.{task}.",
        )
        values = self.state_dict(keep_vars=True)
        return {name for name, value in values.items() if value in own or f"{name}.".startswith(parts)}

    def individual_copies(self) -> list[list[nn.Module]]:
        """The training tasks' copies of every individual level, for soft sharing."""
        levels = []
        for copies in self.encoder.levels().values():
            if copies.level.mode == "I":
                levels.append(list(copies.used_by(self.run_config.tasks).values()))
        return levels

    def table(self) -> pd.DataFrame:
        """`SharingPlan.table` for this encoder, and rows for adapters and heads."""
        adapters = self.encoder.adapters
        tables = [self.encoder.plan.table(self.encoder.config)]
        for name, part, tasks in (("adapters", adapters, adapters), ("heads", self.heads, self.heads.by_task)):
            count = parameter_counts(part)["parameters"]
            if count:
                row = {
                    "mode": "individual",
                    "groups": " | ".join(tasks),
                    "copies": len(tasks),
                    "parameters": count,
                    "trained": count,
                }
                tables.append(pd.DataFrame(row, index=[name]))
        return pd.concat(tables).rename_axis("level")

    def save(self, folder: str | Path) -> None:
        """Write the weights, the encoder's sizes, its tokenizer, the configuration and the definitions of the tasks.

        Predictions depend on nothing else but registered code of your own, whose changes `load` does not notice. For
        transformers see `export_task`.
        """
        write_model(Path(folder), self.run_config, self.encoder.config, self.state_dict(), self.tokenizer_source)

    @classmethod
    def load(cls, folder: str | Path) -> "MultitaskBert":
        """Read a folder of `save`.

        Raises CheckpointError if a part is missing or damaged, a task was changed, or this version cannot read it.
        """
        folder = Path(folder)
        check_files(folder)
        len(TASKS)  # reads those of the user: a fault of their files is none of the model's
        try:
            config, sizes, tensors = read_model(folder)
            with init_empty_weights():
                encoder = BertModel(sizes)
            with torch.random.fork_rng(devices=[]):  # adapters and heads draw weights, which are replaced
                model = cls(config, encoder.to_empty(device="cpu"))
            model.load_state_dict(tensors)
        except (CheckpointError, OSError, MemoryError):
            raise
        except ConfigError as error:  # a task, code or field that is not known here
            raise CheckpointError(f"{folder}: {error}") from error
        except Exception as error:  # of many types
            reason = textwrap.shorten(str(error), 200)
            raise CheckpointError(
                f"{folder}: its files are whole, but this version of mtbert, or the code registered here, cannot read "
                f"them ({reason}); use what saved it, or train again"
            ) from error
        model.tokenizer_source = saved_tokenizer(folder, config)
        return model.eval()


def _table_of(texts: Sequence[Any], task: str) -> pd.DataFrame:
    """A row for every example, with the columns of the task's sentences; raises ConfigError for other texts."""
    columns = TASKS[task].sentence_columns
    examples = []
    for i, given in enumerate(texts):
        is_single = isinstance(given, str | Mapping) or not isinstance(given, Iterable)
        example = (given,) if is_single else tuple(given)
        if len(example) != len(columns):
            expected = f"{len(columns)} text{'s' * (len(columns) > 1)} ({', '.join(columns)})"
            raise ConfigError(f"texts: an example of {task} has {expected}; number {i} has {len(example)}")
        if odd := [text for text in example if not _is_text(text)]:
            raise ConfigError(f"texts: number {i} has {reprlib.repr(odd[0])}, which is no text in UTF-8")
        examples.append(tuple(text.strip() for text in example))  # as those of a table are
    return pd.DataFrame(examples, columns=list(columns))


def _is_text(value: Any) -> bool:
    """Whether a value is a string without the surrogates that stand for bytes that are no UTF-8."""
    return isinstance(value, str) and not UNDECODED.search(value)


def in_order(batches: Iterable[tuple[ndarray, Tensor]]) -> Tensor:
    """The results of `MultitaskBert.in_batches` as one tensor, in the order of the examples."""
    order, parts = [], []
    for indices, part in batches:
        order.append(indices)
        parts.append(part)
    result = torch.cat(parts)
    places = torch.as_tensor(np.concatenate(order), device=result.device)
    return torch.empty_like(result).index_copy_(0, places, result)


def encoder_config(config: RunConfig) -> BertConfig:
    """The sizes of a configuration's encoder; raises CheckpointError, and ConfigError for too many `layers`."""
    sizes = checkpoint_sizes(config.encoder)
    if config.layers is not None:
        L = sizes.num_hidden_layers
        if config.layers > L:
            raise ConfigError(f"layers: {config.layers}, but the encoder {config.encoder!r} has {L}")
        sizes = replace(sizes, num_hidden_layers=config.layers)
    if config.attention_dropout is not None:
        sizes = replace(sizes, attention_probs_dropout_prob=config.attention_dropout)
    return sizes


def build_encoder(config: RunConfig) -> BertModel:
    """The encoder that a configuration starts from; raises as `encoder_config` does."""
    sizes = encoder_config(config)
    if config.weights == "pretrained":
        encoder = BertModel.from_pretrained(config.encoder)
    else:
        encoder = BertModel(checkpoint_sizes(config.encoder))  # all of its layers draw weights
    encoder.layers = encoder.layers[: sizes.num_hidden_layers]
    encoder.config = sizes
    for layer in encoder.layers:
        layer.attention.dropout = sizes.attention_probs_dropout_prob
    return encoder


def _fitting(encoder: BertModel, config: RunConfig) -> BertModel:
    """A given encoder; raises ConfigError where the configuration asks for another part of it, or other dropout."""
    has = {
        "layers": encoder.config.num_hidden_layers,
        "attention_dropout": encoder.config.attention_probs_dropout_prob,
    }
    for field, value in has.items():
        if getattr(config, field) not in (None, value):
            raise ConfigError(f"{field}: {getattr(config, field)}, but the encoder given has {value}")
    return encoder


def meta_model(config: RunConfig, encoder: BertConfig | None = None) -> MultitaskBert:
    """The configuration's model without numbers; encoder: other sizes than its checkpoint's. Raises as the model."""
    with init_empty_weights():
        base = BertModel(encoder) if encoder else None
        return MultitaskBert(config.but(weights="random"), base)


def parameter_counts(model: nn.Module) -> dict[str, int]:
    """Numbers of parameters: all, and those that may be trained; a pooler that nothing reads is among both."""
    parameters = list(model.parameters())
    return {
        "parameters": sum(p.numel() for p in parameters),
        "trained_parameters": sum(p.numel() for p in parameters if p.requires_grad),
    }


def autocast(config: RunConfig, device: torch.device) -> torch.autocast:
    """The context in which an encoder runs at the configured precision."""
    return torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bf16")
