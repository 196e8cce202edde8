"""The network of an experiment as an InfraGraph document, for other simulators (https://infragraph.dev). Pure.

Hosts are those of the spec's workers, in the order of their ranks, so that what reads the document puts rank i on host
i. What the format cannot say is left out, and said.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from testbed.errors import SpecError
from testbed.experiment.experiment import Experiment
from testbed.experiment.link import LinkSpec
from testbed.experiment.topologies.base import Edge, Network
from testbed.plan.link_configuration import link_configs
from testbed.plan.paths import Hop
from testbed.plan.placement import place
from transports.units import format_rate, format_time

_GIGA: Final = Decimal(10**9)
_MICRO: Final = Decimal("1e-6")
_LEFT_OUT: Final = {
    "traffic": "hosts of background traffic",
    "aggregator": "aggregators",
    "storage": "the storage node",
    "server": "parameter servers",
}
"""Roles of nodes that are no part of the document."""
_UNSAID: Final = ("jitter", "loss", "duplicate", "reorder", "queue", "ecn_bytes")
"""Settings of links that the format has no words for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Described:
    """A document, and what of the experiment's network is not in it."""

    document: dict[str, Any]
    num_hosts: int
    num_switches: int
    num_links: int
    left_out: tuple[str, ...]


def infragraph(experiment: Experiment) -> Described:
    """The network as it is planned. Raises SpecError for links that differ in their two directions."""
    network = place(experiment)
    specs = {
        hop: each.spec
        for hop, each in link_configs(
            network,
            experiment.link,
            experiment.workers_per_host.intra_host,
            experiment.links,
            packet_bytes=experiment.packet_bytes,
        ).items()
    }
    roles = {node.name: node.role for node in network.nodes}
    written = [
        edge
        for edge in network.edges
        if not edge.intra_host and not edge.colocated and roles[edge.first] not in _LEFT_OUT
    ]
    switches = {node.name: number for number, node in enumerate(_with_role(network, "switch"))}
    sharing = experiment.workers_per_host.count
    hosts = _hosts(network, "host" if sharing > 1 else "worker")
    links = _links(written, specs)
    ports = dict.fromkeys(switches, 0)
    instances = {**hosts, **{name: ("switch", number) for name, number in switches.items()}}

    def end(node: str) -> dict[str, str]:
        instance, number = instances[node]
        if node not in ports:
            return {"instance": f"{instance}[{number}]", "component": "nic[0]"}
        ports[node] += 1
        return {"instance": f"{instance}[{number}]", "component": f"port[{ports[node] - 1}]"}

    edges = [
        {"ep1": end(edge.first), "ep2": end(edge.second), "scheme": "one2one", "link": links[_settings(edge, specs)]}
        for edge in written
    ]
    kinds = Counter(instance for instance, _ in hosts.values())
    return Described(
        document={
            "name": re.sub(r"[^a-zA-Z0-9_-]", "-", experiment.name),
            "description": f"{len(hosts)} hosts on {experiment.topology.kind}; hosts are in the order of ranks",
            "devices": [*(_host(kind) for kind in kinds), _switch(max(ports.values()))],
            "links": [_link(name, rate_bps, delay_s) for (rate_bps, delay_s), name in links.items()],
            "instances": [
                *({"name": kind, "device": kind, "count": count} for kind, count in kinds.items()),
                {"name": "switch", "device": "switch", "count": len(switches)},
            ],
            "edges": edges,
        },
        num_hosts=len(hosts),
        num_switches=len(switches),
        num_links=len(edges),
        left_out=tuple(_left_out(experiment, network, [specs[edge.first, edge.second] for edge in written])),
    )


def _with_role(network: Network, role: str) -> list[Any]:
    return [node for node in network.nodes if node.role == role]


def _hosts(network: Network, role: str) -> dict[str, tuple[str, int]]:
    """By node, its instance (`host_1`: with one accelerator) and its number there."""
    workers = {node.name: 0 for node in _with_role(network, role)}
    for edge in network.edges:
        if edge.intra_host:
            workers[edge.second] += 1
    found: dict[str, tuple[str, int]] = {}
    seen: Counter[str] = Counter()
    for name, count in workers.items():
        kind = f"host_{count or 1}"
        found[name] = (kind, seen[kind])
        seen[kind] += 1
    return found


def _host(kind: str) -> dict[str, Any]:
    return {
        "name": kind,
        "description": "accelerators behind one interface",
        "components": [
            {"name": "xpu", "count": int(kind.partition("_")[2]), "choice": "xpu"},
            {"name": "nic", "count": 1, "choice": "nic"},
        ],
        "links": [{"name": "pcie"}],
        "edges": [
            {"ep1": {"component": "xpu"}, "ep2": {"component": "nic"}, "scheme": "many2many", "link": "pcie"},
        ],
    }


def _switch(num_ports: int) -> dict[str, Any]:
    return {
        "name": "switch",
        "description": "forwards at any rate",
        "components": [
            {"name": "asic", "count": 1, "choice": "cpu"},
            {"name": "port", "count": num_ports, "choice": "port"},
        ],
        "links": [{"name": "ic"}],
        "edges": [{"ep1": {"component": "asic"}, "ep2": {"component": "port"}, "scheme": "many2many", "link": "ic"}],
    }


def _settings(edge: Edge, specs: Mapping[Hop, LinkSpec]) -> tuple[float, float]:
    """Rate and delay. Raises SpecError where the directions differ."""
    there, back = specs[edge.first, edge.second], specs[edge.second, edge.first]
    for setting, one, other, text in (
        ("rate", there.rate_bps, back.rate_bps, format_rate),
        ("delay", there.delay_s, back.delay_s, format_time),
    ):
        if one != other:
            raise SpecError(
                f"links: {edge.first} -> {edge.second} has {setting} {text(one)}, and back it has {text(other)}; a "
                "link of InfraGraph is the same in both directions"
            )
    return there.rate_bps, there.delay_s


def _links(edges: Sequence[Edge], specs: Mapping[Hop, LinkSpec]) -> dict[tuple[float, float], str]:
    """The names of the kinds of links there are."""
    kinds = dict.fromkeys(_settings(edge, specs) for edge in edges)
    return {kind: f"link_{number}" for number, kind in enumerate(kinds)}


def _link(name: str, rate_bps: float, delay_s: float) -> dict[str, Any]:
    gigabits, micros = float(Decimal(repr(rate_bps)) / _GIGA), float(Decimal(repr(delay_s)) / _MICRO)
    return {
        "name": name,
        "description": f"{format_rate(rate_bps)} and {format_time(delay_s)} in each direction",
        "physical": {
            "bandwidth": {"choice": "gigabits_per_second", "gigabits_per_second": gigabits},
            "latency": {"choice": "us", "us": micros},
        },
    }


def _left_out(experiment: Experiment, network: Network, specs: Sequence[LinkSpec]) -> Iterator[str]:
    roles = {node.role for node in network.nodes}
    yield from (f"left out: {text}" for role, text in _LEFT_OUT.items() if role in roles)
    usual = LinkSpec.model_validate({})
    unsaid = [name for name in _UNSAID if any(getattr(spec, name) != getattr(usual, name) for spec in specs)]
    if unsaid:
        names = [LinkSpec.model_fields[name].alias or name for name in unsaid]
        yield f"the format has no words for {', '.join(names)} of links"
    if experiment.changes:
        yield "links are as they are at the start, without `changes`"
    if experiment.workers_per_host.count > 1:
        yield f"{experiment.workers_per_host.count} workers share a host: say workers_per_host again with the document"
