"""What was fitted is found again on the same machine, and nothing that is not whole."""

import json
from pathlib import Path

import pytest

import testbed.machine.fit
from testbed.machine.fit import ValidatedPoint, expected_error, keep_fit, keep_validation, known_costs
from testbed.theory.fit import Fit
from testbed.theory.reach import Expected, Reach
from transports.collectives.costs import DEFAULT_COSTS, ChannelCosts, Costs

REACH = Reach(num_workers=(2, 3), size_bytes=(100, 200), delay_s=(0.0, 1e-3), rate_bps=(3e8, 1e9), channels=("tcp",))
FAR = Reach(num_workers=(8, 8), size_bytes=(50, 50), delay_s=(2e-2, 2e-2), rate_bps=(1e8, 1e8), channels=("udp",))
QUIC = ChannelCosts(channel="quic", message_s=4e-4, copy_s_per_byte=5e-8)
FIT = Fit(
    costs=Costs(host_latency_s=2e-4, channels=(QUIC,), fitted_at="2026-01-01T00:00:00+00:00"),
    residuals=(0.01, -0.03),
    reach=REACH,
)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_without_a_fit_there_are_defaults_and_no_error() -> None:
    assert known_costs() == DEFAULT_COSTS
    assert expected_error() is None
    keep_validation({"a point": ValidatedPoint(0.05, REACH)})
    assert expected_error() is None


def test_a_fit_is_found_again_and_its_error_until_it_is_validated() -> None:
    keep_fit(FIT)
    assert known_costs() == FIT.costs
    residuals = expected_error()
    assert residuals is not None
    assert residuals == Expected(residuals.error, "residuals of the fit", 2, REACH)
    assert residuals.error == pytest.approx(0.02)
    keep_validation({"one": ValidatedPoint(-0.035, REACH)})
    assert expected_error() == (0.035, "validation", 1, REACH)
    assert known_costs() == FIT.costs
    keep_fit(FIT)
    assert expected_error() == residuals, "another fit was not validated"


def test_parts_of_the_validation_add_up_and_widen_the_reach() -> None:
    keep_fit(FIT)
    keep_validation({"one": ValidatedPoint(-0.04, REACH), "two": ValidatedPoint(0.5, REACH)})
    keep_validation({"two": ValidatedPoint(0.02, FAR)})
    found = expected_error()
    assert found is not None
    assert (found.error, found.num_points) == (pytest.approx(0.03), 2)
    assert found.reach == REACH.joined(FAR)


def test_what_was_fitted_to_another_model_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_fit(FIT)
    monkeypatch.setattr(testbed.machine.fit, "_MODEL", testbed.machine.fit._MODEL[:1])
    assert known_costs() == DEFAULT_COSTS
    assert expected_error() is None


@pytest.mark.parametrize(
    "channel", [{}, {"channel": "quic", "message_s": 0.0, "copy_s_per_byte": 1e-9}, {"channel": "quic"}, None]
)
def test_a_channel_that_is_not_whole_spoils_the_fit(tmp_path: Path, channel: object) -> None:
    keep_fit(FIT)
    path = tmp_path / "ina-testbed" / "fit.json"
    kept = json.loads(path.read_text())
    kept["costs"]["channels"] = [channel]
    path.write_text(json.dumps(kept))
    assert known_costs() == DEFAULT_COSTS


@pytest.mark.parametrize(
    "change", [{"machine": "another"}, {"costs": {}}, {"costs": None}, {"reach": {}}, {"validated": {"a": 1}}]
)
def test_what_is_another_machine_s_or_not_whole_is_not_used(tmp_path: Path, change: dict[str, object]) -> None:
    keep_fit(FIT)
    path = tmp_path / "ina-testbed" / "fit.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert known_costs() == DEFAULT_COSTS
    path.write_text("{")
    assert known_costs() == DEFAULT_COSTS
