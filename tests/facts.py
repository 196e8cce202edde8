"""Facts of a small healthy run, to change one of them at a time: two workers, one link, an iteration of 6.75 s."""

from dataclasses import replace
from typing import Any

import polars as pl

from testbed.calibration.cache import machine_digest
from testbed.machine.budget import Budget, Carried, Lateness
from testbed.measure.programs import Programs
from testbed.plan.prediction import Prediction
from testbed.record.frames import LINK_SCHEMA
from testbed.record.summary import CommandSummary, DelayLine
from testbed.verdict.facts import Facts, LinkFacts
from tests.rows import bucket, buckets, iteration, iterations, machine

PREDICTION = Prediction(
    gradient_bytes=1000,
    payload_bytes=1000,
    bound_s=2.5,
    schedule_bound_s=3.0,
    predicted_s=3.2,
    fitted_at=None,
    goodput_bps=8000.0,
    latency_s=0.0,
    aggregation_bps=1e8,
    bottleneck=None,
)
LINK = LinkFacts(
    name="w0-s0",
    from_="w0",
    to="s0",
    rate_bps=100e6,
    delay_s=0.0,
    measured_rate_bps=99.9e6,
    measured_delay_s=30e-6,
    rate_measured_on="w0 -> s0",
    expected_bytes=60_010_000,
    class_bytes_start=0,
    class_bytes_end=60_000_000,
    drops_start=0,
    drops_end=0,
    acknowledgement_bytes=0,
    retransmitted_bytes=0,
    burst_bytes=12_500,
)


def facts(**changes: Any) -> Facts:
    """A healthy run, but for that."""
    healthy = Facts(
        name="n",
        run_id="r",
        spec_sha256="0" * 64,
        setup="star",
        started_at="2026-01-01T00:00:00+00:00",
        epoch_s=5.0,
        num_workers=2,
        dilation=1.0,
        record="records/r",
        iterations=iterations(iteration(0, 10.0), iteration(1, 10.25)),
        buckets=buckets(bucket(0, 10.5, 16.0), bucket(1, 10.75, 16.5)),
        machine=machine(),
        links=[LINK],
        prediction=PREDICTION,
        parameters_sha256=["aa", "aa"],
    )
    return replace(healthy, **changes)


def with_link(**changes: Any) -> Facts:
    """The same where the link differs. `bytes` are what it has counted."""
    if "bytes" in changes:
        changes["class_bytes_end"] = changes.pop("bytes")
    if "drops" in changes:
        changes["drops_end"] = changes.pop("drops")
    return facts(links=[replace(LINK, **changes)])


def waiting(share: float, **changes: Any) -> Facts:
    """Threads that move gradients waited for a core for this share of exposed communication (5.75 s)."""
    delay: dict[str, Any] = {"communication_run_queue_delay_s": share * 5.75 / 2}
    return facts(iterations=iterations(iteration(0, 10.0, **delay), iteration(1, 10.25, **delay)), **changes)


def delay_line(**changes: Any) -> DelayLine:
    """That has let everything go on time."""
    healthy = {"num_packets": 1000, "num_lost": 0, "num_dropped": 0}
    late = {"late_median_s": 5e-6, "late_p99_s": 50e-6, "late_max_s": 100e-6}
    return DelayLine(**{**healthy, **late, **changes})


def command_among_others(share: float, time_s: float = 7.0) -> Facts:
    """Other programs took this share of the cores while a command ran for that long."""
    command = CommandSummary(
        argv=["train"], backend=None, redirected=[], launcher=False, start_s=10.0, time_s=time_s, workers=[]
    )
    known = facts(command=command, command_end_s=17.0, iterations=iterations(), buckets=buckets(), prediction=None)
    return replace(known, other_programs={"measured": Programs(share)})


def samples(*points: tuple[float, int], rate_bps: float = 0.0) -> pl.DataFrame:
    """Of the link from w0: moments and cumulative bytes."""
    names = {"link": "w0-s0", "node": "w0", "port": "w0-eth0"}
    zeros = dict.fromkeys(["class_packets", "drops", "overlimits", "backlog_bytes", "interface_bytes"], 0)
    rows = [
        {"at_s": at_s, "read_from_s": at_s, "class_bytes": counted, "rate_bps": rate_bps, **names, **zeros}
        for at_s, counted in points
    ]
    return pl.DataFrame(rows, schema=LINK_SCHEMA)


BUDGET = Budget(
    measured_at="2026-01-01T00:00:00+00:00",
    machine=machine_digest(),
    undelayed=Carried(superframe_bps=18e9, mtu_bps=6e9),
    delayed={"nfqueue": Carried(superframe_bps=8e9, mtu_bps=1e9)},
    delays={"nfqueue": Lateness(mean_s=40e-6, p99_s=90e-6)},
    timer=Lateness(mean_s=7e-6, p99_s=24e-6),
    busy_share=0.01,
)
"""Of this machine, as if `testbed doctor` had measured it."""
