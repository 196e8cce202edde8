"""A plan's traffic against a machine's budget."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from testbed.errors import MissingRequirementError, SpecError
from testbed.experiment.experiment import validate
from testbed.machine.budget import (
    Carried,
    chosen_dilation,
    comparison,
    handed_over_bps,
    keep,
    known_budget,
    refuse_excess,
    requested_bps,
)
from testbed.machine.codec_cost import CodecLoad
from testbed.plan.plan import Plan, make_plan
from tests.facts import BUDGET


def plan(**keys: Any) -> Plan:
    return make_plan(validate({"name": "t", "workers": 4, **keys}))


def test_a_ring_on_a_star_asks_for_every_workers_rate() -> None:
    assert requested_bps(plan(link={"rate": "1gbit"})) == pytest.approx(4e9, rel=1e-3)
    # The slowest link holds up the others.
    assert requested_bps(plan(link={"rate": "1gbit"}, links={"w0->s0": {"rate": "500mbit"}})) == pytest.approx(
        2e9, rel=1e-3
    )


def test_more_switches_on_the_way_cost_more() -> None:
    star = requested_bps(plan(link={"rate": "1gbit"}))
    dumbbell = requested_bps(plan(link={"rate": "1gbit"}, topology="dumbbell", placement="spread"))
    assert dumbbell != star


def test_the_comparison_says_share_and_what_to_do() -> None:
    assert "22 % of the 18 Gbit/s" in comparison(plan(link={"rate": "1gbit"}), BUDGET)
    assert "67 % of the 6 Gbit/s" in comparison(plan(link={"rate": "1gbit"}, packet_mode="mtu"), BUDGET)
    assert "use fewer workers, a lower rate, or `dilation: auto`" in comparison(plan(link={"rate": "10gbit"}), BUDGET)
    assert "run `testbed doctor`" in comparison(plan(), None)


def test_a_rate_beyond_the_whole_budget_is_refused_with_the_fix() -> None:
    refuse_excess(plan(link={"rate": "10gbit"}), BUDGET)
    refuse_excess(plan(link={"rate": "100gbit"}), None)
    with pytest.raises(
        MissingRequirementError, match=r"^link\.rate: w0 -> s0 asks for 25gbit.* 18\.0 Gbit/s .*doctor.*dilation: auto"
    ):
        refuse_excess(plan(link={"rate": "25gbit"}), BUDGET)
    later = [{"at": "1s", "link": "s0->w2", "rate": "25gbit"}]
    with pytest.raises(MissingRequirementError, match=r"^changes\.0\.rate: s0 -> w2 asks for 25gbit"):
        refuse_excess(plan(changes=later), BUDGET)
    with pytest.raises(MissingRequirementError, match=r"6\.0 Gbit/s"):
        refuse_excess(plan(link={"rate": "10gbit"}, packet_mode="mtu"), BUDGET)


def none(_: Plan) -> None:
    """No codec."""


def at(dilation: float, **keys: Any) -> Plan:
    return plan(**{"workload": "synthetic", "dilation": dilation, **keys})


def test_slower_time_makes_the_budget_larger() -> None:
    assert "22 % of the 180 Gbit/s" in comparison(at(10, link={"rate": "10gbit"}), BUDGET)
    assert "at dilation 10" in comparison(at(10, link={"rate": "10gbit"}), BUDGET)
    refuse_excess(at(10, link={"rate": "100gbit"}), BUDGET)
    with pytest.raises(MissingRequirementError, match=r"100gbit.* 90\.0 Gbit/s at dilation 5"):
        refuse_excess(at(5, link={"rate": "100gbit"}), BUDGET)


@pytest.mark.parametrize(
    ("keys", "dilation"),
    [
        ({"link": {"rate": "1gbit"}}, 1),  # 4 Gbit/s of 18
        ({"link": {"rate": "1.5gbit"}}, 1),  # 6 of 18: 33 %
        ({"link": {"rate": "1.6gbit"}}, 2),
        ({"link": {"rate": "100gbit"}}, 64),  # 400 of 18
        ({"link": {"rate": "100gbit"}, "packet_mode": "mtu"}, 191),  # 400 of 6
        ({"workers": 8, "link": {"rate": "100gbit"}}, 127),
        ({"link": {"rate": "100gbit", "delay": "10ms", "backend": "nfqueue"}}, 143),  # 400 of 8
    ],
)
def test_auto_is_the_smallest_with_which_links_take_their_share_of_the_budget(
    keys: dict[str, Any], dilation: int
) -> None:
    def planned_at(factor: float) -> Plan:
        return at(factor, **keys)

    found, reason = chosen_dilation(BUDGET, planned_at, none, num_cores=2)
    assert found == dilation
    assert ("not dilated" in reason) == (dilation == 1)
    assert dilation == 1 or f"time runs {dilation} times slower" in reason
    assert requested_bps(planned_at(found)) <= 0.5 * found * BUDGET.carries_bps(planned_at(1))


def test_auto_knows_that_hosts_copy_gradients_however_slow_the_links_are() -> None:
    slow = {"link": {"rate": "1gbit"}, "workload": {"kind": "replay", "trace": "resnet50"}}
    found, reason = chosen_dilation(BUDGET, lambda factor: at(factor, **slow), none, num_cores=2)
    handed = handed_over_bps(at(1, **slow))
    assert handed == pytest.approx(8 * 4 * 102_228_128 / 65e-3, rel=0.05)  # as long as a V100 takes for backward
    assert handed / (0.35 * 18e9) <= found < handed / (0.35 * 18e9) + 1
    assert f"workers hand over {handed / 1e9:.4g} Gbit/s of gradients" in reason
    assert handed_over_bps(at(1, workload={"kind": "training"})) == 0
    assert handed_over_bps(at(1, **slow, synchronisation="local_sgd")) == 0, "now and then, after a step"


def test_auto_plans_where_a_backend_can_honour_a_delay_only_in_slower_time() -> None:
    def planned_at(factor: float) -> Plan:
        return at(factor, link={"rate": "100gbit", "delay": "5us", "backend": "nfqueue"})

    with pytest.raises(SpecError, match="nfqueue honours 0s, or 200us"):
        planned_at(1)
    found, _ = chosen_dilation(BUDGET, planned_at, none, num_cores=2)
    assert planned_at(found).delay_backend == "nfqueue"


def test_auto_goes_by_the_backend_that_makes_the_delays_of_slower_time() -> None:
    """100 us are too short for nfqueue as they are, and netem is not there."""

    def planned_at(factor: float) -> Plan:
        keys = {"link": {"rate": "100gbit", "delay": "100us"}, "workload": "synthetic", "dilation": factor}
        return make_plan(validate({"name": "t", "workers": 4, **keys}), works=lambda name: name == "nfqueue")

    assert planned_at(1).delay_backend == "netem"
    found, _ = chosen_dilation(BUDGET, planned_at, none, num_cores=2)
    assert planned_at(found).delay_backend == "nfqueue"
    assert found == 143  # 400 of 8


def test_auto_waits_for_delays_to_be_long_enough_for_their_backend() -> None:
    def planned_at(factor: float) -> Plan:
        return at(factor, link={"rate": "500mbit", "delay": "5us", "backend": "nfqueue"})

    found, reason = chosen_dilation(BUDGET, planned_at, none, num_cores=2)
    assert found == 40  # 5 us become 200
    assert planned_at(found).delay_backend == "nfqueue"
    assert (
        "time runs 40 times slower: what makes delays here cannot honour those of the spec in less (1 would" in reason
    )


def test_auto_needs_a_budget_and_has_a_greatest_factor() -> None:
    with pytest.raises(MissingRequirementError, match=r"^dilation: auto .*run `sudo testbed doctor`"):
        chosen_dilation(None, at, none, num_cores=2)
    with pytest.raises(MissingRequirementError, match=r"more than 600 times it cannot"):
        chosen_dilation(
            replace(BUDGET, undelayed=Carried(superframe_bps=1e9, mtu_bps=1e9)),
            lambda k: at(k, link={"rate": "100gbit"}),
            none,
            num_cores=2,
        )
    endless = CodecLoad(cpu_s=100.0, num_workers=4, num_cores=2, least_s=0.1)
    with pytest.raises(MissingRequirementError, match=r"codecs of 4 workers take .* more than 600 times it cannot"):
        chosen_dilation(BUDGET, at, lambda _: endless, num_cores=2)


@pytest.mark.parametrize(
    ("cpu_ms", "dilation", "said"),
    [
        (1.0, 1, ", codecs of 4 workers take 1 % of 2 cores, and this machine carries 18 Gbit/s"),
        (22.0, 5, "time runs 5 times slower: codecs of 4 workers take 15 % of 2 cores, which may take 3.5 % of them"),
    ],
)
def test_auto_knows_that_codecs_want_the_cores_at_once(cpu_ms: float, dilation: int, said: str) -> None:
    load = CodecLoad(cpu_s=1e-3 * cpu_ms, num_workers=4, num_cores=2, least_s=0.3)
    found, reason = chosen_dilation(BUDGET, lambda k: at(k, link={"rate": "100mbit"}), lambda _: load, num_cores=2)
    assert found == dilation
    assert said in reason


def test_auto_goes_by_whatever_needs_most() -> None:
    load = CodecLoad(cpu_s=0.022, num_workers=4, num_cores=2, least_s=0.3)
    found, reason = chosen_dilation(BUDGET, lambda k: at(k, link={"rate": "100gbit"}), lambda _: load, num_cores=2)
    assert found == 64
    assert "codecs" not in reason


@pytest.mark.parametrize(
    ("keys", "dilation"),
    [
        ({"workers": 4}, 3),
        ({"workers": 8}, 6),
        ({"workers": 4, "hosts": {"w*": {"cpu": 2}}}, 6),
        ({"workers": 4, "hosts": {"w*": {"cpu": 0.3}}}, 1),
    ],
)
def test_auto_gives_workers_that_cost_what_they_cost_their_cores(keys: dict[str, Any], dilation: int) -> None:
    def planned_at(factor: float) -> Plan:
        return at(factor, host_cost="real", link={"rate": "100mbit"}, **keys)

    found, reason = chosen_dilation(BUDGET, planned_at, none, num_cores=2)
    assert found == dilation
    assert planned_at(found).quota_cores <= 0.7 * 2
    assert dilation == 1 or "host_cost: real" in reason


def test_a_budget_is_kept_for_this_machine_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert known_budget() is None
    keep(BUDGET)
    assert known_budget() == BUDGET
    keep(replace(BUDGET, machine="another"))
    assert known_budget() is None
    (tmp_path / "ina-testbed" / "budget.json").write_text("{}")
    assert known_budget() is None
