"""Predictions as a person and a script read them."""

import io
import json
from typing import Any

from rich.console import Console

from testbed.experiment.experiment import validate
from testbed.plan.plan import make_plan
from testbed.report.terminal.prediction import exchanges_json, prediction_json, render_exchanges, render_prediction
from testbed.theory.predict import predict_exchanges, predict_iteration
from testbed.theory.reach import Expected, Reach
from transports.collectives.costs import DEFAULT_COSTS

PACED = {"kind": "training", "pace": {"forward": "40ms", "backward": "80ms", "update": "30ms"}}
REACH = Reach(num_workers=(2, 8), size_bytes=(1000, 10**8), delay_s=(0.0, 0.02), rate_bps=(1e7, 1e9), channels=("tcp",))
EXPECTED = Expected(0.031, "validation", 98, REACH)


def rendered(expected: Expected | None = EXPECTED, **keys: Any) -> str:
    plan, stream = make_plan(validate({"name": "x", **keys})), io.StringIO()
    render_prediction(predict_iteration(plan, expected), plan, expected, Console(file=stream, width=200))
    return stream.getvalue()


def test_computing_whose_time_is_configured_is_distinguished() -> None:
    paced, real = rendered(workload=PACED), rendered()
    assert "computing 150 ms; communicating" in paced
    assert "optimizer 30" in paced
    assert "of communication alone" in real


def test_how_far_it_reaches_is_said() -> None:
    assert "off by 3.1 % on the mean (validation, 98 points)" in rendered()
    assert "defaults that nobody has compared" in rendered(None)
    assert "outside what predictions were compared with: 16 workers (2 to 8); no error is known" in rendered(workers=16)
    assert "outside what predictions were compared with: channel grpc (tcp)" in rendered(channel="grpc")


def test_in_slower_time_hosts_cost_what_the_prediction_took() -> None:
    assert "hosts: 50 us latency" in rendered(workload="synthetic")
    assert "hosts: 5 us latency" in rendered(workload="synthetic", dilation=10)


def test_scripts_read_the_same() -> None:
    plan = make_plan(validate({"name": "x", "workload": PACED}))
    found = predict_iteration(plan, EXPECTED)
    reported = json.loads(json.dumps(prediction_json(found, plan, EXPECTED)))
    assert reported["parts"]["compute_s"] == found.compute_s
    assert reported["expected_error"] == 0.031
    assert reported["critical_path"][-1] == {"what": "optimizer", **found.critical_path[-1]._asdict()}


def test_a_row_for_each_exchange() -> None:
    workload = {"kind": "allreduce", "sizes": ["1MB"], "stacks": ["ring/tcp", "gloo"]}
    found, stream = predict_exchanges(validate({"name": "x", "workload": workload}), make_plan, EXPECTED), io.StringIO()
    render_exchanges(found, DEFAULT_COSTS, None, Console(file=stream, width=200))
    assert "ring/tcp" in stream.getvalue()
    assert "not predicted" in stream.getvalue()
    reported = exchanges_json(found, DEFAULT_COSTS, None)["exchanges"]
    assert [each["stack"] for each in reported] == ["ring/tcp", "gloo"]
    assert reported[1]["time_s"] is None


def test_no_error_is_stated_where_no_exchange_lies_inside_of_what_was_compared() -> None:
    workload = {"kind": "allreduce", "sizes": ["1MB"], "stacks": ["ring/tcp"]}
    (found,) = predict_exchanges(validate({"name": "x", "workload": workload}), make_plan, EXPECTED)
    outside = found._replace(outside=("longer messages than any that was compared",))
    for rows, stated in (((found, outside), True), ((outside, outside), False)):
        stream = io.StringIO()
        render_exchanges(rows, DEFAULT_COSTS, EXPECTED, Console(file=stream, width=200))
        assert ("expect" in stream.getvalue()) == stated
        assert (exchanges_json(rows, DEFAULT_COSTS, EXPECTED)["expected_error"] is not None) == stated
