"""What scripts read is there."""

import json
from collections.abc import Callable

import pytest

from testbed.record.reader import Record
from testbed.record.summary import SynchronisationSummary, kind_of_reason, magnitude_of_reason

Make = Callable[..., Record]


def test_summary_json_keeps_the_contract_for_scripts(record: Make) -> None:
    summary = json.loads((record().path / "summary.json").read_text())
    promised = {
        "schema_version", "run_id", "outcome", "reasons", "num_workers", "num_iterations", "dilation",
        "iteration_time_s", "compute_time_s", "data_time_s", "waiting_time_s", "exposed_communication_s",
        "optimizer_time_s", "other_time_s", "samples_per_s", "scaling_factor", "network_efficiency", "checked", "loss",
        "parameters_sha256", "workers", "links", "allreduce", "record",
    }  # fmt: skip
    assert promised <= summary.keys()
    assert summary["iteration_time_s"].keys() == {"mean", "median", "p10", "p90"}
    assert summary["loss"].keys() == {"first", "last", "end"}
    assert summary["allreduce"].keys() == {
        "size_bytes",
        "time_s",
        "bound_s",
        "schedule_bound_s",
        "predicted_s",
        "bottleneck",
        "missing",
        "span_s",
    }
    assert {
        "name", "from", "to", "rate_bps", "delay_s", "measured_rate_bps", "measured_delay_s", "bytes",
        "expected_bytes", "utilization_mean", "utilization_busy", "drops",
    } <= summary["links"][0].keys()  # fmt: skip


def test_workers_are_in_step_unless_they_push_and_pull_on_their_own(record: Make) -> None:
    summary = record().summary
    assert summary.in_step

    def how(kind: str) -> SynchronisationSummary:
        return SynchronisationSummary(kind=kind, every=None, num_exchanges=None, staleness={}, staleness_mean=0.0)

    assert summary.model_copy(update={"synchronisation": how("local_sgd")}).in_step
    assert not summary.model_copy(update={"synchronisation": how("asynchronous")}).in_step
    assert "in_step" not in summary.model_dump(), "it follows from what is there"


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ("w7 waited for 6 % of the time (limit 5 %)", "w0 waited for 62 % of the time (limit 5 %)"),
        ("w1 waited for 9.5 % of the time", "w0 waited for 12 % of the time"),
        ("a packet left 12 ms late, limit 10 ms", "a packet left 1,234 ms late, limit 10 ms"),
        ("w0-w1: +0.9 %", "w3-w12: +5 %"),
        ("in 29 of 30 iterations, by 5 % in the mean", "in 3 of 30 iterations, by 50.5 % in the mean"),
    ],
)
def test_of_reasons_of_one_kind_the_gravest_is_known_by_what_was_measured(less: str, more: str) -> None:
    assert magnitude_of_reason(less) < magnitude_of_reason(more)
    assert kind_of_reason(less) == kind_of_reason(more)
