"""Runs on the machines of a Ray cluster: on each that offers the resource `emulation_slot`, one at a time.

Ray places and carries; it decides nothing. One detached actor for each machine holds the resource and, by our own lock,
the machine (_slot); its run is an executed process. Ray repeats nothing: what is lost is lost, the sweep makes another
attempt, and a result of the first one that comes late is refused (testbed.runner.attempts).

The machine on which the sweep was started is the measure: machines that differ from it in processor, cores, kernel,
code, packages, delay backends or, where it matters, what `testbed fit` found are left out, and said.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from testbed.runner.engines._lease import Timing
from testbed.runner.engines.base import ENGINES, Engine, Executor, Session

if TYPE_CHECKING:
    from testbed.hosts.machines import Launch
    from testbed.plan.plan import Plan
    from testbed.system.run_state import RunState


@ENGINES.register
class Ray(Engine):
    """On every machine of a Ray cluster that offers `emulation_slot`, one run at a time on each."""

    address: str | None = None
    """Of the cluster, HOST:PORT; without it RAY_ADDRESS, or the one that runs on this machine."""

    runs_here: ClassVar[bool] = False
    over_s: ClassVar[float] = Timing().over_s

    def unsupported(self, plans: "Sequence[Plan]") -> list[str]:
        """A dilation that each machine would choose for itself."""
        found = {plan.clock.dilation: None for plan in plans if plan.dilation_reason}
        return [
            "dilation: auto goes by what each machine was measured to carry, and machines may differ in it; with the "
            f"engine ray set a number: --set dilation={dilation:g}, as this machine would choose"
            for dilation in found
        ]

    @contextmanager
    def open(self, session: Session) -> Iterator[Executor]:
        """Raises MissingRequirementError without Ray, without a cluster, or without a machine like this one."""
        from testbed.runner.engines._cluster import connected
        from testbed.runner.engines._machines import Machines

        with connected(self.address) as ray, Machines(ray, session) as machines:
            yield machines

    @contextmanager
    def placing(self, state: "RunState", log_directory: Path) -> "Iterator[Launch]":  # noqa: ARG002 (a slot has its own)
        """On the machines of the cluster, found by their addresses. Raises MissingRequirementError without Ray or a
        cluster."""
        from testbed.runner.engines._placement import placed_by_ray

        with placed_by_ray(self.address, state) as launch:
            yield launch
