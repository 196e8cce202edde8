"""The interface of a data plane: something at an address that serves jobs. A file of this folder is a data plane."""

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, Protocol, TypeVar

from switch_agg.aggregator import Counters, Stragglers
from switch_agg.core import Address
from switch_agg.epochs import Epochs
from switch_agg.errors import JobError
from switch_agg.faults import Faults
from switch_agg.job import Job
from switch_agg.payload import PayloadName


class DataPlane(Protocol):
    """An aggregator that runs."""

    @property
    def jobs(self) -> tuple[Job, ...]:
        """Those served."""

    def configure(self, job: Job) -> None:
        """Serve a job. Raises JobError for one that this data plane cannot serve, or whose slots are taken."""

    def remove(self, number: int) -> None:
        """Serve it no longer. Raises JobError for one that is not served."""

    def reset(self, number: int) -> int:
        """Begin another epoch of the job and tell its workers; returns the epoch, below the root of a tree the one that
        the root is requested to end. Raises JobError."""

    def inject(self, faults: Faults) -> None:
        """From now on, let these happen instead of those before. Raises UnsupportedError for what cannot be made."""

    def counters(self) -> Counters:
        """What it has seen so far."""

    def unsent(self) -> Mapping[str, int]:
        """By host: datagrams to it that this machine refused to send (no route, an interface that is down)."""

    def in_flight(self) -> int:
        """Contributions to chunks whose result is not known."""

    def stragglers(self, number: int) -> Stragglers:
        """Who lets the others wait. Raises JobError."""

    def busy_slots(self, number: int) -> int:
        """How many of the job's slots hold contributions to a chunk whose sum is not known. Raises JobError."""

    def epoch(self, number: int) -> int:
        """Of the job. Raises JobError."""

    def check(self) -> None:
        """Raise what ended it, if anything did."""

    def close(self) -> None:
        """End it and give everything back."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """How a data plane in a switch's kernel is configured before there is any job."""

    num_elements: int
    """Of a chunk of any job."""
    payload: PayloadName
    num_slots: int
    """Of all jobs together."""
    switch: Callable[[], AbstractContextManager[None]]
    """Enters the switch's network namespace."""
    interface: str
    """The switch's, that leads to the aggregator's address."""


class DataPlaneKind(ABC):
    """A value on the data plane axis: what can be known before it runs, and how it is begun."""

    kind: ClassVar[str]
    """The name of its file."""
    in_kernel: ClassVar[bool] = False
    """Whether it is a program in the switch, which needs a :class:`Program` and the rights to load it, and takes
    contributions off before they reach the aggregator's own link; if not, it is a process at that link's end."""
    has_clock: ClassVar[bool] = False
    """Whether it can give out a partial sum when stragglers have let the others wait for long enough."""
    max_values: ClassVar[int | None] = None
    """The most numbers of a chunk; None: whatever the protocol allows."""
    serves_switchml: ClassVar[bool] = False
    """Whether it can stand behind the session service of p4app-switchML."""
    needs: ClassVar[str] = ""
    """What a machine must have for it, and how to get it."""

    @classmethod
    def problem(cls) -> str:
        """What went wrong when the least of it was tried here; empty when it works."""
        return ""

    @classmethod
    @abstractmethod
    def open(cls, local: Address, *, generation: int, epochs: Epochs | None, program: Program | None) -> DataPlane:
        """Serving no job yet. Raises UnsupportedError where this machine cannot, and OSError when the address cannot be
        had."""


PlaneT = TypeVar("PlaneT", bound=DataPlaneKind)
_KINDS: Final[dict[str, type[DataPlaneKind]]] = {}


def register(cls: type[PlaneT]) -> type[PlaneT]:
    """Class decorator; the kind is the defining file's name."""
    cls.kind = cls.__module__.rpartition(".")[2]
    _KINDS[cls.kind] = cls
    return cls


def data_planes() -> list[str]:
    """The known kinds, sorted. Imports none of them."""
    names = (module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]))
    return sorted(name for name in names if not name.startswith("_") and name != "base")


def data_plane(kind: str) -> type[DataPlaneKind]:
    """The kind of that name, imported. Raises JobError for one that is not there."""
    if kind not in data_planes():
        raise JobError(f"{kind!r} is no data plane; allowed: {', '.join(data_planes())}")
    importlib.import_module(f"switch_agg.dataplanes.{kind}")
    return _KINDS[kind]
