"""The parameters that a run trains, in groups for the optimizer.

Source of layer-wise learning rates: Howard and Ruder 2018.
"""

from mtbert.multitask import MultitaskBert

UPSTREAM_RATE = 0.1  # factor of the learning rate of a slow upstream head


def parameter_groups(model: MultitaskBert) -> list[dict]:
    """The trained parameters, and the offsets of slow upstream heads, by learning rate and weight decay.

    A layer's learning rate is `layer_decay` times that of the layer above it; heads, adapters, the pooler and the top
    layer have all of it. Offsets of slow upstream heads have UPSTREAM_RATE of it.
    """
    config = model.run_config
    layers = model.encoder.config.num_hidden_layers
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    groups = {}
    for name, parameter in (trained | model.heads.offsets).items():
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
