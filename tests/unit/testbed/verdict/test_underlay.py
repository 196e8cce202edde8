from dataclasses import replace
from typing import Any

import pytest

from testbed.hosts.machines import UnderlayMeasurement
from testbed.plan.machines import Need, Spread
from testbed.verdict.facts import UnderlayFacts
from testbed.verdict.summarize import summarize
from testbed.verdict.underlay import underlay_facts
from tests.facts import facts

THERE = UnderlayFacts(
    source="m0",
    target="m1",
    num_links=2,
    rate_bps=200e6,
    needed_bps=206.6e6,
    carried_bps=227e6,
    needed_packet_bytes=1550,
    path_mtu=1600,
    round_trip_s=150e-6,
    jitter_s=200e-6,
    jitter_limit_s=600e-6,
)


@pytest.mark.parametrize(
    ("change", "outcome", "said"),
    [
        ({}, "valid", "from machine m0 to m1 the network carried 227mbit of 207mbit that 2 links need"),
        ({"carried_bps": 206.6e6}, "valid", ""),
        ({"carried_bps": 206.5e6}, "invalid", "the network from machine m0 to m1 carried 206mbit, and the 2 links"),
        ({"path_mtu": 1549}, "invalid", "let packets of 1549 bytes through, and links over it need 1550"),
        ({"path_mtu": 0}, "invalid", "let nothing through: see that the machines reach each other's address"),
        ({"jitter_s": 600e-6}, "valid", ""),
        ({"jitter_s": 601e-6}, "degraded", "differed by 601 us with nothing else under way (limit 600 us"),
    ],
)
def test_what_the_network_between_machines_lacks_is_the_run_s(change: dict[str, Any], outcome: str, said: str) -> None:
    summary = summarize(facts(underlay=[replace(THERE, **change)]))
    assert summary.outcome == outcome
    assert said in (summary.notes if outcome == "valid" else summary.reasons)[0]


def test_on_one_machine_nothing_is_said_of_it() -> None:
    assert (summarize(facts()).reasons, summarize(facts()).notes) == ([], [])


def test_of_several_measurements_the_worst_counts() -> None:
    common: dict[str, Any] = {"num_links": 1, "rate_bps": 1e8, "wire_bps": 1.03e8, "packet_bytes": 1550}
    there = Need(source="m0", target="m1", **common, least_delay_s=0.0)
    back = Need(source="m1", target="m0", **common, least_delay_s=0.02)
    spread = Spread(machines=(), tunnels=(), needs=(there, back))
    before = UnderlayMeasurement(
        source="m0", target="m1", path_mtu=1600, carried_bps=1.1e8, round_trip_s=1e-4, jitter_s=3e-4
    )
    after = replace(before, path_mtu=1550, carried_bps=0.9e8, round_trip_s=2e-4, jitter_s=1e-4)
    (found,) = underlay_facts(spread, [[before], [after]])
    assert (found.path_mtu, found.carried_bps, found.round_trip_s, found.jitter_s) == (1550, 0.9e8, 2e-4, 3e-4)
    assert found.needed_bps == 1.03e8
    assert found.jitter_limit_s == pytest.approx(300e-6 + 2e-3)
