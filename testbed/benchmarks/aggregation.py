"""What an aggregating switch is held to: links filled, baselines on the same links in the same run, its cost."""

import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from switch_agg.client import Client
from switch_agg.dataplanes.ebpf import ProgramTrial
from switch_agg.job import Job
from switch_agg.wire import PORTS, Kind, Packet
from testbed.benchmarks.targets import Benchmarks, Row, quietly, target_row
from testbed.benchmarks.transports import all_reduced
from testbed.deployment.deployment import deploy
from testbed.errors import RunFailedError
from testbed.experiment.experiment import validate
from testbed.hosts.clean import owned_run
from testbed.machine.doctor import plan_here, require
from testbed.system.run_state import new_run_id

SIZE: Final = "25MB"
NUM_TRIED_CHUNKS: Final = 2000


def _median_s(row: Row) -> float:
    return float(row["time_s"]["median"])


def _share(what: str, row: Row, facts: Row, target: float) -> Row:
    share = 1 / row["ratio_to_schedule_bound"]
    return target_row(f"{what}: share of its schedule's bound", share, target, {**facts, **row}, at_least=True)


def baseline_rows() -> Iterator[Row]:
    """Four workers at 200 Mbit/s, 256 elements a packet, beside a ring, gloo and a server for each worker."""
    stacks = ["in_network/ebpf", "ring/tcp", "gloo", "parameter_server:servers=4/tcp"]
    rows, facts = all_reduced(stacks, {"rate": "200mbit"}, workers=4, size=SIZE, repeat=5)
    ours = rows["in_network/ebpf"]
    yield _share("4 workers, 200 Mbit/s", ours, facts, 0.97)
    for stack, target in (("ring/tcp", 1.45), ("gloo", 1.45), ("parameter_server:servers=4/tcp", None)):
        faster = _median_s(rows[stack]) / _median_s(ours)
        details = {**facts, **rows[stack]}
        yield target_row(f"4 workers, 200 Mbit/s: times the speed of {stack}", faster, target, details, at_least=True)
    ratio = ours["cpu_s_per_gb"] / rows["ring/tcp"]["cpu_s_per_gb"]
    yield target_row("4 workers, 200 Mbit/s: CPU over ring/tcp's", ratio, 5.0, {**facts, **ours})


def many_workers_rows() -> Iterator[Row]:
    """Eight workers at 50 Mbit/s beside a ring, and beside two workers."""
    link = {"rate": "50mbit"}
    many, facts = all_reduced(["in_network/ebpf", "ring/tcp"], link, workers=8, size=SIZE, repeat=2)
    few, _ = all_reduced(["in_network/ebpf"], link, workers=2, size=SIZE, repeat=2)
    ours_s = _median_s(many["in_network/ebpf"])
    faster = _median_s(many["ring/tcp"]) / ours_s
    details = {**facts, **many["in_network/ebpf"]}
    yield target_row("8 workers, 50 Mbit/s: times the speed of ring/tcp", faster, 1.65, details, at_least=True)
    yield target_row(
        "50 Mbit/s: time of 8 workers over that of 2", ours_s / _median_s(few["in_network/ebpf"]), 1.1, details
    )


def jumbo_rows() -> Iterator[Row]:
    """2048 elements a packet: tensors of floats at 400 Mbit/s, integers that lie ready at 1 Gbit/s."""
    stack = "in_network:num_elements=2048/ebpf"
    rows, facts = all_reduced([stack], {"rate": "400mbit"}, workers=4, size=SIZE, repeat=6, mtu=9000)
    yield _share("jumbo frames, floats, 400 Mbit/s", rows[stack], facts, 0.90)
    shares, facts = quietly(partial(_integer_shares, stack, rate="1gbit", num_workers=4, num_chunks=6000, repeat=5))
    details = {**facts, "samples": shares}
    what = "jumbo frames, integers, 1 Gbit/s: share of the bound"
    yield target_row(what, statistics.median(shares), 0.85, details, at_least=True)


def _integer_shares(stack: str, *, rate: str, num_workers: int, num_chunks: int, repeat: int) -> list[float]:
    """Of the bound, by sums of integers whose datagrams were made before: the protocol and the switch alone."""
    workload = {"kind": "allreduce", "stacks": [stack]}
    spec = {"name": "bench-integers", "workers": num_workers, "mtu": 9000, "link": {"rate": rate}, "workload": workload}
    plan = plan_here(validate({**spec, "metrics": {"port": None}}))
    require(plan)
    (aggregator,) = plan.aggregators
    job, rate_bps = aggregator.job, plan.experiment.link.rate_bps
    with (
        ExitStack() as stack_,
        tempfile.TemporaryDirectory(prefix="testbed-bench-") as logs,
        owned_run(new_run_id()) as state,
        deploy(plan, state, log_directory=Path(logs)) as deployment,
    ):
        deployment.start_aggregators()
        clients = []
        for rank in range(num_workers):
            with deployment.hosts[f"w{rank}"].entered():
                client = Client(job, rank, (aggregator.port.address, PORTS.start), local=(job.workers[rank], 4000))
            clients.append(stack_.enter_context(client))
        _at_once([client.join for client in clients])
        rng = np.random.default_rng(1)
        values = rng.integers(-(2**20), 2**20, (num_workers, num_chunks, job.num_elements), dtype=np.int32)
        exponents, shares = np.zeros(num_chunks, np.int8), []
        for _ in range(1 + repeat):  # the first learns the round trip
            staged = [client.staged(each, exponents) for client, each in zip(clients, values, strict=True)]
            begun_s = time.monotonic()
            sums = _at_once([partial(client.reduce_staged, each) for client, each in zip(clients, staged, strict=True)])
            shares.append(num_chunks * plan.aggregators[0].collective.frame_bytes * 8 / rate_bps)
            shares[-1] /= time.monotonic() - begun_s
            if any((each.elements != values.sum(axis=0)).any() for each in sums):
                raise RunFailedError("the switch's sums of integers are wrong")
        _at_once([client.leave for client in clients])
    return shares[1:]


def _at_once(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Each in a thread of its own. Raises what the first of them raised."""
    results: list[Any] = [None] * len(calls)

    def one(index: int) -> None:
        try:
            results[index] = calls[index]()
        except Exception as error:  # noqa: BLE001 - raised below
            results[index] = error

    threads = [threading.Thread(target=one, args=(index,), name=f"bench-{index}") for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


def delay_rows() -> Iterator[Row]:
    """Four workers at 50 Mbit/s, 2 ms each way: with a pool that fills the link, and one chunk at a time."""
    link = {"rate": "50mbit", "delay": "2ms"}
    rows, facts = all_reduced(["in_network/ebpf"], link, workers=4, size=SIZE, repeat=2)
    yield _share("50 Mbit/s, 2 ms each way", rows["in_network/ebpf"], facts, 0.90)
    alone = "in_network:num_slots=1/ebpf"
    rows, facts = all_reduced([alone], link, workers=4, size="64KiB", repeat=3)
    round_trip_ms = _median_s(rows[alone]) / 64 * 1e3
    yield target_row("2 ms each way, one chunk at a time: round trip, ms", round_trip_ms, 4.0, facts, at_least=True)


def loss_rows() -> Iterator[Row]:
    """Four workers at 100 Mbit/s, one packet of a hundred lost on each way, beside none lost; sums are checked."""
    stack, times_s = "in_network:num_slots=256/ebpf", []
    facts: Row = {}
    for loss in ("0%", "1%"):
        link = {"rate": "100mbit", "loss": loss}
        rows, facts = all_reduced([stack], link, workers=4, size=SIZE, repeat=3, packet_mode="mtu")
        times_s.append(_median_s(rows[stack]))
    yield target_row("100 Mbit/s, 1 % lost each way: time over that without loss", times_s[1] / times_s[0], 1.25, facts)


def program_rows() -> Iterator[Row]:
    """Nanoseconds in the kernel's program for one contribution, headers parsed and maps found, by BPF_PROG_TEST_RUN."""
    medians_ns = {}
    for num_elements in (64, 256):
        medians_ns[num_elements] = _contribution_ns(num_elements)
        yield target_row(f"program, ns for a packet of {num_elements} elements", medians_ns[num_elements], None, {})
    slope_ns = (medians_ns[256] - medians_ns[64]) / (256 - 64)
    yield target_row("program, ns for each element more", slope_ns, None, {})


def _contribution_ns(num_elements: int) -> float:
    """Median over contributions that are added to what is there."""
    job = Job(workers=("10.0.0.1", "10.0.1.1", "10.0.2.1"), num_elements=num_elements, num_slots=16)
    trial = ProgramTrial(job)
    taken_ns = []
    try:
        elements = np.arange(num_elements, dtype=np.int32)
        for chunk in range(NUM_TRIED_CHUNKS):
            slot, version = job.place(chunk)
            data = Packet(Kind.DATA_32, 0, 0, chunk, slot=slot, version=version, elements=elements).encode()
            # Of three contributions to a chunk the second is added to one and completes nothing.
            taken_ns.append([trial.send(host, data)[2] for host in job.workers][1])
    finally:
        trial.close()
    return statistics.median(taken_ns)


BENCHMARKS: Final[Benchmarks] = {
    "baselines": baseline_rows,
    "many-workers": many_workers_rows,
    "jumbo": jumbo_rows,
    "delay": delay_rows,
    "loss": loss_rows,
    "program": program_rows,
}
