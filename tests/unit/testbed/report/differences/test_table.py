"""The rows of compared settings, and parts whose differences add up."""

import re
from pathlib import Path

import pytest

from testbed.report.differences.table import PARTS_HEADERS, parts_rows, rows, title
from testbed.store.compare import compare
from tests.compared_runs import modelled_runs

SETTINGS = (("ring", 100e6), ("tree", 92e6))
UNITS = {"s": 1e3, "ms": 1.0, "µs": 1e-3}


def milliseconds(text: str) -> float:
    number, unit = text.split()
    return float(number) * UNITS[unit]


def test_each_setting_is_a_row_with_its_finding(tmp_path: Path) -> None:
    compared = compare(modelled_runs(tmp_path, SETTINGS, repeat=3))
    assert title(compared) == "quickstart: 2 settings compared"
    (_, first), (_, second) = rows(compared)
    assert first[:2] == ["collective=ring", "3"]
    assert first[5] == "what the others are compared with"
    assert second[5:] == ["worse", "3 pairs made in turns"]
    assert re.fullmatch(r"\+[\d.]+ %", second[3])


def test_the_differences_of_parts_add_up_to_that_of_the_iteration(tmp_path: Path) -> None:
    compared = compare(modelled_runs(tmp_path, SETTINGS, repeat=3))
    first, second = parts_rows(compared)
    assert len(first.cells) == len(PARTS_HEADERS)
    assert [more for _, more in first.cells] == [""] * len(PARTS_HEADERS)
    *parts, whole = [milliseconds(more) for _, more in second.cells]
    assert sum(parts) == pytest.approx(whole, rel=0.01)
    assert whole == pytest.approx(1e3 * (compared.settings[1].mean - compared.settings[0].mean), rel=0.01)
    assert milliseconds(second.cells[3][1]) > 0.9 * whole, "slower links lengthen exposed communication"
