"""Which nodes of an emulation are on which machine, as the user writes it: a file beside the spec, `--machines`.

It is no part of the spec, because it is none of the question: the same spec on one machine must have the same answer.
"""

from collections.abc import Mapping
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from testbed.errors import SpecError
from testbed.experiment.documents import read_document
from testbed.experiment.explanations import explanations

NUM_MACHINES: Final = 2

MachineName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,14}$")]


class MachineSpec(BaseModel):
    """One machine."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    address: IPv4Address
    """Of the machine on the network that carries what is between machines."""
    namespace: Path | None = None
    """The network namespace that is this machine: `/run/netns/m1`; left out where Ray places
    (`--engine ray`)."""
    nodes: tuple[str, ...] = Field(min_length=1)
    """Its nodes: names and patterns, `[s0, w0, "w1*"]`."""


class Machines(BaseModel):
    """The whole file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    machines: dict[MachineName, MachineSpec]

    @model_validator(mode="after")
    def _two_of_them(self) -> Self:
        if len(self.machines) != NUM_MACHINES:
            raise ValueError(
                f"{len(self.machines)} machines; allowed: {NUM_MACHINES}, or leave --machines out for one emulation on "
                "one machine"
            )
        addresses = [machine.address for machine in self.machines.values()]
        if len(set(addresses)) != len(addresses):
            raise ValueError(f"both machines have the address {addresses[0]}; each needs one of its own")
        return self


def load_machines(path: Path) -> Machines:
    """Read a file of machines. Raises SpecError naming every wrong field and what is allowed."""
    try:
        data: Any = read_document(path)
    except ValueError as error:
        raise SpecError(f"--machines: {error}") from None
    if not isinstance(data, Mapping):
        raise SpecError(f"--machines: {path}: write `machines:` with a name, an address and nodes for each machine")
    try:
        return Machines.model_validate(dict(data))
    except ValidationError as error:
        lines = explanations(error, data, Machines)
        raise SpecError("\n".join(f"{path}: {line}" for line in lines)) from None
