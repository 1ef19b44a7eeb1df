"""Expressions over the papers' printed numbers: the `arithmetic` of params/claims.yaml."""

import ast
import operator
from collections.abc import Mapping
from itertools import product
from typing import Any

OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.Eq: operator.eq,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def evaluate(expression: str, names: Mapping[str, Any]) -> Any:
    """The value of an expression: numbers, texts, operators, one comparison, and what `names` has.

    Raises ValueError for anything else.
    """
    return _value(_parse(expression), names)


def range_by_rounding(expression: str, names: Mapping[str, Any]) -> tuple[float, float]:
    """The lowest and the highest value if each decimal stands for every number that rounds to it.

    Whole numbers are exact. The ends of all decimals are tried in all combinations.
    """
    tree = _parse(expression)
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


def _parse(expression: str) -> ast.expr:
    try:
        return ast.parse(expression, mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"{expression!r} is not an expression: {error.msg}") from error


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value):
            return value
        case ast.Name(name) if name in names:
            return names[name]
        case ast.UnaryOp(operation, operand):
            function = OPERATORS.get(type(operation))
            arguments = [operand]
        case ast.BinOp(left, operation, right) | ast.Compare(left, [operation], [right]):
            function = OPERATORS.get(type(operation))
            arguments = [left, right]
        case ast.Call(ast.Name() as name, arguments, []):
            function = _value(name, names)
        case _:
            function = None
    if function is None:
        raise ValueError(f"{ast.unparse(node)!r} is not arithmetic; known names are {', '.join(names)}")
    return function(*(_value(argument, names) for argument in arguments))
