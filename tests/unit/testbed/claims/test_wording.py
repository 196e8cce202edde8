"""Numbers of claims have their units, and what is expected has the same."""

from typing import Any

import pytest

from testbed.claims.formulas import names_in
from testbed.claims.numbers import require_names
from testbed.claims.wording import FORMULAS_IN_WORDS, expected_text, formula_text, value_text
from testbed.experiment.claims import Claim
from testbed.record.number_text import DASH


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.35, "s", "350 ms"),
        (0.35, "s/worker", "350 ms/worker"),
        (0.93, "%", "93.0 %"),
        (9.142, "", "9.14"),
        (None, "s", DASH),
    ],
)
def test_numbers_have_their_units(value: float | None, unit: str, text: str) -> None:
    assert value_text(value, unit) == text


@pytest.mark.parametrize(
    ("expect", "unit", "text"),
    [
        ({"difference": 0.05}, "%", "within 5 points of the model"),
        ({"at_least": 0.9, "at_most": 1.02}, "%", "at least 90 %, at most 102 %"),
        ({"within": "10%", "at_most": 0.16}, "%", "within 10 % of the model, at most 16 %"),
        ({"difference": 0.002}, "s/worker", "within 2 ms/worker of the model"),
        ({"difference": 1}, "log2 B", "within 1 log2 B of the model"),
        ({"at_most": 1.0001}, "", "at most 1.0001"),
    ],
)
def test_what_is_expected_is_in_the_unit_of_the_number(expect: dict[str, Any], unit: str, text: str) -> None:
    keys = {"name": "c", "of": "W", "model": "W", "take": {"kind": "median"}, "why": "because"}
    assert expected_text(Claim.model_validate({**keys, "expect": expect, "unit": unit})) == text


@pytest.mark.parametrize(
    ("formula", "unit", "text"),
    [
        ("R / 1e9", "", "rate of a link, Gbit/s"),
        ("iteration_time_s.median", "ms", "time of an iteration, ms"),
        ("scaling_factor", "%", "scaling factor, %"),
        ("2 * S / B", "", "2 * S / B"),
    ],
)
def test_a_formula_is_said_in_words_where_there_are_some(formula: str, unit: str, text: str) -> None:
    assert formula_text(formula, unit) == text


def test_words_are_of_numbers_that_there_are() -> None:
    """A number that has another name by now would have lost its words silently."""
    for formula in FORMULAS_IN_WORDS:
        require_names(names_in(formula))
