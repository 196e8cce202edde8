"""A runtime decides what runs in what, says what it needs of the machine, and starts the run's hosts."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from transports.registry import Options, Registry

if TYPE_CHECKING:  # plans contain experiments, which contain runtimes
    from testbed.hosts.base import RunningRuntime
    from testbed.plan.plan import Plan
    from testbed.system.run_state import RunState


class Runtime(Options):
    """A value on the runtime axis."""

    @abstractmethod
    def text(self) -> str:
        """For `testbed plan`: where imports happen, and what workers run in."""

    def contained(self, plan: "Plan") -> Mapping[str, Sequence[str]]:  # noqa: ARG002 (where nothing is)
        """The nodes that get more than namespaces, each with the modules that it imports. Pure."""
        return {}

    @abstractmethod
    def lacks(self, plan: "Plan") -> list[str]:
        """What this needs and the machine does not have, each with its cure."""

    @abstractmethod
    def inherited(self) -> Mapping[str, str]:
        """The variables that a program has without being given any."""

    @abstractmethod
    def start(self, plan: "Plan", state: "RunState", *, log_directory: Path) -> "RunningRuntime":
        """Start what the hosts of the plan are made of. Raises EnvironmentLacksError."""


RUNTIMES: Final[Registry[Runtime]] = Registry("runtime", "testbed.experiment.runtimes")
