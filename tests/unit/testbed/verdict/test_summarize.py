"""The definitions, checked on runs small enough to work out by hand and on a modelled one."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from testbed.experiment.link import UNSHAPED_BPS
from testbed.record.frames import LINK_SCHEMA
from testbed.record.reader import Record
from testbed.verdict.facts import (
    AllReduceFacts,
    CommandFacts,
    CompressionFacts,
    Inputs,
    LinkFacts,
    SynchronisationFacts,
)
from testbed.verdict.summarize import compute_only_time_s, per_iteration, summarize
from tests.rows import bucket, buckets, iteration, iterations, machine


def samples(*points: tuple[float, int]) -> pl.DataFrame:
    names = {"link": "w0-s0", "node": "w0", "port": "w0-eth0"}
    zeros = dict.fromkeys(["class_packets", "drops", "overlimits", "backlog_bytes", "interface_bytes", "rate_bps"], 0)
    rows = [{"at_s": at_s, "class_bytes": counted, **names, **zeros} for at_s, counted in points]
    return pl.DataFrame(rows, schema=LINK_SCHEMA)


LINK = LinkFacts(
    name="w0-s0",
    from_="w0",
    to="s0",
    rate_bps=8000.0,
    delay_s=0.0,
    measured_rate_bps=None,
    measured_delay_s=None,
    expected_bytes=2900,
    class_bytes_start=100,
    class_bytes_end=3100,
    drops_start=2,
    drops_end=5,
    acknowledgement_bytes=90,
    retransmitted_bytes=0,
)


def inputs(**changes: object) -> Inputs:
    given_: dict[str, object] = {
        "name": "n",
        "run_id": "r",
        "spec_sha256": "0" * 64,
        "setup": "star",
        "started_at": "2026-01-01T00:00:00+00:00",
        "epoch_s": 5.0,
        "outcome": "valid",
        "reasons": [],
        "num_workers": 2,
        "dilation": 1.0,
        "record": "records/r",
        "iterations": iterations(iteration(0, 10.0), iteration(1, 10.25)),
        "buckets": buckets(bucket(0, 12.0, 15.0), bucket(1, 12.5, 16.0)),
        "samples": samples(),
        "machine": machine(),
        "links": [LINK],
        "allreduce": AllReduceFacts(size_bytes=1000, bound_s=3.0, predicted_s=3.2),
        "parameters_sha256": ["aa", "aa"],
        **changes,
    }
    return Inputs(**given_)  # type: ignore[arg-type]


def test_one_iteration_split_by_hand() -> None:
    summary = summarize(inputs())
    assert summary.iteration_time_s is not None
    assert summary.iteration_time_s.median == pytest.approx(7.0), "from the first start to the last end"
    assert summary.compute_time_s == pytest.approx(3.5)
    assert summary.exposed_communication_s == pytest.approx(3.0)
    assert summary.other_time_s == pytest.approx(0.5)
    assert summary.samples_per_s == pytest.approx(32 / 7)
    assert summary.loss is not None
    assert summary.loss.first == pytest.approx(1.5), "mean over workers"
    assert summary.num_iterations == 1


def test_compression_by_hand() -> None:
    more = buckets(
        *(bucket(rank, 12.0, 15.0, index=index) for rank in range(2) for index in range(2) for _ in range(3))
    )
    facts = CompressionFacts(kind="top_k", gradient_bytes=300, traffic_ratio=0.2)
    compression = summarize(inputs(buckets=more, compression=facts, dilation=2.0)).compression
    assert compression is not None
    assert compression.payload_bytes == 30
    assert compression.payload_ratio == pytest.approx(0.1)
    assert (compression.encode_s, compression.decode_s) == (0.75, 0.375), "per worker and iteration, virtual"
    assert summarize(inputs()).compression is None


COMMAND = CommandFacts(
    argv=["iperf3", "-c", "10.0.0.1"],
    backend=None,
    redirected=[],
    launcher=False,
    start_s=10.0,
    end_s=20.0,
    exits=[("w0", 0, 19.0), ("w1", -15, 20.0)],
)


def test_a_command_is_measured_from_its_start_to_its_end() -> None:
    # Between 12 s and 14 s the link carries 8 kbit/s, before and after a hundredth of it and less.
    carried = samples((10.0, 0), (12.0, 10), (13.0, 1010), (14.0, 2010), (20.0, 2060)).with_columns(
        rate_bps=pl.lit(8000.0)
    )
    facts = replace(LINK, class_bytes_start=0, class_bytes_end=2060)
    summary = summarize(
        inputs(
            command=COMMAND,
            samples=carried,
            links=[facts],
            iterations=iterations(),
            buckets=buckets(),
            allreduce=None,
        )
    )
    (link,) = summary.links
    assert link.utilization_mean == pytest.approx(2060 * 8 / (8000 * 10))
    assert link.utilization_busy == pytest.approx(1.0)
    assert summary.machine is not None
    assert summary.machine.idle_share == pytest.approx(0.8)
    assert summary.iteration_time_s is None
    assert summary.command is not None
    assert summary.command.time_s == 10
    assert [(each.name, each.status, each.time_s) for each in summary.command.workers] == [
        ("w0", 0, 9),
        ("w1", -15, 10),
    ]


def test_links_and_allreduce_by_hand() -> None:
    summary = summarize(inputs())
    (link,) = summary.links
    assert (link.bytes, link.drops, link.from_, link.to) == (2910, 3, "w0", "s0")
    assert link.utilization_mean == pytest.approx(3000 * 8 / (8000 * 7))
    assert link.utilization_busy == pytest.approx(3000 * 8 / (8000 * 4)), "busy from 12 to 16"
    assert summary.allreduce is not None
    assert summary.allreduce.time_s == pytest.approx(3.5), "the slowest worker"


def test_dilation_divides_every_time_and_leaves_shares_alone() -> None:
    slow, fast = summarize(inputs(dilation=4.0)), summarize(inputs())
    assert slow.iteration_time_s is not None
    assert slow.iteration_time_s.median == pytest.approx(7.0 / 4)
    assert slow.exposed_communication_s == pytest.approx(3.0 / 4)
    assert slow.allreduce is not None
    assert slow.allreduce.time_s == pytest.approx(3.5 / 4)
    # The wire moves a quarter of the virtual rate in wall time, so the same bytes use four times the virtual link.
    assert slow.links[0].utilization_busy == pytest.approx(4 * fast.links[0].utilization_busy)


def test_scaling_factor_is_compute_only_over_measured_and_not_capped() -> None:
    rows = [iteration(0, 0.0, "compute_only", end_s=4.0), iteration(1, 2.0, "compute_only", end_s=6.5)]
    measured = [iteration(0, 10.0), iteration(1, 10.25)]
    summary = summarize(inputs(iterations=iterations(*rows, *measured)))
    assert summary.compute_only_time_s == pytest.approx(4.5), "the slowest worker from its own start: drift is no time"
    assert summary.scaling_factor == pytest.approx(4.5 / 7)
    longer = [{**row, "end_s": 14.0} for row in rows]
    assert summarize(inputs(iterations=iterations(*longer, *measured))).scaling_factor == pytest.approx(14 / 7)


def test_parts_add_up_in_every_iteration_of_a_modelled_run(record: Callable[..., Record]) -> None:
    loaded = record(dilation=2.0)
    frame = per_iteration(loaded.iterations, num_workers=4, dilation=2.0)
    total = frame["compute_s"] + frame["exposed_s"] + frame["other_s"]
    assert np.allclose(total.to_numpy(), frame["time_s"].to_numpy())
    assert frame["other_s"].min() >= 0


def test_an_iteration_that_a_worker_did_not_finish_does_not_count() -> None:
    cut = iterations(iteration(0, 10.0), iteration(1, 10.25), iteration(0, 20.0, index=1, end_s=99.0))
    assert summarize(inputs(iterations=cut)).num_iterations == 1


def test_an_unshaped_link_has_no_utilisation() -> None:
    summary = summarize(inputs(links=[LINK, replace(LINK, rate_bps=UNSHAPED_BPS)]))
    shaped, unshaped = summary.links
    assert shaped.utilization_mean is not None
    assert (unshaped.utilization_mean, unshaped.utilization_busy, unshaped.bytes) == (None, None, shaped.bytes)


def test_a_run_without_iterations_has_no_made_up_numbers() -> None:
    summary = summarize(inputs(iterations=iterations(), buckets=buckets(), outcome="failed", parameters_sha256=[]))
    assert summary.num_iterations == 0
    for name in ("iteration_time_s", "compute_time_s", "samples_per_s", "scaling_factor", "loss", "allreduce"):
        assert getattr(summary, name) is None, name
    assert summary.links[0].utilization_mean == 0
    assert "NaN" not in summary.model_dump_json()


def test_workers_that_disagree_about_the_parameters_have_failed() -> None:
    summary = summarize(inputs(parameters_sha256=["aa", "ab"]))
    assert summary.outcome == "failed"
    assert "2 different sets of parameters" in summary.reasons[0]
    assert summary.parameters_sha256 is None


def test_the_loss_at_the_end_is_the_mean_of_the_last_tenth() -> None:
    rows = [iteration(rank, 10.0 + index, index=index, loss=float(index)) for rank in range(2) for index in range(20)]
    loss = summarize(inputs(iterations=iterations(*rows))).loss
    assert loss is not None
    assert (loss.first, loss.last, loss.end) == (0.0, 19.0, 18.5)


def test_a_diverged_loss_is_null_and_a_workload_without_loss_has_none() -> None:
    rows = [iteration(0, 10.0), iteration(1, 10.25)]
    rows += [iteration(rank, 20.0, index=1, loss=math.nan) for rank in range(2)]
    diverged = summarize(inputs(iterations=iterations(*rows))).loss
    assert diverged is not None
    assert (diverged.first, diverged.last) == (1.5, None)
    nothing = [{**row, "loss": math.nan} for row in rows]
    assert summarize(inputs(iterations=iterations(*nothing))).loss is None


def test_no_compute_only_phase_no_compute_only_time() -> None:
    assert compute_only_time_s(iterations(iteration(0, 1.0)), num_workers=1, dilation=1.0) is None


def test_the_modelled_ring_fills_its_links_while_buckets_are_in_service(record: Callable[..., Record]) -> None:
    summary = record().summary
    assert len(summary.links) == 8
    for link in summary.links:
        assert link.utilization_busy == pytest.approx(1.02 / 1.04, abs=0.01)
        assert link.utilization_mean < 0.92 * link.utilization_busy


def test_waiting_in_the_next_forward_pass_is_exposed_communication() -> None:
    rows = iterations(iteration(0, 0.0, forward_stall_s=0.5), iteration(1, 0.0, forward_stall_s=0.25))
    (row,) = per_iteration(rows, num_workers=2, dilation=1.0).iter_rows(named=True)
    assert row["compute_s"] == pytest.approx(3.5 - 0.375)
    assert row["exposed_s"] == pytest.approx(3.0 + 0.375)


def test_of_workers_that_average_now_and_then_an_iteration_is_the_mean_of_a_round() -> None:
    alone = {"backward_end_s": 3.0, "optimizer_end_s": 3.5, "end_s": 3.75}
    rows, start_s = [], 0.0
    for index in range(7):  # two rounds of three, and one iteration that is no round
        own = {key: start_s + value for key, value in alone.items()} if index % 3 < 2 else {}
        rows += [iteration(rank, start_s, index=index) | own for rank in (0, 1)]
        start_s += 10.0
    facts = SynchronisationFacts(kind="local_sgd", every=3, num_exchanges=3, in_step=True)
    summary = summarize(inputs(iterations=iterations(*rows), synchronisation=facts))
    assert summary.iteration_time_s is not None
    assert summary.iteration_time_s.median == pytest.approx((3.75 + 3.75 + 6.75) / 3)
    assert summary.exposed_communication_s == pytest.approx(3.0 / 3)
    assert summary.num_iterations == 7
