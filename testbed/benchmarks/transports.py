"""The targets of the transports of gradients, each measured beside its baselines on the same links in the same run."""

import itertools
import logging
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from testbed.benchmarks.allreduce import allreduce_rows, parse_sample
from testbed.benchmarks.targets import Benchmarks, Row, jain_index, quietly, target_row
from testbed.experiment.experiment import validate
from testbed.links.htb import goodput_fraction
from testbed.machine.doctor import plan_here, require
from testbed.runner.coordinator import Listener
from testbed.runner.session import Session, session
from testbed.system.run_state import new_run_id
from transports.baselines.base import STACKS
from transports.errors import UnsupportedError
from transports.units import parse_rate_bps, parse_size_bytes

_log: Final = logging.getLogger(__name__)


def all_reduced(
    stacks: Sequence[str], link: Mapping[str, Any], *, workers: int, size: str, repeat: int, **keys: Any
) -> tuple[dict[str, Row], dict[str, float]]:
    """The row of each stack for that size, and what the cores did meanwhile."""
    rows, facts = quietly(
        partial(
            allreduce_rows,
            num_workers=workers,
            link=dict(link),
            sizes=[size],
            stacks=stacks,
            repeat=repeat,
            congestion="cubic",
            **keys,
        )
    )
    return {row["stack"]: row for row in rows}, facts


def _times_s(stacks: Mapping[str, str], rate: str, *, workers: int, size: str, repeat: int) -> dict[str, float]:
    rows, _ = all_reduced(list(stacks.values()), {"rate": rate}, workers=workers, size=size, repeat=repeat)
    return {what: rows[stack]["time_s"]["median"] for what, stack in stacks.items()}


def _once_s(rate: str, size: str) -> float:
    """S/B: how long a link carries the buffer once."""
    return parse_size_bytes(size) * 8 / (parse_rate_bps(rate) * goodput_fraction())


def _baselines() -> list[str]:
    """gloo, and Open MPI where this machine has it."""
    try:
        STACKS.parse("openmpi").require()
    except UnsupportedError as error:
        _log.warning("beside gloo only: %s", error)
        return ["gloo"]
    return ["gloo", "openmpi"]


def _median_s(row: Row) -> float:
    return float(row["time_s"]["median"])


def _over_baselines(what: str, ours: Row, rows: Mapping[str, Row], facts: Mapping[str, float]) -> Iterator[Row]:
    """The time of ours over that of each baseline that was measured beside it; the fastest of them is the target."""
    others = {baseline: _median_s(rows[baseline]) for baseline in ("gloo", "openmpi") if baseline in rows}
    best = min(others, key=others.__getitem__)
    for baseline, time_s in others.items():
        target = 1.02 if baseline == best else None
        yield target_row(f"{what}: over {baseline}", _median_s(ours) / time_s, target, {**facts, **rows[baseline]})


def ring_rows() -> Iterator[Row]:
    """ring/tcp against the bound 2(N-1)/N x S / goodput, and against gloo and Open MPI on the same links."""
    points = [(workers, size, "0s") for workers in (4, 8) for size in ("1MB", "25MB", "100MB")]
    for workers, size, delay in [*points, (4, "25MB", "50us"), (4, "25MB", "200us")]:
        repeat = 5 if size == "100MB" else 11
        # 50 us is less than a program can be woken for in time: without netem it comes out longer.
        link = {"rate": "1gbit", "delay": delay, "best_effort": True}
        rows, facts = all_reduced(["ring/tcp", *_baselines()], link, workers=workers, size=size, repeat=repeat)
        ours = rows["ring/tcp"]
        what = f"ring/tcp, {workers} workers, {size}" + (f", {delay} a link" if delay != "0s" else "")
        details: Row = {**facts, **ours}
        target = None if size == "1MB" else 1.03
        yield target_row(f"{what}: over the bound", ours["ratio_to_bound"], target, details)
        yield from _over_baselines(what, ours, rows, facts)
        yield target_row(f"{what}: CPU over gloo's", ours["cpu_s_per_gb"] / rows["gloo"]["cpu_s_per_gb"], 1.0, details)


def small_rows() -> Iterator[Row]:
    """Messages that latency decides: how many times as fast as gloo and Open MPI `auto` is. What a set of connections
    takes, it keeps, and the next one may take a sixth more or less, of any stack: values are medians of five sets."""
    for workers in (2, 4, 8):
        for size, over_gloo in (("4B", 1.3), ("1KiB", 2.0), ("4KiB", 2.0), ("16KiB", 2.0), ("64KiB", 2.0)):
            stacks, targets = ["auto/tcp", *_baselines()], {"gloo": over_gloo, "openmpi": 1.0}
            times_s: dict[str, list[float]] = {stack: [] for stack in stacks}
            for _ in range(5):
                rows, facts = all_reduced(stacks, {"rate": "1gbit"}, workers=workers, size=size, repeat=31)
                for stack in stacks:
                    times_s[stack].append(_median_s(rows[stack]))
            for baseline in stacks[1:]:
                pairs_s = zip(times_s["auto/tcp"], times_s[baseline], strict=True)
                faster = statistics.median(theirs_s / ours_s for ours_s, theirs_s in pairs_s)
                details: Row = {**facts, "times_s": times_s["auto/tcp"], f"{baseline}_s": times_s[baseline]}
                what = f"auto/tcp, {workers} workers, {size}: times {baseline}'s speed"
                yield target_row(what, faster, targets[baseline], details, at_least=True)


def far_rows() -> Iterator[Row]:
    """25 MB among four at 1 Gbit/s, 10 ms round trip, every TCP with cubic: each of ours."""
    ours = ["auto/tcp", "ring/tcp", "ring/udp:rate=1gbit"]
    link = {"rate": "1gbit", "delay": "2500us"}  # a path crosses two links
    rows, facts = all_reduced([*ours, *_baselines()], link, workers=4, size="25MB", repeat=7)
    gloo_s = _median_s(rows["gloo"])
    for stack, row in rows.items():
        faster, details = gloo_s / _median_s(row), {**facts, **row}
        if stack != "gloo":
            target = 1.2 if stack in ours else None
            yield target_row(f"10 ms round trip, {stack}: times gloo's speed", faster, target, details, at_least=True)


def unshaped_rows() -> Iterator[Row]:
    """25 MB over links of 20 Gbit/s, which no all-reduce on a few cores fills: the processor decides."""
    for workers in (2, 4):
        stacks = ["ring/tcp", *_baselines()]
        rows, facts = all_reduced(stacks, {"rate": "20gbit"}, workers=workers, size="25MB", repeat=21)
        what = f"ring/tcp, {workers} workers, 25MB, more link than processor"
        for baseline in stacks[1:]:
            faster, details = _median_s(rows[baseline]) / _median_s(rows["ring/tcp"]), {**facts, **rows["ring/tcp"]}
            target = 1.0 if baseline == "gloo" else None
            yield target_row(f"{what}: times {baseline}'s algbw", faster, target, details, at_least=True)


def grpc_rows() -> Iterator[Row]:
    """What a ring costs whose messages are gRPC's, and with gRPC for control and the tensors beside it."""
    channels = ["ring/grpc", "ring/grpc_bulk"]
    rows, facts = all_reduced(["ring/tcp", *channels], {"rate": "1gbit"}, workers=4, size="25MB", repeat=5)
    for stack in channels:
        details, ours = {**facts, **rows[stack]}, rows["ring/tcp"]
        yield target_row(f"{stack}: time over ring/tcp's", _median_s(rows[stack]) / _median_s(ours), None, details)
        yield target_row(
            f"{stack}: CPU over ring/tcp's", rows[stack]["cpu_s_per_gb"] / ours["cpu_s_per_gb"], None, details
        )


def parameter_server_rows() -> Iterator[Row]:
    """One server: its time is linear in the workers, 2S/B each, pipelined S/B; as many servers as workers: S/B."""
    rate, size, counts = "200mbit", "4MB", (2, 4, 6, 8)
    modes = {"push, then pull": "parameter_server/tcp", "pipelined": "parameter_server:pipelined=true/tcp"}
    once_s = _once_s(rate, size)
    times_s = {workers: _times_s(modes, rate, workers=workers, size=size, repeat=3) for workers in counts}
    for (what, _), passes in zip(modes.items(), (2, 1), strict=True):
        taken_s = np.array([times_s[workers][what] for workers in counts])
        slope_s, _ = np.polyfit(counts, taken_s, 1)
        details: Row = {"times_s": dict(zip(counts, taken_s.tolist(), strict=True)), "slope_s": float(slope_s)}
        error = abs(float(slope_s) / (passes * once_s) - 1)
        straight = float(np.corrcoef(counts, taken_s)[0, 1] ** 2)
        yield target_row(f"one server, {what}: slope from {passes}S/B", error, 0.1, details)
        yield target_row(f"one server, {what}: R^2", straight, 0.99, details, at_least=True)
        if passes == 2:
            busy = min(passes * workers * once_s / times_s[workers][what] for workers in counts)
            yield target_row(f"one server, {what}: its link busy", busy, 0.95, details, at_least=True)
    shared = {"as many servers as workers": "parameter_server:servers=4:pipelined=true/tcp"}
    for what, taken in _times_s(shared, rate, workers=4, size="25MB", repeat=5).items():
        yield target_row(f"{what}, pipelined: over S/B", taken / _once_s(rate, "25MB"), 1.1, {"time_s": taken})


def peer_to_peer_rows() -> Iterator[Row]:
    """Everybody to everybody against the formulas: whole gradients (N-1)S/B, shards 2(N-1)/N S/B."""
    rate, size, workers = "200mbit", "25MB", 4
    forms = {
        "whole gradients": ("all_to_all:exchange=full/tcp", workers - 1),
        "shards": ("all_to_all/tcp", 2 * (workers - 1) / workers),
        "co-located servers": (
            f"parameter_server:servers={workers}:placement=co_located/tcp",
            2 * (workers - 1) / workers,
        ),
    }
    stacks = {what: stack for what, (stack, _) in forms.items()}
    for what, taken_s in _times_s(stacks, rate, workers=workers, size=size, repeat=5).items():
        over = taken_s / (forms[what][1] * _once_s(rate, size))
        yield target_row(f"peer to peer, {what}: over its formula", over, 1.1, {"time_s": taken_s})


def udp_rows() -> Iterator[Row]:
    """25 MB around a ring of four at 1 Gbit/s, at a fixed rate and a probed one; CPU beside TCP's."""
    stacks = {"fixed rate": "ring/udp:rate=1gbit", "probed rate": "ring/udp"}
    rows, facts = all_reduced(["ring/tcp", *stacks.values()], {"rate": "1gbit"}, workers=4, size="25MB", repeat=7)
    for what, stack in stacks.items():
        details: Row = {**facts, **rows[stack]}
        yield target_row(
            f"udp, {what}: share of the bound", 1 / details["ratio_to_bound"], 0.97, details, at_least=True
        )
    for what, stack in stacks.items():
        ratio = rows[stack]["cpu_s_per_gb"] / rows["ring/tcp"]["cpu_s_per_gb"]
        yield target_row(f"udp, {what}: CPU over ring/tcp's", ratio, 4.0, {**facts, **rows[stack]})


class _SharedLink(Listener):
    """Times of all-reduces, and what a background flow's sink received in the meantime."""

    def __init__(self, bench: Session) -> None:
        self._bench = bench
        self._borders: list[tuple[float, int]] = []
        self.durations_s: dict[int, float] = {}

    def on_barrier(self, name: str) -> None:
        if name in {"measure", "done"}:
            (flow,) = self._bench.deployment.background_counters()
            self._borders.append((time.monotonic(), flow.sink.received_bytes))

    def on_result(self, rank: int, json: str) -> None:  # noqa: ARG002
        sample = parse_sample(json)
        self.durations_s[sample.number] = max(sample.duration_s, self.durations_s.get(sample.number, 0.0))

    @property
    def background_bps(self) -> float:
        (begun_s, before_bytes), (ended_s, after_bytes) = self._borders
        return (after_bytes - before_bytes) * 8 / (ended_s - begun_s)


def udp_fair_rows() -> Iterator[Row]:
    """10 MB again and again between two, 20 ms round trip, a queue of one bandwidth-delay product at 100 Mbit/s, beside
    one cubic flow that never ends: Jain's index of the two on the link that they share. That is a switch's, whose queue
    cubic fills, or their host's own, whose queue the kernel keeps cubic from filling (tcp_limit_output_bytes,
    ip-sysctl.rst)."""
    slow = {"rate": "100mbit", "queue": "250kB"}
    shared = {"a switch": {"w1-s0": slow}, "their host": {"w*-s0": slow}}
    for (where, links), window in itertools.product(shared.items(), ("aimd", "delay")):
        size = "10MB"
        experiment = validate(
            {
                "name": "bench-fair",
                "workers": 2,
                "link": {"rate": "1gbit", "delay": "5ms"},
                "links": links,
                "background": [{"kind": "bulk", "from": "w0", "to": "w1"}],
                "workload": {
                    "kind": "allreduce", "sizes": [size], "stacks": [f"ring/udp:window={window}"], "repeat": 6
                },
                "metrics": {"port": None},
            }
        )  # fmt: skip
        plan = plan_here(experiment)
        require(plan)
        with (
            tempfile.TemporaryDirectory(prefix="testbed-bench-") as logs,
            session(plan, run_id=new_run_id(), log_directory=Path(logs)) as bench,
        ):
            shared_link = _SharedLink(bench)
            bench.work(shared_link, timeout_s=600.0)
        ours_bps = parse_size_bytes(size) * 8 / statistics.median(shared_link.durations_s.values())
        rates_bps = [ours_bps, shared_link.background_bps]
        jain = jain_index(rates_bps)
        details = {"udp_bps": rates_bps[0], "cubic_bps": rates_bps[1]}
        what = f"udp, window {window}, beside cubic in the queue of {where}: Jain's index"
        yield target_row(what, jain, 0.9, details, at_least=True)


def mptcp_rows() -> Iterator[Row]:
    """25 MB between two hosts with two disjoint paths of 100 Mbit/s between their switches: eight subflows, of which
    the switches' hash puts some on each, against TCP, which has one; and against what both paths can carry. The hosts'
    own links carry twice both: on links that they just fill, what one path drops would have taken the other's room.
    Queues hold 20 ms: an operation ends when the longer of two queues has drained, which costs a tenth with the default
    of 1 MB, 80 ms. Where a connection's subflows go is chance, so values are medians of three sets of connections."""
    topology = {"kind": "leaf_spine", "leaves": 2, "spines": 2, "hosts_per_leaf": 1}
    stacks = ["ring/tcp", "ring/mptcp:subflows=8"]
    measure = partial(all_reduced, stacks, {"rate": "400mbit"}, workers=2, size="25MB", repeat=5, topology=topology)
    for queue in ("250kB", "1MB"):
        times_s = []
        for _ in range(3):
            rows, facts = measure(links={"s*-s*": {"rate": "100mbit", "queue": queue}})
            times_s.append([_median_s(rows[stack]) for stack in stacks])
        details: Row = facts | {"times_s": times_s}
        faster = statistics.median(one_s / two_s for one_s, two_s in times_s)
        share = _once_s("200mbit", "25MB") / statistics.median(two_s for _, two_s in times_s)
        what = f"mptcp on two paths of 100 Mbit/s, queues of {queue}"
        target = 1.8 if queue == "250kB" else None
        yield target_row(f"{what}: times one path's speed", faster, target, details, at_least=True)
        yield target_row(f"{what}: share of what both can carry", share, None, details)


def udp_loss_rows() -> Iterator[Row]:
    """25 MB between two at 200 Mbit/s, 20 ms round trip, one packet of 200 lost in each direction; and as many round
    trips at a quarter of the packets each second, which says what of it is the processor's."""
    path = {"delay": "5ms", "loss": "0.25%"}  # a path crosses two links
    lossy = partial(all_reduced, workers=2, packet_mode="mtu")
    slow, facts = lossy(["ring/udp:rate=50mbit"], {"rate": "50mbit", **path}, size="6250kB", repeat=5)
    for details in slow.values():
        share = 1 / details["ratio_to_bound"]
        yield target_row("udp with 0.5 % loss, 50 Mbit/s: share of the bound", share, None, {**facts, **details})
    stacks = {"fixed rate": "ring/udp:rate=200mbit", "probed rate": "ring/udp"}
    link = {"rate": "200mbit", **path}
    # Apart, for an operation of cubic's lasts as long as fifteen of udp's, and medians need many.
    alone, _ = lossy(["ring/tcp"], link, size="25MB", repeat=2)
    rows, facts = lossy(list(stacks.values()), link, size="25MB", repeat=11)
    tcp = alone["ring/tcp"]
    for what, stack in stacks.items():
        details = {**facts, **rows[stack]}
        share = 1 / details["ratio_to_bound"]
        yield target_row(f"udp with 0.5 % loss, {what}: share of the bound", share, 0.92, details, at_least=True)
        faster = tcp["time_s"]["median"] / details["time_s"]["median"]
        yield target_row(f"udp with 0.5 % loss, {what}: times cubic's speed", faster, 2.0, details, at_least=True)


BENCHMARKS: Final[Benchmarks] = {
    "ring": ring_rows,
    "small": small_rows,
    "far": far_rows,
    "unshaped": unshaped_rows,
    "parameter-server": parameter_server_rows,
    "peer-to-peer": peer_to_peer_rows,
    "udp": udp_rows,
    "udp-loss": udp_loss_rows,
    "udp-fair": udp_fair_rows,
    "mptcp": mptcp_rows,
    "grpc": grpc_rows,
}
