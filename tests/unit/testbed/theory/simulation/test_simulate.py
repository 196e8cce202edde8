import os
import time
from pathlib import Path
from typing import Any

import pytest

from testbed.errors import SpecError
from testbed.experiment.experiment import Experiment, validate
from testbed.plan.plan import make_plan
from testbed.theory.simulation.simulate import Simulation, scaled, simulate
from transports.collectives.in_network import InNetwork

MANY = int(os.environ.get("TESTBED_SIMULATED_WORKERS", "1024"))
"""4096 and 16384 for the full campaign."""
BUDGET_S = {1024: 5.0, 4096: 5.0, 16384: 30.0}
LAYERS = ["4MB", "4MB"]


def experiment(**keys: Any) -> Experiment:
    workload = {"kind": "synthetic", "layers": LAYERS, "forward": "20ms", "backward": "40ms"}
    return validate({"name": "s", "workload": workload, "link": {"rate": "1gbit", "delay": "50us"}, **keys})


def simulated(num_workers: int | None = None, *, num_iterations: int = 1, num_jobs: int = 1, **keys: Any) -> Simulation:
    spec = experiment(**keys)
    spec = spec if num_workers is None else scaled(spec, num_workers)
    return simulate(spec, num_iterations=num_iterations, num_jobs=num_jobs)


def test_computing_hides_what_fits_behind_it() -> None:
    found = simulated(link={"rate": "100gbit"})
    assert found.compute_s == pytest.approx(0.06)
    assert found.iteration_time_s == pytest.approx(0.06 + found.exchanged_s[-1], rel=0.02)
    slow = simulated()
    assert slow.scaling_factor is not None
    assert slow.scaling_factor < 0.6
    # 1.5 x 8 MB at 1 Gbit/s, the first bucket beginning when half of backward is over or less.
    assert slow.iteration_time_s >= 0.02 + 1.5 * 8e6 * 8 / 1e9


@pytest.mark.parametrize("num_workers", [20, 40])
def test_trunks_are_as_fast_as_the_topology_makes_them(num_workers: int) -> None:
    """1 Tbit/s, which elsewhere stands for a link without a rate, and 2 Tbit/s, which is more than can be emulated."""
    topology = {"kind": "leaf_spine", "leaves": 2, "spines": 1, "oversubscription": 1}
    found = simulated(num_workers, link={"rate": "100gbit"}, topology=topology, placement="spread")
    used = {each.name: each.utilization for each in found.busiest}
    assert used["s0 -> s2"] == pytest.approx(next(share for name, share in used.items() if name.startswith("w")))


def test_iterations_follow_one_another() -> None:
    found = simulated(num_iterations=3)
    assert found.iterations_s[0] == pytest.approx((found.iteration_time_s,) * 3, rel=1e-6)


@pytest.mark.parametrize("num_workers", [6, 512])
def test_a_trunk_is_in_use_while_workers_compute(num_workers: int) -> None:
    """Whoever sends over it has all that it waits for before the kernel has sent all: its next backward pass is over
    when the trunk is free (emulated: 0.747 s among six where each iteration from idle links would take 0.793)."""
    workload = {"kind": "synthetic", "layers": ["1MiB"], "forward": "20ms", "backward": "40ms"}
    topology = {"kind": "dumbbell", "bottleneck": 0.5}
    found = simulated(
        num_workers, num_iterations=3, link={"rate": "40mbit"}, fusion="none", workload=workload, topology=topology
    )
    trunk = found.busiest[0]
    assert trunk.num_bytes == pytest.approx(2 * (num_workers - 1) / num_workers * 2**20, rel=0.1)
    for each_s in found.iterations_s[0]:
        assert each_s == pytest.approx(8 * trunk.num_bytes / 20e6, rel=2e-3)


@pytest.mark.parametrize("collective", ["ring", "all_to_all"])
@pytest.mark.parametrize("num_workers", [4, 32])
def test_input_is_waited_for_where_it_takes_longer_than_the_iteration_before(
    tmp_path: Path, collective: str, num_workers: int
) -> None:
    """However many iterations are simulated, as in a replay (testbed/worker/compute_pacer.py)."""

    def found(input_s: float, num_iterations: int) -> Simulation:
        table = tmp_path / f"{input_s}.txt"
        head = f"# input_us={input_s * 5e5:.0f}\n# host_to_device_us={input_s * 5e5:.0f}\n"
        table.write_text(f"{head}Id Name Forward Backward Comm Size\n0 conv1 20000 40000 - 4000000\n")
        workload = {"kind": "replay", "trace": str(table)}
        return simulated(num_workers, num_iterations=num_iterations, workload=workload, collective=collective)

    hidden = found(0.0, 1)
    for num_iterations in (1, 3):
        slow, quick = found(0.5, num_iterations), found(0.05, num_iterations)
        assert slow.iterations_s[0] == pytest.approx([0.5] * num_iterations)
        assert slow.scaling_factor == pytest.approx(1.0), "it hides communication"
        assert quick.iteration_time_s == pytest.approx(hidden.iteration_time_s)
        assert quick.scaling_factor == pytest.approx(hidden.scaling_factor)
    between = found((0.06 + hidden.iteration_time_s) / 2, 2)
    assert between.iteration_time_s == pytest.approx(hidden.iteration_time_s)
    assert between.scaling_factor > hidden.scaling_factor


def test_fusion_whose_exchanges_outlast_the_iteration_is_named() -> None:
    assert any("go on in the next forward pass" in each for each in simulated(fusion="priority").assumptions)
    assert simulated(fusion="layers").assumptions == ()


@pytest.mark.parametrize("collective", ["ring", "halving_doubling", "in_network"])
def test_layers_merge_where_an_all_reduce_is_mostly_start_up(collective: str) -> None:
    """Start-up costs nothing where only bytes are counted: no layers were joined."""
    short = {"kind": "synthetic", "layers": ["16KiB"] * 8, "forward": "30ms", "backward": "60ms"}
    keys: dict[str, Any] = {"workload": short, "collective": collective, "fusion": "merged"}
    assert len(simulated(link={"rate": "200mbit", "delay": "40ms"}, **keys).exchanged_s) == 1
    assert len(simulated(link={"rate": "200mbit", "delay": "0ms"}, **keys).exchanged_s) == 8


@pytest.mark.parametrize(
    ("keys", "num_groups"),
    [
        ({"collective": {"kind": "in_network", "num_slots": 512}, "link": {"rate": "1gbit", "delay": "10ms"}}, 14),
        (
            {
                "collective": {"kind": "in_network", "at": "s0", "num_slots": 512},
                "topology": "dumbbell",
                "link": {"rate": "1gbit", "delay": "6ms"},
            },
            13,
        ),
        ({"topology": "dumbbell", "placement": "spread", "link": {"rate": "250mbit"}}, 10),
    ],
)
def test_a_plan_merges_layers_as_the_simulation_does(keys: dict[str, Any], num_groups: int) -> None:
    """An aggregator is nearer than another worker, and links that workers share have less for each."""
    workload = {"kind": "synthetic", "layers": ["256KiB"] * 24, "forward": "80ms", "backward": "480ms"}
    spec = experiment(workload=workload, fusion="merged", **keys)
    assert len(make_plan(spec).buckets) == len(simulate(spec).exchanged_s) == num_groups


def test_a_plan_s_buckets_are_those_that_are_simulated() -> None:
    found = simulate(experiment(fusion="merged"), buckets=[2_000_000])
    assert found.exchanged_s == pytest.approx(simulated(fusion="none").exchanged_s)


@pytest.mark.parametrize("collective", ["ring", "halving_doubling", "hierarchical"])
def test_jitter_is_drawn_whether_messages_or_steps_are_simulated(
    collective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: dict[str, Any] = {"collective": collective, "topology": "leaf_spine", "workers": 8}

    def time_s(**link: str) -> float:
        return simulated(link={"rate": "1gbit", "delay": "10ms", **link}, **keys).iteration_time_s

    for expanded in (20_000, 0):
        monkeypatch.setattr("testbed.theory.simulation.simulate.EXPANDED_MESSAGES", expanded)
        assert time_s(jitter="5ms") == time_s(jitter="5ms") > time_s()


def test_jitter_of_a_stream_is_said_to_be_left_out() -> None:
    link = {"rate": "1gbit", "delay": "10ms", "jitter": "5ms"}
    assert "jitter is not simulated" in simulated(link=link, collective="in_network").assumptions[0]
    assert simulated(link=link).assumptions == ()


def test_a_straggler_makes_all_wait() -> None:
    alone = simulated(link={"rate": "100gbit"}).iteration_time_s
    slowed = simulated(link={"rate": "100gbit"}, hosts={"w2": {"slowdown": 2}})
    assert slowed.iteration_time_s == pytest.approx(alone + 0.06, rel=0.01)
    drawn = {"w1": {"slowdown": {"kind": "lognormal", "mean": 1.5, "deviation": 0.5}}}
    first, again = (simulated(num_iterations=4, hosts=drawn) for _ in range(2))
    assert first == again
    assert len(set(first.iterations_s[0])) == 4
    assert first != simulated(num_iterations=4, hosts=drawn, seed=2)


@pytest.mark.parametrize(("slowed", "factor"), [("w*", 1.0), ("w3", 4 / (3 + 1 / 2) / 2)], ids=["all", "one"])
def test_a_scaling_factor_has_slowdowns_on_both_sides(slowed: str, factor: float) -> None:
    """It was of workers that nothing slows: 50 % where all compute twice as long and wait for nobody."""
    found = simulated(workers=4, link={"rate": "400gbit"}, hosts={slowed: {"slowdown": 2}})
    assert found.scaling_factor == pytest.approx(factor, rel=0.01)


def test_an_engine_joins_what_is_ready_when_it_looks() -> None:
    """Eight layers of 5 ms, each of which takes 9 ms on the links: 1, 1, 2, 4; when a cycle is over, 1, 6 and 1; all
    at once where computing takes no time that is known."""
    short = {"kind": "synthetic", "layers": ["750KB"] * 8, "forward": "20ms", "backward": "40ms"}

    def sizes(workload: Any = short, **keys: Any) -> list[int]:
        found = simulated(workload=workload, **keys)
        return [round(each_s / 9e-3) for each_s in found.exchanged_s[1::2]]

    assert sizes(fusion="horovod_1ms") == [1, 1, 2, 4]
    assert sizes(fusion={"kind": "time", "cycle": "31ms"}) == [1, 6, 1]
    assert len(sizes({"kind": "training"}, fusion="horovod_1ms")) == 1


def test_jobs_contend_for_a_shared_link() -> None:
    keys: dict[str, Any] = {"topology": "dumbbell", "placement": "spread", "workers": 2}
    alone, together = simulated(**keys), simulated(num_jobs=2, **keys)
    assert len(together.iterations_s) == 2
    assert sum(together.exchanged_s) > 1.5 * sum(alone.exchanged_s)
    apart = simulated(num_jobs=2, workers=2)
    assert apart.exchanged_s == pytest.approx(simulated(workers=2).exchanged_s, rel=1e-6)


def test_oversubscription_costs() -> None:
    keys: dict[str, Any] = {"workers": 8, "placement": "spread"}
    full = simulated(topology={"kind": "leaf_spine"}, **keys)
    scarce = simulated(topology={"kind": "leaf_spine", "oversubscription": 4}, **keys)
    assert sum(scarce.exchanged_s) > 2 * sum(full.exchanged_s)
    assert scarce.busiest[0].name.startswith("s")


def test_aggregation_is_that_of_the_closed_form() -> None:
    for num_workers in (4, 64):
        found = simulated(num_workers, collective="in_network", fusion="none")
        collective = InNetwork.model_validate({})
        expected_s = collective.time_s(2_000_000, rate_bps=1e9, alpha_s=50e-6 + 1538 * 8 / 1e9)
        assert found.exchanged_s == pytest.approx([expected_s], rel=1e-3)


@pytest.mark.parametrize("collective", ["auto", "in_network"])
def test_a_far_worker_is_as_far_whatever_its_number_and_its_long_way(collective: str) -> None:
    workload = {"kind": "synthetic", "layers": ["64kB"] * 4, "forward": "20ms", "backward": "40ms"}
    found = [
        simulate(
            validate(
                {"name": "x", "workers": 8, "collective": collective, "workload": workload, "links": {link: delay}}
            )
        ).iteration_time_s
        for link, delay in (
            ("w3-s0", {"delay": "20ms"}),
            ("w7-s0", {"delay": "20ms"}),
            ("w3->s0", {"delay": "40ms"}),
            ("s0->w3", {"delay": "40ms"}),
        )[: 2 if collective == "auto" else 4]
    ]
    assert found == pytest.approx([found[0]] * len(found), rel=0.01)


@pytest.mark.parametrize("num_workers", [4, 128])
def test_integers_are_not_aggregated(num_workers: int) -> None:
    integers = {"kind": "thc", "register_bits": 16}
    switch, ring = (
        simulated(num_workers, collective=kind, compression=integers, fusion="none") for kind in ("in_network", "ring")
    )
    assert switch.method == ring.method == ("messages" if num_workers == 4 else "steps")
    assert switch.iteration_time_s == pytest.approx(ring.iteration_time_s)


def test_few_slots_slow_aggregation_and_jobs_have_their_own() -> None:
    many = simulated(collective="in_network", link={"rate": "1gbit", "delay": "5ms"}, fusion="none")
    few = {"kind": "in_network", "num_slots": 16}
    slow = simulated(collective=few, link={"rate": "1gbit", "delay": "5ms"}, fusion="none")
    assert slow.exchanged_s[0] == pytest.approx(8 * many.exchanged_s[0], rel=0.05)
    jobs = simulated(num_jobs=2, collective="in_network")
    assert jobs.exchanged_s == pytest.approx(simulated(collective="in_network").exchanged_s, rel=1e-3)


def test_a_tree_of_aggregators_relieves_shared_links() -> None:
    keys: dict[str, Any] = {"topology": {"kind": "leaf_spine", "leaves": 4, "oversubscription": 4}, "fusion": "none"}
    spine = simulated(16, collective={"kind": "in_network", "at": "spine"}, **keys)
    tree = simulated(16, collective={"kind": "in_network", "at": "tree"}, **keys)
    assert tree.exchanged_s[0] < spine.exchanged_s[0] / 1.5


@pytest.mark.parametrize("collective", ["ring", "hierarchical", {"kind": "in_network", "at": "tree"}])
def test_thousands_of_workers_take_seconds(collective: object) -> None:
    before_s = time.process_time()
    found = simulated(MANY, topology="fat_tree", collective=collective)
    assert time.process_time() - before_s < BUDGET_S[MANY]
    assert found.num_workers == MANY
    assert found.method == "steps"
    assert found.iteration_time_s > 0.02 + 8e6 * 8 / 1e9


def test_what_cannot_be_simulated_says_what_can() -> None:
    with pytest.raises(SpecError, match="at least 2"):
        simulated(1)
    with pytest.raises(SpecError, match="synchronisation: local_sgd"):
        simulated(synchronisation={"kind": "local_sgd", "every": 2})
    with pytest.raises(SpecError, match="changes: links stay as they are"):
        simulated(changes=[{"at": "0s", "link": "w1-s0", "rate": "1mbit"}])
    with pytest.raises(SpecError, match="background: links stay as they are"):
        simulated(background=[{"kind": "bulk", "from": "w0", "to": "w1"}])
    with pytest.raises(SpecError, match=r"collective\.tenants: links stay as they are"):
        simulated(hosts={"x0": {"at": "s0"}}, collective={"kind": "in_network", "tenants": [{"workers": ["x0"]}]})
    with pytest.raises(SpecError, match=r"collective\.partial_after: every sum is of all workers"):
        simulated(collective={"kind": "in_network", "dataplane": "reference", "partial_after": "20ms"})
    with pytest.raises(SpecError, match="workers_per_host: 4 puts all 4 workers on one host"):
        simulated(workers_per_host=4)
    with pytest.raises(SpecError, match="stack: gloo"):
        simulated(stack="gloo")
    with pytest.raises(SpecError, match="workload: allreduce"):
        simulate(experiment(workload="allreduce"))
    with pytest.raises(SpecError, match=r"1 iteration|one iteration"):
        simulated(num_iterations=0)
    with pytest.raises(SpecError, match="are simulated one by one"):
        simulated(4000, collective="all_to_all")
    with pytest.raises(SpecError, match="are simulated one by one"):
        simulated(4000, collective="all_to_all", fusion="merged")
    with pytest.raises(SpecError, match="'nowhere' is no switch"):
        simulated(collective={"kind": "in_network", "at": "nowhere"})
    with pytest.raises(SpecError, match="do not fit the 2 places"):
        simulated(4, topology={"kind": "file", "switches": {"s0": 2}})
