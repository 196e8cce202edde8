"""The definitions, checked on runs small enough to work out manually and on a modelled one."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from testbed.experiment.link import UNSHAPED_BPS
from testbed.record.frames import WAIT_SCHEMA
from testbed.record.reader import Record
from testbed.record.summary import AggregatorSummary, CommandExit, CommandSummary, SlotLatency, Summary
from testbed.theory.predict import RunPrediction
from testbed.theory.reach import Expected, Reach
from testbed.verdict.facts import End, Facts
from testbed.verdict.judge import judge
from testbed.verdict.summarize import measure, summarize
from tests import facts as healthy
from tests.facts import samples
from tests.rows import bucket, buckets, iteration, iterations

LINK = replace(
    healthy.LINK,
    rate_bps=8000.0,
    expected_bytes=2900,
    class_bytes_start=100,
    class_bytes_end=3100,
    drops_start=2,
    drops_end=5,
    acknowledgement_bytes=90,
)


def facts(**changes: Any) -> Facts:
    busy = buckets(bucket(0, 12.0, 15.0), bucket(1, 12.5, 16.0))
    return healthy.facts(**{"links": [LINK], "buckets": busy, **changes})


REACH = Reach(num_workers=(2, 8), size_bytes=(1, 2), delay_s=(0.0, 1.0), rate_bps=(1.0, 2.0), channels=("tcp",))


def test_a_prediction_stands_beside_the_mean_that_it_was_of() -> None:
    expected = Expected(0.03, "validation", 98, REACH)
    said = RunPrediction(6.0, None, expected, ("16 workers (2 to 8)",), "2026-01-01T00:00:00+00:00")
    found = measure(facts(predicted=said)).prediction
    assert found is not None
    assert found.iteration_error == pytest.approx(6.0 / 6.75 - 1)
    assert (found.expected_error, found.num_points, found.outside) == (0.03, 98, ["16 workers (2 to 8)"])
    took = measure(facts(predicted=said)).allreduce
    assert took is not None
    assert found.allreduce_error == pytest.approx(took.predicted_s / took.time_s - 1)


def test_what_was_not_predicted_or_not_measured_has_no_error() -> None:
    said = RunPrediction(None, "computing is real", None, (), None)
    found = measure(facts(predicted=said)).prediction
    assert found is not None
    assert (found.iteration_error, found.missing, found.expected_error) == (None, "computing is real", None)
    ended = measure(healthy.facts(predicted=said._replace(iteration_time_s=1.0), iterations=iterations())).prediction
    assert ended is not None
    assert ended.iteration_error is None
    assert measure(facts()).prediction is None


def test_the_split_of_one_iteration_as_calculated_manually() -> None:
    results = measure(facts())
    assert results.iteration_time_s is not None
    assert results.iteration_time_s.mean == pytest.approx(6.75), "each worker from its own start: no start skew"
    assert results.data_time_s == pytest.approx(0.25)
    assert results.compute_time_s == pytest.approx(2.75)
    assert results.waiting_time_s == pytest.approx(0.125), "the first worker waits a quarter second for the second"
    assert results.exposed_communication_s == pytest.approx(2.875)
    assert results.optimizer_time_s == pytest.approx(0.5)
    assert results.other_time_s == pytest.approx(0.25)
    assert results.samples_per_s == pytest.approx(32 / 6.75)
    assert results.loss is not None
    assert results.loss.first == pytest.approx(1.5), "mean over workers"
    assert results.num_iterations == 1


def test_a_summary_is_the_results_and_their_verdict() -> None:
    known = facts(links=[], end=End("failed", "w1 was killed"))
    summary = summarize(known)
    assert (summary.outcome, summary.reasons, summary.notes) == judge(known, measure(known))
    assert (summary.outcome, summary.reasons) == ("failed", ["w1 was killed"])
    assert json.loads(summary.model_dump_json())["iteration_time_s"]["mean"] == pytest.approx(6.75)
    assert Summary.model_validate_json(summary.model_dump_json(by_alias=True)) == summary


def test_compression_as_calculated_manually() -> None:
    more = buckets(
        *(bucket(rank, 12.0, 15.0, index=index) for rank in range(2) for index in range(2) for _ in range(3))
    )
    known = facts(buckets=more, compression="top_k", gradient_bytes=300, traffic_ratio=0.2, dilation=2.0)
    compression = measure(known).compression
    assert compression is not None
    assert compression.payload_bytes == 30
    assert compression.payload_ratio == pytest.approx(0.1)
    assert (compression.encode_s, compression.decode_s) == (0.75, 0.375), "per worker and iteration, virtual"
    real = measure(replace(known, host_cost="real")).compression
    assert real is not None
    assert (real.encode_s, real.decode_s) == (1.5, 0.75), "hosts are as slow as this machine: a second is one"
    assert measure(facts()).compression is None


COMMAND = CommandSummary(
    argv=["iperf3", "-c", "10.0.0.1"],
    backend=None,
    redirected=[],
    launcher=False,
    start_s=10.0,
    time_s=10.0,
    workers=[CommandExit(name="w0", status=0, time_s=9.0), CommandExit(name="w1", status=-15, time_s=10.0)],
)


def test_a_command_is_measured_from_its_start_to_its_end() -> None:
    # Between 12 s and 14 s the link carries 8 kbit/s, before and after a hundredth of it and less.
    carried = samples((10.0, 0), (12.0, 10), (13.0, 1010), (14.0, 2010), (20.0, 2060)).with_columns(
        rate_bps=pl.lit(8000.0)
    )
    summary = measure(
        facts(
            command=COMMAND,
            command_end_s=20.0,
            samples=carried,
            links=[replace(LINK, class_bytes_start=0, class_bytes_end=2060)],
            iterations=iterations(),
            buckets=buckets(),
            prediction=None,
        )
    )
    (link,) = summary.links
    assert link.utilization_mean == pytest.approx(2060 * 8 / (8000 * 10))
    assert link.utilization_busy == pytest.approx(1.0)
    assert summary.machine is not None
    assert summary.machine.idle_share == pytest.approx(0.8)
    assert summary.iteration_time_s is None
    assert summary.command == COMMAND


def waited_while_hidden() -> Facts:
    """A thread that moves gradients waited for a core while computing went on, and no iteration is longer for it."""
    moments: dict[str, Any] = {"backward_compute_end_s": 13.0, "backward_end_s": 13.02, "optimizer_end_s": 13.7}
    rows = iterations(*(iteration(rank, 10.0, **moments, end_s=13.95) for rank in range(2)))
    times = buckets(*(bucket(rank, 10.2, 12.8) for rank in range(2)))
    waited = pl.DataFrame([("w0", False, False, 10.5, 11.5)], schema=WAIT_SCHEMA, orient="row")
    link = replace(healthy.LINK, class_bytes_end=30_000_000, expected_bytes=30_000_000)
    soon = replace(healthy.PREDICTION, schedule_bound_s=1.5)
    return healthy.facts(iterations=rows, buckets=times, links=[link], waits=waited, prediction=soon)


def test_the_time_of_an_all_reduce_that_waited_for_cores_while_it_was_hidden_is_withheld_and_the_run_stands() -> None:
    found = summarize(waited_while_hidden())
    assert (found.outcome, found.reasons) == ("valid", [])
    assert found.iteration_time_s is not None
    assert found.allreduce is not None
    assert found.allreduce.time_s is None
    assert found.allreduce.missing is not None
    assert "up to 38 % of it may have been waiting for a core (limit 5 %)" in found.allreduce.missing
    assert found.prediction is None or found.prediction.allreduce_error is None
    assert found.waiting is not None
    assert (found.waiting.of_exposed, found.waiting.waited_s) == (0, 1)
    assert found.waiting.of_communication > 0.05
    assert [link.utilization_busy for link in found.links] == [None], "of the same time"
    assert found.links[0].utilization_mean is not None


def test_where_the_time_of_an_all_reduce_is_withheld_so_is_the_latency_of_the_slots_that_it_used() -> None:
    latency = SlotLatency(num_chunks=4, median_s=1e-3, p99_s=2e-3, edges_s=[1e-3, 2e-3], counts=[4])
    common = {"dataplane": "ebpf", "duplicates": 0, "stale": 0, "bad": 0, "repeated": 0, "retransmitted": 0}
    switch = AggregatorSummary(name="a0", at="s0", chunks=8, lost=None, slot_latency=latency, **common)
    shown = measure(facts(aggregators=[switch]))
    assert shown.allreduce is not None
    assert shown.allreduce.missing is None
    assert shown.aggregators == [switch]
    found = measure(replace(waited_while_hidden(), aggregators=[switch]))
    assert found.allreduce is not None
    assert found.allreduce.missing is not None
    assert found.aggregators == [switch.model_copy(update={"slot_latency": None})]


def test_links_and_allreduce_as_calculated_manually() -> None:
    summary = measure(facts())
    (link,) = summary.links
    assert (link.bytes, link.drops, link.from_, link.to) == (2910, 3, "w0", "s0")
    assert link.utilization_mean == pytest.approx(3000 * 8 / (8000 * 7))
    assert link.utilization_busy == pytest.approx(3000 * 8 / (8000 * 3.5)), "from when the second has handed over, 12.5"
    assert summary.allreduce is not None
    assert summary.allreduce.time_s == pytest.approx(3.5), "the slowest worker"
    assert summary.allreduce.span_s == pytest.approx(4.0), "from the first one's start to the last one's result"
    assert (summary.allreduce.bound_s, summary.allreduce.schedule_bound_s) == (2.5, 3.0)


def test_an_all_reduce_takes_what_it_takes_once_all_have_handed_it_over() -> None:
    """A worker that computes three times as long is waited for, which is not communication."""
    times = buckets(bucket(0, 10.0, 14.0), bucket(1, 13.0, 14.0))
    unhindered = iterations(*(iteration(rank, 10.0, communication_run_queue_delay_s=0.0) for rank in range(2)))
    known = facts(buckets=times, iterations=unhindered)
    found = measure(known).allreduce
    assert found is not None
    assert (found.time_s, found.span_s) == (pytest.approx(1.0), pytest.approx(4.0))
    found = measure(replace(known, synchronisation="asynchronous", in_step=False)).allreduce
    assert found is not None
    assert found.time_s == pytest.approx(4.0), "nobody waits for others"


def test_a_server_s_link_is_used_in_the_time_in_which_its_bytes_could_move() -> None:
    """The first worker pushes half a second before the second has anything. Seen at 102 % of its rate over the time
    since the second had."""
    times = buckets(bucket(0, 10.0, 14.5), bucket(1, 10.5, 14.5))
    carried = samples((10.0, 0), (12.25, 28_125_000))
    to_server = replace(healthy.LINK, from_="s0", to="ps0", class_bytes_end=28_125_000, to_server=True)
    from_server = replace(to_server, from_="ps0", to="s0", to_server=False)
    found = measure(facts(buckets=times, samples=carried, links=[to_server, from_server]))
    assert [link.utilization_busy for link in found.links] == [
        pytest.approx(28_125_000 * 8 / (100e6 * 4.5)),
        pytest.approx(28_125_000 * 8 / (100e6 * 4.0)),
    ]


def test_dilation_divides_every_time_and_leaves_shares_alone() -> None:
    slow, fast = measure(facts(dilation=4.0)), measure(facts())
    assert slow.iteration_time_s is not None
    assert slow.iteration_time_s.mean == pytest.approx(6.75 / 4)
    assert slow.exposed_communication_s == pytest.approx(2.875 / 4)
    assert slow.allreduce is not None
    assert slow.allreduce.time_s == pytest.approx(3.5 / 4)
    # The wire moves a quarter of the virtual rate in wall time, so the same bytes use four times the virtual link.
    assert slow.links[0].utilization_busy == pytest.approx(4 * fast.links[0].utilization_busy)


def test_an_iteration_that_a_worker_did_not_finish_does_not_count() -> None:
    cut = iterations(iteration(0, 10.0), iteration(1, 10.25), iteration(0, 20.0, index=1, end_s=99.0))
    assert measure(facts(iterations=cut)).num_iterations == 1


def test_an_unshaped_link_has_no_utilization() -> None:
    summary = measure(facts(links=[LINK, replace(LINK, rate_bps=UNSHAPED_BPS)]))
    shaped, unshaped = summary.links
    assert shaped.utilization_mean is not None
    assert (unshaped.utilization_mean, unshaped.utilization_busy, unshaped.bytes) == (None, None, shaped.bytes)


def test_a_run_without_iterations_has_no_made_up_numbers() -> None:
    summary = measure(facts(iterations=iterations(), buckets=buckets(), parameters_sha256=[]))
    assert summary.num_iterations == 0
    for name in ("iteration_time_s", "compute_time_s", "samples_per_s", "scaling_factor", "loss", "allreduce"):
        assert getattr(summary, name) is None, name
    assert summary.links[0].utilization_mean == 0
    assert "NaN" not in summary.model_dump_json()


def test_the_loss_at_the_end_is_the_mean_of_the_last_tenth() -> None:
    rows = [iteration(rank, 10.0 + index, index=index, loss=float(index)) for rank in range(2) for index in range(20)]
    loss = measure(facts(iterations=iterations(*rows))).loss
    assert loss is not None
    assert (loss.first, loss.last, loss.end) == (0.0, 19.0, 18.5)


def test_a_diverged_loss_is_null_and_a_workload_without_loss_has_none() -> None:
    rows = [iteration(0, 10.0), iteration(1, 10.25)]
    rows += [iteration(rank, 20.0, index=1, loss=math.nan) for rank in range(2)]
    diverged = measure(facts(iterations=iterations(*rows))).loss
    assert diverged is not None
    assert (diverged.first, diverged.last) == (1.5, None)
    nothing = [{**row, "loss": math.nan} for row in rows]
    assert measure(facts(iterations=iterations(*nothing))).loss is None


def test_the_modelled_ring_fills_its_links_while_buckets_are_in_service(record: Callable[..., Record]) -> None:
    summary = record().summary
    assert len(summary.links) == 8
    for link in summary.links:
        assert link.utilization_busy == pytest.approx(1.02 / 1.04, abs=0.02)
        assert link.utilization_mean < 0.92 * link.utilization_busy


def test_what_was_checked_is_counted_and_a_rate_of_its_class_is_no_rate_of_its_own() -> None:
    down = replace(LINK, from_="s0", to="w0", expected_bytes=None)
    checked = measure(facts(links=[LINK, down], not_checked=["bytes of 1 directions: equal paths"])).checked
    assert (checked.num_directions, checked.num_bytes, checked.num_rates, checked.num_rates_own) == (2, 1, 2, 1)
    assert checked.num_delays == 2
    assert checked.not_checked == ["bytes of 1 directions: equal paths"]
    assert measure(facts(links=[LINK, down])).links[1].rate_measured_on == "w0 -> s0"


def test_a_rate_from_the_cache_is_no_direction_s_own_even_where_it_was_measured_on_one_of_that_name() -> None:
    own, cached = LINK, replace(LINK, name="w1-s0", from_="w1", rate_measured_on="w1 -> s0", rate_from_cache=True)
    found = measure(facts(links=[own, cached]))
    assert (found.checked.num_rates, found.checked.num_rates_own) == (2, 1)
    assert [link.rate_from_cache for link in found.links] == [False, True]


def test_of_workers_that_average_now_and_then_an_iteration_is_the_mean_of_a_round() -> None:
    alone = {"backward_end_s": 3.0, "optimizer_end_s": 3.5, "end_s": 3.75}
    rows, start_s = [], 0.0
    for index in range(7):  # two rounds of three, and one iteration that is no round
        own = {key: start_s + value for key, value in alone.items()} if index % 3 < 2 else {}
        rows += [iteration(rank, start_s, index=index) | own for rank in (0, 1)]
        start_s += 3.75 if index % 3 < 2 else 6.75
    known = facts(
        iterations=iterations(*rows),
        synchronisation="local_sgd",
        exchanges_always=False,
        exchange_every=3,
        num_exchanges=3,
    )
    results = measure(known)
    assert results.iteration_time_s is not None
    assert results.iteration_time_s.median == pytest.approx((3.75 + 3.75 + 6.75) / 3)
    assert results.exposed_communication_s == pytest.approx(3.0 / 3)
    assert results.num_iterations == 7
    assert results.synchronisation is not None
    assert (results.synchronisation.every, results.synchronisation.num_exchanges) == (3, 3)


def test_of_workers_that_never_wait_for_each_other_the_throughputs_add_up() -> None:
    """One takes four times as long as the other, in the run as alone: nobody is held up by the network."""
    alone = {"backward_end_s": 3.0, "optimizer_end_s": 3.5, "end_s": 3.75}

    def once(rank: int, start_s: float, phase: str, index: int) -> dict[str, object]:
        times = {key: start_s + value * (1 + 3 * rank) for key, value in alone.items()}
        return iteration(rank, start_s, phase, index) | times

    rows = [
        once(rank, from_s + index * 3.75 * (1 + 3 * rank), phase, index)
        for rank in (0, 1)
        for phase, from_s in (("compute_alone", 1000.0 + 1000.0 * rank), ("measured", 0.0))
        for index in range(4)
    ]
    results = measure(facts(iterations=iterations(*rows), exchanges_always=False, in_step=False))
    assert results.iteration_time_s is not None
    assert results.iteration_time_s.mean == pytest.approx(3.75 * 2.5)
    assert results.samples_per_s == pytest.approx(16 / 3.75 + 16 / 15)
    assert results.scaling_factor == pytest.approx(1.0)


def test_a_pipelines_bubble_is_exposed_communication_and_its_first_stage_no_straggler() -> None:
    """The second stage's device ends 2 s before the first's, and it goes on at once."""
    rows = [
        iteration(rank, start_s, index=index, data_end_s=start_s, host_to_device_end_s=start_s, forward_stall_s=stall_s)
        | dict.fromkeys(("forward_end_s", "backward_compute_end_s", "backward_end_s"), start_s + 10.0)
        | {"optimizer_end_s": start_s + 10.0, "end_s": start_s + 10.0}
        for rank, stall_s in ((0, 3.0), (1, 3.0))
        for index in range(3)
        for start_s in (10.0 * index - 2.0 * rank,)
    ]
    results = measure(facts(iterations=iterations(*rows), replays_graph=True))
    assert results.waiting_time_s == 0
    assert (results.exposed_communication_s, results.compute_time_s) == (pytest.approx(3.0), pytest.approx(7.0))
    assert [(each.straggler_wait_s, each.last_share) for each in results.workers] == [(0, 0), (0, 0)]
    assert not results.ends_together
    trained = measure(facts(iterations=iterations(*rows)))
    assert trained.waiting_time_s == pytest.approx(2 / 2 * 2 / 3)
    assert trained.workers[0].straggler_wait_s == pytest.approx(2.0)
