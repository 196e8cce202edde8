"""A small model of a run: workers on a star whose ring all-reduce fills the links, in the record's own frames."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import polars as pl
import pytest

from testbed.plan.prediction import Prediction
from testbed.record.reader import Record, load
from testbed.record.summary import Summary
from testbed.record.writer import RecordWriter
from testbed.verdict.facts import Facts, LinkFacts
from testbed.verdict.summarize import summarize

FRAMES_PER_BYTE = 1514 / 1448
SPEC = "name: quickstart\nworkers: 4\ntopology: {kind: star}\nlink: {rate: 100mbit, delay: 0s}\n"


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What the modelled run does."""

    num_workers: int = 4
    num_iterations: int = 30
    num_warmup: int = 3
    rate_bps: float = 100e6
    bucket_bytes: tuple[int, ...] = (1_310_720, 1_048_576, 1_048_576, 1_048_576)
    compute_s: float = 0.11
    dilation: float = 1.0
    seed: int = 1
    expected_factor: float = 1.0
    name: str = "quickstart"


class Model:
    """Generates the frames, one iteration after the other."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.random = Random(scenario.seed)
        self.iterations: list[dict[str, object]] = []
        self.buckets: list[dict[str, object]] = []
        self.busy: list[tuple[float, float]] = []
        """When the links carry data, wall seconds, in order."""
        self.carried_bytes = [0.0]
        """Before each of these times, and after the last."""
        self.now_s = 2.0
        for rank in range(scenario.num_workers):
            self._compute_alone(rank)
        for index in range(8):
            self._iterate("compute_only", index)
        for index in range(scenario.num_warmup):
            self._iterate("warmup", index)
        self.window_start_s = self.now_s
        for index in range(scenario.num_iterations):
            self._iterate("measured", index)
        self.window_end_s = self.now_s

    def _compute_alone(self, rank: int) -> None:
        for index in range(8):
            compute_s = self.scenario.compute_s * self.scenario.dilation * self.random.uniform(0.99, 1.03)
            start_s, self.now_s = self.now_s, self.now_s + compute_s + 0.002
            ready_s = start_s + 0.95 * compute_s
            moments = {"backward_compute_end_s": ready_s, "backward_end_s": ready_s, "end_s": self.now_s}
            self.iterations.append(
                {
                    "rank": rank,
                    "phase": "compute_alone",
                    "index": index,
                    "start_s": start_s,
                    "data_end_s": start_s + 0.02 * compute_s,
                    "host_to_device_end_s": start_s + 0.02 * compute_s,
                    "forward_end_s": start_s + 0.3 * compute_s,
                    "optimizer_end_s": start_s + compute_s,
                    "loss": 2.3,
                    "num_samples": 64,
                    "cpu_s": compute_s,
                    "run_queue_delay_s": 0.001,
                    "communication_run_queue_delay_s": 0.0,
                    "slowdown": 1.0,
                    "forward_stall_s": 0.0,
                    "staleness": 0,
                    **moments,
                    "pace_s": 0.0,
                    "overrun_s": 0.0,
                }
            )

    def _iterate(self, phase: str, index: int) -> None:
        scenario, stretch = self.scenario, self.scenario.dilation
        workers = range(scenario.num_workers)
        starts = [self.now_s + self.random.uniform(0, 0.003) for _ in workers]
        compute = [scenario.compute_s * stretch * self.random.uniform(0.94, 1.08) for _ in workers]
        forward_ends = [start + 0.3 * time for start, time in zip(starts, compute, strict=True)]
        backward_ends = [start + 0.95 * time for start, time in zip(starts, compute, strict=True)]
        communicate = phase != "compute_only"
        done_s = 0.0
        for sequence, size_bytes in enumerate(scenario.bucket_bytes if communicate else ()):
            share = (sequence + 1) / len(scenario.bucket_bytes)
            enqueued = [f + (b - f) * share for f, b in zip(forward_ends, backward_ends, strict=True)]
            started_s = max(done_s, *enqueued)
            transfer_s = self._wire_bytes(size_bytes) * 8 / scenario.rate_bps * stretch
            done_s = started_s + transfer_s * self.random.uniform(1.03, 1.05)
            self.busy.append((started_s, done_s))
            self.carried_bytes.append(self.carried_bytes[-1] + self._wire_bytes(size_bytes))
            for rank in workers:
                self.buckets.append(
                    {
                        "rank": rank,
                        "phase": phase,
                        "index": index,
                        "sequence": sequence,
                        "size_bytes": size_bytes,
                        "payload_bytes": size_bytes // 10,
                        "encode_s": 0.002,
                        "decode_s": 0.001,
                        "enqueued_s": enqueued[rank],
                        "started_s": max(started_s - 0.001 * stretch, enqueued[rank]),
                        "first_byte_s": started_s + 0.002 * stretch,
                        "done_s": done_s - self.random.uniform(0, 0.001),
                    }
                )
        progress = index + scenario.num_warmup * (phase == "measured")
        for rank in workers:
            reduced_s = max(done_s, backward_ends[rank])
            optimizer_end_s = reduced_s + 0.05 * compute[rank]
            end_s = optimizer_end_s + self.random.uniform(0.001, 0.004)
            self.now_s = max(self.now_s, end_s)
            self.iterations.append(
                {
                    "rank": rank,
                    "phase": phase,
                    "index": index,
                    "start_s": starts[rank],
                    "data_end_s": starts[rank] + 0.02 * compute[rank],
                    "host_to_device_end_s": starts[rank] + 0.02 * compute[rank],
                    "forward_end_s": forward_ends[rank],
                    "backward_compute_end_s": backward_ends[rank],
                    "backward_end_s": reduced_s,
                    "optimizer_end_s": optimizer_end_s,
                    "end_s": end_s,
                    "loss": 2.3 * 0.93**progress + self.random.uniform(0, 0.08),
                    "num_samples": 64,
                    "cpu_s": compute[rank],
                    "run_queue_delay_s": 0.01,
                    "communication_run_queue_delay_s": 0.001,
                    "slowdown": 1.0,
                    "forward_stall_s": 0.0,
                    "staleness": 0,
                    "pace_s": 0.0,
                    "overrun_s": 0.0,
                }
            )

    def _wire_bytes(self, size_bytes: int) -> float:
        workers = self.scenario.num_workers
        return 2 * (workers - 1) / workers * size_bytes * FRAMES_PER_BYTE

    def class_bytes(self, at_s: float) -> int:
        """Cumulative bytes of one direction of a link at a moment, acknowledgements (2 %) included."""
        number = bisect_left(self.busy, (at_s,)) - 1
        if number < 0:
            return 0
        start_s, end_s = self.busy[number]
        share = min((at_s - start_s) / (end_s - start_s), 1.0)
        size_bytes = self.scenario.bucket_bytes[number % len(self.scenario.bucket_bytes)]
        return int(1.02 * (self.carried_bytes[number] + share * self._wire_bytes(size_bytes)))

    def directions(self) -> list[tuple[str, str, str]]:
        """(link, from, to) of every direction."""
        names = [f"w{rank}" for rank in range(self.scenario.num_workers)]
        return [pair for name in names for pair in ((f"{name}-s0", name, "s0"), (f"{name}-s0", "s0", name))]

    def samples(self) -> list[dict[str, object]]:
        """10 Hz, as the sampler takes them."""
        rows: list[dict[str, object]] = []
        for tick in range(int((self.now_s + 0.5) * 10)):
            at_s = tick / 10 + 0.013
            counted = self.class_bytes(at_s)
            for link, node, _ in self.directions():
                port = f"{node}-eth0" if node != "s0" else f"s0-{link.split('-')[0]}"
                rows.append(
                    {
                        "at_s": at_s,
                        "read_from_s": at_s,
                        "link": link,
                        "node": node,
                        "port": port,
                        "class_bytes": counted,
                        "class_packets": counted // 1514,
                        "drops": 0,
                        "overlimits": counted // 3000,
                        "backlog_bytes": 0,
                        "interface_bytes": counted,
                        "rate_bps": self.scenario.rate_bps,
                    }
                )
        return rows

    def machine(self) -> list[dict[str, object]]:
        """10 Hz: two cores at 100 ticks a second, a tenth of them idle."""
        return [
            {
                "at_s": tick / 10,
                "ticks": 20 * tick,
                "idle_ticks": 2 * tick,
                "steal_ticks": 0,
                "softnet_drops": 0,
                "softnet_squeezes": 0,
            }
            for tick in range(int((self.now_s + 0.5) * 10))
        ]

    def facts(self) -> list[LinkFacts]:
        """Counters at both ends of the measured window, and what was requested."""
        start, end = self.class_bytes(self.window_start_s), self.class_bytes(self.window_end_s)
        acknowledgements = int((end - start) * 0.02 / 1.02)
        expected = int((end - start - acknowledgements) * self.scenario.expected_factor)
        return [
            LinkFacts(
                name=link,
                from_=node,
                to=to,
                rate_bps=self.scenario.rate_bps,
                delay_s=0.0,
                measured_rate_bps=self.scenario.rate_bps * self.random.uniform(0.9985, 1.0005),
                measured_delay_s=self.random.uniform(20e-6, 35e-6),
                expected_bytes=expected + self.random.randrange(2000),
                class_bytes_start=start,
                class_bytes_end=end,
                drops_start=0,
                drops_end=0,
                acknowledgement_bytes=acknowledgements,
                retransmitted_bytes=0,
            )
            for link, node, to in self.directions()
        ]


def make_record(directory: Path, scenario: Scenario, **changes: object) -> Record:
    """A whole record on disk, loaded again; `changes` replace facts, or the verdict that follows from them."""
    model = Model(scenario)
    writer = RecordWriter(directory)
    writer.write_spec(SPEC)
    writer.write_plan({"nodes": ["w0", "s0"]})
    writer.write_environment({"kernel": "6.1", "cpu": {"model": "<any>", "num_cores": 2}, "sysctls": {"a.b": 1}})
    writer.write_calibration({"w0-s0": {"measured_rate_bps": 99.9e6}})
    writer.append_iterations(model.iterations)
    writer.append_buckets(model.buckets)
    writer.append_links(model.samples())
    writer.append_machine(model.machine())
    changed = changes.get("changes")
    if isinstance(changed, pl.DataFrame):
        writer.append_changes(changed.to_dicts())
    size_bytes = sum(scenario.bucket_bytes)
    bound_s = (
        2 * (scenario.num_workers - 1) / scenario.num_workers * size_bytes * FRAMES_PER_BYTE * 8 / scenario.rate_bps
    )
    facts = Facts(
        name=scenario.name,
        run_id="20261121T020000Z-quickstart-1a2b3c4d",
        spec_sha256="1a2b3c4d" * 8,
        setup="star · 100mbit · ring over tcp · buckets of 1MiB",
        started_at="2026-11-21T02:00:00+00:00",
        epoch_s=1000.0,
        num_workers=scenario.num_workers,
        dilation=scenario.dilation,
        record=str(directory),
        iterations=writer.frame("iterations"),
        buckets=writer.frame("buckets"),
        samples=writer.frame("links"),
        machine=writer.frame("machine"),
        links=model.facts(),
        prediction=Prediction(
            gradient_bytes=size_bytes,
            payload_bytes=size_bytes,
            bound_s=bound_s,
            schedule_bound_s=bound_s,
            predicted_s=bound_s * 1.004,
            fitted_at=None,
            goodput_bps=scenario.rate_bps / FRAMES_PER_BYTE,
            latency_s=0.0,
            aggregation_bps=1e8,
            bottleneck=None,
        ),
        uss_bytes=[38_000_000] * scenario.num_workers,
        overhead_s={"deploy": 0.8, "calibrate": 2.9, "start": 1.4, "tear_down": 0.3},
        parameters_sha256=["ab" * 32] * scenario.num_workers,
    )
    judged = {str(name): changes.pop(name) for name in ("outcome", "reasons") if name in changes}
    summary = summarize(replace(facts, **changes))  # type: ignore[arg-type]
    writer.finish(summary.model_copy(update=judged))
    return load(directory)


@pytest.fixture
def record(tmp_path: Path) -> Callable[..., Record]:
    """`record(num_workers=16, outcome="degraded")`: a record of a modelled run."""

    def make(**arguments: object) -> Record:
        known = set(Scenario.__dataclass_fields__)
        scenario = Scenario(**{key: value for key, value in arguments.items() if key in known})  # type: ignore[arg-type]
        changes = {key: value for key, value in arguments.items() if key not in known or key == "num_workers"}
        changes.pop("num_workers", None)
        return make_record(tmp_path / "record", scenario, **changes)

    return make


@pytest.fixture(scope="session")
def summary(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    """Of a modelled run: frozen, and one for all tests, which change copies; a record takes a fifth of a second."""
    return make_record(tmp_path_factory.mktemp("modelled") / "record", Scenario()).summary
