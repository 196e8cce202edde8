"""The experiment as the user writes it. Every key but `name` has a default; `testbed schema` prints it as JSON schema.

A spec is a YAML file or an :class:`Experiment`; both are the same thing. Quantities carry their unit in the file and
become SI base units here, in fields whose names say so (`link.rate` -> `link.rate_bps`).
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from testbed.errors import SpecError
from testbed.experiment.background.base import BACKGROUNDS, Background
from testbed.experiment.changes import Change
from testbed.experiment.claims import CLAIM_KEYS
from testbed.experiment.clock import Dilation, HostCost
from testbed.experiment.documents import load_document, read_document
from testbed.experiment.explanations import explanations
from testbed.experiment.fusion.base import FUSIONS, Fusion
from testbed.experiment.host import HostSpec
from testbed.experiment.link import MAX_MTU, MIN_GSO_BYTES, MTU, SUPERFRAME_BYTES, LinkOverride, LinkSpec
from testbed.experiment.placements.base import PLACEMENTS, Placement
from testbed.experiment.runtimes.base import RUNTIMES, Runtime
from testbed.experiment.storage.base import STORAGES, Storage
from testbed.experiment.switch_modes.base import SWITCH_MODES, SwitchMode
from testbed.experiment.synchronisation.base import SYNCHRONISATIONS, Synchronisation
from testbed.experiment.topologies.base import TOPOLOGIES, Topology
from testbed.experiment.workers_per_host import WorkersPerHost, parse_workers_per_host
from testbed.experiment.workloads.base import WORKLOADS, Workload
from transports.baselines.base import STACKS, Stack
from transports.channels.base import CHANNELS, Channel
from transports.collectives.base import COLLECTIVES, Collective
from transports.compression.base import COMPRESSORS, Compressor
from transports.registry import Options
from transports.units import Time, format_size, parse_size_bytes

_NAME: Final = r"^[a-z0-9][a-z0-9_.-]{0,62}$"
SWEEP_KEYS: Final = ("sweep", "where", "repeat", "order_seed", *CLAIM_KEYS)
"""Keys of a spec that is many runs; `testbed.experiment.sweep` takes them out before what is left is an experiment."""


def _parse_packet_mode(value: object) -> object:
    if value in ("superframe", "mtu"):
        return value
    try:
        num_bytes = value if isinstance(value, int) and not isinstance(value, bool) else parse_size_bytes(value)
    except ValueError:
        num_bytes = 0
    if not MIN_GSO_BYTES <= num_bytes <= SUPERFRAME_BYTES:
        raise ValueError(
            f"{value!r} is no packet mode; allowed: superframe, mtu, or a size of {MIN_GSO_BYTES}B to "
            f"{format_size(SUPERFRAME_BYTES)}"
        )
    return num_bytes


class Prometheus(BaseModel):
    """A Prometheus of the run's own, on loopback; its data go to the record."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    port: int = Field(0, ge=0, le=65535)
    """TCP port on 127.0.0.1 of its pages; 0 takes any free one."""


def _parse_prometheus(value: object) -> object:
    return {True: {}, False: None}[value] if isinstance(value, bool) else value


class Metrics(BaseModel):
    """The Prometheus endpoint, on loopback, off the emulated links."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    port: Literal["auto"] | Annotated[int, Field(ge=0, le=65535)] | None = "auto"
    """TCP port on 127.0.0.1. `auto`: 9464, or any free one while that is taken, by another run say; `testbed status`
    names it. 0 takes any free one, null switches the endpoint off."""
    interval_s: Time = Field(0.1, alias="interval", ge=0.01, le=10)
    """Between two samples of every link; seconds on the wall, whatever the dilation."""
    prometheus: Annotated[
        Prometheus | None, BeforeValidator(_parse_prometheus, json_schema_input_type=bool | Prometheus | None)
    ] = None
    """Start Prometheus, have it scrape the endpoint every second, and compare its counters with the record's at the
    end: `true`, or `{port: 9090}`."""

    @model_validator(mode="after")
    def _scraped(self) -> Self:
        if self.prometheus is not None and self.port is None:
            raise ValueError("prometheus scrapes the endpoint, which port: null switches off; allowed: port: 0")
        return self


class Experiment(BaseModel):
    """One run."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, title="testbed experiment")

    name: str = Field(pattern=_NAME)
    """Lower-case letters, digits, `_`, `.`, `-`; at most 63."""
    seed: int = Field(1, ge=0, le=2**32 - 1)
    """Decides initial weights, batches and every random draw."""
    workers: int = Field(4, ge=1, le=64)
    """One alone has nobody to exchange gradients with, and no time or bytes to compare: only a command may be alone."""
    workers_per_host: Annotated[
        WorkersPerHost, BeforeValidator(parse_workers_per_host, json_schema_input_type=int | WorkersPerHost)
    ] = Field(default_factory=lambda: WorkersPerHost.model_validate({}))
    """How many workers share a host and its link: `4`, or `{count: 4, link: {rate: 10gbit}}` with links inside that are
    not as fast as the machine."""
    topology: Annotated[Topology, *TOPOLOGIES.field()] = Field(default_factory=lambda: TOPOLOGIES.parse("star"))
    placement: Annotated[Placement, *PLACEMENTS.field()] = Field(default_factory=lambda: PLACEMENTS.parse("packed"))
    """Which host sits on which place of the topology."""
    link: LinkSpec = Field(default_factory=lambda: LinkSpec.model_validate({}))
    """Of every host to its switch, and between switches."""
    links: dict[str, LinkOverride] = Field(default_factory=dict)
    """What is different on some links: `w1-s0: {rate: 10mbit}`, `s0->w2: {delay: 5ms}` for one direction, `w*-s*` for
    all that match. Taken in the order of the file; the later wins."""
    changes: tuple[Change, ...] = ()
    """What changes while the run goes on: `{at: 10s, link: w1-s0, rate: 50mbit}`, `{at: 20s, link: w1-s0, down: true}`,
    `{link: w2-s0, trace: lte.trace}`. Times count from the first iteration that communicates, warm-up included."""
    packet_mode: Annotated[
        Literal["superframe", "mtu"] | int,
        BeforeValidator(_parse_packet_mode),
        PlainSerializer(lambda mode: mode if isinstance(mode, str) else format_size(mode)),
        WithJsonSchema({"type": "string", "description": "superframe, mtu, or a size", "examples": ["mtu", "9000B"]}),
    ] = "superframe"
    """What TCP hands to the links: `superframe`, up to 64 KiB at once, but never more than a millisecond of the link,
    cheap; `mtu`, single packets, so that queues and losses are of packets; or super-frames of at most that many
    bytes."""
    mtu: int = Field(MTU, ge=MTU, le=MAX_MTU)
    """The largest IP packet that links carry; above 1500, jumbo frames. Every byte count and bound follows it."""
    switch: Annotated[SwitchMode, *SWITCH_MODES.field()] = Field(default_factory=lambda: SWITCH_MODES.parse("routed"))
    """Switches forward at layer 3 (`routed`): queues and incast behave as they do in reality; or at layer 2
    (`bridged`), without loops, where the sender's own limits reach into the switches' queues."""
    runtime: Annotated[Runtime, *RUNTIMES.field()] = Field(default_factory=lambda: RUNTIMES.parse("namespace"))
    """What a worker runs in: `namespace`, `docker`, or `{kind: docker, image: my/train:latest}`."""
    workload: Annotated[Workload, *WORKLOADS.field()] = Field(default_factory=lambda: WORKLOADS.parse("training"))
    collective: Annotated[Collective, *COLLECTIVES.field()] = Field(default_factory=lambda: COLLECTIVES.parse("ring"))
    channel: Annotated[Channel, *CHANNELS.field()] = Field(default_factory=lambda: CHANNELS.parse("tcp"))
    compression: Annotated[Compressor, *COMPRESSORS.field()] = Field(default_factory=lambda: COMPRESSORS.parse("none"))
    """What of a gradient is sent, and as which bytes: `top_k`, or `{kind: top_k, ratio: 1%}`."""
    fusion: Annotated[Fusion, *FUSIONS.field()] = Field(default_factory=lambda: FUSIONS.parse({}))
    """How gradients are joined into buckets and in which order these go: `{bytes: 1MiB}`, `layers` (each tensor by
    itself), `merged`, `horovod_5ms`, `priority`, or `none` (all at once, when backward has ended)."""
    synchronisation: Annotated[Synchronisation, *SYNCHRONISATIONS.field()] = Field(
        default_factory=lambda: SYNCHRONISATIONS.parse({})
    )
    """When workers synchronise what they have learned: `every_iteration`, `{kind: local_sgd, every: 8}`, or
    `asynchronous`, through parameter servers."""
    stack: Annotated[Stack | None, *STACKS.optional_field()] = None
    """A baseline library (`gloo`) instead of collective x channel."""
    storage: Annotated[Storage | None, *STORAGES.optional_field()] = None
    """Where training data are read from: a node `d0` on the network, `{kind: full_read, data: 1GiB, disk: 2gbit}`,
    `{kind: partitioned_read, data: 1GiB}`, or `{kind: batch_read, sample: 110kB, prefetch: false}`. null: data are
    where they are needed."""
    hosts: dict[str, HostSpec] = Field(default_factory=dict)
    """Limits and stragglers, by worker: `w0`, `w*`, `w0,w3`; later entries win. And where hosts for background traffic
    are: `x0: {at: s0}`."""
    background: tuple[Annotated[Background, *BACKGROUNDS.field()], ...] = ()
    """Flows between hosts that share the links with the training."""
    dilation: Dilation = 1
    """The factor by which time is stretched, so that fast links fit a slow machine: rates are divided by it, every
    duration is multiplied, and every result is given as if nothing were. `auto`: the smallest whole one with which this
    machine carries the links at half of its power (`testbed doctor` measures that)."""
    host_cost: HostCost = "faster"
    """What hosts spend on messages under a dilation k. `faster`: k times less in virtual time, as if hosts were that
    much faster, so that only the network decides. `real`: as much as on this machine with a core for each worker
    (`hosts.*.cpu` names other numbers): workers may use 1/k of that CPU time."""
    timeout_s: Time = Field(30.0, alias="timeout", ge=1, le=3600)
    """An exchange that takes longer fails, and a worker that says nothing for one and a half times as long, while no
    bytes cross its interface, is lost; virtual seconds, as all times of the run."""
    metrics: Metrics = Field(default_factory=lambda: Metrics.model_validate({}))

    @model_validator(mode="before")
    @classmethod
    def _refuse_sweep(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for key in SWEEP_KEYS:
                if key in data:
                    raise ValueError(f"`{key}` is about several runs of one spec: use `testbed sweep`, or leave it out")
        return data

    @field_validator("name", mode="before")
    @classmethod
    def _fits_a_file(cls, name: Any) -> Any:
        if isinstance(name, str) and not re.fullmatch(_NAME, name):
            raise ValueError(
                "write lower-case letters, digits, `_`, `.` or `-`, at most 63 of them, the first a letter or digit"
            )
        return name

    @field_validator("channel")
    @classmethod
    def _crosses_links(cls, channel: Channel) -> Channel:
        if not channel.crosses_links:
            others = ", ".join(cls.model_construct().kind for cls in CHANNELS if cls.crosses_links)
            raise ValueError(f"`{channel.kind}` joins ranks of one process and cannot cross a link; allowed: {others}")
        return channel

    @model_validator(mode="after")
    def _enough_workers(self) -> Self:
        if self.workers < self.workload.fewest_workers:
            raise ValueError(
                f"workers: {self.workers} has nobody to exchange gradients with; allowed: at least "
                f"{self.workload.fewest_workers} for workload {self.workload.kind}"
            )
        return self

    def undilatable(self) -> list[str]:
        """What the spec says that cannot be had in slower time, each with its key, the reason and the fix."""
        found = []
        if reason := self.workload.undilatable():
            found.append(f"workload: {reason}")
        if self.channel.own_timers:
            found.append(
                f"channel: {self.channel.kind} has timers in its library that nobody can set, and they would be too "
                "short; allowed: a channel of TCP, udp, or dilation: 1"
            )
        found += [
            f"hosts.{name}.cpu: cores are counted by what they do in real time; leave it out, say host_cost: real, or "
            "dilation: 1 (a `slowdown` can be dilated)"
            for name, host in self.hosts.items()
            if host.cpu_cores is not None and self.host_cost != "real"
        ]
        return found

    @property
    def ends_together(self) -> bool:
        """Whether no worker's iteration ends before the last worker's last gradient: workers are in step, and what each
        computes and exchanges is no graph, where it waits inside an iteration alone."""
        return self.synchronisation.in_step and self.workload.graph() is None

    @property
    def packet_bytes(self) -> int:
        """The largest packet that TCP hands to a link."""
        if isinstance(self.packet_mode, int):
            return self.packet_mode
        return self.mtu if self.packet_mode == "mtu" else SUPERFRAME_BYTES

    def dump(self) -> dict[str, Any]:
        """Every default spelled out, as a spec would write it."""
        return self.model_dump(mode="json", by_alias=True)

    def to_yaml(self) -> str:
        """The resolved spec; loads back to an equal experiment."""
        return yaml.safe_dump(self.dump(), sort_keys=False)

    def sha256(self) -> str:
        """Identifies the question: the hash of the resolved spec."""
        # Keys in their order: that of `hosts` and of a topology's switches has a meaning.
        return hashlib.sha256(json.dumps(self.dump()).encode()).hexdigest()


def validate(data: object) -> Experiment:
    """Check a spec given as plain data. Raises SpecError naming every wrong field and what is allowed."""
    if not isinstance(data, Mapping):
        raise SpecError(f"a spec is a mapping with at least a `name`; this is {_describe(data)}")
    try:
        return Experiment.model_validate(dict(data))
    except ValidationError as error:
        raise SpecError("\n".join(explanations(error, data, Experiment))) from None


def load(path: Path, overrides: Sequence[str] = ()) -> Experiment:
    """Read a YAML spec and apply `path=value` overrides. Raises SpecError."""
    data = read(path)
    for override in overrides:
        apply_override(data, override)
    with naming(path):
        return validate(data)


@contextmanager
def naming(what: object) -> Iterator[None]:
    """Every line of a SpecError begins with what it is about."""
    try:
        yield
    except SpecError as error:
        raise SpecError("\n".join(f"{what}: {line}" for line in str(error).splitlines())) from None


def read(path: Path) -> dict[Any, Any]:
    """A YAML spec as plain data, not checked yet; paths in it begin at the file's folder. Raises SpecError."""
    try:
        data = read_document(path)
    except ValueError as error:
        raise SpecError(str(error)) from None
    if not isinstance(data, dict):
        raise SpecError(f"{path}: a spec is a mapping with at least a `name`; this is {_describe(data)}")
    anchor(data, path.parent)
    return data


_SHORT_FOR: Final = {"jitter": "deviation", "workers_per_host": "count"}
"""The key that a plain value stands for, where it is not the kind of an axis."""


def anchor(data: dict[Any, Any], folder: Path) -> None:
    """A path inside a spec file begins at the file's folder."""
    topology = data.get("topology")
    if isinstance(topology, dict) and isinstance(topology.get("path"), str):
        data["topology"] = {**topology, "path": str(folder / topology["path"])}


def apply_override(data: dict[Any, Any], override: str) -> None:
    """`link.rate=1gbit` on plain data, in place. Raises SpecError."""
    set_value(data, *parse_override(override))


def parse_override(override: str) -> tuple[str, Any]:
    """`link.rate=1gbit` -> path and value; the value is YAML. Raises SpecError."""
    key, separator, text = override.partition("=")
    if not separator or not all(key.split(".")):
        raise SpecError(f"--set {override}: write path=value, such as link.rate=1gbit")
    try:
        return key, load_document(text)
    except ValueError as error:
        raise SpecError(f"--set {override}: {text!r} {error}") from None


def set_value(data: dict[Any, Any], path: str, value: Any) -> None:
    """Set what is at `link.rate`, in place; what lies on the way is made, or spelled out where it is a short form.

    Raises SpecError where something lies there that would be lost: a list, or a value that no path leads into.
    """
    *parents, last = path.split(".")
    for number, part in enumerate(parents, start=1):
        child = data.get(part)
        if child is None:
            child = _default_kind(part)
        elif not isinstance(child, dict):
            if not isinstance(child, str) and part not in _SHORT_FOR:
                at = ".".join(parents[:number])
                raise SpecError(
                    f"{path}: {at} is {_describe(child)} here, which no path leads into; set {at} as a whole"
                )
            child = {_SHORT_FOR.get(part, "kind"): child}  # `collective: ring` stands for `collective: {kind: ring}`
        data[part] = child
        data = child
    data[last] = value


def _default_kind(key: str) -> dict[str, Any]:
    """An axis that the spec leaves at its default keeps its kind when one of its options is set."""
    field = Experiment.model_fields.get(key)
    default = field.get_default(call_default_factory=True) if field else None
    return {"kind": default.kind} if isinstance(default, Options) else {}


def _describe(data: object) -> str:
    return "empty" if data is None else f"a {type(data).__name__}"
