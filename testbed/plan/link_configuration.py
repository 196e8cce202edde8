"""What a spec asks of every direction of every link: the class of link, its share of the rate, overrides. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from testbed.errors import SpecError
from testbed.experiment.link import MAX_QUEUE_BYTES, MAX_RATE_BPS, MIN_RATE_BPS, UNSHAPED_BPS, LinkOverride, LinkSpec
from testbed.experiment.topologies.base import Edge, Network
from testbed.plan.paths import Hop
from testbed.plan.selector import select
from transports.units import format_rate, format_size

_SUPERFRAME_QUEUE_BYTES: Final = 100_000
_ETHERNET_HEADER_BYTES: Final = 14
_SETTINGS: Final = LinkOverride.model_fields


@dataclass(kw_only=True, slots=True)
class AskedLink:
    """What is asked of one direction, and which key of the spec asks each thing."""

    link: str
    hop: Hop
    spec: LinkSpec
    keys: dict[str, str] = field(default_factory=dict)
    """By setting (`rate`, `delay`, ...): the path in the spec; those not named are `link`'s."""

    def key(self, setting: str) -> str:
        """`link.rate`, or `links.w1-s0.rate`."""
        return self.keys.get(setting, f"link.{setting}")

    def override(self, override: LinkOverride, path: str) -> None:
        """Take over what the override, found at that path of the spec, names."""
        self.spec = self.spec.overridden(override)
        fields = type(override).model_fields
        self.keys |= {fields[name].alias or name: f"{path}.{fields[name].alias or name}" for name in override.named}


def min_queue_bytes(packet_bytes: int) -> int:
    """Three packets; of super-frames 100 kB, since seldom more than one is queued whole."""
    return min(_SUPERFRAME_QUEUE_BYTES, 3 * (packet_bytes + _ETHERNET_HEADER_BYTES))


def asked_links(
    network: Network, link: LinkSpec, inside: LinkSpec, overrides: Mapping[str, LinkOverride], *, packet_bytes: int
) -> dict[Hop, AskedLink]:
    """Every direction's settings: `link` with the edge's share of the rate, or `inside` within a host, then the
    overrides in their order.

    `packet_bytes` is the largest packet that a queue gets. Queues in bandwidth-delay products become bytes. Raises
    SpecError for an override that names no link and for settings that contradict each other, with the keys.
    """
    asked = [
        _beside(edge, hop) if edge.beside else _inside(edge, inside, hop) if edge.inside else _share(edge, link, hop)
        for edge in network.edges
        for hop in ((edge.first, edge.second), (edge.second, edge.first))
    ]
    for text, override in overrides.items():
        try:
            named = select(asked, text)
        except SpecError as error:
            raise SpecError(f"links: {error}") from None
        for each in named:
            each.override(override, f"links.{text}")
    _settle_pairs(asked, packet_bytes)
    _refuse(asked, packet_bytes)
    return {each.hop: each for each in asked}


def changed_links(
    asked: Sequence[AskedLink], link: str, override: LinkOverride, path: str, *, packet_bytes: int
) -> list[AskedLink]:
    """The same directions, both of a link after each other, once the override found at that path holds for those that
    the selector names. Raises SpecError as :func:`asked_links` does."""
    changed = [replace(each, keys=dict(each.keys)) for each in asked]
    try:
        named = select(changed, link)
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from None
    for each in named:
        each.override(override, path)
    _settle_pairs(changed, packet_bytes)
    _refuse(changed, packet_bytes)
    return changed


def _settle_pairs(asked: Sequence[AskedLink], packet_bytes: int) -> None:
    for there, back in zip(asked[::2], asked[1::2], strict=True):
        round_trip_s = there.spec.delay_s + back.spec.delay_s
        _settle(there, round_trip_s, packet_bytes)
        _settle(back, round_trip_s, packet_bytes)


def _share(edge: Edge, link: LinkSpec, hop: Hop) -> AskedLink:
    spec = link.model_copy(update={"rate_bps": link.rate_bps * edge.rate_factor})
    asked = AskedLink(link=edge.name, hop=hop, spec=spec, keys={"rate": "topology"} if edge.rate_factor != 1 else {})
    asked.override(edge.settings, f"topology ({edge.name})")
    return asked


def _inside(edge: Edge, inside: LinkSpec, hop: Hop) -> AskedLink:
    keys = {field.alias or name: f"workers_per_host.link.{field.alias or name}" for name, field in _SETTINGS.items()}
    return AskedLink(link=edge.name, hop=hop, spec=inside, keys=keys)


def _beside(edge: Edge, hop: Hop) -> AskedLink:
    spec = LinkSpec.model_validate({}).model_copy(update={"rate_bps": UNSHAPED_BPS})
    keys = {field.alias or name: "collective" for name, field in _SETTINGS.items()}
    return AskedLink(link=edge.name, hop=hop, spec=spec, keys=keys)


def _settle(asked: AskedLink, round_trip_s: float, packet_bytes: int) -> None:
    """The queue in bytes, and at least the smallest that holds what comes."""
    queue = asked.spec.queue
    if not isinstance(queue, int):
        queue_bytes = queue.queue_bytes(asked.spec.rate_bps, round_trip_s)
        asked.spec = asked.spec.with_queue(max(min_queue_bytes(packet_bytes), queue_bytes))


def _refuse(every: Sequence[AskedLink], packet_bytes: int) -> None:
    """Raise SpecError with everything that is wrong, once for each key."""
    found: dict[str, str] = {}
    for asked in every:
        for setting, reason in _faults(asked, packet_bytes):
            found.setdefault(asked.key(setting), reason)
    if found:
        raise SpecError("\n".join(f"{key}: {reason}" for key, reason in found.items()))


def _faults(asked: AskedLink, packet_bytes: int) -> Iterator[tuple[str, str]]:
    spec, name = asked.spec, " -> ".join(asked.hop)
    if not spec.unshaped and not MIN_RATE_BPS <= spec.rate_bps <= MAX_RATE_BPS:
        yield (
            "rate",
            (
                f"the link {asked.link} would have {format_rate(spec.rate_bps)}, its share of link.rate; allowed: "
                f"{format_rate(MIN_RATE_BPS)} to {format_rate(MAX_RATE_BPS)}"
            ),
        )
    least_bytes = min_queue_bytes(packet_bytes)
    if not least_bytes <= spec.queue_bytes <= MAX_QUEUE_BYTES:
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
