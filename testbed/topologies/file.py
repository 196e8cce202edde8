"""Any network: its switches and links written out in the spec file itself, so that the spec's hash covers them."""

import re
from typing import Annotated, ClassVar, Final, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from testbed.topologies.base import TOPOLOGIES, Edge, Fabric, Topology

_SWITCH: Final = re.compile(r"s(0|[1-9][0-9]{0,3})")


class Trunk(BaseModel):
    """A link between two switches."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    between: tuple[str, str]
    """Names of the two switches."""
    rate_factor: float = Field(1.0, gt=0, le=1000)
    """Its rate over the rate of a worker's link."""

    @field_validator("between")
    @classmethod
    def _two(cls, between: tuple[str, str]) -> tuple[str, str]:
        if between[0] == between[1]:
            raise ValueError(f"a link joins two switches, this one joins {between[0]} with itself")
        return between


@TOPOLOGIES.register
class File(Topology):
    """Switches with their places for hosts, and the links between them."""

    switches: dict[str, Annotated[int, Field(ge=0, le=64)]] = Field(min_length=1, max_length=256)
    """Places for hosts on each switch: `{s0: 2, s1: 2, s2: 0}`."""
    links: tuple[Trunk, ...] = ()
    """`[{between: [s0, s2]}, {between: [s1, s2], rate_factor: 0.5}]`."""

    larger: ClassVar[str] = "more places in `switches`"

    @field_validator("switches")
    @classmethod
    def _names(cls, switches: dict[str, int]) -> dict[str, int]:
        for name in switches:
            if not _SWITCH.fullmatch(name):
                raise ValueError(f"{name!r} is no switch's name; allowed: s0, s1, ... s9999")
        return switches

    @model_validator(mode="after")
    def _joined(self) -> Self:
        known = ", ".join(self.switches)
        seen: set[frozenset[str]] = set()
        for index, link in enumerate(self.links):
            for name in link.between:
                if name not in self.switches:
                    raise ValueError(f"links.{index}.between: there is no switch {name!r}; allowed: {known}")
            pair = frozenset(link.between)
            if pair in seen:
                raise ValueError(
                    f"links.{index}.between: {' and '.join(link.between)} are linked already; allowed: one link "
                    "between two switches (raise its `rate_factor`)"
                )
            seen.add(pair)
        apart = self._not_reached(seen)
        if apart:
            raise ValueError(f"links: no path leads from {next(iter(self.switches))} to {', '.join(apart)}")
        return self

    def _not_reached(self, pairs: set[frozenset[str]]) -> list[str]:
        """Switches without a path to the first one."""
        reached = {next(iter(self.switches))}
        while more := {name for pair in pairs if pair & reached for name in pair} - reached:
            reached |= more
        return [name for name in self.switches if name not in reached]

    def fabric(self, num_workers: int) -> Fabric:  # noqa: ARG002 - it is written out
        """As written."""
        return Fabric(
            switches=tuple(self.switches),
            trunks=tuple(
                Edge(first=link.between[0], second=link.between[1], rate_factor=link.rate_factor) for link in self.links
            ),
            places=tuple(name for name, count in self.switches.items() for _ in range(count)),
        )
