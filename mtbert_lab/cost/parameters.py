"""Parameters of a configuration, counted on its model without numbers (the meta device).

Source: papers 001 (section 4.2: 2sd + L 3s^2 of a PAL, L (4d^2 + 2 d d_i) of the layers), 002 (section 4: 1-bert,
3-bert, hybrid-bert), 000 (section 4: performance against the dimensions of the parameters).
"""

import pandas as pd

from mtbert.bert import BertConfig
from mtbert.config import RunConfig
from mtbert.multitask import meta_model, parameter_counts


def compare_parameters(configs: dict[str, RunConfig], encoder: BertConfig | None = None) -> pd.DataFrame:
    """A row a named configuration: encoder, adapters, heads, parameters, trained, and in units of one encoder."""
    rows = {}
    for name, config in configs.items():
        model = meta_model(config, encoder)
        counts = parameter_counts(model)
        adapters = parameter_counts(model.encoder.adapters)["parameters"]
        one_encoder = 0  # one copy of each level
        for copies in model.encoder.levels().values():
            one_encoder += parameter_counts(copies[0])["parameters"]
        rows[name] = {
            "encoder": parameter_counts(model.encoder)["parameters"] - adapters,
            "adapters": adapters,
            "heads": parameter_counts(model.heads)["parameters"],
            "parameters": counts["parameters"],
            "trained": counts["trained_parameters"],
            "times one encoder": counts["parameters"] / one_encoder,
        }
    return pd.DataFrame.from_dict(rows, orient="index")
