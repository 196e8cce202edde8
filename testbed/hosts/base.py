"""A host runs processes: it enters, starts, streams, limits and stops them. Workers, servers and aggregators alike.

A value on the runtime axis (testbed.experiment.runtimes) names its :class:`RuntimeDriver`, which starts a
:class:`RunningRuntime`, which makes a :class:`Host` of every node.
"""

import importlib
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from testbed.experiment.host import Limits
from testbed.experiment.runtimes.base import Runtime
from testbed.plan.plan import Plan
from testbed.system.run_state import RunState


@dataclass(frozen=True, kw_only=True, slots=True)
class Throttling:
    """What the scheduler's bandwidth control did to a limited process since it was started (sched-bwc)."""

    num_periods: int
    """Periods in which it had anything to run."""
    num_throttled: int
    """Those in which it used up its quota and had to stop."""
    throttled_s: float
    """Time for which it was stopped; summed over cores on kernels that count so."""

    def since(self, earlier: "Throttling") -> "Throttling":
        """What happened in between."""
        return Throttling(
            num_periods=self.num_periods - earlier.num_periods,
            num_throttled=self.num_throttled - earlier.num_throttled,
            throttled_s=self.throttled_s - earlier.throttled_s,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessSpec:
    """A process to start in a host."""

    name: str
    """Unique within the run; its log is `<name>.log`."""
    entry: str | None = None
    """`module:function` to call with `arguments` in a fork of the fork server (torch already imported) ..."""
    argv: tuple[str, ...] = ()
    """... or a command line to execute. Exactly one of the two."""
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to the run's own environment."""
    limits: Limits = field(default_factory=Limits)
    """Set and read back before it starts, in control groups of its own."""
    listens: bool = False
    """Whether :meth:`Process.tell` may be called."""
    stdin: int | None = None
    """A descriptor of this process that is to be a command line's standard input; None: there is nothing to read."""
    privileged: bool = False
    """A program that makes or measures the network, not one that uses it: whatever the host is, it gets the host's
    network namespace only and keeps the rights and files of the controller. Needs argv."""

    def __post_init__(self) -> None:
        """Exactly one of entry and argv."""
        assert (self.entry is None) != (not self.argv), f"process {self.name}: give entry or argv, not both"
        assert self.stdin is None or (self.argv and not self.listens), f"process {self.name}: one standard input"
        assert self.argv or not self.privileged, f"process {self.name}: a privileged program is an argv"


class Process(Protocol):
    """A started process."""

    @property
    def name(self) -> str:
        """The process' name, as in its spec."""

    @property
    def pid(self) -> int:
        """The process' id in the root pid namespace."""

    @property
    def log_path(self) -> Path:
        """The file that its standard output and error go to."""

    def poll(self) -> int | None:
        """The exit status (negative: the signal that ended it), or None while it runs. Never blocks."""

    def wait(self, timeout_s: float) -> int | None:
        """Wait for the end; None if it still runs after the timeout."""

    def tell(self, line: str) -> None:
        """Write a line to its standard input. Raises RunFailedError when it has ended."""

    def send_signal(self, signal: int) -> None:
        """Send a signal; does nothing if the process has ended."""

    def stop(self, timeout_s: float) -> int:
        """SIGTERM, then SIGKILL after the timeout; returns the exit status."""


class Host(Protocol):
    """One node that runs processes."""

    @property
    def name(self) -> str:
        """`w0`, `ps0`, `s0`."""

    @property
    def pid(self) -> int:
        """A process that holds the host's namespaces."""

    def entered(self) -> AbstractContextManager[None]:
        """Within it, the calling thread's new sockets belong to the host's network namespace."""

    def start(
        self,
        process: ProcessSpec,
        *,
        on_output: Callable[[str], None] | None = None,
        on_error: Callable[[str], None] | None = None,
    ) -> Process:
        """Start a process in the host; each line of its output goes to its log and to `on_output`.

        With `on_error`, of a command line only, each line of its standard error goes there and to `<name>.stderr.log`
        instead.

        Raises MissingRequirementError when it cannot be started, or one of its limits cannot be had.
        """

    def execute(self, argv: Sequence[str], *, stdin: str = "", timeout_s: float = 30.0) -> str:
        """Run a short command in the host's network namespace and return its output.

        Raises MissingRequirementError with argv, exit status and stderr when it fails.
        """

    def name_differences(self, names: Mapping[str, str]) -> list[str]:
        """Where the host is not called by its name, or does not know the addresses of all hosts by these names; empty
        when it is and does. Raises OSError when its processes have gone."""

    def limit_differences(self) -> list[str]:
        """Every limit of the host's processes that no longer reads as it was set; empty when all do."""

    def out_of_memory(self) -> list[str]:
        """The names of processes from which the kernel took one away because of their memory limit."""

    def throttling(self) -> Mapping[str, Throttling]:
        """What the CPU quota did, by the name of each process that has one."""

    def tell_to_end(self) -> None:
        """SIGTERM to every process of the host, without waiting: several hosts stop at once that way."""

    def stop(self) -> None:
        """Stop every process of the host and remove the control groups of their limits. Idempotent."""


class RunningRuntime(Protocol):
    """What the hosts of one run are made of: started before the network, closed after it."""

    @property
    def holders(self) -> Mapping[str, int]:
        """Processes that hold the namespaces of nodes which the runtime has made, by node. Those of the other nodes
        are the deployment's to make."""

    @property
    def failure(self) -> str | None:
        """Why it, or a part of it, has ended unexpectedly; None while all is well."""

    def host(self, node: str, holder_pid: int) -> Host:
        """The host of a node, given the process that holds its namespaces."""

    def wait_ready(self, timeout_s: float) -> None:
        """Wait until processes can be started. Raises RunFailedError."""

    def describe(self) -> Mapping[str, Any]:
        """What the record keeps of it."""

    def close(self) -> None:
        """End it and everything that was started with it. Idempotent."""


RuntimeT = TypeVar("RuntimeT", bound=Runtime)


class RuntimeDriver(Generic[RuntimeT]):
    """What a value on the runtime axis does for a plan."""

    def __init__(self, options: RuntimeT, plan: Plan) -> None:
        self.options = options
        self.plan = plan

    @classmethod
    def image_id(cls, options: RuntimeT) -> str | None:  # noqa: ARG003 (of those that have an image)
        """What the image that programs come from is here and now, whatever its name; None: programs are this machine's,
        or nobody can say."""
        return None

    def contained(self) -> Mapping[str, Sequence[str]]:
        """The nodes that get more than namespaces, each with the modules that it imports. Pure."""
        return {}

    @abstractmethod
    def missing(self) -> list[str]:
        """What this needs and the machine does not have, each with its fix."""

    @abstractmethod
    def start(self, state: RunState, *, log_directory: Path) -> RunningRuntime:
        """Start what the hosts of the plan are made of. Raises MissingRequirementError."""


def runtime_driver(plan: Plan) -> RuntimeDriver[Runtime]:
    """The driver of the plan's runtime; its module is imported now."""
    return _driver_of(plan.experiment.runtime)(plan.experiment.runtime, plan)


def image_id(runtime: Runtime) -> str | None:
    """What the image that the runtime's programs come from is here and now; None: they are this machine's, or nobody
    can say. Its driver's module is imported now."""
    return _driver_of(runtime).image_id(runtime)


def _driver_of(runtime: Runtime) -> type[RuntimeDriver[Runtime]]:
    module, _, name = runtime.driver.partition(":")
    driver: type[RuntimeDriver[Runtime]] = getattr(importlib.import_module(module), name)
    return driver
