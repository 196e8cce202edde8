"""Parameters are found again, and what cannot decide them is refused."""

from dataclasses import replace

import pytest

from testbed.experiment.experiment import validate
from testbed.plan.plan import make_plan
from testbed.theory.fit import Measured, fit_costs
from transports.collectives.costs import ChannelCosts, Costs
from transports.compression.base import Exchange

TRUE = Costs(host_latency_s=180e-6, message_s=60e-6, addition_s_per_byte=0.7e-9, link_share=0.93)
SIZES_BYTES = (65_536, 1_048_576, 4_194_304)


def measured(costs: Costs) -> list[Measured]:
    """By TCP, on links that it fills."""
    found = []
    for collective in ("ring", "all_to_all"):
        for num_workers, rate in ((2, "1gbit"), (3, "10gbit")):
            spec = {"name": "x", "workers": num_workers, "collective": collective, "link": {"rate": rate}}
            plan = make_plan(validate(spec))
            for size_bytes in SIZES_BYTES:
                exchange = Exchange("all_reduce", size_bytes // 4, 4)
                found.append(Measured(plan, exchange, Measured(plan, exchange, 1.0).predicted_s(costs)))
    return found


def test_what_made_the_times_is_found_again() -> None:
    fit = fit_costs(measured(TRUE), fitted_at="2026-01-01T00:00:00+00:00")
    assert fit.largest_error < 0.02
    assert fit.costs.link_share == pytest.approx(TRUE.link_share, rel=0.02)
    assert fit.costs.addition_s_per_byte == pytest.approx(TRUE.addition_s_per_byte, rel=0.4)
    assert fit.costs.fitted_at == "2026-01-01T00:00:00+00:00"
    # A latency and the processors' two pieces are one after the other in most schedules: their sum is what shows.
    assert fit.costs.host_latency_s + 2 * fit.costs.message_s == pytest.approx(300e-6, rel=0.1)


def test_each_other_channel_has_its_own_costs_and_leaves_those_of_links_alone() -> None:
    """On links that it does not fill, and beside one whose message is dear."""
    dear = ChannelCosts(channel="grpc", message_s=400e-6, copy_s_per_byte=2e-9)
    slow = ChannelCosts(channel="quic", message_s=300e-6, copy_s_per_byte=50e-9)
    by_tcp = measured(TRUE)
    others = [
        Measured(plan, exchange, Measured(plan, exchange, 1.0).predicted_s(replace(TRUE, channels=(dear, slow))))
        for kind in ("quic", "grpc")
        for plan in (make_plan(validate({"name": "x", "workers": 2, "channel": kind, "link": {"rate": "1gbit"}})),)
        for exchange in (Exchange("all_reduce", size_bytes // 4, 4) for size_bytes in (65_536, 262_144, 1_048_576))
    ]
    alone, fit = (fit_costs(several, fitted_at="now") for several in (by_tcp, by_tcp + others))
    assert replace(fit.costs, channels=()) == alone.costs
    assert len(fit.residuals) == len(by_tcp) + len(others)
    assert [each.channel for each in fit.costs.channels] == ["quic", "grpc"]
    assert fit.costs.channels[0].copy_s_per_byte == pytest.approx(slow.copy_s_per_byte, rel=0.05)
    assert fit.costs.channels[1].message_s == pytest.approx(dear.message_s, rel=0.2)
    assert set(fit.reach.channels) == {"tcp", "quic", "grpc"}


def test_residuals_tell_of_a_measurement_that_does_not_fit() -> None:
    several = measured(TRUE)
    several[2] = several[2]._replace(time_s=2 * several[2].time_s)
    fit = fit_costs(several, fitted_at="now")
    assert fit.largest_error > 0.2
    assert max(range(len(several)), key=lambda number: abs(fit.residuals[number])) == 2


def test_too_few_or_impossible_measurements_are_refused() -> None:
    several = measured(TRUE)
    with pytest.raises(ValueError, match="cannot decide 7"):
        fit_costs(several[:6], fitted_at="now")
    quic = make_plan(validate({"name": "x", "workers": 2, "channel": "quic", "link": {"rate": "1gbit"}}))
    with pytest.raises(ValueError, match="cannot decide 2"):
        fit_costs([*several, Measured(quic, Exchange("all_reduce", 4096, 4), 1.0)], fitted_at="now")
    several[0] = several[0]._replace(time_s=0.0)
    with pytest.raises(ValueError, match="not above zero"):
        fit_costs(several, fitted_at="now")
