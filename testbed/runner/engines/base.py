"""What an engine promises: it makes the runs of a sweep, on this machine or on many, and says what became of each.

A sweep (testbed.runner.sweep) decides which run is made next, remembers every attempt and takes results in; an engine
has machines, starts an attempt on one of them and reports its end. Whatever an engine does, an attempt that has been
given up is never taken in: attempts are numbered, and only the number of one that is still expected is accepted.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

from pydantic import ValidationError
from rich.console import Console

from testbed.errors import SpecError
from testbed.experiment.documents import load_document
from testbed.experiment.experiment import Experiment
from transports.errors import OptionError
from transports.registry import Options, Registry, option_names

if TYPE_CHECKING:
    from testbed.hosts.machines import Launch
    from testbed.plan.plan import Plan
    from testbed.record.summary import Summary
    from testbed.system.run_state import RunState


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One try to make a run of a point."""

    number: int
    """The fencing number: greater than that of every attempt before it of the same sweep, in this and in earlier
    processes."""
    position: int
    """Of the point in the sweep."""
    machine: str
    """On which; empty: on this one, by this process."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ready:
    """A machine has nothing to do."""

    machine: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished:
    """A run came to its end and left its record."""

    number: int
    summary: "Summary"
    is_moved_in: bool
    """Whether the record is where the records of the sweep are; else it is elsewhere on the same file system, and is
    renamed when it is accepted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lost:
    """An attempt whose result will not be taken any more, and that surely does not run any more."""

    number: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Late:
    """An attempt that had been lost came back with a result."""

    number: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Gone:
    """A machine is not used, or not any more."""

    machine: str
    reason: str
    may_return: bool = False


Event = Ready | Finished | Lost | Late | Gone


class Executor(Protocol):
    """An engine at work."""

    def start(self, attempt: Attempt, experiment: Experiment) -> None:
        """Begin it on a machine that is ready. Raises Interrupted."""

    def next_event(self) -> Event:
        """Wait for it. Raises MissingRequirementError where there is no machine, RunFailedError where none is left."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Abandoned:
    """An attempt of an earlier process of the same sweep that was killed."""

    number: int
    machine: str
    over_s: float
    """So long after that process its run may still go on; 0: it ended with the process."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    """One process' work on a sweep."""

    directory: Path
    """The sweep's; records lie beside it, on the same file system."""
    number: int
    """The fencing number of the session: greater than those of all attempts and sessions before it."""
    identity: str
    """Of the sweep, whatever process is at it: fencing numbers are comparable within one. Another machine may have a
    directory of the same name."""
    abandoned: Sequence[Abandoned]
    run: "Callable[[Experiment], Summary]"
    """Makes a run in this process. Raises RunStoppedError for one that ended early."""
    arguments: Sequence[str]
    """What `testbed run` is given for the same on another machine."""
    goes_by_costs: bool
    """Whether runs are planned by what `testbed fit` found, so that machines must have found the same."""
    console: Console


class Engine(Options):
    """A value on the axis of engines."""

    runs_here: ClassVar[bool]
    """Whether runs are made by the sweep's own process."""
    over_s: ClassVar[float] = 0.0
    """So long after its sweep was killed a run may still go on, in seconds."""

    def unsupported(self, plans: "Sequence[Plan]") -> list[str]:  # noqa: ARG002 (where everything is supported)
        """What of the planned points this engine cannot do: a line for each reason, naming the setting."""
        return []

    @abstractmethod
    def open(self, session: Session) -> AbstractContextManager[Executor]:
        """Get hold of the machines; on leaving, end what still runs on them and let them go.

        Returns when no abandoned attempt runs any more. Raises MissingRequirementError.
        """

    def placing(self, state: "RunState", log_directory: Path) -> "AbstractContextManager[Launch]":  # noqa: ARG002
        """What starts the agents of the machines that one run is spread over. Raises MissingRequirementError, and
        SpecError where an engine makes whole runs only."""
        raise SpecError(f"--engine {self.kind}: it finds no machines for one run (--machines); allowed: local, ray")


ENGINES: Final[Registry[Engine]] = Registry("engine", "testbed.runner.engines")


def parse_engine(text: str) -> Engine:
    """`ray`, or `{kind: ray, address: HOST:PORT}` as YAML. Raises SpecError that names what is allowed."""
    try:
        given = load_document(text)
    except ValueError as error:
        raise SpecError(f"--engine {text}: {error}") from None
    try:
        return ENGINES.parse(given)
    except OptionError as error:
        raise SpecError(f"--engine {text}: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise SpecError(f"--engine {text}: {where}: {first['msg']}; allowed: {_options_text()}") from None


def _options_text() -> str:
    kinds = {cls.__module__.rpartition(".")[2]: sorted(option_names(cls)) for cls in ENGINES}
    return ", ".join(f"{kind} with {', '.join(names) or 'no options'}" for kind, names in kinds.items())
