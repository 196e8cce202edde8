"""Lets people look at a run's aggregators, and reset them, while it goes on: `switch-agg status | top | reset`.

Each has the control service of `switch-agg serve`, on a Unix socket in the run's directory that `testbed status` names.
What a run decides about its jobs and losses stays the run's.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from switch_agg.control.service import served
from switch_agg.errors import AggregationError, JobError
from switch_agg.faults import Faults
from switch_agg.job import Job
from switch_agg.status import Status
from testbed.deployment.aggregators import RunningAggregator
from testbed.errors import RunFailedError
from testbed.system.run_state import RUN_ROOT

SUFFIX = ".agg.sock"


@contextmanager
def controlled(aggregators: Sequence[RunningAggregator], directory: Path) -> Iterator[None]:
    """Within it they are served, each on `a0.agg.sock` of the directory."""
    with ExitStack() as stack:
        for each in aggregators:
            path = directory / f"{each.plan.name}{SUFFIX}"
            stack.enter_context(served(_Controlled(each), path, partial(_status, each)))
        yield


def sockets(run_id: str, *, root: Path = RUN_ROOT) -> list[Path]:
    """The sockets of the run's aggregators; empty where it has none now."""
    return sorted((root / run_id).glob(f"*{SUFFIX}"))


class _Controlled:
    """Implements switch_agg.control.service.Controlled."""

    def __init__(self, aggregator: RunningAggregator) -> None:
        self._aggregator = aggregator

    def configure(self, job: Job) -> None:  # noqa: ARG002
        raise JobError("a run's jobs are its own: say `collective.tenants` in its spec")

    def remove(self, number: int) -> None:  # noqa: ARG002
        raise JobError("a run's jobs are its own; `switch-agg reset` begins another epoch of one")

    def inject(self, faults: Faults) -> None:  # noqa: ARG002
        raise JobError("a run's losses are its links': say `link.loss` in its spec, or `testbed link down`")

    def reset(self, number: int) -> int:
        try:
            self._aggregator.reset(number)
        except RunFailedError as error:
            raise JobError(str(error)) from error
        return next(each.epoch for each in _status(self._aggregator).jobs if each.job.number == number)


def _status(aggregator: RunningAggregator) -> Status:
    found = aggregator.status()
    if found is None:
        raise AggregationError(f"{aggregator.plan.title} has ended")
    return found
