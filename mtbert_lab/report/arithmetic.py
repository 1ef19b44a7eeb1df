"""Expressions over the papers' printed numbers: the `arithmetic` of params/claims.yaml."""

import re
from collections.abc import Mapping
from itertools import product
from typing import Any

DECIMAL = re.compile(r"(\d+\.\d+)")


def evaluate(expression: str, names: Mapping[str, Any]) -> Any:
    """The value of a Python expression over `names` alone; raises ValueError where it has none.

    claims.yaml is a part of this repository, as its code is: an expression is not fenced in.
    """
    try:
        return eval(expression, {"__builtins__": {}}, dict(names))
    except (SyntaxError, NameError, TypeError, AttributeError, ArithmeticError) as error:
        raise ValueError(f"{expression!r} is not arithmetic ({error}); known names are {', '.join(names)}") from error


def range_by_rounding(expression: str, names: Mapping[str, Any]) -> tuple[float, float]:
    """The lowest and the highest value if each decimal stands for every number that rounds to it.

    Whole numbers are exact. The ends of all decimals are tried in all combinations.
    """
    parts = DECIMAL.split(expression)  # every second one is a decimal
    ends = []
    for decimal in parts[1::2]:
        half = half_digit(decimal)
        ends.append((float(decimal) - half, float(decimal) + half))
    values = []
    for corner in product(*ends):
        parts[1::2] = [repr(end) for end in corner]
        values.append(evaluate("".join(parts), names))
    return min(values), max(values)


def half_digit(number: str) -> float:
    """How much a printed number may be rounded by: half of its last digit."""
    _, _, decimals = number.partition(".")
    return 0.5 * 10.0 ** -len(decimals)
