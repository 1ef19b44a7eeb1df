"""MultitaskBert: one encoder under a head for every task."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mtbert.bert import BertConfig, BertModel
from mtbert.config import ConfigError, RunConfig
from mtbert.data import TASKS
from mtbert.heads import TaskHead, pair_features, sentence_embedding
from mtbert.hub import CheckpointError, locate
from mtbert.tokens import Batch


class MultitaskBert(nn.Module):
    """The encoder and one head a task, as a RunConfig describes them.

    The heads are drawn from torch's generator: seed it before building the model.
    """

    def __init__(self, config: RunConfig, encoder: BertModel | None = None) -> None:
        super().__init__()
        self.run_config = config
        self.encoder = _build_encoder(config) if encoder is None else encoder
        if config.max_length > self.encoder.config.max_position_embeddings:
            raise CheckpointError(
                f"max_length is {config.max_length}, but the encoder {config.encoder!r} has "
                f"{self.encoder.config.max_position_embeddings} positions; lower max_length"
            )
        d = self.encoder.config.hidden_size
        self.heads = nn.ModuleDict(
            {name: TaskHead(TASKS[name], config.pairs, d, config.head_dropout) for name in config.scored}
        )
        if config.frozen:
            self.encoder.requires_grad_(False)

    def features(self, task: str, batch: Batch) -> Tensor:
        """What the task's head sees: (B, d), or (B, 2d) for concatenated pairs."""
        output = self.encoder(batch.input_ids, batch.attention_mask, batch.token_type_ids)
        embeddings = sentence_embedding(output, batch.attention_mask, self.run_config.pooling)
        apart = TASKS[task].is_pair and self.run_config.pairs != "joint"
        return pair_features(embeddings, self.run_config.pairs) if apart else embeddings

    def forward(self, task: str, batch: Batch) -> Tensor:
        """Logits of a task: (B, classes), or (B,) for binary pairs and similarity."""
        return self.heads[task](self.features(task, batch))

    def train(self, mode: bool = True) -> "MultitaskBert":
        """Training mode; a frozen encoder stays in evaluation mode, without dropout."""
        super().train(mode)
        if self.run_config.frozen:
            self.encoder.eval()
        return self

    def save(self, folder: Path) -> None:
        """Write the encoder in Hugging Face layout, the heads beside it, and the configuration."""
        self.encoder.save_pretrained(folder)
        save_file({name: t.contiguous() for name, t in self.heads.state_dict().items()}, folder / "heads.safetensors")
        text = json.dumps(self.run_config.model_dump(mode="json"), indent=2)
        (folder / "run_config.json").write_text(text + "\n", encoding="utf8")

    @classmethod
    def load(cls, folder: Path) -> "MultitaskBert":
        """Read what `save` wrote; raises CheckpointError if a part is missing."""
        missing = [name for name in ("run_config.json", "heads.safetensors") if not (folder / name).exists()]
        if missing:
            raise CheckpointError(f"{folder}: no trained model; {', '.join(missing)} missing")
        config = RunConfig.from_params(json.loads((folder / "run_config.json").read_text(encoding="utf8")))
        model = cls(config, BertModel.from_pretrained(folder))
        model.heads.load_state_dict(load_file(folder / "heads.safetensors"))
        return model.eval()


def _build_encoder(config: RunConfig) -> BertModel:
    if config.weights == "pretrained":
        encoder = BertModel.from_pretrained(config.encoder)
    else:
        encoder = BertModel(BertConfig.from_json(locate(config.encoder) / "config.json"))
    if config.attention_dropout is not None:
        for layer in encoder.layers:
            layer.attention.dropout = config.attention_dropout
    return encoder


def parameter_counts(model: nn.Module) -> dict[str, int]:
    """Numbers of parameters: all, and those that are trained."""
    parameters = list(model.parameters())
    return {
        "parameters": sum(p.numel() for p in parameters),
        "trained_parameters": sum(p.numel() for p in parameters if p.requires_grad),
    }


def pick_device(name: str = "auto") -> torch.device:
    """'auto' takes a GPU where there is one; raises ConfigError for a device that is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(f"device {name!r}: no GPU is available here; use 'cpu' or 'auto'")
    return torch.device(name)
