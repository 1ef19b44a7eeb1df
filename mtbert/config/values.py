"""Types of fields: numbers as YAML gives them, names that a registry has, sizes that memory can hold."""

import re
from collections import ChainMap
from collections.abc import Collection, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag

from mtbert.data import TASKS
from mtbert.gradients import PROJECTIONS, WEIGHTS
from mtbert.names import nearest
from mtbert.pairs import PAIR_FEATURES
from mtbert.samplers import SAMPLERS
from mtbert.sharing import ADAPTERS

NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|nan|[-+]?inf")  # float() takes more: 1_0
# Field -> where its names come from; what is registered there later is known, too.
REGISTRIES: dict[str, Mapping[str, Any]] = {
    "adapter": ADAPTERS,
    "gradients": ChainMap(WEIGHTS, PROJECTIONS),
    "sampling": SAMPLERS,
    "pairs": PAIR_FEATURES,
}


class ConfigError(ValueError):
    """A configuration with an unknown key, a wrong type, or a value out of its range; the message names the key."""


def _number(value: Any) -> Any:
    """YAML reads `1e-5` as a string; take it for the number it says."""
    if isinstance(value, str) and NUMBER.fullmatch(value):
        return float(value)
    return value


def _sequence(value: Any) -> Any:
    if isinstance(value, str):
        raise ValueError(f"a list is needed, got {value!r}")
    return tuple(value) if isinstance(value, list) else value


def one_of(registry: Collection[str], *more: str, source: str = "") -> AfterValidator:
    """A name that a registry has when it is asked, or one of some more; the error for another gives the nearest.

    source: where names come from, for the error.
    """

    def check(name: str) -> str:
        names = [*more, *registry]
        if name in names:
            return name
        near = nearest(name, names)
        hint = f"did you mean {near}?" if near else f"known are {', '.join(names)}"
        raise ValueError("; ".join(filter(None, (f"{name!r} is not known", source, hint))))

    return AfterValidator(check)


OWN_CODE = "for one of your own import the file that registers it"
TaskName = Annotated[str, one_of(TASKS, source="MTBERT_TASKS names the folder of tasks of your own")]
EncoderName = Annotated[str, Field(min_length=1, max_length=1000, pattern=r"^[^\x00-\x1f]*$")]
PlanText = Annotated[str, Field(max_length=1000)]
Tasks = Annotated[tuple[TaskName, ...], BeforeValidator(_sequence)]
Names = Annotated[tuple[str, ...], BeforeValidator(_sequence)]
Real = Annotated[float, BeforeValidator(_number)]
# Far above any use, and below what breaks later: a width that no memory holds, a loop that never ends.
Dropout = Annotated[Real, Field(ge=0, le=0.9)]
Factor = Annotated[Real, Field(ge=0, le=1e6)]
Factors = Annotated[tuple[Annotated[Factor, Field(gt=0)], ...], BeforeValidator(_sequence)]
Size = Annotated[int, Field(ge=1, le=2**16)]
Count = Annotated[int, Field(ge=1, le=10**9)]

ONE = "one value"
BY_TASK = "by task"
FORM = Discriminator(lambda value: BY_TASK if isinstance(value, dict) else ONE)  # an error is about the form given
SizeByTask = Annotated[Annotated[Size, Tag(ONE)] | Annotated[dict[TaskName, Size], Tag(BY_TASK)], FORM]
FactorByTask = Annotated[Annotated[Factor, Tag(ONE)] | Annotated[dict[TaskName, Factor], Tag(BY_TASK)], FORM]
