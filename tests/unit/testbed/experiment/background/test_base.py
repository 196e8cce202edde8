"""Every kind of background traffic: what it says of itself, what it refuses, how it reads back."""

from typing import Any

import pytest

from testbed.errors import SpecError
from testbed.experiment.background.base import BACKGROUNDS, MAX_PACKETS_PER_S
from testbed.experiment.experiment import load, validate

ENDS = {"from": "w0", "to": "w1"}
OPTIONS: dict[str, dict[str, Any]] = {"constant": {"rate": "20mbit"}, "on_off": {"rate": "20mbit"}, "bulk": {}}


@pytest.mark.parametrize("kind", BACKGROUNDS.kinds())
def test_a_kind_is_what_it_is_read_back_as(kind: str, tmp_path: Any) -> None:
    experiment = validate({"name": "x", "background": [{"kind": kind, **ENDS, **OPTIONS.get(kind, {})}]})
    (flow,) = experiment.background
    assert flow.kind == kind
    assert flow.protocol in {"udp", "tcp"}
    assert flow.text()
    assert all(isinstance(argument, str) for argument in flow.source_arguments(seed=1))
    path = tmp_path / "spec.yaml"
    path.write_text(experiment.to_yaml())
    assert load(path) == experiment


def test_offered_rates() -> None:
    constant, bursts, bulk = (
        BACKGROUNDS.parse({"kind": kind, **ENDS, **OPTIONS[kind]}) for kind in ("constant", "on_off", "bulk")
    )
    assert constant.offered_bps() == 20e6
    assert bursts.offered_bps() == pytest.approx(20e6 * 0.1 / 0.4)
    assert bulk.offered_bps() is None


def test_on_and_off_may_stand_without_quotes(tmp_path: Any) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(
        "name: x\n"
        "background: [{kind: on_off, from: w0, to: w1, rate: 1mbit, on: 5ms, off: 15ms, distribution: fixed}]\n"
    )
    (flow,) = load(path).background
    assert flow.text() == "1mbit of 1500 B packets, fixed 5ms on, 15ms off"
    assert flow.source_arguments(seed=7) == ("1000000", "1500", "5000000", "15000000", "0", "7")


@pytest.mark.parametrize(
    ("flow", "words"),
    [
        ({"kind": "constant", "rate": 0}, r"background\.0\.rate: allowed: at least 1,000 "),
        ({"kind": "constant"}, r"background\.0\.rate: required"),
        ({"kind": "constant", "rate": "1mbit", "packet": 20}, r"background\.0\.packet: "),
        ({"kind": "constant", "rate": "1mbit", "packet": 9000}, r"background\.0\.packet: "),
        ({"kind": "constant", "rate": "10gbit"}, f"more than the {MAX_PACKETS_PER_S:,} packets a second"),
        ({"kind": "on_off", "rate": "1gbit", "packet": 100}, "at most 91mbit with packets of 100 B"),
        ({"kind": "on_off", "rate": "1mbit", "off": 0}, r"background\.0\.off: "),
        ({"kind": "bulk", "streams": 0}, r"background\.0\.streams: "),
        ({"kind": "bulk", "rate": "1mbit"}, "unknown key; allowed: from, start, stop, streams, to"),
        ({"kind": "bulk", "start": "3s", "stop": "2s"}, r"stop \(2s\) must come after start \(3s\)"),
        ({"kind": "bulk", "to": "w0"}, "from and to are both w0"),
        ({"kind": "flood"}, "'flood' is not a background; allowed: bulk, constant, on_off"),
    ],
)
def test_what_cannot_be_is_refused_by_its_path(flow: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        validate({"name": "x", "background": [{**ENDS, **flow}]})
