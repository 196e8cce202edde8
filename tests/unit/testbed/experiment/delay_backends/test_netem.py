"""The netem stage, command by command, and the read-back that must notice every difference."""

from typing import Any

import pytest

from testbed.errors import SpecError
from testbed.experiment.delay_backends.netem import Netem, NetemStage, redirects
from testbed.experiment.link import LinkSpec

REDIRECTS = {"s0-eth0": ["ifb3"]}


def test_filters_that_send_all_packets_somewhere_are_distinguished_from_others() -> None:
    """As `tc -j filter show dev v ingress` of iproute2 6.1 prints one u32 filter."""
    table: dict[str, Any] = {"protocol": "all", "pref": 49152, "kind": "u32", "chain": 0}
    mirred = {"order": 1, "kind": "mirred", "mirred_action": "redirect", "direction": "egress", "to_dev": "ifb7"}
    match = {"value": "0", "mask": "0", "offmask": "", "off": 0}
    rule = table | {"options": {"fh": "800::800", "match": match, "actions": [mirred]}}
    assert redirects([table, table | {"options": {"fh": "800:", "ht_divisor": 1}}, rule]) == ["ifb7"]
    rule["options"]["match"] = match | {"mask": "ffff0000"}
    assert redirects([rule]) == ["some"]
    rule["options"]["actions"] = [{"kind": "gact"}]
    assert redirects([rule]) == ["gact"]


def test_the_stage_lies_at_the_receiver_and_holds_twice_the_bandwidth_delay_product() -> None:
    link = LinkSpec.model_validate({"rate": "1gbit", "delay": "10ms", "jitter": "1ms", "loss": "0.5%"})
    stage = Netem().stage(link, interface="s0-eth0", index=0, seed=1)
    assert stage.ip_commands() == ["link add ifb0 type ifb", "link set ifb0 up"]
    assert stage.max_packets == int(1e9 / 8 * (2 * 0.014 + 0.02) / 1500)
    assert stage.tc_commands()[-1] == (
        f"qdisc add dev ifb0 root handle 20: netem limit {stage.max_packets} "
        "delay 10000us 1000us distribution normal loss random 0.5%"
    )
    assert "dev s0-eth0" in stage.tc_commands()[1]


def test_read_back_notices_what_differs() -> None:
    link = LinkSpec.model_validate({"rate": "100mbit", "delay": "10ms", "loss": "1%"})
    stage = Netem().stage(link, interface="s0-eth0", index=3, seed=1)
    root: dict[str, Any] = {
        "kind": "netem",
        "dev": "ifb3",
        "root": True,
        "options": {
            "limit": stage.max_packets,
            "delay": {"delay": 0.01, "jitter": 0, "correlation": 0},
            "loss-random": {"loss": 0.01, "correlation": 0},
        },
    }
    assert stage.differences({"qdiscs": [root], "redirects": REDIRECTS}) == []
    root["options"]["delay"]["delay"] = 0.02
    assert stage.differences({"qdiscs": [root], "redirects": REDIRECTS}) == [
        "ifb3: netem delay is 0.02, requested 0.01"
    ]
    assert stage.differences({"qdiscs": [root | {"dev": "ifb4"}], "redirects": REDIRECTS}) == [
        "ifb3: root qdisc is absent, requested netem"
    ]
    for targets in ({}, {"s0-eth0": ["some"]}, {"s0-eth0": ["ifb3", "ifb4"]}):
        (line,) = stage.differences({"qdiscs": [root], "redirects": targets})
        assert line.startswith("s0-eth0: what arrives goes to ")


def stage(**link: Any) -> NetemStage:
    return Netem().stage(LinkSpec.model_validate(link), interface="s0-eth0", index=3, seed=1)


@pytest.mark.parametrize(
    ("link", "words"),
    [
        ({"jitter": {"deviation": "1ms", "distribution": "uniform"}}, "delay 10000us 1732us"),
        (
            {"loss": {"kind": "gilbert_elliott", "good_to_bad": "0.5%", "bad_to_good": "25%", "loss_in_good": 0.001}},
            "delay 10000us loss gemodel 0.5% 25% 100% 0.1%",
        ),
        ({"duplicate": "0.1%", "reorder": "2%"}, "delay 10000us duplicate 0.1% reorder 2%"),
    ],
)
def test_everything_that_netem_can_is_read_from_it(link: dict[str, Any], words: str) -> None:
    requested = stage(delay="10ms", **link)
    assert requested.tc_commands()[-1].endswith(words)
    assert requested.tc_changes(stage(delay="1ms")) == [
        requested.tc_commands()[-1].replace("qdisc add", "qdisc change")
    ]


def test_a_change_that_ends_reordering_says_so_because_the_kernel_would_keep_the_share() -> None:
    calm, reordering = stage(delay="10ms"), stage(delay="10ms", reorder="2%")
    (line,) = calm.tc_changes(reordering)
    assert line.endswith(" delay 10000us reorder 0%")
    assert all("reorder" not in line for line in calm.tc_changes(calm) + calm.tc_commands())


def test_read_back_notices_bursts_duplicates_and_reordering() -> None:
    bursts = {"kind": "gilbert_elliott", "good_to_bad": 0.01, "bad_to_good": 0.25, "loss_in_bad": 0.9}
    requested = stage(delay="10ms", loss=bursts, duplicate=0.001, reorder=0.02)
    options: dict[str, Any] = {
        "limit": requested.max_packets,
        "delay": {"delay": 0.01, "jitter": 0},
        "loss-gemodel": {"p": 0.01, "r": 0.25, "1-h": 0.9, "1-k": 0},
        "duplicate": {"duplicate": 0.001, "correlation": 0},
        "reorder": {"reorder": 0.02, "correlation": 0},
    }
    root = {"kind": "netem", "dev": "ifb3", "root": True, "options": options}
    state = {"qdiscs": [root], "redirects": REDIRECTS}
    assert requested.differences(state) == []
    for key, inner in (("loss-gemodel", "r"), ("duplicate", "duplicate"), ("reorder", "reorder")):
        kept = options[key]
        options[key] = kept | {inner: 0.5}
        assert len(requested.differences(state)) == 1
        del options[key]
        assert requested.differences(state)
        options[key] = kept
    options["loss-random"] = {"loss": 0.1}
    assert requested.differences(state) == ["ifb3: netem loss is 0.1, requested 0.0"]


def test_normal_jitter_does_not_become_uniform_in_place() -> None:
    normal, uniform = (
        stage(delay="9ms", jitter={"deviation": "1ms", "distribution": d}) for d in ("normal", "uniform")
    )
    calm = stage(delay="9ms")
    assert normal.following(uniform).tc_changes(uniform)
    assert uniform.following(calm.following(uniform)).tc_changes(calm)
    for before in (normal, normal.following(uniform), calm.following(normal), calm.following(calm.following(normal))):
        with pytest.raises(SpecError, match="cannot change normal jitter into uniform"):
            uniform.following(before)
    assert normal.following(calm.following(normal)).normal_table


def test_a_change_of_the_rate_alone_lets_the_draws_continue() -> None:
    fast, slow = (stage(delay="1ms", loss="1%", rate=rate) for rate in ("100mbit", "50mbit"))
    assert slow.following(fast).tc_changes(fast) == []
    assert slow.following(fast).seed == fast.seed


def test_every_other_change_has_draws_of_its_own_that_follow_from_the_seed() -> None:
    """Given the same seed again, a trace of ten steps a second would lose the same packets in each of them."""

    def seeds(index: int) -> list[int]:
        now = Netem().stage(LinkSpec.model_validate({}), interface="s0-eth0", index=index, seed=2**32 - 1)
        found = [now.seed]
        for number in range(100):
            link = LinkSpec.model_validate({"loss": f"{1 + number % 2}%"})
            before = now
            now = Netem().stage(link, interface="s0-eth0", index=index, seed=2**32 - 1).following(before)
            assert now.tc_commands_if_known() == [f"{now.tc_changes(before)[0]} seed {now.seed}"]
            found.append(now.seed)
        return found

    assert seeds(0) == seeds(0)
    assert len({*seeds(0), *seeds(1)}) == 202
    assert max(seeds(1)) < 2**64


def test_a_seed_is_read_back_where_the_kernel_says_it() -> None:
    drawn, calm = stage(loss="1%"), stage(delay="1ms")
    options: dict[str, Any] = {"limit": 1000, "loss-random": {"loss": 0.01}, "seed": 65540}
    root = {"kind": "netem", "dev": "ifb3", "root": True, "options": options}
    state = {"qdiscs": [root], "redirects": REDIRECTS}
    assert drawn.differences(state) == []
    options["seed"] = 7
    assert drawn.differences(state) == ["ifb3: netem seed is 7, requested 65540"]
    root["options"] = {"limit": 1000, "delay": {"delay": 0.001}, "seed": 7}
    assert calm.differences(state) == [], "nothing is drawn"


def test_the_seed_is_given_to_kernels_that_take_one_and_only_where_something_is_drawn() -> None:
    assert stage(delay="1ms").tc_commands_if_known() == []
    (line,) = stage(loss="1%").tc_commands_if_known()
    assert line == stage(loss="1%").tc_commands()[-1].replace("qdisc add", "qdisc change") + " seed 65540"
