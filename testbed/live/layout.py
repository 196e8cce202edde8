"""Where nodes stand when a network is drawn, and how links bend around them. Pure: the same network, the same drawing.

One switch stands in the middle of its hosts. Several stand in tiers above the hosts, each tier a hop farther from them;
where links within a tier would hide each other, on a circle; and a topology that has an outline of its own stands so.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from testbed.errors import SpecError, as_spec_errors
from testbed.experiment.topologies.base import TOPOLOGIES

HOST_GAP: Final = 46.0
"""Between neighbouring hosts, so that their circles do not touch."""
TIER_GAP: Final = 150.0
MARGIN: Final = 36.0
UNIT: Final = 170.0
"""Of a topology's outline."""
_FARTHEST: Final = 74.0
"""From a switch of an outline to its hosts."""
_BESIDE: Final = 58.0
"""From a switch to an aggregator, which is a part of it."""
_HOSTS_IN_ROW: Final = 24
_CLEARANCE: Final = 16.0
"""A line that passes a node closer than this bends."""
_SWERVE: Final = 0.2
"""Of its length, how far such a line bends; at most UNIT."""

Point = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """In units that are pixels where there is room for all."""

    width: float
    height: float
    places: Mapping[str, Point]
    """x to the right, y down; by node."""
    bends: Mapping[tuple[str, str], float]
    """By direction: the middle of its curve is this far to the left of the straight line's, looking along it."""


def drawing(
    nodes: Sequence[tuple[str, str]],
    hops: Sequence[tuple[str, str]],
    *,
    topology: object = None,
    num_workers: int = 0,
) -> Drawing:
    """`nodes`: name and role (testbed.experiment.topologies.base.Node); `hops`: sender and receiver of every direction.
    `topology`: as the spec has it, for its outline."""
    network = _Network(nodes, hops)
    places = _places(network, _outline(topology, num_workers))
    left, top = (min(place[axis] for place in places.values()) for axis in (0, 1))
    shifted = {name: (round(x - left + MARGIN, 1), round(y - top + MARGIN, 1)) for name, (x, y) in places.items()}
    bends = {hop: _bend(hop, shifted) if set(hop) <= set(network.switches) else 0.0 for hop in hops}
    swerve = max((abs(bend) for bend in bends.values()), default=0.0)
    if swerve:  # the curve itself goes half as far as its middle's handle
        shifted = {name: (round(x + swerve / 2, 1), round(y + swerve / 2, 1)) for name, (x, y) in shifted.items()}
    width, height = (max(place[axis] for place in shifted.values()) + MARGIN + swerve / 2 for axis in (0, 1))
    return Drawing(width=round(width, 1), height=round(height, 1), places=shifted, bends=bends)


def _outline(topology: object, num_workers: int) -> Mapping[str, Point]:
    """Empty for one that this version does not know, of an old record."""
    if topology is None:
        return {}
    try:
        with as_spec_errors():
            return TOPOLOGIES.parse(topology).outline(num_workers)
    except (SpecError, ValidationError):
        return {}


class _Network:
    """Who is attached to whom."""

    def __init__(self, nodes: Sequence[tuple[str, str]], hops: Sequence[tuple[str, str]]) -> None:
        roles = dict(nodes)
        self.neighbours: dict[str, list[str]] = {name: [] for name in roles}
        for sender, receiver in hops:
            if receiver not in self.neighbours[sender]:
                self.neighbours[sender].append(receiver)
        self.switches = [name for name, role in nodes if role == "switch"]
        self.aggregators = [name for name, role in nodes if role == "aggregator"]
        shared = {name for name, role in nodes if role == "host"}
        self.inner = {name: [each for each in self.neighbours[name] if roles[each] == "worker"] for name in shared}
        """Workers of each host that several share."""
        inside = {worker for workers in self.inner.values() for worker in workers}
        apart = inside | {*self.switches, *self.aggregators}
        self.attached = {
            switch: [name for name, _ in nodes if name not in apart and switch in self.neighbours[name]]
            for switch in self.switches
        }
        """Hosts on each switch, in the nodes' order."""
        self.lonely = [name for name, _ in nodes if name not in inside and not self.neighbours[name]]
        trunks = set(self.switches)
        self.trunks = {switch: [each for each in self.neighbours[switch] if each in trunks] for switch in self.switches}

    def leaves(self, switch: str) -> list[str]:
        """What stands outermost: hosts, or the workers inside them."""
        return [leaf for host in self.attached[switch] for leaf in self.inner.get(host) or [host]]


def _places(network: _Network, outline: Mapping[str, Point]) -> dict[str, Point]:
    if set(outline) == set(network.switches) and len(outline) > 1:
        places = {switch: (UNIT * x, UNIT * y) for switch, (x, y) in outline.items()}
        _attach(network, places)
    elif len(network.switches) == 1:
        places = _around(network, network.switches[0])
    else:
        tiers = _tiers(network)
        if all(_plain(tier, network) for tier in tiers):
            places = _stacked(network, tiers)
        else:
            places = {name: (UNIT * x, UNIT * y) for name, (x, y) in _circle(network.switches).items()}
            _attach(network, places)
    for aggregator in network.aggregators:
        switch = network.neighbours[aggregator][0]
        places[aggregator] = _beyond(places[switch], _gap(switch, network, places), _BESIDE)
    for number, name in enumerate(network.lonely):
        places.setdefault(name, (number * HOST_GAP, 0.0))
    return places


def _circle(names: Sequence[str]) -> dict[str, Point]:
    """A unit apart, the first on top, clockwise."""
    turn, radius = 2 * math.pi / len(names), 0.5 / math.sin(math.pi / len(names))
    return {name: (radius * math.sin(i * turn), -radius * math.cos(i * turn)) for i, name in enumerate(names)}


def _around(network: _Network, switch: str) -> dict[str, Point]:
    """The switch in the middle, its hosts on an ellipse: pages are wider than high."""
    leaves = network.leaves(switch)
    radius = max(3.2 * HOST_GAP, HOST_GAP * len(leaves) / (2 * math.pi))
    places: dict[str, Point] = {switch: (0.0, 0.0)}
    start, span = (math.pi / 2 if len(leaves) == 2 else 0.0), 2 * math.pi
    if len(network.attached[switch]) == 1:  # a host around its switch would stand on it
        start, span = -math.pi / 2, math.pi
    for number, leaf in enumerate(leaves):
        turn = start + span * number / max(1, len(leaves))
        places[leaf] = (1.35 * radius * math.sin(turn), -radius * math.cos(turn))
    for host, workers in network.inner.items():
        x, y = (sum(places[worker][axis] for worker in workers) for axis in (0, 1))
        places[host] = _beyond((0.0, 0.0), math.atan2(y, x), 0.55 * radius)
    return places


def _tiers(network: _Network) -> list[list[str]]:
    """Switches by their hops to the nearest host; the lowest first."""
    reached = {switch for switch in network.switches if network.attached[switch]}
    tiers = [[switch for switch in network.switches if switch in reached]]
    while tiers[-1]:
        above = {each for switch in tiers[-1] for each in network.trunks[switch]} - reached
        reached |= above
        tiers.append([switch for switch in network.switches if switch in above])
    unreached = [switch for switch in network.switches if switch not in reached]
    return [tier for tier in [*tiers, unreached] if tier]


def _plain(tier: Sequence[str], network: _Network) -> bool:
    """Whether its links among themselves join neighbours alone."""
    order = {switch: number for number, switch in enumerate(tier)}
    return all(
        abs(order[switch] - order[other]) == 1 for switch in tier for other in network.trunks[switch] if other in order
    )


def _stacked(network: _Network, tiers: Sequence[Sequence[str]]) -> dict[str, Point]:
    """Hosts at the bottom, in several rows where there are many; every switch above the middle of what it leads to."""
    places: dict[str, Point] = {}
    num_leaves = sum(len(network.leaves(switch)) for switch in tiers[0])
    num_rows = max(1, math.ceil(num_leaves / _HOSTS_IN_ROW))
    step, x = HOST_GAP / num_rows, 0.0
    for switch in tiers[0]:
        leaves = network.leaves(switch)
        for number, leaf in enumerate(leaves):
            places[leaf] = (x + number * step, (number % num_rows) * HOST_GAP)
        width = max(HOST_GAP * 1.6, (len(leaves) - 1) * step)
        middle = x + (len(leaves) - 1) * step / 2 if leaves else x + width / 2
        places[switch] = (middle, -TIER_GAP)
        x += width + HOST_GAP
    for host, workers in network.inner.items():
        places[host] = (sum(places[worker][0] for worker in workers) / len(workers), -TIER_GAP / 2)
    xs = [places[switch][0] for switch in tiers[0]]
    middle = (min(xs) + max(xs)) / 2
    for number, tier in enumerate(tiers[1:], start=2):
        middles = {switch: _middle(switch, network, places) for switch in tier}
        ordered = sorted(tier, key=lambda switch: (round(middles[switch], 3), tier.index(switch)))
        gap = max((max(xs) - min(xs)) / len(tier), 2 * HOST_GAP)
        for position, switch in enumerate(ordered):
            places[switch] = (middle + (position + 0.5 - len(tier) / 2) * gap, -number * TIER_GAP)
    return places


def _middle(switch: str, network: _Network, places: Mapping[str, Point]) -> float:
    below = [places[each][0] for each in network.trunks[switch] if each in places]
    return sum(below) / len(below) if below else 0.0


def _attach(network: _Network, places: dict[str, Point]) -> None:
    """Each switch's hosts, in a fan where its links to other switches leave most room."""
    for switch in network.switches:
        hosts = network.attached[switch]
        angle = _gap(switch, network, places)
        for host, turned in zip(hosts, _fan(angle, len(hosts), _FARTHEST), strict=True):
            workers = network.inner.get(host, [])
            places[host] = _beyond(places[switch], turned, _FARTHEST * (0.7 if workers else 1.0))
            for worker, towards in zip(workers, _fan(turned, len(workers), _FARTHEST), strict=True):
                places[worker] = _beyond(places[host], towards, _FARTHEST)


def _fan(angle: float, count: int, distance: float) -> list[float]:
    """So many angles around one, at which circles of HOST_GAP do not touch at that distance."""
    turn = min(HOST_GAP / distance, 2 * math.pi / max(1, count))
    return [angle + (number - (count - 1) / 2) * turn for number in range(count)]


def _gap(switch: str, network: _Network, places: Mapping[str, Point]) -> float:
    """The middle of the widest angle between the switch's lines to what has its place already; downwards first."""
    x, y = places[switch]
    taken = sorted(
        math.atan2(places[each][1] - y, places[each][0] - x) for each in network.neighbours[switch] if each in places
    )
    if not taken:
        return math.pi / 2
    widths = [
        (after - before, before) for before, after in zip(taken, [*taken[1:], taken[0] + 2 * math.pi], strict=True)
    ]
    width, before = max(widths, key=lambda each: (round(each[0], 6), math.sin(each[1] + each[0] / 2)))
    return before + width / 2


def _beyond(place: Point, angle: float, distance: float) -> Point:
    return place[0] + distance * math.cos(angle), place[1] + distance * math.sin(angle)


def _bend(hop: tuple[str, str], places: Mapping[str, Point]) -> float:
    """0 where nobody stands in the way; the same curve for both directions of a link."""
    (x0, y0), (x1, y1) = places[hop[0]], places[hop[1]]
    length = math.hypot(x1 - x0, y1 - y0)
    if length == 0:
        return 0.0
    for name, (x, y) in places.items():
        along = ((x - x0) * (x1 - x0) + (y - y0) * (y1 - y0)) / length
        aside = abs((x - x0) * (y1 - y0) - (y - y0) * (x1 - x0)) / length
        if name not in hop and _CLEARANCE < along < length - _CLEARANCE and aside < _CLEARANCE:
            middle_x, middle_y = (sum(place[axis] for place in places.values()) / len(places) for axis in (0, 1))
            right = (x1 - x0) * (middle_y - y0) - (y1 - y0) * (middle_x - x0)  # where the drawing's middle is
            outwards = right > length or (abs(right) <= length and hop == (min(hop), max(hop)))
            return min(_SWERVE * length, UNIT) * (1 if outwards else -1)
    return 0.0
