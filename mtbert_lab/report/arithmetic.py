"""Expressions over the papers' printed numbers: the `arithmetic` of params/claims.yaml."""

import ast
from collections.abc import Mapping
from itertools import product
from typing import Any

PARTS = (  # of an expression; none of them reaches an attribute, an element, or a name that is not given
    *(ast.Constant, ast.Name, ast.UnaryOp, ast.BinOp, ast.Compare, ast.Call),
    *(ast.expr_context, ast.operator, ast.unaryop, ast.cmpop),
)


def evaluate(expression: str, names: Mapping[str, Any]) -> Any:
    """The value of an expression: numbers, texts, operators, comparisons, and what `names` has.

    Raises ValueError for anything else.
    """
    return _value(_parse(expression, names), names)


def range_by_rounding(expression: str, names: Mapping[str, Any]) -> tuple[float, float]:
    """The lowest and the highest value if each decimal stands for every number that rounds to it.

    Whole numbers are exact. The ends of all decimals are tried in all combinations.
    """
    tree = _parse(expression, names)
    decimals, ends = [], []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, float):
            half = half_digit(ast.get_source_segment(expression, node))
            decimals.append(node)
            ends.append((node.value - half, node.value + half))
    values = []
    for corner in product(*ends):
        for node, end in zip(decimals, corner, strict=True):
            node.value = end
        values.append(_value(tree, names))
    return min(values), max(values)


def half_digit(number: str) -> float:
    """How much a printed number may be rounded by: half of its last digit."""
    _, _, decimals = number.partition(".")
    return 0.5 * 10.0 ** -len(decimals)


def _parse(expression: str, names: Mapping[str, Any]) -> ast.Expression:
    """The tree of an expression; raises ValueError for a part that is not in PARTS, and for a name not in `names`."""
    try:
        tree = ast.parse(expression, mode="eval")
    except SyntaxError as error:
        raise ValueError(f"{expression!r} is not an expression: {error.msg}") from error
    for node in ast.walk(tree.body):
        is_unknown = isinstance(node, ast.Name) and node.id not in names
        if is_unknown or not isinstance(node, PARTS):
            raise ValueError(f"{ast.unparse(node)!r} is not arithmetic; known names are {', '.join(names)}")
    return tree


def _value(tree: ast.Expression, names: Mapping[str, Any]) -> Any:
    return eval(compile(tree, "claims.yaml", "eval"), {"__builtins__": {}}, names)
