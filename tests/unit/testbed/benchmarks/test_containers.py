from collections.abc import Callable
from typing import Any

import pytest

from testbed.benchmarks import containers
from testbed.benchmarks.containers import BENCHMARKS, NUM_PAIRS


def runs(parameters: str, iteration_s: float) -> Callable[[str], dict[str, Any]]:
    """Quickstarts whose containers do that, beside namespaces that take 1 s an iteration."""

    def summary(override: str) -> dict[str, Any]:
        found = (parameters, iteration_s) if override == "runtime.kind=docker" else ("same", 1.0)
        return {
            "parameters_sha256": found[0],
            "iteration_time_s": {"median": found[1]},
            "outcome": "valid",
            "reasons": [],
        }

    return summary


@pytest.mark.parametrize(
    ("parameters", "iteration_s", "holds"),
    [
        ("same", 1.04, [True, True]),
        ("same", 1.06, [True, False]),
        ("same", 0.9, [True, False]),
        ("other", 1.0, [False, True]),
    ],
)
def test_parameters_must_be_the_same_and_iterations_near(
    parameters: str, iteration_s: float, holds: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(containers, "quickstart_summary", runs(parameters, iteration_s))
    rows = list(BENCHMARKS["same"]())
    assert [row["holds"] for row in rows] == holds
    assert len(rows[1]["medians_s"]) == NUM_PAIRS


def test_one_quiet_run_of_five_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    contained = iter([1.2, 1.2, 1.0, 1.2, 1.2])

    def summary(override: str) -> dict[str, Any]:
        return runs("same", next(contained) if override == "runtime.kind=docker" else 1.0)(override)

    monkeypatch.setattr(containers, "quickstart_summary", summary)
    assert list(BENCHMARKS["same"]())[1]["holds"] is False
