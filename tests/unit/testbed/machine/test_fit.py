"""What was fitted is found again on the same machine, and nothing that is not whole."""

import json
from pathlib import Path

import pytest

from testbed.machine.fit import expected_error, keep_fit, keep_validation, known_costs
from testbed.theory.fit import Fit
from transports.collectives.timing import DEFAULT_COSTS, Costs

FIT = Fit(costs=Costs(host_latency_s=2e-4, fitted_at="2026-01-01T00:00:00+00:00"), residuals=(0.01, -0.03))


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_without_a_fit_there_are_defaults_and_no_error() -> None:
    assert known_costs() == DEFAULT_COSTS
    assert expected_error() is None
    keep_validation(0.05)
    assert expected_error() is None


def test_a_fit_is_found_again_and_its_error_until_it_is_validated() -> None:
    keep_fit(FIT)
    assert known_costs() == FIT.costs
    assert expected_error() == (pytest.approx(0.02), "residuals of the fit")
    keep_validation(0.035)
    assert expected_error() == (0.035, "validation")
    assert known_costs() == FIT.costs
    keep_fit(FIT)
    assert expected_error() == (pytest.approx(0.02), "residuals of the fit")


@pytest.mark.parametrize("change", [{"machine": "another"}, {"costs": {}}, {"costs": None}])
def test_what_is_another_machine_s_or_not_whole_is_not_used(tmp_path: Path, change: dict[str, object]) -> None:
    keep_fit(FIT)
    path = tmp_path / "ina-testbed" / "fit.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert known_costs() == DEFAULT_COSTS
    path.write_text("{")
    assert known_costs() == DEFAULT_COSTS
