"""Advice as a spec: what the run does is what the what-if is about."""

from dataclasses import replace
from math import inf
from typing import Any

import pytest

from testbed.errors import SpecError
from testbed.experiment.experiment import Experiment, validate
from testbed.plan.plan import make_plan
from testbed.theory.advise import Setting, advise
from testbed.theory.buckets import ByTime
from testbed.theory.emulation import MAX_INTERVAL, emulated
from testbed.theory.predict import predict_iteration
from testbed.traces.derived import derived_table

MOST = 0.956
TODAY = Setting(table=derived_table("resnet50", batch_size=32), num_workers=4, rate_bps=10e9, efficiency=MOST)


def spec(**changes: Any) -> Experiment:
    return validate(emulated(replace(TODAY, **changes), "resnet50", max_efficiency=MOST))


def test_the_spec_computes_and_exchanges_what_the_setting_does() -> None:
    made = spec(latency_s=40e-6)
    table = made.workload.timed_layers()
    assert table is not None
    assert table.compute_s == pytest.approx(TODAY.table.compute_s, rel=1e-6)
    assert (table.size_bytes, made.workers) == (TODAY.table.size_bytes, 4)
    assert (made.link.rate_bps, made.link.delay_s, made.dilation) == (10e9, 20e-6, "auto")
    plan = make_plan(made, chosen_dilation=(10.0, "as a machine has chosen"))
    assert plan.prediction.gradient_bytes == TODAY.table.size_bytes


def test_each_change_is_in_the_spec() -> None:
    assert spec(collective="in_network").collective.kind == "in_network"
    assert spec(efficiency=MOST / 2).link.rate_bps == pytest.approx(5e9)
    larger = spec(batch_factor=3.0).workload.timed_layers()
    assert larger is not None
    assert larger.compute_s == pytest.approx(3 * TODAY.table.compute_s, rel=1e-6)
    plan = make_plan(spec(compression_ratio=4.0), chosen_dilation=(10.0, "as a machine has chosen"))
    assert plan.prediction.payload_bytes == pytest.approx(plan.prediction.gradient_bytes / 4, rel=1e-3)
    averaged = spec(interval=5)
    assert (averaged.synchronisation.interval, averaged.workload.num_iterations()) == (5, 10)


@pytest.mark.parametrize(
    ("cycle_s", "kind"), [(0.0, "layers"), (5e-3, "time"), (inf, "size")], ids=["each", "cycles", "buffers"]
)
def test_the_fusion_is_that_of_the_setting(cycle_s: float, kind: str) -> None:
    assert spec(fusion=ByTime(cycle_s=cycle_s)).fusion.kind == kind


def test_a_switch_is_as_far_away_as_in_the_emulation() -> None:
    """A sum goes from a worker to the switch and on to the workers: once the way from worker to worker, not twice."""

    def seconds(latency_s: float) -> tuple[float, float]:
        advised = replace(TODAY, collective="in_network", rate_bps=1e9, latency_s=latency_s, fusion=ByTime(cycle_s=inf))
        made = validate(emulated(advised, "resnet50", max_efficiency=MOST))
        plan = make_plan(made, chosen_dilation=(1.0, "as a machine has chosen"))
        emulated_s = plan.collective.exchange_s("all_reduce", 10**6, 4, rate_bps=1e9, alpha_s=plan.prediction.latency_s)
        assert emulated_s is not None
        return advised.exchange_s(4 * 10**6), emulated_s

    (near_s, emulated_near_s), (far_s, emulated_far_s) = seconds(0.0), seconds(100e-6)
    assert far_s - near_s == pytest.approx(100e-6)
    assert far_s - near_s == pytest.approx(emulated_far_s - emulated_near_s)


@pytest.mark.parametrize(("latency_s", "num_slots"), [(0, 128), (50e-6, 256), (500e-6, 2048), (20e-3, 1 << 14)])
def test_a_switch_has_the_slots_that_the_advice_counts_on(latency_s: float, num_slots: int) -> None:
    advised = replace(TODAY, collective="in_network", rate_bps=25e9, latency_s=latency_s)
    made = validate(emulated(advised, "resnet50", max_efficiency=MOST))
    plan = make_plan(made, chosen_dilation=(1.0, "as a machine has chosen"))
    exchange_s = plan.collective.exchange_s(
        "all_reduce", 25 * 10**6, 4, rate_bps=25e9, alpha_s=plan.prediction.latency_s
    )
    assert plan.collective.aggregation is not None
    assert plan.collective.aggregation.num_slots == advised.num_slots == num_slots
    assert advised.exchange_s(10**8) == pytest.approx(exchange_s, rel=0.05)


def test_the_cost_model_says_the_same_of_the_emulation_where_exchanges_are_behind_backward() -> None:
    """What becomes ready while an exchange is under way goes together: 84 %, not the 80 % of cycles of backward."""
    today = replace(TODAY, num_workers=32, rate_bps=20e9)
    made = validate(emulated(today, "resnet50", max_efficiency=MOST))
    predicted = predict_iteration(make_plan(made, chosen_dilation=(40.0, "as a machine has chosen")))
    assert today.scaling_factor == pytest.approx(predicted.scaling_factor, abs=0.02)


@pytest.mark.parametrize("target", [0.6, 0.8, 0.9])
@pytest.mark.parametrize("trace", ["resnet50", "vgg16", "alexnet"])
def test_whatever_is_recommended_can_be_emulated(trace: str, target: float) -> None:
    today = replace(TODAY, table=derived_table(trace, batch_size=32))  # type: ignore[arg-type]  # a network's name
    chosen = advise(today, target, max_efficiency=MOST).chosen
    assert chosen is not None
    made = validate(emulated(chosen, trace, max_efficiency=MOST))
    assert made.undilatable() == []


def test_what_would_take_too_long_is_refused() -> None:
    with pytest.raises(SpecError, match="--verify: averaging every 33 iterations would take 66"):
        spec(interval=MAX_INTERVAL + 1)
