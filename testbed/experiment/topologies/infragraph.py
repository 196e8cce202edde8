"""A network that an InfraGraph document describes, as other simulators exchange them (https://infragraph.dev).

A device with accelerators is a host, one without is a switch; workers sit where hosts' links meet switches. What a
document says beyond that (the inside of devices) is left out, and `notes` say so. As with `file`, the resolved spec
holds what was read, so that its hash covers it and a record needs no other file.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from testbed.experiment.infrastructure import Cable, Copy, Device, End, Expanded, read_infrastructure
from testbed.experiment.link import MAX_RATE_BPS, MIN_RATE_BPS, LinkOverride
from testbed.experiment.topologies.base import TOPOLOGIES, Fabric, Topology
from testbed.experiment.topologies.file import (
    Trunk,
    in_place_of_path,
    not_reached,
    require_joined,
    require_switch_names,
)
from transports.units import format_rate, format_time

_MAX_SWITCHES: Final = 10_000
_MAX_DELAY_S: Final = 1.0
_NAMED: Final = 4
"""So many of a list are named in a sentence."""

Role = Literal["host", "switch", "left out"]
Place = Literal["nic", "host"]


class HostPlace(BaseModel):
    """Where a host may be attached, and by which link."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    """What it is in the document: `server.0.nic.1`."""
    at: str
    """Its switch."""
    link: LinkOverride = Field(default_factory=LinkOverride)
    """What the document says of its link: `{rate: 100gbit, delay: 1us}`."""


@TOPOLOGIES.register
class InfraGraph(Topology):
    """Switches, places for hosts and links of a document, with their rates and latencies: `{kind: infragraph, path:
    cluster.yaml}`."""

    path: str | None = None
    """An InfraGraph document in YAML or JSON; relative to the spec's own folder. What follows `place` is read from
    it."""
    place: Place | None = None
    """`nic` (the default): each link of a host to a switch is a place for a worker. `host`: each host is one, and its
    links, which lead to one switch, are one link with the sum of their rates."""
    name: str = ""
    """Of the infrastructure."""
    switches: dict[str, str] = Field(min_length=1, max_length=_MAX_SWITCHES)
    """Their names in the document: `{s0: leaf.0, s1: leaf.1}`."""
    hosts: tuple[HostPlace, ...] = Field(min_length=1)
    """Places for hosts, in order."""
    links: tuple[Trunk, ...] = ()
    """Between switches."""
    notes: tuple[str, ...] = ()
    """What the document says and this does not, and what was taken for what."""

    larger: ClassVar[str] = "a document with more hosts, or with `place: nic` one place for each link of a host"
    sets_rates: ClassVar[bool] = True

    @model_validator(mode="before")
    @classmethod
    def _read(cls, data: Any) -> Any:
        """The document's network in place of its path."""
        if not isinstance(data, Mapping):
            return data
        if data.get("path") is None:
            if data.get("place") is not None:
                raise ValueError("place: it says how a document is read, and there is none; name one with `path`")
            return data

        def contents(path: Path) -> dict[str, Any]:
            place = data.get("place") or "nic"
            if place not in ("nic", "host"):
                raise ValueError(f"place: {place!r} is not known; allowed: nic, host")
            return _contents(path, "host" if place == "host" else "nic")

        return in_place_of_path(data, cls.model_fields, contents, called="document", options=("place",))

    @field_validator("switches")
    @classmethod
    def _names(cls, switches: dict[str, str]) -> dict[str, str]:
        require_switch_names(switches)
        return switches

    @model_validator(mode="after")
    def _joined(self) -> Self:
        for index, host in enumerate(self.hosts):
            if host.at not in self.switches:
                raise ValueError(
                    f"hosts.{index}.at: there is no switch {host.at!r}; allowed: {', '.join(self.switches)}"
                )
            if "rate_bps" not in host.link.model_fields_set:
                raise ValueError(f"hosts.{index}.link.rate: required")
        for index, link in enumerate(self.links):
            if "rate_bps" not in link.link.model_fields_set:
                raise ValueError(f"links.{index}.link.rate: required")
        require_joined(tuple(self.switches), self.links)
        return self

    def assumptions(self) -> Sequence[str]:
        """The notes of whoever read the document."""
        return self.notes

    def fabric(self, num_workers: int) -> Fabric:  # noqa: ARG002 - it is written out
        """The fabric as the document describes it."""
        return Fabric(
            switches=tuple(self.switches),
            trunks=tuple(link.edge for link in self.links),
            places=tuple(host.at for host in self.hosts),
            place_links=tuple(host.link for host in self.hosts),
        )


def _contents(path: Path, place: Place) -> dict[str, Any]:
    try:
        graph = read_infrastructure(path)
    except ValueError as error:
        raise ValueError(f"path: {error}") from None
    try:
        return imported(graph, place)
    except ValueError as error:
        raise ValueError(f"path: {path}: {error}") from None


@dataclass(slots=True)
class _Sorted:
    """The cables of a document by what they join."""

    access: dict[Copy, list[Cable]] = field(default_factory=dict)
    """Of each host, those to switches."""
    trunks: dict[tuple[int, int], list[Cable]] = field(default_factory=dict)
    """Of each pair of switches, by their numbers."""
    num_loops: int = 0
    """Of a copy with itself."""
    shared: set[End] = field(default_factory=set)
    """Ports of switches at which several cables end."""


def imported(graph: Expanded, place: Place = "nic") -> dict[str, Any]:
    """The options of the topology that a document describes. Raises ValueError, which names the document's field."""
    roles = _roles(graph)
    switches = [copy for copy, device in graph.copies.items() if roles[device.name] == "switch"]
    hosts = [copy for copy, device in graph.copies.items() if roles[device.name] == "host"]
    if not hosts:
        raise ValueError("devices: none has a component of type xpu or nic, so none is a host")
    if not switches:
        raise ValueError("instances: all are hosts, and hosts are joined by switches alone; there is none")
    if len(switches) > _MAX_SWITCHES:
        raise ValueError(f"instances: {len(switches)} are switches; allowed: {_MAX_SWITCHES}")
    numbers = {copy: number for number, copy in enumerate(switches)}
    found = _sorted(graph, roles, numbers)
    bare = [host.text for host in hosts if host not in found.access]
    if bare:
        raise ValueError(f"instances: {_some(bare)} have no link to a switch; every host needs one")
    pairs = [(switches[one].text, switches[other].text) for one, other in found.trunks]
    if apart := not_reached([copy.text for copy in switches], pairs):
        raise ValueError(f"edges: no path through switches leads from {switches[0].text} to {_some(apart)}")
    places = [each for host in hosts for each in _places_of(host, found.access[host], numbers, place)]
    return {
        "name": graph.document.name,
        "switches": {f"s{number}": copy.text for copy, number in numbers.items()},
        "hosts": places,
        "links": [
            {
                "between": [f"s{one}", f"s{other}"],
                "link": _bundle(cables, f"{switches[one].text} and {switches[other].text}"),
            }
            for (one, other), cables in sorted(found.trunks.items())
        ],
        "notes": list(_notes(graph, roles, found, place, len(places))),
    }


def _roles(graph: Expanded) -> dict[str, Role]:
    """Of each device that there is a copy of."""
    used = {device.name: device for device in graph.copies.values()}
    accelerated = any(graph.number_of(device, "xpu") for device in used.values())

    def role(device: Device) -> Role:
        if graph.number_of(device, "xpu" if accelerated else "nic"):
            return "host"
        return "left out" if accelerated and graph.number_of(device, "nic") else "switch"

    return {name: role(device) for name, device in used.items()}


def _sorted(graph: Expanded, roles: Mapping[str, Role], numbers: Mapping[Copy, int]) -> _Sorted:
    found = _Sorted()
    taken: dict[End | frozenset[End], int] = {}
    for cable in graph.cables:
        first, second = cable.first, cable.second
        for end in (first, second):
            if end in taken and end.type == "nic":
                raise ValueError(
                    f"edges.{cable.edge}: {end.text} is an end of edges.{taken[end]} already, and a nic has one cable"
                )
            if end in taken and end.type == "port":
                found.shared.add(end)
            taken[end] = cable.edge
        pair = frozenset((first, second))
        if pair in taken:
            raise ValueError(
                f"edges.{cable.edge}: {first.text} and {second.text} are joined by edges.{taken[pair]} already"
            )
        taken[pair] = cable.edge
        ends = {roles[graph.copies[end.at].name] for end in (first, second)}
        if first.at == second.at:
            found.num_loops += 1
        elif "left out" in ends:
            continue
        elif ends == {"host"}:
            raise ValueError(
                f"edges.{cable.edge}: {first.text} and {second.text} are both of hosts, which are joined by switches "
                "alone; write a switch between them"
            )
        elif ends == {"switch"}:
            one, other = sorted((numbers[first.at], numbers[second.at]))
            found.trunks.setdefault((one, other), []).append(cable)
        else:
            host = second.at if first.at in numbers else first.at
            found.access.setdefault(host, []).append(cable)
    return found


def _places_of(host: Copy, cables: Sequence[Cable], numbers: Mapping[Copy, int], place: Place) -> list[dict[str, Any]]:
    ends = [(each.second, each.first) if each.first.at in numbers else (each.first, each.second) for each in cables]
    if place == "nic":
        return [
            {"name": near.text, "at": f"s{numbers[far.at]}", "link": _bundle([cable], near.text)}
            for cable, (near, far) in zip(cables, ends, strict=True)
        ]
    reached = list(dict.fromkeys(far.at for _, far in ends))
    if len(reached) > 1:
        raise ValueError(
            f"edges.{cables[0].edge}: {host.text} is linked to {_some([each.text for each in reached])}, and a place "
            "has one link; allowed: links of a host to one switch, or place: nic"
        )
    return [{"name": host.text, "at": f"s{numbers[reached[0]]}", "link": _bundle(cables, host.text)}]


def _bundle(cables: Sequence[Cable], what: str) -> dict[str, str]:
    """What the link is configured to that stands for these, which lead from the same to the same. Raises ValueError."""
    (rate_bps, delay_s), *others = {_settings(cable): None for cable in cables}
    if others:
        raise ValueError(
            f"edges.{cables[-1].edge}: parallel links of {what} are of "
            f"{_some(sorted({each.link.name for each in cables}))}, which differ; allowed: equal ones"
        )
    total_bps = rate_bps * len(cables)
    if total_bps > MAX_RATE_BPS:
        raise ValueError(
            f"edges.{cables[-1].edge}: {len(cables)} links of {what} together have {format_rate(total_bps)}; allowed: "
            f"at most {format_rate(MAX_RATE_BPS)}"
        )
    return {"rate": format_rate(total_bps), **({} if delay_s is None else {"delay": format_time(delay_s)})}


def _settings(cable: Cable) -> tuple[float, float | None]:
    """Rate and latency. Raises ValueError."""
    link, at = cable.link, f"links.{cable.link_number}.physical"
    try:
        rate_bps = link.bandwidth.rate_bps
    except ValueError as error:
        raise ValueError(f"{at}.bandwidth: {error}") from None
    if rate_bps is None:
        raise ValueError(f"{at}.bandwidth: required, because edges.{cable.edge} between devices is a {link.name}")
    if not MIN_RATE_BPS <= rate_bps <= MAX_RATE_BPS:
        raise ValueError(
            f"{at}.bandwidth: {rate_bps:g} bit/s; allowed: {format_rate(MIN_RATE_BPS)} to {format_rate(MAX_RATE_BPS)}"
        )
    delay_s = link.latency.delay_s
    if delay_s is not None and not 0 <= delay_s <= _MAX_DELAY_S:
        raise ValueError(f"{at}.latency: {delay_s:g} s; allowed: 0 to {_MAX_DELAY_S:g} s")
    return rate_bps, delay_s


def _notes(graph: Expanded, roles: Mapping[str, Role], found: _Sorted, place: Place, num_places: int) -> Iterable[str]:
    copies = Counter(device.name for device in graph.copies.values())
    hosts = {name: count for name, count in copies.items() if roles[name] == "host"}
    yield (
        f"{sum(hosts.values())} hosts ({', '.join(hosts)}) have {num_places} places for workers: "
        + (
            "each link to a switch is one"
            if place == "nic"
            else "each host is one, its links one with the sum of their rates"
        )
    )
    accelerators = sum(count * graph.number_of(graph.devices[name], "xpu") for name, count in hosts.items())
    if accelerators not in (0, num_places):
        yield f"the hosts have {accelerators} accelerators: a place is not one of them (`workers_per_host` shares it)"
    if any(graph.devices[name].edges for name in copies):
        inner = dict.fromkeys(edge.link for name in copies for edge in graph.devices[name].edges)
        yield (
            f"the inside of devices ({_some(list(inner))}) is not modelled: workers of one host meet at the switch "
            "that their links lead to, and switches forward at any rate"
        )
    bundled = [cables for cables in found.trunks.values() if len(cables) > 1]
    if bundled:
        yield (
            f"{len(bundled)} pairs of switches are joined by several links, which here are one with the sum of their "
            "rates: a single flow may use all of it"
        )
    used = (cable for cables in (*found.access.values(), *found.trunks.values()) for cable in cables)
    without = dict.fromkeys(cable.link.name for cable in used if cable.link.latency.delay_s is None)
    if without:
        yield f"no latency is given for {_some(list(without))}: the spec's link.delay is theirs"
    yield "the rates of all workers' and switches' links are the document's: link.rate is of none of them (`links` is)"
    if found.num_loops:
        yield f"{found.num_loops} edges join a device with itself, and are left out like its inside"
    if found.shared:
        yield f"{len(found.shared)} ports are ends of several edges, and each edge is a link of its own"
    left_out = [name for name in copies if roles[name] == "left out"]
    if left_out:
        yield f"{_some(left_out)} have a nic and no accelerator, where others have accelerators, and are left out"
    if graph.annotated:
        yield "annotations are not read"


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMED])
    return f"{shown} and {len(names) - _NAMED} more" if len(names) > _NAMED else shown
