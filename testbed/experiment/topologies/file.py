"""Any network: its switches and links written out, in the spec or in a file of their own that is read with it.

Either way the resolved spec holds them, so that its hash covers them and a record needs no other file.
"""

import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
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

    @property
    def edge(self) -> Edge:
        """As a network has it."""
        first, second = self.between
        return Edge(first=first, second=second, rate_factor=self.rate_factor, settings=self.link)


def require_switch_names(names: Iterable[str]) -> None:
    """Raise ValueError for one that is no switch's."""
    for name in names:
        if not _SWITCH.fullmatch(name):
            raise ValueError(f"{name!r} is no switch's name; allowed: s0, s1, ... s9999")


def require_joined(switches: Sequence[str], links: Sequence[Trunk]) -> None:
    """Raise ValueError where a link joins what is not there or is joined already, or a switch is not reached."""
    known = set(switches)
    seen: set[frozenset[str]] = set()
    for index, link in enumerate(links):
        for name in link.between:
            if name not in known:
                allowed = ", ".join(switches)
                raise ValueError(f"links.{index}.between: there is no switch {name!r}; allowed: {allowed}")
        pair = frozenset(link.between)
        if pair in seen:
            raise ValueError(
                f"links.{index}.between: {' and '.join(link.between)} are linked already; allowed: one link "
                "between two switches (raise its `rate_factor`)"
            )
        seen.add(pair)
    if apart := not_reached(switches, [link.between for link in links]):
        raise ValueError(f"links: no path leads from {switches[0]} to {', '.join(apart)}")


def not_reached(switches: Sequence[str], pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Switches without a path to the first one."""
    neighbours: dict[str, list[str]] = {name: [] for name in switches}
    for first, second in pairs:
        neighbours[first].append(second)
        neighbours[second].append(first)
    reached, waiting = {switches[0]}, [switches[0]]
    while waiting:
        found = [name for name in neighbours[waiting.pop()] if name not in reached]
        reached.update(found)
        waiting += found
    return [name for name in switches if name not in reached]


def in_place_of_path(
    data: Mapping[str, Any],
    fields: Iterable[str],
    contents: Callable[[Path], dict[str, Any]],
    *,
    called: str,
    options: Container[str] = (),
) -> dict[str, Any]:
    """What the document at `data["path"]` says, and keys that are no fields, so that they are refused as everywhere.

    Raises ValueError for a field that is written here, too, unless it is one of the `options` of reading, and what
    `contents` raises."""
    known = tuple(fields)
    written = ", ".join(key for key in known if key in data and key != "path" and key not in options)
    if written:
        raise ValueError(f"path: {written} can be written here or in the {called}, not both")
    unknown = {key: value for key, value in data.items() if key not in known}
    return {**unknown, **contents(Path(str(data["path"])))}


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
        return in_place_of_path(data, cls.model_fields, _contents, called="file")

    @field_validator("switches")
    @classmethod
    def _names(cls, switches: dict[str, int]) -> dict[str, int]:
        require_switch_names(switches)
        return switches

    @model_validator(mode="after")
    def _joined(self) -> Self:
        require_joined(tuple(self.switches), self.links)
        return self

    def fabric(self, num_workers: int) -> Fabric:  # noqa: ARG002 - it is written out
        """The fabric as the file describes it."""
        return Fabric(
            switches=tuple(self.switches),
            trunks=tuple(link.edge for link in self.links),
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
