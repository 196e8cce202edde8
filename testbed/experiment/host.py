"""What a spec may configure of workers' hosts, and who is meant. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema, field_validator

from testbed.errors import SpecError
from testbed.experiment.slowdowns.base import SLOWDOWNS, Slowdown, describe, parse_slowdown
from transports.units import Size, format_size


def core_list(cores: Iterable[int]) -> str:
    """`0-2,5`: cores as the kernel writes them (cpuset(7), list format)."""
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs)


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What a process and all that it starts may use."""

    cpu_cores: float | None = None
    """CPU bandwidth in cores (0.5 is half a core); None: no limit."""
    pinned_cores: tuple[int, ...] = ()
    """The cores it may run on, ascending; none named: all."""
    memory_bytes: int | None = None
    """None: no limit."""

    @property
    def limits_cpu(self) -> bool:
        """Whether its threads are meant to wait for cores."""
        return self.cpu_cores is not None or bool(self.pinned_cores)


MIN_MEMORY_BYTES: Final = 64 * 2**20
"""Little more than what a worker of the smallest model holds for itself."""
TRAFFIC_HOST: Final = re.compile(r"x[0-9]{1,3}")
"""Names of hosts for background traffic."""


def _slowdown_schema() -> dict[str, Any]:
    number = {"type": "number", "minimum": 1, "description": "a constant factor"}
    return {"anyOf": [{"type": "null"}, number, *SLOWDOWNS.json_schema()["anyOf"]]}


class HostSpec(BaseModel):
    """What one worker's host is like, or where a host for background traffic is. Whatever is left out is the machine's
    own."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    cpu_cores: float | None = Field(None, alias="cpu", ge=0.01, le=1024)
    """The worker's quota of CPU time in cores: 0.5 is half a core. With `host_cost: real` of virtual time."""
    pinned_cores: tuple[int, ...] = Field((), alias="pin")
    """The cores it may run on; none named: all."""
    memory_bytes: Size | None = Field(None, alias="memory", ge=MIN_MEMORY_BYTES)
    """What it may allocate; with more, the kernel ends it."""
    slowdown: Annotated[
        Slowdown | None,
        BeforeValidator(lambda value: None if value is None else parse_slowdown(value)),
        PlainSerializer(lambda value: None if value is None else SLOWDOWNS.dump(value)),
        WithJsonSchema(_slowdown_schema()),
    ] = None
    """Makes it a compute straggler: its computing takes so many times as long, its communication does not."""

    at: str | None = None
    """The switch that a host for background traffic (`x0`, `x1`, ...) is attached to, by a link like a worker's."""

    @field_validator("pinned_cores", mode="before")
    @classmethod
    def _one_core(cls, value: object) -> object:
        return (value,) if isinstance(value, int) and not isinstance(value, bool) else value

    @field_validator("pinned_cores")
    @classmethod
    def _cores(cls, cores: tuple[int, ...]) -> tuple[int, ...]:
        if any(core < 0 for core in cores) or len(set(cores)) < len(cores):
            raise ValueError(f"{list(cores)}: name each core once, counted from 0")
        return tuple(sorted(cores))

    @property
    def requested(self) -> dict[str, Any]:
        """The fields that ask for anything."""
        return {name: value for name in type(self).model_fields if (value := getattr(self, name)) not in (None, ())}

    @property
    def text(self) -> str:
        """`0.5 cores, on cores 0-1, 2GiB, slowdown constant (factor 2)`."""
        parts = [f"{self.cpu_cores:g} cores"] if self.cpu_cores is not None else []
        parts += [f"on cores {core_list(self.pinned_cores)}"] if self.pinned_cores else []
        parts += [format_size(self.memory_bytes)] if self.memory_bytes is not None else []
        parts += [f"slowdown {describe(self.slowdown)}"] if self.slowdown is not None else []
        return ", ".join(parts)

    @property
    def limits(self) -> Limits:
        """What control groups do."""
        return Limits(cpu_cores=self.cpu_cores, pinned_cores=self.pinned_cores, memory_bytes=self.memory_bytes)


def traffic_hosts(hosts: Mapping[str, HostSpec], switches: Sequence[str]) -> dict[str, str]:
    """The hosts that only make and take background traffic, and the switch of each. Raises SpecError."""
    attached = {}
    for name, spec in hosts.items():
        is_traffic_host = TRAFFIC_HOST.fullmatch(name) is not None
        if spec.at is None:
            if is_traffic_host:
                raise SpecError(f"hosts.{name}.at: required: the switch of this host for background traffic")
            continue
        if not is_traffic_host:
            raise SpecError(
                f"hosts.{name}.at: a host for background traffic is named x0, x1, ...; where workers are is the "
                "placement's to say"
            )
        if list(spec.requested) != ["at"]:
            raise SpecError(f"hosts.{name}: only workers are limited or slowed; allowed for {name}: at")
        if spec.at not in switches:
            raise SpecError(f"hosts.{name}.at: {spec.at!r} is no switch; there are {', '.join(switches)}")
        attached[name] = spec.at
    return attached


def resolve_hosts(hosts: Mapping[str, HostSpec], workers: Sequence[str]) -> dict[str, HostSpec]:
    """The settings of each worker's host, in their order, of those that have any.

    Later entries win, key by key; what an entry leaves out it leaves alone.
    A selector is a name, a pattern (`w*`), or several with commas between. Raises SpecError when one matches nobody.
    """
    merged: dict[str, dict[str, Any]] = {worker: {} for worker in workers}
    for selector, spec in hosts.items():
        if spec.at is not None:
            continue
        for pattern in (part.strip() for part in selector.split(",")):
            matching = [worker for worker in workers if fnmatchcase(worker, pattern)]
            if not matching:
                there = ", ".join(workers) if len(workers) <= 8 else f"{workers[0]} to {workers[-1]}"
                raise SpecError(f"hosts.{selector}: {pattern!r} is no worker; there are {there}")
            for worker in matching:
                merged[worker] |= spec.requested
    return {worker: HostSpec.model_construct(**requested) for worker, requested in merged.items() if requested}


def missing_cores(hosts: Mapping[str, HostSpec], available: frozenset[int]) -> list[str]:
    """Requested CPU cores that this machine does not have, each with the field's path."""
    found = []
    for worker, spec in hosts.items():
        absent = [core for core in spec.pinned_cores if core not in available]
        if absent:
            found.append(
                f"hosts.{worker}.pin: this machine has no core {', '.join(map(str, absent))}; it has "
                f"{', '.join(map(str, sorted(available)))}"
            )
        most = len(spec.pinned_cores) or len(available)
        if spec.cpu_cores is not None and spec.cpu_cores > most:
            found.append(
                f"hosts.{worker}.cpu: {spec.cpu_cores:g} cores are more than the {most} that it may run on; at most "
                f"{most}, or leave it out"
            )
    return found
