"""Measures what this machine carries: streams around a star that only the cores limit, delays, and timers."""

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from testbed.calibration.cache import machine_digest
from testbed.calibration.delays import one_way_delays_s
from testbed.calibration.streams import Flow, goodputs_bps
from testbed.deployment.deployment import Deployment, deploy
from testbed.errors import MissingRequirementError
from testbed.experiment.experiment import validate
from testbed.experiment.link import BackendName
from testbed.hosts.clean import owned_run
from testbed.links.htb import goodput_fraction
from testbed.machine.budget import NUM_WORKERS, PROBED_DELAY, Budget, Carried, Lateness
from testbed.measure.machine import MachineSample
from testbed.plan.plan import Plan, make_plan
from testbed.system.kernel import realtime
from testbed.system.run_state import new_run_id

LINK_RATE: Final = "10gbit"
"""Of each of the star's links: together far more than two cores carry."""
CARRIED_DELAY: Final = "200us"
"""Of links whose delays are to cost what they cost, and not a window that is not yet open."""
WINDOW_S: Final = 0.8
WARM_UP_S: Final = 0.4
NUM_PROBES: Final = 400
NUM_NAPS: Final = 500
NAP_S: Final = 200e-6
IDLE_S: Final = 1.0
"""Asleep, to see what others take: naps of the timer, and their wake-ups, would count as theirs."""


def measure_budget(backends: Mapping[BackendName, str], *, on_step: Callable[[str], None] = lambda _: None) -> Budget:
    """Measure; a few seconds. `backends` says of each delay backend what is missing here, nothing if it works.

    Raises MissingRequirementError without root, or when something withstands.
    """
    if os.geteuid() != 0:
        raise MissingRequirementError("measuring what this machine carries needs root: sudo testbed doctor")
    on_step("other programs")
    others = busy_share()
    on_step("timer")
    timer = _timer()
    on_step("traffic")
    undelayed = _carried()
    delayed, delays = {}, {}
    for backend, problem in backends.items():
        if not problem:
            on_step(f"delay by {backend}")
            delays[str(backend)] = _delay(backend)
            on_step(f"traffic through delays by {backend}")
            delayed[str(backend)] = _carried(delay=CARRIED_DELAY, backend=backend)
    return Budget(
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=machine_digest(),
        undelayed=undelayed,
        delayed=delayed,
        delays=delays,
        timer=timer,
        busy_share=others,
    )


def busy_share() -> float:
    """Of all cores' time, by whatever runs on this machine while this process sleeps for a second."""
    before = MachineSample.take()
    time.sleep(IDLE_S)
    return MachineSample.take().busy_share_since(before)


def _timer() -> Lateness:
    late_s = []
    with realtime():
        for _ in range(NUM_NAPS):
            begun_s = time.monotonic()
            time.sleep(NAP_S)
            late_s.append(time.monotonic() - begun_s - NAP_S)
    return Lateness.of(late_s)


@contextmanager
def _deployed(**keys: Any) -> Iterator[Deployment]:
    plan = make_plan(validate({"name": "doctor", "metrics": {"port": None}, **keys}))
    with (
        tempfile.TemporaryDirectory(prefix="testbed-doctor-") as logs,
        owned_run(new_run_id()) as state,
        deploy(plan, state, log_directory=Path(logs)) as deployment,
    ):
        yield deployment


def ring_flows(plan: Plan) -> list[Flow]:
    """A flow from every worker to the next."""
    ports = [plan.worker_port(rank) for rank in range(plan.experiment.workers)]
    return [
        Flow(source=port.node, source_address=port.address, target=following.node, target_address=following.address)
        for port, following in zip(ports, [*ports[1:], ports[0]], strict=True)
    ]


def _carried(**delay: str) -> Carried:
    link = {"rate": LINK_RATE, "queue": "4MB", **delay}
    return Carried(superframe_bps=_carried_bps("superframe", link), mtu_bps=_carried_bps("mtu", link))


def _carried_bps(packet_mode: str, link: Mapping[str, str]) -> float:
    with _deployed(workers=NUM_WORKERS, link=link, packet_mode=packet_mode) as deployment:
        flows = ring_flows(deployment.plan)
        return sum(goodputs_bps(deployment, flows, window_s=WINDOW_S, warm_up_s=WARM_UP_S)) / goodput_fraction()


def _delay(backend: BackendName) -> Lateness:
    with _deployed(workers=2, link={"rate": "1gbit", "delay": PROBED_DELAY, "backend": backend}) as deployment:
        direction = deployment.plan.directions[0]
        (delays_s,) = one_way_delays_s(deployment, [direction], num_packets=NUM_PROBES)
        return Lateness.of([delay_s - direction.delay_s for delay_s in delays_s])
