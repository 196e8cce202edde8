"""What the links are held to. Every row is measured on links made for it, as a run makes them."""

import math
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.console import Console
from rich.table import Table

from testbed.benchmarks.link_changes import measure_changes
from testbed.benchmarks.targets import Benchmarks, Row, jain_index, quietly, target_row
from testbed.calibration.calibrate import delays_of, measure_rate, rate_of
from testbed.calibration.delays import one_way_delays_s
from testbed.calibration.losses import measure_loss
from testbed.calibration.queues import measure_queue, num_drops
from testbed.calibration.streams import Flow, goodputs_bps
from testbed.deployment.deployment import Deployment, deploy
from testbed.experiment.delay_backends.base import delay_backends
from testbed.experiment.experiment import validate
from testbed.hosts.base import runtime_driver
from testbed.hosts.clean import owned_run
from testbed.links.htb import goodput_fraction
from testbed.machine.capacity import ring_flows
from testbed.machine.doctor import missing_for_backend, plan_here, require
from testbed.plan.plan import Plan
from testbed.runner.session import IMPORT_TIMEOUT_S
from testbed.system.run_state import new_run_id
from transports.units import format_rate, format_time, parse_rate_bps

Made = Callable[..., AbstractContextManager[Deployment]]
"""`deployed`, of one runtime."""

NUM_WINDOWS: Final = 3
Z_99: Final = 2.576
"""99 % of a normal distribution lie within so many standard deviations."""

_RATES: Final = ("1mbit", "10mbit", "100mbit", "1gbit", "2.5gbit", "5gbit", "10gbit")
_TIGHT_BPS: Final = (10e6, 1e9)
_DELAYS: Final = ("200us", "1ms", "5ms", "20ms", "100ms")
_LOSSES: Final = ("0.1%", "1%", "5%")
_CHANGED_RATES_BPS: Final = (50e6, 100e6, 50e6, 100e6)
_QUEUES: Final = (("10mbit", "150kB"), ("100mbit", "150kB"), ("100mbit", "1MB"), ("1gbit", "1MB"))


@contextmanager
def deployed(*, workers: int = 2, runtime: Any = "namespace", **keys: Any) -> Iterator[Deployment]:
    """Links as a run makes them, a star unless `keys` of the spec say otherwise; where the hosts are containers, at
    theirs."""
    plan = plan_here(
        validate(
            {
                "name": "bench-links",
                "workers": workers,
                "workload": {"kind": "command", "argv": ["true"]},  # nothing is started, and nothing imported for it
                "metrics": {"port": None},
                "runtime": runtime,
                **keys,
            }
        )
    )
    require(plan)
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="testbed-bench-")))
        state = stack.enter_context(owned_run(new_run_id()))
        hosts = None
        if (driver := runtime_driver(plan)).contained():
            hosts = driver.start(state, log_directory=logs)
            stack.callback(hosts.close)
        deployment = stack.enter_context(deploy(plan, state, log_directory=logs, runtime=hosts))
        if hosts is not None:
            hosts.wait_ready(IMPORT_TIMEOUT_S)
        yield deployment


def rate_rows(made: Made) -> Iterator[Row]:
    """One TCP stream over one link: its goodput against rate x 1448/1514."""
    for rate in _RATES:
        rate_bps = parse_rate_bps(rate)
        queue = "4MB" if rate_bps >= 5e9 else "1MB"
        with made(link={"rate": rate, "queue": queue}) as deployment:
            direction = deployment.plan.directions[0]
            repeat = 3 if rate_bps >= 10e6 else 1
            samples: list[float] = []
            facts: dict[str, float] = {}
            for _ in range(repeat):
                (goodput_bps, _), facts = quietly(partial(measure_rate, deployment, direction))
                samples.append(goodput_bps / (direction.rate_bps * goodput_fraction()) - 1)
        tight = _TIGHT_BPS[0] <= rate_bps <= _TIGHT_BPS[1]
        error = statistics.median(samples)
        yield target_row(f"rate error at {rate}", abs(error), 0.005 if tight else 0.01, facts | {"samples": samples})


def ring_rows(made: Made) -> Iterator[Row]:
    """Eight links of 2.5 Gbit/s through the routed star, each worker sending to the next: medians of windows."""
    with made(workers=8, link={"rate": "2.5gbit"}) as deployment:
        flows = ring_flows(deployment.plan)
        windows_bps = []
        for _ in range(NUM_WINDOWS):
            rates_bps, facts = quietly(partial(goodputs_bps, deployment, flows, window_s=2.0, warm_up_s=0.5))
            windows_bps.append(rates_bps)
    gbps = [statistics.median(of_flow) / 1e9 for of_flow in zip(*windows_bps, strict=True)]
    worst = max(abs(rate / (2.5 * goodput_fraction()) - 1) for rate in gbps)
    details = facts | {"gbps": gbps, "windows_bps": windows_bps}
    yield target_row("total of 8 x 2.5 Gbit/s, Gbit/s", sum(gbps), 18.0, details, at_least=True)
    yield target_row("worst of the 8 links, error", worst, 0.04, facts)


def delay_rows(made: Made) -> Iterator[Row]:
    """One way, batches of 1000 packets, by every backend that works here; its own constant is taken off.

    The value is the median of the batches': one interruption of the machine delays many packets of one batch.
    """
    for backend in delay_backends():
        if missing_for_backend(backend):
            continue
        constant_s = statistics.median(statistics.median(batch_s) for batch_s in _late_s(made, backend, "1ms"))
        for delay in _DELAYS:
            batches_s, facts = quietly(partial(_late_s, made, backend, delay))
            away_s = np.asarray(batches_s) - constant_s  # batches x packets: these links lose none
            requested_s = validate({"name": "t", "link": {"delay": delay}}).link.delay_s
            means_s, p99s_s = away_s.mean(axis=1), np.percentile(away_s, 99, axis=1)
            mean_s, p99_s = float(np.median(means_s)), float(np.median(p99s_s))
            details = facts | {"constant_s": constant_s, "means_s": means_s.tolist(), "p99s_s": p99s_s.tolist()}
            target_s = max(0.03 * requested_s, 60e-6)
            yield target_row(f"{backend} {delay}: mean error, us", 1e6 * abs(mean_s), 1e6 * target_s, details)
            yield target_row(f"{backend} {delay}: p99 lateness, us", 1e6 * p99_s, 300.0, details)


def _late_s(made: Made, backend: str, delay: str) -> list[list[float]]:
    with made(link={"rate": "1gbit", "delay": delay, "backend": backend}) as deployment:
        direction = deployment.plan.directions[0]
        batches_s = [one_way_delays_s(deployment, [direction], num_packets=1000)[0] for _ in range(NUM_WINDOWS)]
    return [[delay_s - direction.delay_s for delay_s in batch_s] for batch_s in batches_s]


def through_delay_rows(made: Made) -> Iterator[Row]:
    """One TCP stream through 1 ms under a shaper of 10 Gbit/s."""
    for backend in delay_backends():
        if missing_for_backend(backend):
            continue
        link = {"rate": "10gbit", "delay": "1ms", "queue": "10MB", "backend": backend}
        with made(link=link) as deployment:
            direction = deployment.plan.directions[0]
            samples = []
            for _ in range(3):
                (goodput_bps, _), facts = quietly(partial(measure_rate, deployment, direction, window_s=1.0))
                samples.append(goodput_bps / 1e9)
        what = f"{backend}: goodput through 1 ms at 10 Gbit/s, Gbit/s"
        yield target_row(what, statistics.median(samples), 9.0, facts | {"samples": samples}, at_least=True)


def loss_rows(made: Made) -> Iterator[Row]:
    """50,000 single packets: how many standard deviations from the loss requested; 99 % of true links stay below."""
    for backend in delay_backends():
        if missing_for_backend(backend):
            continue
        for loss in _LOSSES:
            link = {"rate": "1gbit", "loss": loss, "backend": backend}
            with made(link=link, packet_mode="mtu") as deployment:
                direction = deployment.plan.directions[0]
                requested = direction.loss
                found = measure_loss(deployment, direction, requested=requested, num_packets=50_000, z=Z_99)
            spread = math.sqrt(found.num_packets * requested * (1 - requested))
            away = abs(found.num_lost - found.num_packets * requested) / spread
            lost = found.num_lost / found.num_packets
            yield target_row(f"{backend} loss {loss}: standard deviations away", away, Z_99, {"lost_share": lost})


def queue_rows(made: Made) -> Iterator[Row]:
    """What a full queue adds against bytes x 8 / rate, on the sender's port and on the switch's."""
    for rate, queue in _QUEUES:
        with made(link={"rate": rate, "queue": queue}) as deployment:
            for direction in deployment.plan.directions[:2]:
                found = measure_queue(deployment, direction)
                details = {"added_s": found.added_s, "expected_s": found.expected_s, "num_drops": found.num_drops}
                error = abs(found.error) if found.num_drops else math.inf
                yield target_row(f"queue of {queue} at {rate}, {direction.name}: error", error, 0.05, details)


def incast_rows(made: Made) -> Iterator[Row]:
    """Eight senders to one receiver at 100 Mbit/s, a queue of 150 kB: who drops, and how evenly they share."""
    with made(workers=9, link={"rate": "100mbit", "queue": "150kB"}) as deployment:
        plan = deployment.plan
        flows = _incast_flows(plan)
        rates_bps = goodputs_bps(deployment, flows, window_s=10.0, warm_up_s=2.0)
        drops = {direction.hop: num_drops(deployment, direction) for direction in plan.directions}
    at_switch = drops["s0", "w0"]
    details = {"rates_bps": rates_bps, "switch_drops": at_switch}
    yield target_row("incast 8 to 1: Jain's index", jain_index(rates_bps), 0.9, details, at_least=True)
    yield target_row("incast 8 to 1: drops at the switch port", at_switch, 1, details, at_least=True)
    yield target_row(
        "incast 8 to 1: drops in senders", sum(drops[f"w{rank}", "s0"] for rank in range(1, 9)), 0, details
    )


def _incast_flows(plan: Plan) -> list[Flow]:
    target = plan.worker_port(0)
    senders = [plan.worker_port(rank) for rank in range(1, plan.experiment.workers)]
    return [
        Flow(source=port.node, source_address=port.address, target=target.node, target_address=target.address)
        for port in senders
    ]


def change_rows(made: Made) -> Iterator[Row]:
    """`testbed link set` under a TCP stream, 100 to 50 to 100 Mbit/s twice: until the new rate is there, and drops."""
    for backend in delay_backends():
        if missing_for_backend(backend):
            continue
        # The queue holds more than TCP may have under way: nothing but a change can drop a packet.
        link = {"rate": "100mbit", "delay": "1ms", "queue": "16MB", "backend": backend}
        with made(link=link) as deployment:
            direction = deployment.plan.directions[0]
            found, facts = quietly(partial(measure_changes, deployment, direction, _CHANGED_RATES_BPS))
        details = facts | {"settling_s": found.settling_s, "taking_s": found.taking_s}
        yield target_row(f"{backend}: link set under a stream, s to the new rate", max(found.settling_s), 0.2, details)
        yield target_row(f"{backend}: link set under a stream, packets dropped", found.num_drops, 0, details)


_ROWS: Final[Mapping[str, Callable[[Made], Iterator[Row]]]] = {
    "rate": rate_rows,
    "ring": ring_rows,
    "delay": delay_rows,
    "through-delay": through_delay_rows,
    "loss": loss_rows,
    "queue": queue_rows,
    "incast": incast_rows,
    "change": change_rows,
}


def benchmarks(runtime: Any = "namespace") -> Benchmarks:
    """The benchmarks of links between hosts of that runtime, as a spec names it."""
    return {name: partial(rows, partial(deployed, runtime=runtime)) for name, rows in _ROWS.items()}


def link_rows(links: Sequence[dict[str, str]], *, repeat: int, runtime: str = "namespace") -> list[Row]:
    """Measure one direction of an emulated link of each kind, repeatedly, against what was requested."""
    return [row for link in links for row in _link_row(link, repeat, runtime)]


def _link_row(link: dict[str, str], repeat: int, runtime: str) -> list[Row]:
    with deployed(link=link, runtime=runtime) as deployment:
        plan = deployment.plan
        measured = [rate_of(deployment, direction) for _ in range(repeat) for direction in plan.directions[:2]]
        delays = delays_of(deployment, plan.directions[:2])
    requested = plan.experiment.link
    goodput_bps = statistics.median(m.goodput_bps for m in measured)
    return [
        {
            "rate_bps": requested.rate_bps,
            "delay_s": requested.delay_s,
            "loss": requested.mean_loss,
            "backend": plan.delay_backend or "none",
            "num_samples": len(measured),
            "measured_goodput_bps": goodput_bps,
            "expected_goodput_bps": requested.rate_bps * goodput_fraction(),
            "goodput_ratio": goodput_bps / (requested.rate_bps * goodput_fraction()),
            "measured_rate_bps": goodput_bps / goodput_fraction(),
            "measured_delay_s": statistics.median(measured.delay_s for measured in delays),
        }
    ]


def render_links(rows: Sequence[Row], console: Console) -> None:
    """A table of links: what was requested of each, and what was measured."""
    table = Table(box=None, pad_edge=False)
    for column in ("rate", "measured", "goodput/expected", "delay", "measured", "backend"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            format_rate(row["rate_bps"]),
            f"{row['measured_rate_bps'] / 1e6:.3f} Mbit/s",
            f"{row['goodput_ratio']:.4f}",
            format_time(row["delay_s"]),
            f"{row['measured_delay_s'] * 1e6:.0f} us",
            row["backend"],
        )
    console.print(table)
