"""What may be configured of a link, and what the formulas of burst loss say."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from testbed.errors import SpecError
from testbed.experiment.link import DelayProducts, GilbertElliott, LinkOverride, LinkSpec, parse_link


def link(**keys: Any) -> LinkSpec:
    return LinkSpec.model_validate(keys)


def test_a_plain_jitter_is_normal() -> None:
    assert link(delay="5ms", jitter="1ms").jitter == link(delay="5ms", jitter={"deviation": "1ms"}).jitter
    assert link(delay="5ms", jitter="1ms").jitter.distribution == "normal"


@pytest.mark.parametrize(
    "keys",
    [
        {"delay": "5ms", "jitter": {"deviation": "1ms", "distribution": "uniform"}, "reorder": "1%"},
        {"loss": {"kind": "gilbert_elliott", "good_to_bad": "0.1%", "bad_to_good": "25%"}, "duplicate": "0.1%"},
        {"queue": "2bdp", "ecn": "100kB", "best_effort": True},
        {"queue": "0.1bdp"},
    ],
)
def test_what_is_dumped_loads_back_to_the_same(keys: dict[str, Any]) -> None:
    dumped = link(**keys).model_dump(mode="json", by_alias=True)
    assert LinkSpec.model_validate(dumped) == link(**keys)


@pytest.mark.parametrize(
    "keys",
    [
        {"delay": "1ms", "jitter": "2ms"},
        {"reorder": "1%"},
        {"ecn": "2MB"},
        {"loss": "100%"},
        {"loss": -0.1},
        {"loss": {"kind": "gilbert_elliott", "good_to_bad": "0.1%"}},
        {"loss": {"kind": "gilbert_eliott", "good_to_bad": 0.1, "bad_to_good": 0.1}},
        {"queue": "0bdp"},
        {"queue": "bdp"},
        {"queue": "xbdp"},
        {"queue": "0"},
        {"queue": "2GB"},
        {"queue": 1.5},
        {"jitter": {"deviation": "1ms", "distribution": "pareto"}},
    ],
)
def test_contradictions_and_values_out_of_range_are_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        link(**keys)


def test_an_override_is_only_what_it_names() -> None:
    override = LinkOverride.model_validate({"rate": "1gbit", "delay": 0})
    assert override.model_dump(mode="json", by_alias=True) == {"rate": "1gbit", "delay": "0ns"}
    assert link(delay="5ms", loss="1%").overridden(override) == link(rate="1gbit", loss="1%")


def test_bandwidth_delay_products() -> None:
    assert DelayProducts(2).queue_bytes(100e6, 20e-3) == 500_000


@given(*[st.floats(0.05, 1)] * 3, st.floats(0, 0.5))
@settings(max_examples=20)
def test_mean_loss_and_burst_of_gilbert_elliott_are_those_of_the_chain(
    good_to_bad: float, bad_to_good: float, loss_in_bad: float, loss_in_good: float
) -> None:
    model = GilbertElliott(
        good_to_bad=good_to_bad, bad_to_good=bad_to_good, loss_in_bad=loss_in_bad, loss_in_good=loss_in_good
    )
    draw, bad, lost = random.Random(1), False, []
    for _ in range(20_000):
        lost.append(draw.random() < (loss_in_bad if bad else loss_in_good))
        bad = draw.random() >= bad_to_good if bad else draw.random() < good_to_bad
    assert sum(lost) / len(lost) == pytest.approx(model.mean_loss, abs=0.03)
    num_bursts = sum(now and not following for now, following in zip(lost, [*lost[1:], False], strict=True))
    if model.mean_burst_packets < 50 and num_bursts > 200:
        assert sum(lost) / num_bursts == pytest.approx(model.mean_burst_packets, rel=0.25)


def test_bursts_of_gilberts_channel_last_as_long_as_the_bad_state() -> None:
    model = GilbertElliott(good_to_bad=0.01, bad_to_good=0.25)
    assert model.mean_burst_packets == pytest.approx(4)
    assert model.mean_loss == pytest.approx(0.01 / 0.26)
    assert GilbertElliott(good_to_bad=1, bad_to_good=1, loss_in_good=0.5).mean_burst_packets > 1


def test_a_link_in_a_few_letters() -> None:
    assert parse_link("1gbit") == {"rate": "1gbit"}
    assert parse_link("1gbit, 50us,1%") == {"rate": "1gbit", "delay": "50us", "loss": "1%"}
    for text in ("", "1gbit,", "1gbit,1ms,1%,2"):
        with pytest.raises(SpecError, match=r"write RATE\[,DELAY\[,LOSS\]\], such as 1gbit,50us"):
            parse_link(text)
