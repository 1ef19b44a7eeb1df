"""Parameters of a configuration, by level, adapter and head, without building it.

Source: papers 001 (section 4.2: 2sd + L 3s^2 of a PAL, L (4d^2 + 2 d d_i) of the layers), 002 (section 4: 1-bert,
3-bert, hybrid-bert), 000 (section 4: performance against the dimensions of the parameters).
"""

from functools import lru_cache

import pandas as pd
import torch

from mtbert.adapters import adapter_depths, adapter_parameters
from mtbert.bert import BertConfig
from mtbert.config import RunConfig
from mtbert.heads import TaskHeads
from mtbert.multitask import encoder_config, parameter_counts
from mtbert.sharing import SharingPlan


def plan_of(config: RunConfig, encoder: BertConfig) -> SharingPlan:
    """The configuration's sharing plan for an encoder; raises PlanError."""
    return SharingPlan.parse(config.plan_text, config.scored, encoder.num_hidden_layers)


def frozen_depth(config: RunConfig, encoder: BertConfig) -> int:
    """`SharedEncoder.frozen_depth` without the encoder."""
    adapted = adapter_depths(config, encoder) if config.adapter != "none" else ()
    return plan_of(config, encoder).frozen_depth(adapted)


def features_are_fixed(config: RunConfig, encoder: BertConfig) -> bool:
    """`MultitaskBert.features_are_fixed` without the model."""
    return plan_of(config, encoder).is_frozen and config.adapter == "none"


@lru_cache(maxsize=8)  # asked for at every step of a run whose time is predicted
def heads_of(config: RunConfig, encoder: BertConfig) -> TaskHeads:
    """The heads as shapes without numbers."""
    with torch.device("meta"):
        return TaskHeads(config, encoder.hidden_size)


def parameter_table(config: RunConfig, encoder: BertConfig | None = None) -> pd.DataFrame:
    """`MultitaskBert.table` without the model: mode, groups, copies, parameters and trained ones of every level."""
    encoder = encoder or encoder_config(config)
    tasks = config.scored
    counts = {
        "adapters": len(tasks) * adapter_parameters(config, encoder),
        "heads": parameter_counts(heads_of(config, encoder))["parameters"],
    }
    about = dict(mode="individual", groups=" | ".join(tasks), copies=len(tasks))
    rows = [plan_of(config, encoder).table(encoder)]
    rows += [
        pd.DataFrame({**about, "parameters": count, "trained": count}, index=[name])
        for name, count in counts.items()
        if count
    ]
    return pd.concat(rows).rename_axis("level")


def count_parameters(config: RunConfig, encoder: BertConfig | None = None) -> dict[str, int]:
    """`parameter_counts` without the model: all parameters, and those that are trained."""
    table = parameter_table(config, encoder)
    learned_weights = len(config.tasks) * (config.weighting == "uncertainty")
    return {
        "parameters": int(table["parameters"].sum()) + learned_weights,
        "trained_parameters": int(table["trained"].sum()) + learned_weights,
    }


def compare_parameters(configs: dict[str, RunConfig], encoder: BertConfig | None = None) -> pd.DataFrame:
    """A row a named configuration: encoder, adapters, heads, parameters, trained, and in units of one encoder."""
    rows = {}
    for name, config in configs.items():
        sizes = encoder or encoder_config(config)
        parameters = parameter_table(config, sizes)["parameters"]
        adapters, heads = (int(parameters.get(part, 0)) for part in ("adapters", "heads"))
        counts = count_parameters(config, sizes)
        one = int(SharingPlan.parse("frozen", ("sst",), sizes.num_hidden_layers).table(sizes)["parameters"].sum())
        rows[name] = {
            "encoder": int(parameters.sum()) - adapters - heads,
            "adapters": adapters,
            "heads": heads,
            "parameters": counts["parameters"],
            "trained": counts["trained_parameters"],
            "times one encoder": counts["parameters"] / one,
        }
    table = pd.DataFrame(rows).T
    return table.astype({name: int for name in table.columns if name != "times one encoder"})
