"""The parameters that a run trains: their groups for the optimizer, and the levels of the encoder they belong to.

Source of layer-wise learning rates: Howard and Ruder 2018.
"""

from torch import Tensor

from mtbert.multitask import MultitaskBert

UPSTREAM_RATE = 0.1  # factor of the learning rate of a slow upstream head


def trained_parameters(model: MultitaskBert) -> dict[str, Tensor]:
    """The parameters that are trained by name, and the offsets of slow upstream heads."""
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return parameters | model.heads.offsets


def parameter_groups(model: MultitaskBert) -> list[dict]:
    """The trained parameters by learning rate and weight decay, for an optimizer.

    A layer's learning rate is `layer_decay` times that of the layer above it; heads, adapters, the pooler and the top
    layer have all of it. Offsets of slow upstream heads have UPSTREAM_RATE of it.
    """
    config = model.run_config
    layers = model.encoder.config.num_hidden_layers
    groups = {}
    for name, parameter in trained_parameters(model).items():
        if name in model.heads.offsets:
            rate = config.learning_rate * UPSTREAM_RATE
            decay = 0.0
        else:
            rate = config.learning_rate * config.layer_decay ** _layers_above(name, layers)
            decay = config.weight_decay
        group = groups.setdefault((rate, decay), {"params": [], "lr": rate, "weight_decay": decay})
        group["params"].append(parameter)
    return list(groups.values())


def _layers_above(name: str, layers: int) -> int:
    """How many of an encoder's layers lie above a parameter; 0 above heads, adapters and the pooler."""
    parts = name.split(".")
    if parts[:2] == ["encoder", "layers"]:
        return layers - 1 - int(parts[2])
    if parts[:2] == ["encoder", "embeddings"]:
        return layers
    return 0


def by_level(spans: dict[str, slice]) -> dict[str, list[slice]]:
    """Spans of parameters in a vector -> spans of levels: embeddings, layer 1, ..., pooler, heads."""
    levels = {}
    for name, span in spans.items():
        level, part, number = name.split(".")[:3]  # encoder.layers.0.1.query.weight is of layer 1
        if part == "layers":
            level = f"layer {int(number) + 1}"
        elif level == "encoder":
            level = "pooler" if part == "poolers" else part
        levels.setdefault(level, []).append(span)
    return levels
