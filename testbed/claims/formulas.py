"""Formulas of claims: arithmetic over named numbers, `2 * (W - 1) / W * S / B + 2 * (W - 1) * a`. Nothing else runs."""

import ast
import math
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final

_BINARY: Final[Mapping[type[ast.operator], Callable[[float, float], float]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_FUNCTIONS: Final[Mapping[str, Callable[..., float]]] = {
    "min": min,
    "max": max,
    "abs": abs,
    "log2": math.log2,
    "sqrt": math.sqrt,
    "ceil": math.ceil,
}


class FormulaError(ValueError):
    """A formula that is none, or names a number that is not there."""


def evaluate(formula: str, numbers: Mapping[str, float | None]) -> float:
    """Its value. Raises FormulaError that says which name is unknown, which number a run does not have, or what cannot
    be computed."""
    try:
        return _value(_parsed(formula), numbers)
    except (ZeroDivisionError, OverflowError, ValueError) as error:
        raise error if isinstance(error, FormulaError) else FormulaError(f"{formula}: {error}") from None


def names_in(formula: str) -> frozenset[str]:
    """The numbers it names. Raises FormulaError."""
    found: set[str] = set()
    _collect(_parsed(formula), found)
    return frozenset(found)


@lru_cache(maxsize=1024)
def _parsed(formula: str) -> ast.expr:
    try:
        return ast.parse(formula, mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise FormulaError(f"{formula!r} is no formula: {error}") from None


def _name(node: ast.expr) -> str | None:
    """`allreduce.time_s` of nested attributes."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (first := _name(node.value)) is not None:
        return f"{first}.{node.attr}"
    return None


def _value(node: ast.expr, numbers: Mapping[str, float | None]) -> float:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return float(number)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, numbers)
        case ast.BinOp(left=left, op=symbol, right=right) if type(symbol) in _BINARY:
            return float(_BINARY[type(symbol)](_value(left, numbers), _value(right, numbers)))
        case ast.Call(func=ast.Name(id=function), args=arguments, keywords=[]) if function in _FUNCTIONS:
            return float(_FUNCTIONS[function](*(_value(argument, numbers) for argument in arguments)))
    name = _name(node)
    if name is None:
        raise FormulaError(f"{ast.unparse(node)!r}: only + - * / **, numbers, names and {', '.join(_FUNCTIONS)}")
    if name not in numbers:
        raise FormulaError(f"{name}: no such number; allowed: {', '.join(sorted(numbers))}")
    value = numbers[name]
    if value is None:
        raise FormulaError(f"{name}: the run does not have it")
    return value


def _collect(node: ast.expr, found: set[str]) -> None:
    if (name := _name(node)) is not None:
        found.add(name)
        return
    match node:
        case ast.BinOp(left=left, right=right):
            _collect(left, found)
            _collect(right, found)
        case ast.UnaryOp(operand=operand):
            _collect(operand, found)
        case ast.Call(args=arguments):
            for argument in arguments:
                _collect(argument, found)
