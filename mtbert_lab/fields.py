"""What users read about the fields of a run: types, defaults, descriptions, and the papers that propose them."""

import json
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from mtbert.config import RunConfig

SOURCES = {  # of fields: the papers of this project that propose or use them, and the publications of methods
    "tasks": "paper 000, section 4",
    "score_tasks": "paper 000, section 3.3",
    "augment": "paper 002, section 7 (data augmentation)",
    "frozen": "paper 000, section 3.3; paper 002, section 4.1",
    "plan": "paper 000, section 2 (frozen, shared, individual); paper 002, sections 4.2.1 to 4.4 (the presets)",
    "soft_sharing": "paper 001, section 3; Duong et al. 2015 (l2), Yang and Hospedales 2017 (trace)",
    "adapter": "paper 001, section 4.2, and paper 003, section 2.2.1 (PALs: Stickland and Murray 2019); "
    "Houlsby et al. 2019; Swietojanski and Renals 2014 (LHUC)",
    "adapter_size": "paper 001, section 5.2",
    "adapter_heads": "paper 001, section 5.2",
    "pooling": "paper 001, section 4.1, and paper 004, section 4 (pooler)",
    "pairs": "paper 000, section 3.3 (sum); paper 001, equation 4 (concat); paper 002, section 4.2 (product, joint)",
    "pos_features": "paper 001, section 5.3",
    "similarity": "paper 002, section 4.1 (mse); paper 001, equation 5 (sigmoid_cosine)",
    "head_layers": "paper 002, section 4.2; paper 004, section 4",
    "head_width": "paper 002, section 4.2",
    "head_norm": "paper 004, section 4",
    "head_dropout": "paper 000, section 3.3; paper 002, section 5.3",
    "dropout_place": "paper 002, section 5.3 (before, inside); paper 004, section 4 (after)",
    "feeds": "paper 004, section 4",
    "upstream": "paper 004, section 4 (frozen), section 5.2 (free), section 7 (slow)",
    "combine": "paper 004, section 4 (concat), section 7 (attention)",
    "scheme": "paper 001, section 4.3 (sampled); paper 002, section 4.1 (in_turn), section 4.2.1 (unified)",
    "sampling": "paper 001, section 4.3 (Stickland and Murray 2019)",
    "steps_per_epoch": "paper 001, section 5.2; paper 003, section 3.3",
    "weighting": "paper 002, section 7; Kendall, Gal and Cipolla 2018 (uncertainty); Liu, Liang and Gitter 2019 "
    "(loss_ratio)",
    "gradients": "paper 002, section 4.2 (pcgrad: Yu et al. 2020); paper 003, section 2.2.2 (gem: Lopez-Paz and "
    "Ranzato 2017); Chaudhry et al. 2019 (agem); Liu et al. 2021 (cagrad)",
    "gradient_options": "Liu et al. 2021 (c); Lopez-Paz and Ranzato 2017 (margin)",
    "memory_size": "paper 003, section 2.2.2",
    "pretrain": "paper 001, section 4.4; Devlin et al. 2018",
    "schedule": "paper 002, sections 4.1 and 5.3",
    "layer_decay": "Howard and Ruder 2018",
    "weight_decay": "paper 001, section 5.2; paper 002, sections 4.1 and 5.3; Loshchilov and Hutter 2017",
    "teachers": "Hinton, Vinyals and Dean 2015",
    "distil": "Clark et al. 2019 (annealed)",
    "temperature": "Hinton, Vinyals and Dean 2015",
    "r_drop": "Liang et al. 2021",
    "ema": "torch.optim.swa_utils",
    "evals_per_epoch": "paper 000, section 4 (scores at time steps)",
    "keep": "paper 004, section 5.2 (best)",
}


class FieldRow(NamedTuple):
    """The description of a RunConfig's field for its users; the default is written as in YAML."""

    name: str
    type: str
    default: str
    description: str
    source: str  # the paper that proposes it, else the publication of the method; empty where there is none

    def __str__(self) -> str:
        source = f"\n    Source: {self.source}" if self.source else ""
        return f"{self.name}: {self.type} = {self.default}\n    {self.description}{source}"


def field_table() -> list[FieldRow]:
    """Every field of a RunConfig."""
    rows = []
    for name, field in RunConfig.model_fields.items():
        default = json.dumps(field.default)
        rows.append(
            FieldRow(name, _type_text(field.annotation), default, field.description or "", SOURCES.get(name, ""))
        )
    return rows


def _type_text(annotation: Any) -> str:
    """A field's type as its users write it, without what checks the values."""
    kind = get_origin(annotation)
    parts = get_args(annotation)
    if kind is Annotated:
        return _type_text(parts[0])
    if kind is Literal:
        return " | ".join(map(repr, parts))
    if kind in (Union, UnionType):
        return " | ".join(map(_type_text, parts))
    if kind:
        return f"{kind.__name__}[{', '.join(map(_type_text, parts))}]"
    if annotation is ...:
        return "..."
    if annotation is NoneType:
        return "None"
    return annotation.__name__
