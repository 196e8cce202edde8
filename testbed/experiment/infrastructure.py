"""InfraGraph documents: devices with components, instances of devices, edges between them (https://infragraph.dev).

The schema is that of version 3.1. Expansion follows the format's own service (`infragraph_service.py` of the package
`infragraph`), which tests hold this against, but for what the service passes over in silence: names that are not there,
indices out of range and edges that pair unequal numbers are errors here.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, Protocol, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from testbed.experiment.documents import read_document
from testbed.experiment.explanations import explanations

_MAX_COUNT: Final = 100_000
"""Copies of a device, and components of one."""
_SHOWN: Final = 5
"""Errors of a document that has many."""
_ENDPOINT: Final = re.compile(r"([^\[\].]+)(?:\[((?:-?[0-9]+)?(?::(?:-?[0-9]+)?){0,2})\])?")
_GIGA: Final = Decimal(10**9)
_LATENCIES: Final = {"ms": Decimal("1e-3"), "us": Decimal("1e-6"), "ns": Decimal("1e-9")}

Name = Annotated[str, Field(pattern=r"^[\sa-zA-Z0-9\-_()><\[\]]+$")]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CustomComponent(_Part):
    """A component of a type that the format does not know."""

    type: str


class Component(_Part):
    """What a device consists of, so many times."""

    name: Name
    description: str | None = None
    count: int = Field(ge=1, le=_MAX_COUNT, strict=True)
    choice: Literal["custom", "device", "cpu", "xpu", "nic", "memory", "port", "switch"]
    """Its type; `device`: the device of that name."""
    custom: CustomComponent | None = None
    device: dict[str, Any] | None = None
    cpu: dict[str, Any] | None = None
    xpu: dict[str, Any] | None = None
    nic: dict[str, Any] | None = None
    memory: dict[str, Any] | None = None
    port: dict[str, Any] | None = None
    switch: dict[str, Any] | None = None

    @property
    def type(self) -> str:
        """What graph nodes of it have as their type."""
        return self.custom.type if self.custom is not None else self.choice


class _OneUnit(_Part):
    """A number in one of several units."""

    choice: str | None = None
    """The unit. The format's package writes one also where no number is given."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        given = [unit for unit in type(self).model_fields if unit != "choice" and getattr(self, unit) is not None]
        if len(given) > 1 or (given and self.choice not in (None, *given)):
            raise ValueError(f"choice is {self.choice}, and given {' and '.join(given)}; allowed: one unit")
        return self

    @property
    def given(self) -> tuple[str, Decimal] | None:
        """The unit, and how many of it."""
        for unit in type(self).model_fields:
            if unit != "choice" and getattr(self, unit) is not None:
                return unit, Decimal(repr(getattr(self, unit)))
        return None


class Bandwidth(_OneUnit):
    """Of a link, in each direction."""

    gigabits_per_second: float | None = None
    gigabytes_per_second: float | None = None
    gigatransfers_per_second: float | None = None

    @property
    def rate_bps(self) -> float | None:
        """None: it is not given. Raises ValueError for transfers, of which nobody says how many bits each is."""
        if self.given is None:
            return None
        unit, value = self.given
        if unit == "gigatransfers_per_second":
            raise ValueError("gigatransfers_per_second do not say bits; allowed: gigabits_per_second")
        return float(value * _GIGA * (8 if unit == "gigabytes_per_second" else 1))


class Latency(_OneUnit):
    """Of a link, from one end to the other."""

    ms: float | None = None
    us: float | None = None
    ns: float | None = None

    @property
    def delay_s(self) -> float | None:
        """None: it is not given."""
        if self.given is None:
            return None
        unit, value = self.given
        return float(value * _LATENCIES[unit])


class Physical(_Part):
    """What a link carries, and how fast."""

    bandwidth: Bandwidth | None = None
    latency: Latency | None = None


class Link(_Part):
    """A kind of link; edges say which they are of."""

    name: Name
    description: str | None = None
    physical: Physical | None = None

    @property
    def bandwidth(self) -> Bandwidth:
        """Empty where it is not given."""
        return (self.physical and self.physical.bandwidth) or Bandwidth()

    @property
    def latency(self) -> Latency:
        """Empty where it is not given."""
        return (self.physical and self.physical.latency) or Latency()


Scheme = Literal["one2one", "many2many", "ring"]


class DeviceEndpoint(_Part):
    """An end of an edge inside a device."""

    device: str | None = None
    component: str


class DeviceEdge(_Part):
    """Joins components of one device."""

    ep1: DeviceEndpoint
    ep2: DeviceEndpoint
    scheme: Scheme | None = None
    link: str


class Device(_Part):
    """Components, and what joins them."""

    name: Name
    description: str | None = None
    components: tuple[Component, ...]
    links: tuple[Link, ...] = ()
    edges: tuple[DeviceEdge, ...] = ()


class InstanceEndpoint(_Part):
    """An end of an edge between devices: `host[0:4]` and `nic[0]`, or `cx5[0].port[1]` of a device in a device."""

    instance: str
    component: str


class InstanceEdge(_Part):
    """Joins components of instances."""

    ep1: InstanceEndpoint
    ep2: InstanceEndpoint
    scheme: Scheme
    link: str


class Instance(_Part):
    """So many copies of a device, by another name."""

    name: Name
    description: str | None = None
    device: str
    count: int = Field(ge=1, le=_MAX_COUNT, strict=True)


class Infrastructure(_Part):
    """A whole document."""

    name: Name = "infrastructure"
    description: str | None = None
    devices: tuple[Device, ...] = ()
    links: tuple[Link, ...] = ()
    instances: tuple[Instance, ...] = ()
    edges: tuple[InstanceEdge, ...] = ()


class Copy(NamedTuple):
    """One of an instance's copies of its device."""

    instance: str
    number: int

    @property
    def text(self) -> str:
        """`leaf.0`, as the format's graph has it."""
        return f"{self.instance}.{self.number}"


@dataclass(frozen=True, slots=True)
class End:
    """One end of a cable."""

    at: Copy
    component: str
    """`nic.0`, `cx5.0.port.1`."""
    type: str

    @property
    def text(self) -> str:
        """`server.0.nic.1`, as the format's graph has it."""
        return f"{self.at.text}.{self.component}"


@dataclass(frozen=True, slots=True)
class Cable:
    """An edge between two components of copies."""

    edge: int
    """Its number in the document's `edges`."""
    first: End
    second: End
    link: Link
    link_number: int
    """In the document's `links`."""


@dataclass(frozen=True, slots=True)
class Expanded:
    """A document with every edge between copies written out."""

    document: Infrastructure
    devices: Mapping[str, Device]
    copies: Mapping[Copy, Device]
    """In the document's order."""
    cables: tuple[Cable, ...]
    annotated: bool
    """Whether annotations stood beside the infrastructure."""

    def components_of(self, device: Device) -> Iterator[tuple[str, int]]:
        """The types of its components and how many there are, those of devices in it included."""
        for component in device.components:
            if component.choice == "device":
                inner = self.components_of(self.devices[component.name])
                yield from ((type_, component.count * count) for type_, count in inner)
            else:
                yield component.type, component.count

    def number_of(self, device: Device, type_: str) -> int:
        """How many components of that type the device has."""
        return sum(count for each, count in self.components_of(device) if each == type_)


def read_infrastructure(path: Path) -> Expanded:
    """A document in YAML or JSON: an infrastructure, or `infrastructure` with annotations as the format's service gives
    it. Raises ValueError, which names the field."""
    data = _read(path)
    annotated = isinstance(data, dict) and set(data) == {"infrastructure", "annotations"}
    if annotated:
        data = data["infrastructure"]
    if not isinstance(data, dict):
        raise ValueError(  # noqa: TRY004 - what a validator raises
            f"{path} is no InfraGraph document; allowed: a mapping with devices, links, instances, edges"
        )
    try:
        return expanded(Infrastructure.model_validate(data), annotated=annotated)
    except ValidationError as error:
        lines = explanations(error, data, Infrastructure)
    except ValueError as error:
        lines = [str(error)]
    more = [f"and {len(lines) - _SHOWN} more errors"] if len(lines) > _SHOWN else []
    raise ValueError("\n".join([*(f"{path}: {line}" for line in lines[:_SHOWN]), *more])) from None


def _read(path: Path) -> Any:
    if path.suffix != ".json":
        return read_document(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_once)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} stands twice")
    return found


def expanded(document: Infrastructure, *, annotated: bool = False) -> Expanded:
    """Every copy and every cable. Raises ValueError, which names the field."""
    devices = _by_name(document.devices, "devices")
    links = _by_name(document.links, "links")
    instances = _by_name(document.instances, "instances")
    for number, device in enumerate(document.devices):
        _require_composable(device, f"devices.{number}", devices)
    for number, instance in enumerate(document.instances):
        _known(instance.device, devices, f"instances.{number}.device", "device")
    cables = []
    numbers = {name: number for number, name in enumerate(links)}
    for number, edge in enumerate(document.edges):
        at = f"edges.{number}"
        link = _known(edge.link, links, f"{at}.link", "link")
        first = _Side(edge.ep1, instances, devices, f"{at}.ep1")
        second = _Side(edge.ep2, instances, devices, f"{at}.ep2")
        cables += [
            Cable(edge=number, first=one, second=other, link=link, link_number=numbers[link.name])
            for one, other in _pairs(edge.scheme, first, second, at)
        ]
    return Expanded(
        document=document,
        devices=devices,
        copies={
            Copy(instance.name, index): devices[instance.device]
            for instance in document.instances
            for index in range(instance.count)
        },
        cables=tuple(cables),
        annotated=annotated,
    )


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_NamedT = TypeVar("_NamedT", bound=_Named)
_T = TypeVar("_T")


def _by_name(parts: Sequence[_NamedT], at: str) -> dict[str, _NamedT]:
    found: dict[str, _NamedT] = {}
    for number, part in enumerate(parts):
        if part.name in found:
            raise ValueError(f"{at}.{number}.name: {part.name!r} stands twice; names are unique")
        found[part.name] = part
    return found


def _known(name: str, known: Mapping[str, _T], at: str, what: str) -> _T:
    if name not in known:
        raise ValueError(f"{at}: there is no {what} {name!r}; allowed: {', '.join(known) or 'none'}")
    return known[name]


def _require_composable(device: Device, at: str, devices: Mapping[str, Device], within: tuple[str, ...] = ()) -> None:
    """Components' names are unique, the devices among them are there, and none contains itself."""
    _by_name(device.components, f"{at}.components")
    for number, component in enumerate(device.components):
        if component.choice != "device":
            continue
        field = f"{at}.components.{number}"
        inner = _known(component.name, devices, f"{field}.name", "device")
        if component.name in (*within, device.name):
            raise ValueError(f"{field}: device {component.name} contains itself")
        _require_composable(inner, field, devices, (*within, device.name))


class _Side:
    """One side of an edge: its ends, in the format's order, and whether its indices were left open."""

    def __init__(
        self, endpoint: InstanceEndpoint, instances: Mapping[str, Instance], devices: Mapping[str, Device], at: str
    ) -> None:
        name, _ = _split(endpoint.instance, f"{at}.instance")
        instance = _known(name, instances, f"{at}.instance", "instance")
        indices, self.open = _indices(endpoint.instance, instance.count, f"{at}.instance")
        device = devices[instance.device]
        components, open_components = self._components(endpoint.component, device, devices, f"{at}.component")
        self.open |= open_components
        self.ends = [End(Copy(name, index), component, type_) for index in indices for component, type_ in components]

    def _components(
        self, text: str, device: Device, devices: Mapping[str, Device], at: str
    ) -> tuple[list[tuple[str, str]], bool]:
        """`cx5[0:2].port[1]`: the components and their types. A device's own name may stand before them."""
        found, left_open = [("", "device")], False
        for number, part in enumerate(text.split(".")):
            known = {component.name: component for component in device.components}
            name, _ = _split(part, at)
            if number == 0 and name == device.name and name not in known:
                continue
            if found[0][1] != "device":
                raise ValueError(f"{at}: {text!r} goes on behind a component that is no device")
            component = _known(name, known, at, f"component of device {device.name}")
            indices, is_open = _indices(part, component.count, at)
            left_open |= is_open
            found = [
                (f"{before}.{name}.{index}".removeprefix("."), component.type)
                for before, _ in found
                for index in indices
            ]
            device = devices.get(name, device) if component.choice == "device" else device
        if not found[0][0]:
            raise ValueError(f"{at}: {text!r} names no component; allowed: {', '.join(known)}")
        return found, left_open


def _split(text: str, at: str) -> tuple[str, str | None]:
    match = _ENDPOINT.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{at}: {text!r} is no name with indices; write name, name[2] or name[0:4]")
    return match[1], match[2]


def _indices(text: str, count: int, at: str) -> tuple[list[int], bool]:
    """Python's slices; bounds beyond what there is are errors. And whether there were none."""
    _, written = _split(text, at)
    if not written or written == ":":
        return list(range(count)), True
    bounds = [int(bound) if bound else None for bound in written.split(":")]
    if len(bounds) == 1:
        (index,) = bounds
        assert index is not None
        found = [index + count if index < 0 else index]
    elif any(bound is not None and abs(bound) > count for bound in bounds[:2]) or bounds[2:] == [0]:
        found = []
    else:
        found = list(range(*slice(*bounds).indices(count)))
    if not found or not all(0 <= index < count for index in found):
        raise ValueError(f"{at}: {text!r} is out of range; there are {count}, numbered from 0")
    return found, False


def _pairs(scheme: Scheme, first: _Side, second: _Side, at: str) -> list[tuple[End, End]]:
    if scheme == "many2many":
        return [(one, other) for one in first.ends for other in second.ends if one != other]
    if scheme == "ring":
        raise ValueError(f"{at}.scheme: the format's own service makes no edges of `ring`; allowed: one2one, many2many")
    longer, shorter = (first, second) if len(first.ends) > len(second.ends) else (second, first)
    if len(longer.ends) > len(shorter.ends) and not longer.open:
        raise ValueError(
            f"{at}: one2one pairs {len(first.ends)} ends with {len(second.ends)}; allowed: as many on both sides (of "
            "names without indices, as many as the other side has are taken)"
        )
    return [(one, other) for one, other in zip(first.ends, second.ends, strict=False) if one != other]
