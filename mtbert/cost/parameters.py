"""Parameters of a configuration, by level, adapter and head, counted on its model without numbers (the meta device).

Source: papers 001 (section 4.2: 2sd + L 3s^2 of a PAL, L (4d^2 + 2 d d_i) of the layers), 002 (section 4: 1-bert,
3-bert, hybrid-bert), 000 (section 4: performance against the dimensions of the parameters).
"""

import pandas as pd
import torch

from mtbert.bert import BertConfig, BertModel
from mtbert.config import RunConfig
from mtbert.multitask import MultitaskBert, parameter_counts
from mtbert.sharing import SharingPlan


def meta_model(config: RunConfig, encoder: BertConfig | None = None) -> MultitaskBert:
    """The configuration's model without numbers; encoder: other sizes than its checkpoint's. Raises as the model."""
    with torch.device("meta"):
        return MultitaskBert(config.but(weights="random"), BertModel(encoder) if encoder else None)


def parameter_table(config: RunConfig, encoder: BertConfig | None = None) -> pd.DataFrame:
    """Mode, groups, copies, parameters and trained ones of every level (`MultitaskBert.table`)."""
    return meta_model(config, encoder).table()


def count_parameters(config: RunConfig, encoder: BertConfig | None = None) -> dict[str, int]:
    """parameters and trained_parameters."""
    return parameter_counts(meta_model(config, encoder))


def compare_parameters(configs: dict[str, RunConfig], encoder: BertConfig | None = None) -> pd.DataFrame:
    """A row a named configuration: encoder, adapters, heads, parameters, trained, and in units of one encoder."""
    rows = {}
    for name, config in configs.items():
        model = meta_model(config, encoder)
        counts = parameter_counts(model)
        adapters, heads = (parameter_counts(part)["parameters"] for part in (model.encoder.adapters, model.heads))
        sizes = model.encoder.config
        one = SharingPlan.parse("frozen", ("sst",), sizes.num_hidden_layers).table(sizes)["parameters"].sum()
        rows[name] = {
            "encoder": parameter_counts(model.encoder)["parameters"] - adapters,
            "adapters": adapters,
            "heads": heads,
            "parameters": counts["parameters"],
            "trained": counts["trained_parameters"],
            "times one encoder": counts["parameters"] / one,
        }
    table = pd.DataFrame(rows).T
    return table.astype({name: int for name in table.columns if name != "times one encoder"})
