"""Links that differ: shares of the rate, overrides in their order, queues in bandwidth-delay products."""

from typing import Any

import pytest

from testbed.errors import SpecError
from testbed.experiment.experiment import validate
from testbed.experiment.link import parse_override
from testbed.plan.link_configuration import LinkConfig, changed_links, min_queue_bytes
from testbed.plan.plan import make_plan


def requested(**keys: Any) -> dict[str, LinkConfig]:
    made = make_plan(validate({"name": "x", "workers": 2, "topology": "dumbbell", **keys})).requested
    return {"->".join(hop): each for hop, each in made.items()}


def wrong(**keys: Any) -> str:
    with pytest.raises(SpecError) as caught:
        requested(**keys)
    return str(caught.value)


def test_later_overrides_win_and_keep_what_they_do_not_name() -> None:
    found = requested(
        link={"delay": "5ms"},
        links={"w*-s*": {"rate": "10mbit"}, "w1->s1": {"rate": "20mbit", "delay": "7ms"}, "s0-s1": {"loss": "1%"}},
        packet_mode="mtu",
    )
    assert [found[name].spec.rate_bps for name in ("w0->s0", "s0->w0", "w1->s1", "s1->w1")] == [1e7, 1e7, 2e7, 1e7]
    assert [found[name].spec.delay_s for name in ("w1->s1", "s1->w1")] == [0.007, 0.005]
    assert (found["s0->s1"].spec.loss, found["s0->s1"].spec.rate_bps) == (0.01, 1e8)


def test_an_override_is_absolute_where_the_topology_gives_a_share() -> None:
    dumbbell = {"kind": "dumbbell", "bottleneck": 0.5}
    assert requested(topology=dumbbell)["s0->s1"].spec.rate_bps == 5e7
    assert requested(topology=dumbbell, links={"s0->s1": {"rate": "3mbit"}})["s0->s1"].spec.rate_bps == 3e6


def test_every_setting_knows_the_key_that_asks_it() -> None:
    found = requested(link={"delay": "1ms"}, links={"w1-s1": {"delay": "2ms"}})
    assert found["w1->s1"].key("delay") == "links.w1-s1.delay"
    assert found["w1->s1"].key("rate") == found["w0->s0"].key("rate") == "link.rate"


def test_bandwidth_delay_products_count_both_directions_and_never_fall_below_the_least() -> None:
    links = {"w0->s0": {"rate": "1gbit", "delay": "3ms"}, "w1-s1": {"rate": "1mbit"}}
    found = requested(link={"delay": "1ms", "queue": "2bdp"}, links=links)
    assert found["w0->s0"].spec.queue_bytes == 2 * 1e9 / 8 * 4e-3
    assert found["w1->s1"].spec.queue_bytes == min_queue_bytes(65_536) == 100_000


def test_bandwidth_delay_products_follow_changes_until_the_queue_is_given_in_bytes() -> None:
    now = list(requested(link={"rate": "1gbit", "delay": "10ms", "queue": "2bdp"}).values())

    def queues_bytes(link: str, **settings: str) -> set[int]:
        now[:] = changed_links(now, link, parse_override(settings), "changes.0", packet_bytes=65_536)
        return {each.spec.queue_bytes for each in now if each.link == "w0-s0"}

    assert queues_bytes("w0-s0", rate="100mbit") == {500_000}
    assert queues_bytes("w0->s0", delay="30ms") == {1_000_000}, "the way back has the same round trip"
    assert queues_bytes("w0-s0", queue="1bdp", rate="50mbit") == {250_000}
    assert queues_bytes("w0-s0", queue="300kB") == {300_000}
    assert queues_bytes("w0-s0", rate="1gbit", delay="1ms") == {300_000}


def test_short_queues_are_for_single_packets() -> None:
    assert "link.queue: w0 -> s0 would have 15kB; allowed: 100kB to 1GB; smaller ones with packet_mode: mtu" in wrong(
        link={"queue": "15kB"}
    )
    assert requested(link={"queue": "15kB"}, packet_mode="mtu")["w0->s0"].spec.queue_bytes == 15_000
    assert "allowed: 4542B" in wrong(link={"queue": "3kB"}, packet_mode="mtu")


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"links": {"w7-s0": {"rate": "1gbit"}}}, "links: 'w7-s0' names no link; there are w0-s0, w1-s1, s0-s1"),
        (
            {"link": {"delay": "5ms", "jitter": "2ms"}, "links": {"w1-s1": {"delay": "1ms"}}},
            "link.jitter: w1 -> s1: jitter may not exceed delay",
        ),
        ({"links": {"w1->s1": {"ecn": "1MB"}}}, "links.w1->s1.ecn: w1 -> s1: ecn must be less than the queue"),
        ({"links": {"w1->s1": {"reorder": "1%"}}}, "links.w1->s1.reorder: w1 -> s1: reorder needs a delay"),
        (
            {"topology": {"kind": "dumbbell", "bottleneck": 0.001}},
            "topology: the link s0-s1 would have 100kbit, its share of link.rate; allowed: 1mbit to 800gbit",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_its_key(keys: dict[str, Any], words: str) -> None:
    assert words in wrong(**keys)


def test_one_mistake_is_said_once_for_each_key() -> None:
    assert len(wrong(link={"queue": "15kB"}, links={"w0-s0": {"queue": "16kB"}}).splitlines()) == 2
