"""What a run observes of its workers and links: plain data that the recorder fills and the verdict reads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from testbed.control.worker import SwitchStatistics
from testbed.measure.programs import ProcessorUse, Programs, others_between
from testbed.measure.settings import SettingChange
from testbed.measure.snapshot import Snapshot
from transports.channels.base import PeerStatistics

COMPARED_PHASES: Final[Mapping[str, tuple[str, str]]] = {
    "compute_only": ("compute_only", "compute_only_done"),
    "measured": ("measure", "done"),
}
"""The barriers at which the phases begin and end in which it matters what other programs used of the cores."""


class Barrier(NamedTuple):
    """Moments of CLOCK_MONOTONIC; between the two the controller reads counters, and the workers wait for it."""

    arrived_s: float
    """The last worker had come."""
    released_s: float


class GradientThreadsNow(NamedTuple):
    """How the kernel runs threads that move gradients, or serve training data, and were put before those that
    compute."""

    num_first: int
    """Those that move gradients and that it runs so."""
    ordinary: Sequence[str]
    """All that it does not run so: `w1: grpc_poller (thread 4711) is in SCHED_OTHER`."""


@dataclass(kw_only=True, slots=True)
class Observations:
    """Empty where no worker was started."""

    window: dict[str, Snapshot] = field(default_factory=dict)
    """The counters at the borders of the measured window, at `measure` and at `done`; and of reading before the first
    iteration, at `started` and at `read`."""
    barriers: dict[str, Barrier] = field(default_factory=dict)
    """Those that all workers have come to."""
    processor_use: dict[str, ProcessorUse] = field(default_factory=dict)
    """Where the machine's CPU time had gone, by barrier: those of `COMPARED_PHASES`."""
    foreign_changes: list[SettingChange] = field(default_factory=list)
    """Of settings, that the run has not made: from before the workers start to the end of the measured window."""
    changes_late_s: float = 0.0
    """How long after its time a change of the schedule or of a trace had been made in the measured iterations, at most;
    virtual."""
    interference: list[str] = field(default_factory=list)
    """What others did to the run's processes: `w1 was stopped for 2.0 s (SIGSTOP, or a debugger)`."""
    parameters_sha256: list[str] = field(default_factory=list)
    """Of each worker that trained, when it finished."""
    uss_bytes: list[int] = field(default_factory=list)
    """Of each worker, when it finished."""
    switch_statistics: dict[int, SwitchStatistics] = field(default_factory=dict)
    """By rank, of workers whose gradients are aggregated in the network."""
    endpoint_statistics: dict[int, dict[int, PeerStatistics]] = field(default_factory=dict)
    """By rank and peer, of channels that count their own bytes."""
    first_iteration_s: float | None = None
    """CLOCK_MONOTONIC when the first iteration of any phase began."""
    launched_s: float | None = None
    """CLOCK_MONOTONIC when the controller began to start the workers."""
    waits_missing: str | None = "the workers did not come to the end of the measured iterations"
    """Why not every wait for a core is in the record; None: each is."""
    priority_refused: str | None = None
    """Why threads that move gradients did not run before those that compute, where they were to."""
    gradient_threads: GradientThreadsNow | None = None
    """When the measured iterations ended; None: none were to run before those that compute, or could."""
    exits: dict[int, tuple[int, float]] = field(default_factory=dict)
    """By rank: a command's exit status, and when it ended (CLOCK_MONOTONIC)."""
    hints: list[str] = field(default_factory=list)
    """What a reader of the results should know of the command."""

    @property
    def reading_s(self) -> float:
        """How long workers read before the first iteration, in wall seconds; 0 where they had nothing to read."""
        if "read" not in self.barriers:
            return 0.0
        return self.barriers["read"].arrived_s - self.barriers["started"].released_s

    @property
    def other_programs(self) -> dict[str, Programs]:
        """By phase, those of `COMPARED_PHASES` that all workers came through."""
        use = self.processor_use
        spans = {phase: (use[first], use[last]) for phase, (first, last) in COMPARED_PHASES.items() if last in use}
        found = {phase: others_between(*span) for phase, span in spans.items()}
        return {phase: programs for phase, programs in found.items() if programs is not None}
