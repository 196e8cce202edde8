"""Predictions of iterations: what they are made of, and what they refuse or admit."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.errors import SpecError
from testbed.experiment.experiment import validate
from testbed.plan.buckets import bucket_ready_s
from testbed.plan.plan import make_plan
from testbed.theory.predict import IterationPrediction, predict_exchanges, predict_iteration, predict_run
from testbed.traces.schedule import ComputeSchedule
from transports.collectives.base import COLLECTIVES
from transports.collectives.costs import DEFAULT_COSTS, Costs
from transports.execution.trace import CodecTime

WORKLOAD = {"kind": "synthetic", "layers": ["4MB", "4MB"], "forward": "100ms", "backward": "200ms"}


def predicted(costs: Costs = DEFAULT_COSTS, **keys: Any) -> IterationPrediction:
    spec = {"name": "x", "workload": WORKLOAD, "fusion": "layers", "link": {"rate": "1gbit"}, **keys}
    return predict_iteration(make_plan(validate(spec), costs=costs))


def test_fast_links_leave_computing_and_slow_ones_decide() -> None:
    fast, slow = predicted(), predicted(link={"rate": "100mbit"})
    assert fast.decides == "computing"
    assert fast.compute_s == pytest.approx(0.3)
    assert fast.scaling_factor == pytest.approx(0.3 / fast.iteration_time_s)
    assert slow.decides == "links"
    assert slow.scaling_factor is not None
    assert slow.scaling_factor < 0.35
    assert slow.iteration_time_s == pytest.approx(0.2 + slow.communication_s, rel=0.01)
    assert slow.links[0].utilization > 0.8


@pytest.mark.parametrize("fusion", ["layers", {"kind": "time", "cycle": "150ms"}], ids=["layers", "time"])
def test_the_critical_path_fills_the_iteration(fusion: Any) -> None:
    for link in ({"rate": "1gbit"}, {"rate": "100mbit"}, {"rate": "100gbit"}):
        found = predicted(link=link, fusion=fusion)
        path = found.critical_path
        assert path[0].start_s == 0.0
        assert path[-1].end_s == pytest.approx(found.iteration_time_s)
        for before, after in itertools.pairwise(path):
            assert after.start_s == pytest.approx(before.end_s)


SHARED = {"kind": "synthetic", "layers": ["4MB"] * 4, "forward": "20ms", "backward": "40ms"}


@pytest.mark.parametrize(
    "keys",
    [
        {"topology": {"kind": "dumbbell", "bottleneck": 0.25}},
        {"workers_per_host": 4, "collective": "halving_doubling", "workload": {**SHARED, "layers": ["1MB"] * 16}},
        {"workers_per_host": 4, "collective": "in_network", "fusion": "none"},
        {"topology": {"kind": "dumbbell", "bottleneck": 0.5}, "collective": "all_to_all"},
    ],
    ids=["dumbbell", "hosts", "in_network", "all_to_all"],
)
def test_no_link_is_used_more_than_whole(keys: dict[str, Any]) -> None:
    """Who is done early begins the next bucket on links that still carry the one before."""
    found = predicted(**{"workers": 8, "workload": SHARED, **keys})
    assert max(load.utilization for load in found.links) <= 1.0
    simulated_s = found.models["flow simulation"]
    assert found.iteration_time_s == pytest.approx(simulated_s, rel=0.1)


@pytest.mark.parametrize("link", ["w3->s0", "s0->w3"])
def test_an_aggregator_is_as_far_as_a_round_trip_whichever_way_is_the_long_one(link: str) -> None:
    both = predicted(collective="in_network", links={"w3-s0": {"delay": "5ms"}})
    one = predicted(collective="in_network", links={link: {"delay": "10ms"}})
    assert one.iteration_time_s == pytest.approx(both.iteration_time_s)


def test_latency_and_hosts_decide_where_they_do() -> None:
    small = {**WORKLOAD, "layers": ["4KB"], "forward": "0s", "backward": "1us"}
    assert predicted(workload=small, workers=8, link={"rate": "10gbit", "delay": "20ms"}).decides == "latency"
    dear = Costs(host_latency_s=5e-3, message_s=1e-3)
    assert predicted(dear, workload=small, workers=8, link={"rate": "10gbit"}).decides == "hosts"


def test_a_cycle_that_gradients_wait_for_is_said_and_can_be_what_decides() -> None:
    """Communicating 62 ms, it said, of which 516 were not hidden, and that messages decided."""
    found = predicted(fusion={"kind": "time", "cycle": "500ms"}, link={"rate": "10gbit"})
    assert found.decides == "cycles"
    assert found.cycles_s == pytest.approx(0.5 - 0.1, abs=0.01), "begun at half of backward"
    assert found.exposed_s - found.cycles_s <= found.communication_s
    at_once = predicted(link={"rate": "10gbit"})
    assert (at_once.cycles_s, at_once.decides) == (0.0, "computing")


def test_communication_is_a_mean_over_the_iterations_as_all_else_is() -> None:
    """It was the first iteration's, in which nothing may have been drawn."""
    drawn = {"w1": {"slowdown": {"kind": "bernoulli", "probability": 0.5, "factor": 30}}}
    brief = {"kind": "synthetic", "layers": ["4MB"] * 4, "forward": "1ms", "backward": "4ms"}
    joined = {"kind": "time", "bytes": "64MiB", "cycle": "20ms"}
    means = [
        predicted(workload=brief, workers=2, hosts=drawn, fusion=joined, seed=seed).communication_s for seed in range(4)
    ]
    assert max(means) < 1.1 * min(means)


def test_a_switch_s_sum_takes_one_of_several_equal_paths() -> None:
    """Its stream was spread over both spines: 263 ms for 330 at least."""
    topology = {"kind": "leaf_spine", "leaves": 2, "spines": 2, "oversubscription": 4}
    keys: dict[str, Any] = {"workers": 8, "topology": topology, "collective": {"kind": "in_network", "at": "leaf"}}
    brief = {"kind": "synthetic", "layers": ["8MB"], "forward": "1ms", "backward": "1ms"}
    found = predicted(workload=brief, link={"rate": "100mbit"}, **keys)
    assert found.iteration_time_s > 8 * 8e6 / 50e6
    assert found.iteration_time_s == pytest.approx(found.models["flow simulation"], rel=0.1)


def test_a_straggler_is_a_part_of_its_own() -> None:
    found = predicted(hosts={"w1": {"slowdown": 2}})
    assert found.straggler_s == pytest.approx(0.3)
    assert found.iteration_time_s == pytest.approx(predicted().iteration_time_s + 0.3, rel=0.01)


SMALL = {**WORKLOAD, "layers": ["4KB", "4KB"]}
DRAWN = {"w1": {"slowdown": {"kind": "bernoulli", "probability": 0.3, "factor": 3}}}


@pytest.mark.parametrize(("slowed", "factor"), [("w*", 1.0), ("w3", 4 / (3 + 1 / 2) / 2)], ids=["all", "one"])
def test_a_scaling_factor_has_slowdowns_on_both_sides(slowed: str, factor: float) -> None:
    """docs/definitions.md: n T_1 is what the same workers do without each other. It was of workers that nothing slows:
    50 % where all compute twice as long and wait for nobody."""
    found = predicted(workers=4, workload=SMALL, hosts={slowed: {"slowdown": 2}})
    assert found.scaling_factor == pytest.approx(factor, rel=0.01)


def test_drawn_slowdowns_count_in_the_mean_on_both_sides_and_in_every_model() -> None:
    """The flow simulation was of one iteration, beside a mean over 32."""
    found = predicted(workers=2, workload=SMALL, hosts=DRAWN, fusion="none")
    assert found.compute_s is not None
    mean = 1 + found.straggler_s / found.compute_s
    assert found.scaling_factor == pytest.approx(2 / (1 + 1 / mean) / mean, rel=0.01)
    assert found.models["flow simulation"] == pytest.approx(found.iteration_time_s, rel=0.01)


@pytest.mark.parametrize(
    ("half", "measured_s"), [("60ms", 0.158), ("140ms", 0.159), ("400ms", 0.219), ("1000ms", 0.401)]
)
def test_connections_that_are_idle_between_iterations_begin_with_what_is_left_of_their_windows(
    half: str, measured_s: float
) -> None:
    """A window is halved for each 240 ms. Measured on 2026-11-28, four workers, an iteration less its computing."""
    workload = {**WORKLOAD, "forward": half, "backward": half}
    found = predicted(workload=workload, link={"rate": "1gbit", "delay": "10ms"}, fusion="none")
    assert found.communication_s == pytest.approx(measured_s, rel=0.07)


@pytest.mark.parametrize("delay", ["0s", "10ms"])
@pytest.mark.parametrize("fusion", ["none", {"kind": "time", "cycle": "5ms"}])
@pytest.mark.parametrize("forward", ["100ms", "300ms", "800ms"])
def test_who_is_a_straggler_by_nothing_is_none_beside_servers(delay: str, fusion: Any, forward: str) -> None:
    """Servers counted as idle since the iteration's begin, and connections as twice as long."""
    keys: dict[str, Any] = {
        "workers": 4,
        "workload": {**WORKLOAD, "forward": forward},
        "collective": {"kind": "parameter_server", "servers": 1},
        "link": {"rate": "1gbit", "delay": delay},
        "fusion": fusion,
    }
    alike, slowed = predicted(**keys), predicted(**keys, hosts={"w1": {"slowdown": 1.0001}})
    assert slowed.iteration_time_s == pytest.approx(alike.iteration_time_s, rel=0.02)


@pytest.mark.parametrize("delay", ["0s", "2500us", "10ms"])
@pytest.mark.parametrize("workers", [3, 5, 8])
def test_what_is_chosen_is_predicted_as_if_it_had_been_named(workers: int, delay: str) -> None:
    """A queue's overflow was that of the collective that is chosen for a few bytes."""
    keys = {
        "name": "x",
        "workers": workers,
        "link": {"rate": "1gbit", "delay": delay},
        "workload": {"kind": "synthetic", "layers": ["25MB"]},
        "fusion": "none",
    }
    plan = make_plan(validate({**keys, "collective": "auto"}))
    named = make_plan(validate({**keys, "collective": plan.chosen[0].kind}))
    assert plan.prediction.predicted_s == pytest.approx(named.prediction.predicted_s)


def test_models_stand_side_by_side() -> None:
    models = predicted(link={"rate": "100mbit"}).models
    assert {"cost model", "flow simulation", "DAG: wfbp", "what if the network were fully used"} <= set(models)
    cost_s, simulated_s = models["cost model"], models["flow simulation"]
    assert cost_s is not None
    assert simulated_s == pytest.approx(cost_s, rel=0.03)
    least_s = models["what if the network were fully used"]
    assert least_s is not None
    assert least_s < cost_s


@pytest.mark.parametrize("compression", [{"kind": "divide", "by": 4}, "int8", "signsgd"])
def test_every_model_of_an_exchange_counts_compression(compression: Any) -> None:
    """They took gradients whole, or the exchanges' elements for as many of gradients."""
    found = predicted(compression=compression, link={"rate": "100mbit"})
    whole = predicted(link={"rate": "100mbit"})
    for model in ("DAG: wfbp", "what if the network were fully used"):
        one_s, other_s = found.models[model], whole.models[model]
        assert one_s == pytest.approx(found.iteration_time_s, rel=0.12)
        assert other_s == pytest.approx(whole.iteration_time_s, rel=0.12)


def test_architectures_exchange_what_is_compressed_or_do_not_apply() -> None:
    """They stood uncompressed beside models that were: a switch that aggregates looked twice as slow as a ring."""
    whole, reduced, gathered = (
        {name: time_s for name, time_s in predicted(compression=kind).models.items() if "architecture" in name}
        for kind in ("none", {"kind": "divide", "by": 4}, "top_k")
    )
    assert len(whole) == len(reduced) == len(gathered) > 3
    assert set(gathered.values()) == {None}
    for name, time_s in reduced.items():
        one_s = whole[name]
        assert time_s is not None
        assert one_s is not None
        assert time_s - 0.3 == pytest.approx((one_s - 0.3) / 4, rel=0.05)


def test_models_whose_exchanges_are_the_prediction_s_count_codecs() -> None:
    """36 ms of them; the DAG model takes those of a bucket for every bucket of its size."""
    spec = {"name": "x", "workload": WORKLOAD, "fusion": "layers", "compression": {"kind": "divide", "by": 4}}
    plan = make_plan(validate({**spec, "link": {"rate": "100mbit"}}))
    plain, coded = (predict_iteration(plan, None, codecs).models for codecs in (None, CODECS))

    def longer_s(model: str) -> float:
        without_s, with_s = plain[model], coded[model]
        assert without_s is not None
        assert with_s is not None
        return with_s - without_s

    assert longer_s("architecture: ring, no overlap") == pytest.approx(0.036)
    assert 0.01 < longer_s("DAG: naive") < 0.05
    assert longer_s("cost model") > 0.02


@pytest.mark.parametrize("compression", ["none", "fp16", "bf16"])
@pytest.mark.parametrize(("payload", "lanes"), [("int32", 1), ("fp16", 2), ("int8", 4)])
def test_a_switch_s_links_are_fully_used_by_its_own_words(payload: str, lanes: int, compression: str) -> None:
    """They were said to carry the gradients' bytes: slower than the prediction with narrow payloads, and with
    compressed floats, which are words of the same width to the switch, half of what the frames need."""
    models = predicted(
        collective={"kind": "in_network", "payload": payload}, compression=compression, fusion="none"
    ).models
    least_s, cost_s = models["what if the network were fully used"], models["cost model"]
    assert least_s is not None
    assert cost_s is not None
    assert least_s == pytest.approx(0.3 + 8 * 8e6 / lanes / 1e9, rel=1e-3)
    assert least_s < cost_s < 1.05 * least_s


@pytest.mark.parametrize(
    "workload",
    [
        {"kind": "training", "pace": {"forward": "40ms", "backward": "80ms", "update": "30ms"}},
        {"kind": "replay", "trace": "resnet50"},
        {"kind": "synthetic", "layers": "alexnet", "forward": "40ms", "backward": "80ms"},
    ],
    ids=lambda workload: workload["kind"],
)
@pytest.mark.parametrize("fusion", ["none", "size", "layers", "merged", "priority", {"kind": "time", "cycle": "1ms"}])
def test_computing_is_the_table_s_and_the_optimizer_comes_after_the_exchanges(workload: Any, fusion: Any) -> None:
    plan = make_plan(validate({"name": "x", "workload": workload, "fusion": fusion, "timeout": "1min"}))
    table = plan.experiment.workload.timed_layers()
    assert table is not None
    found = predict_iteration(plan)
    assert found.compute_s == pytest.approx(table.compute_s)
    last = found.critical_path[-2] if table.update_s else found.critical_path[-1]
    assert found.iteration_time_s == pytest.approx(last.end_s + table.update_s)
    simulated_s = found.models["flow simulation"]
    assert simulated_s == pytest.approx(found.iteration_time_s, rel=0.06)


OVERLAP = Path(__file__).parents[4] / "experiments" / "overlap.yaml"
EVEN = {"kind": "synthetic", "layers": ["256KiB"] * 8, "forward": "100ms", "backward": "200ms"}
MEASURED_S = {"none": 0.564, "layers": 0.389, "merged": 0.390, "horovod_5ms": 0.391}
"""Of EVEN, four workers at 100 Mbit/s: `testbed bench training --only overlap`, docs/measured.json."""


@pytest.mark.parametrize("fusion", MEASURED_S)
def test_what_goes_out_while_backward_goes_on_is_hidden(fusion: str) -> None:
    """What an engine joins is what is ready when it looks: predicted was what it would join if all were ready at once,
    of `horovod_5ms` the iteration of `none`, 44 % too long."""
    found = predicted(workers=4, link={"rate": "100mbit"}, workload=EVEN, fusion=fusion)
    assert found.iteration_time_s == pytest.approx(MEASURED_S[fusion], rel=0.03)
    assert found.models["flow simulation"] == pytest.approx(found.iteration_time_s, rel=0.02)


def test_who_has_its_layer_pushes_the_next_one_while_others_still_get_theirs() -> None:
    """Eight workers and a server: 404 ms on emulated links. Were each layer exchanged by all of them at once, both
    directions of its link would follow each other, 24 % longer."""
    layers = {**WORKLOAD, "layers": ["38KiB"] * 16}
    server = {"kind": "parameter_server", "servers": 1}
    found = predicted(workload=layers, collective=server, workers=8, link={"rate": "200mbit"}, dilation=2)
    assert 0.404 < found.iteration_time_s < 1.1 * 0.404


def test_the_shipped_sweep_s_predictions_are_in_the_order_of_its_runs() -> None:
    spec = yaml.safe_load(OVERLAP.read_text())
    fusions = spec.pop("sweep")["fusion"]
    del spec["repeat"]
    time_s = {
        each: predict_iteration(make_plan(validate({**spec, "fusion": each}))).iteration_time_s for each in fusions
    }
    assert time_s["horovod_5ms"] == pytest.approx(time_s["layers"], rel=0.03)
    assert time_s["layers"] < time_s["horovod_5ms"] < time_s["none"] / 1.4


def test_a_bucket_waits_for_the_layer_that_a_trace_says() -> None:
    """Backward is not cut into equal parts: the last layers of AlexNet have most of the gradients and little of it."""
    workload = {"kind": "replay", "trace": "alexnet"}
    plan = make_plan(validate({"name": "x", "workload": workload, "fusion": "layers", "link": {"rate": "100gbit"}}))
    table = plan.experiment.workload.timed_layers()
    assert table is not None
    ready_s = bucket_ready_s(table, plan.buckets)
    assert ready_s == sorted(ready_s)
    assert ready_s[-1] == pytest.approx(table.gradients()[-1].ready_s)
    schedule = ComputeSchedule.of(table)
    assert ready_s == pytest.approx(schedule.ready_s[::-1])
    assert ready_s[0] < 0.5 * table.backward_s / len(table.layers)


def test_the_simulation_has_the_plan_s_buckets() -> None:
    """What a message costs its hosts joins layers in the plan, and is not in the simulation."""
    short = {**WORKLOAD, "layers": ["16KiB"] * 8, "forward": "1ms", "backward": "2ms"}
    dear = Costs(host_latency_s=5e-3)
    found = predicted(dear, workload=short, fusion="merged", link={"rate": "20mbit"})
    whole = predicted(dear, workload=short, fusion="none", link={"rate": "20mbit"})
    assert found.models["flow simulation"] == whole.models["flow simulation"]


def test_integers_go_around_the_ring_beside_an_aggregating_switch_too() -> None:
    integers = {"kind": "thc", "register_bits": 16}
    switch, ring = (predicted(compression=integers, collective=kind) for kind in ("in_network", "ring"))
    assert switch.iteration_time_s == pytest.approx(ring.iteration_time_s)
    assert switch.models == pytest.approx(ring.models)


@pytest.mark.parametrize("fusion", ["layers", "priority", {"kind": "time", "bytes": "1MiB", "cycle": "20ms"}])
def test_a_sum_is_as_far_from_its_switch_as_in_the_simulation_whatever_the_fusion(fusion: Any) -> None:
    """Where workers agree on buckets, switches were twice as far away: as far as the workers who agree."""
    found = predicted(
        collective="in_network",
        fusion=fusion,
        link={"rate": "1gbit", "delay": "5ms"},
        workload={"kind": "synthetic", "layers": ["256KiB"] * 24, "backward": "360ms"},
    )
    assert found.models["flow simulation"] == pytest.approx(found.iteration_time_s, rel=0.02)


def test_input_that_takes_longer_than_all_else_decides(tmp_path: Path) -> None:
    table = tmp_path / "slow_input.txt"
    head = "# input_us=400000\n# host_to_device_us=100000\nId Name Forward Backward Comm Size\n"
    table.write_text(f"{head}0 conv1 50000 50000 - 4000000\n")
    found = predicted(workload={"kind": "replay", "trace": str(table)})
    assert found.iteration_time_s == pytest.approx(0.5)
    assert (found.decides, found.scaling_factor, found.exposed_s) == ("input", pytest.approx(1.0), 0.0)
    assert [piece.what for piece in found.critical_path] == ["input"]
    assert found.models["flow simulation"] == pytest.approx(0.5)
    assert found.models["DAG: wfbp"] == pytest.approx(0.5)
    assert found.models["what if the network were fully used"] == pytest.approx(0.5)


def test_computing_that_is_not_known_is_left_out() -> None:
    found = predict_iteration(make_plan(validate({"name": "x"})))
    assert found.compute_s is None
    assert found.scaling_factor is None
    assert found.iteration_time_s == pytest.approx(found.communication_s)


def test_what_has_no_iterations_is_refused() -> None:
    with pytest.raises(SpecError, match="local_sgd"):
        predicted(synchronisation={"kind": "local_sgd", "every": 2})
    with pytest.raises(SpecError, match="allreduce"):
        predicted(workload="allreduce")


def test_exchanges_of_the_micro_benchmark() -> None:
    workload = {"kind": "allreduce", "sizes": ["1MB", "25MB"], "stacks": ["ring/tcp", "gloo", "ring/tcp/fp16"]}
    found = predict_exchanges(validate({"name": "x", "workload": workload}), make_plan, None)
    times_s = {(each.stack, each.size_bytes): each.time_s for each in found}
    short_s, long_s = times_s["ring/tcp", 1_000_000], times_s["ring/tcp", 25_000_000]
    assert short_s is not None
    assert long_s == pytest.approx(25 * short_s, rel=0.05)
    assert times_s["gloo", 1_000_000] is None
    assert times_s["ring/tcp/fp16", 1_000_000] is None


def run_prediction(**keys: Any) -> Any:
    spec = {"name": "x", "workload": WORKLOAD, "fusion": "layers", "link": {"rate": "1gbit"}, **keys}
    return predict_run(make_plan(validate(spec)), None)


def test_a_runs_prediction_is_that_of_the_command() -> None:
    keys: dict[str, Any] = {"hosts": {"w1": {"slowdown": 1.5}}}
    assert run_prediction(**keys).iteration_time_s == predicted(**keys).iteration_time_s


@pytest.mark.parametrize(
    "keys",
    [
        {"collective": {"kind": "in_network", "num_slots": 8}, "link": {"rate": "100mbit", "delay": "5ms"}},
        *(
            {"collective": {"kind": "in_network", "at": at}, "topology": {"kind": "leaf_spine", "oversubscription": 4}}
            for at in ("leaf", "spine", "tree")
        ),
        {"collective": "in_network", "topology": {"kind": "dumbbell", "bottleneck": 0.5}},
    ],
    ids=["pool", "leaf", "spine", "tree", "dumbbell"],
)
def test_an_iteration_has_the_plan_s_exchanges_in_it(keys: dict[str, Any]) -> None:
    """What an aggregating switch waits for, slots and links between switches, is in the iteration as in the exchange:
    half a delay and a trunk were missing there."""
    plan = make_plan(validate({"name": "x", "workers": 4, "fusion": "none", "workload": WORKLOAD, **keys}))
    found = predict_iteration(plan)
    assert found.communication_s == pytest.approx(plan.prediction.predicted_s, rel=0.01)
    assert found.iteration_time_s == pytest.approx(0.3 + plan.prediction.predicted_s, rel=0.01)


def test_a_run_without_a_prediction_says_why() -> None:
    real = run_prediction(workload={"kind": "training"})
    assert real.iteration_time_s is None
    assert "computing is real" in real.missing
    assert "local_sgd" in run_prediction(synchronisation={"kind": "local_sgd", "every": 2}).missing
    assert run_prediction(workload={"kind": "command", "argv": ["true"]}, fusion="size") is None


def test_the_mean_is_over_the_iterations_that_a_run_draws() -> None:
    """A prediction of few iterations is of those, and of none that the run does not have."""
    drawn: dict[str, Any] = {"hosts": {"w1": {"slowdown": {"kind": "uniform"}}}}
    few, many = (run_prediction(workload={**WORKLOAD, "iterations": count}, **drawn) for count in (1, 30))
    assert few.iteration_time_s != many.iteration_time_s


@pytest.mark.parametrize(
    ("collective", "compression"),
    [(kind, "none") for kind in sorted(COLLECTIVES.kinds())]
    + [("ring", kind) for kind in ("fp16", "int8", "qsgd", "top_k", "powersgd")],
)
def test_a_run_never_fails_by_its_prediction(collective: str, compression: str) -> None:
    small = {**WORKLOAD, "layers": ["40KB", "40KB"]}
    spec = {"name": "x", "workload": small, "collective": collective, "compression": compression}
    found = predict_run(make_plan(validate(spec)), None)
    assert found is not None
    assert found.iteration_time_s is not None
    assert found.iteration_time_s > 0.3


CODECS = (CodecTime(0.010, 0.002), CodecTime(0.020, 0.004))


def test_codecs_lengthen_what_follows_backward_and_nothing_that_it_hides() -> None:
    """Two buckets of 4 MB: the first one's exchange is hidden, the second one's codec is all exposed."""
    plan = make_plan(validate({"name": "x", "workload": WORKLOAD, "fusion": "layers", "link": {"rate": "1gbit"}}))
    plain, coded = (predict_run(plan, None, codecs) for codecs in (None, CODECS))
    assert plain is not None
    assert coded is not None
    assert plain.iteration_time_s is not None
    assert coded.iteration_time_s == pytest.approx(plain.iteration_time_s + 0.024, abs=2e-3)
    assert predict_iteration(plan, None, CODECS).iteration_time_s == coded.iteration_time_s


def test_codecs_of_buckets_that_wait_for_each_other_add_up() -> None:
    plan = make_plan(validate({"name": "x", "workload": WORKLOAD, "fusion": "layers", "link": {"rate": "100mbit"}}))
    plain, coded = (predict_iteration(plan, None, codecs) for codecs in (None, CODECS))
    assert coded.iteration_time_s == pytest.approx(plain.iteration_time_s + 0.036, abs=2e-3)
    path = coded.critical_path
    assert path[0].start_s == 0.0
    assert path[-1].end_s == pytest.approx(coded.iteration_time_s)
    for before, after in itertools.pairwise(path):
        assert after.start_s == pytest.approx(before.end_s)


def test_a_codec_whose_time_nobody_knows_is_no_codec_of_no_time() -> None:
    assert predicted().codec_s == 0.0
    assert predicted(compression="top_k").codec_s is None
    spec = {"name": "x", "workload": WORKLOAD, "fusion": "layers", "compression": "top_k"}
    assert predict_iteration(make_plan(validate(spec)), None, CODECS).codec_s == pytest.approx(0.036)


def test_a_codec_can_be_what_decides() -> None:
    small = {**WORKLOAD, "layers": ["400KB", "400KB"], "forward": "0s", "backward": "1us"}
    plan = make_plan(validate({"name": "x", "workload": small, "fusion": "layers", "link": {"rate": "1gbit"}}))
    assert predict_iteration(plan).decides == "links"
    assert predict_iteration(plan, None, CODECS).decides == "hosts"
