"""What formulas may name: the plan's symbols and every number of a summary."""

from collections.abc import Callable
from typing import Any

import pytest

from testbed.claims.numbers import OF_LINKS, PLANNED, measured_numbers, planned_numbers, require_names
from testbed.experiment.experiment import validate
from testbed.links.htb import goodput_fraction
from testbed.plan.plan import Plan, make_plan
from testbed.record.reader import Record
from testbed.record.summary import LinkSummary
from transports.collectives.costs import DEFAULT_COSTS


def plan(**keys: Any) -> Plan:
    workload = {"kind": "synthetic", "layers": ["1MiB", "1MiB"]}
    return make_plan(validate({"name": "x", "workers": 4, "workload": workload, "link": {"rate": "80mbit"}, **keys}))


def test_symbols_are_those_of_the_formulas_in_the_papers() -> None:
    numbers = planned_numbers(plan(collective={"kind": "parameter_server", "servers": 2}))
    assert (numbers["W"], numbers["P"], numbers["S"]) == (4, 2, 2 * 2**20)
    assert numbers["B"] == pytest.approx(10e6 * goodput_fraction())
    assert numbers["a"] == pytest.approx(DEFAULT_COSTS.host_latency_s)


def test_latency_is_in_the_virtual_time_of_the_run() -> None:
    """The hosts' part was this machine's in real time: 60 us of 5 us of delay on two links, 50 times slower, where a
    run has 11."""
    far = {"link": {"rate": "80mbit", "delay": "5us"}}
    real_s, slower_s = (planned_numbers(plan(**far, dilation=dilation))["a"] for dilation in (1, 50))
    assert real_s == pytest.approx(10e-6 + DEFAULT_COSTS.host_latency_s)
    assert slower_s == pytest.approx(10e-6 + DEFAULT_COSTS.host_latency_s / 50)
    assert planned_numbers(plan(**far, dilation=50, host_cost="real"))["a"] == pytest.approx(real_s)


def test_full_use_is_of_the_points_own_trace_workers_rate_and_compression() -> None:
    """Zhang et al.: 2 (W-1)/W of the bytes cross each link, one bucket after the other, and headers take nothing."""
    computing = {"forward": "100ms", "backward": "0s"}
    keys: dict[str, Any] = {"workload": {"kind": "synthetic", "layers": ["1MiB", "1MiB"], **computing}}
    wire_s = 2 * 3 / 4 * 2 * 2**20 * 8 / 80e6
    whole = planned_numbers(plan(**keys))
    assert (whole["R"], whole["c"]) == (80e6, 1)
    assert whole["what_if.scaling_factor"] == pytest.approx(0.1 / (0.1 + wire_s))
    assert whole["what_if.link_share"] == pytest.approx(wire_s / (0.1 + wire_s))
    halved = planned_numbers(plan(**keys, compression={"kind": "divide", "by": 2}))
    assert halved["c"] == pytest.approx(2)
    assert halved["what_if.scaling_factor"] == pytest.approx(0.1 / (0.1 + wire_s / 2))
    switched = planned_numbers(plan(**keys, collective={"kind": "in_network"}))
    assert switched["what_if.scaling_factor"] == pytest.approx(0.1 / (0.1 + wire_s * 2 / 3))
    assert planned_numbers(plan(workload={"kind": "training"}))["what_if.scaling_factor"] is None


@pytest.mark.parametrize("compression", [{"kind": "top_k", "ratio": 0.01}, "dgc"], ids=str)
@pytest.mark.parametrize("collective", ["ring", "in_network"])
@pytest.mark.parametrize("workers", [2, 8])
def test_full_use_of_payloads_that_are_gathered_is_what_a_link_must_carry(
    compression: Any, collective: str, workers: int
) -> None:
    """A worker gets the payloads of all others, through an aggregating switch too: as if they added up, it was up
    to N/2 times as short, which no network reaches."""
    workload = {"kind": "synthetic", "layers": ["1MiB", "1MiB"], "forward": "100ms", "backward": "0s"}
    found = plan(workload=workload, compression=compression, collective=collective, workers=workers)
    assert {each.operation for each in found.exchanges} == {"all_gather"}
    wire_s = (workers - 1) * found.prediction.payload_bytes * 8 / 80e6
    numbers = planned_numbers(found)
    assert numbers["what_if.scaling_factor"] == pytest.approx(0.1 / (0.1 + wire_s))
    assert numbers["what_if.link_share"] == pytest.approx(wire_s / (0.1 + wire_s))


def test_full_use_of_a_switch_is_by_its_own_words() -> None:
    """With two elements in each of them the links need half the time; it was that of float32."""
    keys: dict[str, Any] = {"workload": {"kind": "synthetic", "layers": ["1MiB"], "forward": "100ms", "backward": "0s"}}
    found = planned_numbers(plan(**keys, collective={"kind": "in_network", "payload": "fp16"}))
    assert found["what_if.scaling_factor"] == pytest.approx(0.1 / (0.1 + 2**20 / 2 * 8 / 80e6))


def test_gradients_that_are_pushed_and_pulled_have_no_full_use() -> None:
    workload = {"kind": "synthetic", "layers": ["1MiB"], "forward": "100ms", "backward": "0s"}
    found = plan(workload=workload, fusion="none", synchronisation="asynchronous", collective="parameter_server")
    assert planned_numbers(found)["what_if.scaling_factor"] is None


def test_what_is_read_before_the_first_iteration_takes_the_disk_so_long() -> None:
    """Of 10 MB that the disk reads at 5 MB/s all four read everything, or a part each; links carry twice as much."""
    data = {"data": "10MB", "disk": "40mbit"}
    assert planned_numbers(plan(storage={"kind": "full_read", **data}))["read_s"] == pytest.approx(8)
    assert planned_numbers(plan(storage={"kind": "partitioned_read", **data}))["read_s"] == pytest.approx(2)
    assert planned_numbers(plan())["read_s"] == 0


def test_a_topology_that_says_every_rate_leaves_none_to_a_formula() -> None:
    hosts = [{"name": f"h.{rank}", "at": "s0", "link": {"rate": f"{10 + rank}mbit"}} for rank in range(4)]
    computing = {"kind": "synthetic", "layers": ["1MiB"], "forward": "100ms", "backward": "0s"}
    topology = {"kind": "infragraph", "switches": {"s0": "leaf.0"}, "hosts": hosts}
    numbers = planned_numbers(plan(topology=topology, workload=computing))
    assert (numbers["R"], numbers["B"], numbers["what_if.scaling_factor"]) == (None, None, None)
    assert numbers["W"] == 4


@pytest.mark.parametrize("hop", ["w1-s0", "w1->s0", "s0->w1"])
def test_one_worker_s_link_that_differs_leaves_no_rate_to_a_formula(hop: str) -> None:
    computing = {"kind": "synthetic", "layers": ["1MiB"], "forward": "100ms", "backward": "0s"}
    numbers = planned_numbers(plan(workload=computing, links={hop: {"rate": "8mbit"}}))
    assert (numbers["R"], numbers["B"], numbers["what_if.scaling_factor"]) == (None, None, None)


def test_workers_that_share_hosts_have_their_hosts_links() -> None:
    shared = {"count": 2, "link": {"rate": "1gbit"}}
    assert planned_numbers(plan(workers_per_host=shared))["R"] == 80e6
    assert planned_numbers(plan(workers_per_host=shared, links={"h1-s0": {"rate": "8mbit"}}))["R"] is None


def link(sender: str, receiver: str, **keys: Any) -> LinkSummary:
    return LinkSummary.model_validate(
        {
            "name": "l", "from": sender, "to": receiver, "rate_bps": 1e8, "delay_s": 0, "measured_rate_bps": 1e8,
            "measured_delay_s": 0, "expected_bytes": 0, "acknowledgement_bytes": 0, "retransmitted_bytes": 0,
            "drops": 0, "bytes": 0, "utilization_mean": 0.1, "utilization_busy": 0.5, **keys,
        }
    )  # fmt: skip


def test_bytes_are_of_an_average_worker_and_iteration_and_servers_count_both_directions(
    record: Callable[..., Record],
) -> None:
    links = [
        link("w0", "s0", bytes=600), link("s0", "w0", bytes=60), link("w1", "s0", bytes=1200), link("s0", "w1"),
        link("ps0", "s0", utilization_busy=0.45), link("s0", "ps0", utilization_busy=0.5),
        link("ps1", "s0", utilization_busy=0.2), link("s0", "ps1", utilization_busy=None),
    ]  # fmt: skip
    run = record().summary.model_copy(update={"links": links, "num_iterations": 3})
    numbers = measured_numbers(plan(), [run])
    assert (numbers["sent_bytes"], numbers["received_bytes"]) == (300, 10)
    assert numbers["server_busy"] == pytest.approx(0.95)
    assert (numbers["link_share"], numbers["link_busy_share"]) == (0.1, 0.5)


def test_of_several_runs_the_median_counts_and_nothing_stands_for_what_is_not_known(
    record: Callable[..., Record],
) -> None:
    summary = record().summary
    runs = [summary.model_copy(update={"scaling_factor": value}) for value in (0.1, 0.5, 0.6)]
    numbers = measured_numbers(plan(), runs)
    assert numbers["scaling_factor"] == 0.5
    assert summary.iteration_time_s is not None
    assert numbers["iteration_time_s.median"] == summary.iteration_time_s.median
    assert numbers["server_busy"] is None
    assert "scaling_factor" not in measured_numbers(plan(), [])
    withheld = [*runs, summary.model_copy(update={"scaling_factor": None})]
    assert measured_numbers(plan(), withheld)["scaling_factor"] is None, "those that have one are a choice"


def test_every_number_of_a_run_has_a_known_name(record: Callable[..., Record]) -> None:
    summary = record().summary.model_copy(update={"overhead_s": {"start": 1.0}})
    numbers = measured_numbers(plan(), [summary])
    assert {*PLANNED, *OF_LINKS} <= set(numbers)
    assert set(planned_numbers(plan())) == set(PLANNED)
    require_names(name for name, value in numbers.items() if value is not None)
    require_names(["prediction.iteration_error", "stages.wall_s", "overhead_s.another"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("allreduce.tim_s", "allreduce.tim_s: no such number; allreduce.time_s is meant"),
        ("serverbusy", "server_busy is meant"),
        ("outcome", "no such number"),
        ("links.bytes", "no such number"),
        ("X", "X: no such number; allowed: W, P, .*, summary.json's"),
    ],
)
def test_a_name_that_no_run_has_is_refused(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        require_names([name])
