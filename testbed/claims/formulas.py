"""Formulas of claims: arithmetic over named numbers, `2 * (W - 1) / W * S / B + 2 * (W - 1) * a`. Nothing else runs."""

import ast
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

_BINARY: Final[Mapping[type[ast.operator], Callable[[float, float], float]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_OF_ONE: Final = frozenset(("abs", "log2", "sqrt", "ceil"))
"""Functions of one number; the others are of two or more."""
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
    """Its value, finite. Raises FormulaError that says which name is unknown, which number a run does not have, or what
    cannot be computed."""
    try:
        value = _value(_parsed(formula).node, numbers)
    except (ZeroDivisionError, OverflowError, ValueError) as error:
        raise error if isinstance(error, FormulaError) else FormulaError(f"{formula}: {error}") from None
    if not math.isfinite(value):
        raise FormulaError(f"{formula}: {value:g} is no number to judge")
    return value


def names_in(formula: str) -> frozenset[str]:
    """The numbers it names. Raises FormulaError for what is none whatever they are."""
    return _parsed(formula).names


class _Parsed(NamedTuple):
    node: ast.expr
    names: frozenset[str]


@lru_cache(maxsize=1024)
def _parsed(formula: str) -> _Parsed:
    try:
        node = ast.parse(formula, mode="eval").body
        return _Parsed(node, frozenset(_names(node)))
    except FormulaError:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise FormulaError(f"{formula[:80]!r} is no formula: {error}") from None


def _name(node: ast.expr) -> str | None:
    """`allreduce.time_s` of nested attributes."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (first := _name(node.value)) is not None:
        return f"{first}.{node.attr}"
    return None


def _value(node: ast.expr, numbers: Mapping[str, float | None]) -> float:
    match node:
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, numbers)
        case ast.BinOp(left=left, op=symbol, right=right) if type(symbol) in _BINARY:
            found = _BINARY[type(symbol)](_value(left, numbers), _value(right, numbers))
            if isinstance(found, complex):
                raise FormulaError(f"{ast.unparse(node)}: a root of a number below 0")
            return float(found)
        case ast.Call(func=ast.Name(id=function), args=arguments):
            return float(_FUNCTIONS[function](*(_value(argument, numbers) for argument in arguments)))
    name = _name(node)
    assert name is not None, "the formula was checked when it was parsed"
    value = numbers.get(name)  # that there is such a number, somebody has made sure before anything ran
    if value is None:
        raise FormulaError(f"{name}: the run does not have it")
    return value


def _names(node: ast.expr) -> Iterator[str]:
    """Those of a formula; raises FormulaError where it is none."""
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            yield from _names(operand)
        case ast.BinOp(left=left, op=symbol, right=right) if type(symbol) in _BINARY:
            yield from _names(left)
            yield from _names(right)
        case ast.Call(func=ast.Name(id=function), args=arguments, keywords=[]) if function in _FUNCTIONS:
            if (len(arguments) != 1) if function in _OF_ONE else (len(arguments) < 2):
                wanted = "one number" if function in _OF_ONE else "two numbers or more"
                raise FormulaError(f"{ast.unparse(node)!r}: {function} is of {wanted}")
            for argument in arguments:
                yield from _names(argument)
        case _ if (name := _name(node)) is not None:
            yield name
        case _:
            raise FormulaError(f"{ast.unparse(node)!r}: only + - * / **, numbers, names and {', '.join(_FUNCTIONS)}")
