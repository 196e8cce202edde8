"""Any network: its switches and links written out, in the spec or in a file of their own that is read with it.

Either way the resolved spec holds them, so that its hash covers them and a record needs no other file.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from testbed.experiment.documents import read_document
from testbed.experiment.link import LinkOverride
from testbed.experiment.topologies.base import TOPOLOGIES, Edge, Fabric, Topology

_SWITCH: Final = re.compile(r"s(0|[1-9][0-9]{0,3})")


class Trunk(BaseModel):
    """A link between two switches."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    between: tuple[str, str]
    """Names of the two switches."""
    rate_factor: float = Field(1.0, gt=0, le=1000)
    """Its rate over the rate of a worker's link."""
    link: LinkOverride = Field(default_factory=LinkOverride)
    """What is different on this link: `{rate: 1gbit, delay: 5ms}`."""

    @field_validator("between")
    @classmethod
    def _two(cls, between: tuple[str, str]) -> tuple[str, str]:
        if between[0] == between[1]:
            raise ValueError(f"a link joins two switches, this one joins {between[0]} with itself")
        return between

    @model_validator(mode="after")
    def _one_rate(self) -> Self:
        if self.rate_factor != 1 and "rate_bps" in self.link.model_fields_set:
            raise ValueError("both `rate_factor` and `link.rate` say how fast it is; leave one out")
        return self


@TOPOLOGIES.register
class File(Topology):
    """Switches with their places for hosts, and the links between them."""

    switches: dict[str, Annotated[int, Field(ge=0, le=64)]] = Field(min_length=1, max_length=256)
    """Places for hosts on each switch: `{s0: 2, s1: 2, s2: 0}`."""
    links: tuple[Trunk, ...] = ()
    """`[{between: [s0, s2]}, {between: [s1, s2], rate_factor: 0.5, link: {delay: 5ms}}]`."""
    path: str | None = None
    """A YAML file with `switches` and `links` instead of writing them here; relative to the spec's own folder."""

    larger: ClassVar[str] = "more places in `switches`"

    @model_validator(mode="before")
    @classmethod
    def _read(cls, data: Any) -> Any:
        """The file's contents in place of its path."""
        if not isinstance(data, Mapping) or data.get("path") is None:
            return data
        written = ", ".join(key for key in ("switches", "links") if key in data)
        if written:
            raise ValueError(f"path: {written} can be written here or in the file, not both")
        return _contents(Path(str(data["path"])))

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
        """The fabric as the file describes it."""
        return Fabric(
            switches=tuple(self.switches),
            trunks=tuple(
                Edge(
                    first=link.between[0],
                    second=link.between[1],
                    rate_factor=link.rate_factor,
                    settings=link.link,
                )
                for link in self.links
            ),
            places=tuple(name for name, count in self.switches.items() for _ in range(count)),
        )


def _contents(path: Path) -> dict[str, Any]:
    try:
        found = read_document(path)
    except ValueError as error:
        raise ValueError(f"path: {error}") from None
    if not isinstance(found, dict) or "path" in found:
        raise ValueError(f"path: {path} is not a network; allowed: a mapping with `switches` and `links`")
    return found
