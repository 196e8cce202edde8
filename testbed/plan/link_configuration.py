"""The configuration of every direction of every link: the class of link, its share of the rate, overrides. Pure."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from testbed.errors import SpecError
from testbed.experiment.link import (
    MAX_QUEUE_BYTES,
    MAX_RATE_BPS,
    MIN_RATE_BPS,
    UNSHAPED_BPS,
    DelayProducts,
    LinkOverride,
    LinkSpec,
)
from testbed.experiment.topologies.base import Edge, Network
from testbed.plan.paths import Hop
from testbed.plan.selector import select
from transports.units import format_rate, format_size

_SUPERFRAME_QUEUE_BYTES: Final = 100_000
_ETHERNET_HEADER_BYTES: Final = 14
_SETTINGS: Final = LinkOverride.model_fields


@dataclass(kw_only=True, slots=True)
class LinkConfig:
    """The configuration of one direction, and which key of the spec each part of it is from."""

    link: str
    hop: Hop
    spec: LinkSpec
    keys: dict[str, str] = field(default_factory=dict)
    """By setting (`rate`, `delay`, ...): the path in the spec; those not named are `link`'s."""
    products: DelayProducts | None = None
    """What the queue is requested to be, where that is not bytes: these follow each change of a rate or a delay."""

    def key(self, setting: str) -> str:
        """`link.rate`, or `links.w1-s0.rate`."""
        return self.keys.get(setting, f"link.{setting}")

    def override(self, override: LinkOverride, path: str) -> None:
        """Take over what the override, found at that path of the spec, names."""
        self.spec = self.spec.overridden(override)
        self.products = None if "queue" in override.named else self.products
        fields = type(override).model_fields
        self.keys |= {fields[name].alias or name: f"{path}.{fields[name].alias or name}" for name in override.named}


def min_queue_bytes(packet_bytes: int) -> int:
    """Three packets; of super-frames 100 kB, since seldom more than one is queued whole."""
    return min(_SUPERFRAME_QUEUE_BYTES, 3 * (packet_bytes + _ETHERNET_HEADER_BYTES))


def link_configs(
    network: Network,
    link: LinkSpec,
    intra_host: LinkSpec,
    overrides: Mapping[str, LinkOverride],
    *,
    packet_bytes: int,
    emulated: bool = True,
) -> dict[Hop, LinkConfig]:
    """Every direction's settings: `link` with the edge's share of the rate, or `intra_host` within a host, then the
    overrides in their order.

    `packet_bytes` is the largest packet that a queue gets. Queues in bandwidth-delay products become bytes. Links that
    are not `emulated` may be as fast, and their queues as long, as the topology makes them. Raises SpecError for an
    override that names no link and for settings that contradict each other, with the keys.
    """
    requested = [
        _colocated(edge, hop)
        if edge.colocated
        else _intra_host(edge, intra_host, hop)
        if edge.intra_host
        else _share(edge, link, hop)
        for edge in network.edges
        for hop in ((edge.first, edge.second), (edge.second, edge.first))
    ]
    for text, override in overrides.items():
        try:
            named = select(requested, text)
        except SpecError as error:
            raise SpecError(f"links: {error}") from None
        for each in named:
            each.override(override, f"links.{text}")
    _settle_pairs(requested, packet_bytes)
    _refuse(requested, packet_bytes, emulated=emulated)
    return {each.hop: each for each in requested}


def changed_links(
    requested: Sequence[LinkConfig], link: str, override: LinkOverride, path: str, *, packet_bytes: int
) -> list[LinkConfig]:
    """The same directions, both of a link after each other, once the override found at that path holds for those that
    the selector names. Raises SpecError as :func:`link_configs` does."""
    changed = [replace(each, keys=dict(each.keys)) for each in requested]
    try:
        named = select(changed, link)
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from None
    for each in named:
        each.override(override, path)
    _settle_pairs(changed, packet_bytes)
    _refuse(changed, packet_bytes)
    return changed


def _settle_pairs(requested: Sequence[LinkConfig], packet_bytes: int) -> None:
    for there, back in zip(requested[::2], requested[1::2], strict=True):
        round_trip_s = there.spec.delay_s + back.spec.delay_s
        _settle(there, round_trip_s, packet_bytes)
        _settle(back, round_trip_s, packet_bytes)


def _share(edge: Edge, link: LinkSpec, hop: Hop) -> LinkConfig:
    rate_bps = link.rate_bps * edge.rate_factor
    if rate_bps == UNSHAPED_BPS:  # a trunk that happens to have what stands for no rate
        rate_bps = math.nextafter(rate_bps, 0.0)
    spec = link.model_copy(update={"rate_bps": rate_bps})
    requested = LinkConfig(
        link=edge.name, hop=hop, spec=spec, keys={"rate": "topology"} if edge.rate_factor != 1 else {}
    )
    requested.override(edge.settings, f"topology ({edge.name})")
    return requested


def _intra_host(edge: Edge, intra_host: LinkSpec, hop: Hop) -> LinkConfig:
    keys = {field.alias or name: f"workers_per_host.link.{field.alias or name}" for name, field in _SETTINGS.items()}
    return LinkConfig(link=edge.name, hop=hop, spec=intra_host, keys=keys)


def _colocated(edge: Edge, hop: Hop) -> LinkConfig:
    spec = LinkSpec.model_validate({}).model_copy(update={"rate_bps": UNSHAPED_BPS})
    keys = {field.alias or name: "collective" for name, field in _SETTINGS.items()}
    return LinkConfig(link=edge.name, hop=hop, spec=spec, keys=keys)


def _settle(requested: LinkConfig, round_trip_s: float, packet_bytes: int) -> None:
    """The queue in bytes, and at least the smallest that holds what comes."""
    if isinstance(requested.spec.queue, DelayProducts):
        requested.products = requested.spec.queue
    if requested.products is not None:
        queue_bytes = requested.products.queue_bytes(requested.spec.rate_bps, round_trip_s)
        requested.spec = requested.spec.with_queue(max(min_queue_bytes(packet_bytes), queue_bytes))


def _refuse(every: Sequence[LinkConfig], packet_bytes: int, *, emulated: bool = True) -> None:
    """Raise SpecError with everything that is wrong, once for each key."""
    found: dict[str, str] = {}
    for requested in every:
        for setting, reason in _faults(requested, packet_bytes, emulated=emulated):
            found.setdefault(requested.key(setting), reason)
    if found:
        raise SpecError("\n".join(f"{key}: {reason}" for key, reason in found.items()))


def _faults(requested: LinkConfig, packet_bytes: int, *, emulated: bool) -> Iterator[tuple[str, str]]:
    spec, name = requested.spec, " -> ".join(requested.hop)
    most_bps, most_bytes = (MAX_RATE_BPS, MAX_QUEUE_BYTES) if emulated else (math.inf, math.inf)
    if not spec.unshaped and not MIN_RATE_BPS <= spec.rate_bps <= most_bps:
        yield (
            "rate",
            (
                f"the link {requested.link} would have {format_rate(spec.rate_bps)}, its share of link.rate; allowed: "
                f"{format_rate(MIN_RATE_BPS)} to {format_rate(MAX_RATE_BPS)}"
            ),
        )
    least_bytes = min_queue_bytes(packet_bytes)
    if not least_bytes <= spec.queue_bytes <= most_bytes:
        smaller = "; smaller ones with packet_mode: mtu" if least_bytes == _SUPERFRAME_QUEUE_BYTES else ""
        yield (
            "queue",
            (
                f"{name} would have {format_size(spec.queue_bytes)}; allowed: {format_size(least_bytes)} to "
                f"{format_size(MAX_QUEUE_BYTES)}{smaller}"
            ),
        )
    for setting, reason in spec.contradictions().items():
        yield setting, f"{name}: {reason}"
