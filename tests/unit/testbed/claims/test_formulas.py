"""Formulas are arithmetic over named numbers and nothing else."""

import pytest

from testbed.claims.formulas import FormulaError, evaluate, names_in

NUMBERS = {"W": 8.0, "S": 4e6, "B": 1e7, "a": 1e-4, "allreduce.time_s": 0.7, "loss.end": None}


@pytest.mark.parametrize(
    ("formula", "value"),
    [
        ("2 * (W - 1) / W * S / B", 0.7),
        ("allreduce.time_s / (2*(W-1)/W*S/B)", 1.0),
        ("max(W, 9) + min(1, 2) - abs(-3)", 7),
        ("-W ** 2", -64),
        ("log2(W) * sqrt(4) + ceil(0.1)", 7),
    ],
)
def test_it_computes(formula: str, value: float) -> None:
    assert evaluate(formula, NUMBERS) == pytest.approx(value)


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("W +", "is no formula"),
        ("X * 2", "X: the run does not have it"),
        ("loss.end * 2", "loss.end: the run does not have it"),
        ("W / (W - 8)", "division by zero"),
        ("__import__('os').system('true')", "only"),
        ("W if W else S", "only"),
        ("[W][0]", "only"),
        ("True", "only"),
        ("'text'", "only"),
        ("W @ S", "only"),
        ("W.__class__.x", "the run does not have it"),
        ("(lambda: 1)()", "only"),
        ("min(W)", "min is of two numbers or more"),
        ("max()", "max is of two numbers or more"),
        ("log2(W, 2)", "log2 is of one number"),
        ("abs(*W)", "only"),
        ("+".join(["1"] * 5000), "is no formula"),
    ],
)
def test_anything_else_is_refused_with_the_place(formula: str, message: str) -> None:
    with pytest.raises(FormulaError, match=message.replace("(", r"\(").replace("*", r"\*")):
        evaluate(formula, NUMBERS)


@pytest.mark.parametrize("formula", ["W @ S", "min(W)", "log2(4, 2)", "True", "W if W else S", "[W][0]"])
def test_what_no_numbers_make_a_formula_is_refused_before_anything_runs(formula: str) -> None:
    with pytest.raises(FormulaError):
        names_in(formula)


@pytest.mark.parametrize("formula", ["(a - W) ** 0.5", "1e400", "1e400 - 1e400", "sqrt(-W)"])
def test_what_is_no_real_number_is_not_judged(formula: str) -> None:
    assert names_in(formula) <= {"a", "W"}
    with pytest.raises(FormulaError):
        evaluate(formula, NUMBERS)


def test_its_names_are_known_before_anything_runs() -> None:
    assert names_in("2 * max(W, -S) / allreduce.time_s") == {"W", "S", "allreduce.time_s"}
    with pytest.raises(FormulaError):
        names_in("2 *")
