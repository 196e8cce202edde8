"""Small networks for the tests of the simulation."""

from collections.abc import Mapping
from typing import Any

from testbed.experiment.link import LinkSpec
from testbed.experiment.topologies.base import TOPOLOGIES, participant_names
from testbed.theory.simulation.network import SimulatedNetwork

RATE_BPS = 1e9


def link(*, rate_bps: float = RATE_BPS, delay_s: float = 0.0) -> LinkSpec:
    return LinkSpec.model_validate({}).model_copy(update={"rate_bps": rate_bps, "delay_s": delay_s})


def network(
    num_workers: int,
    topology: str | dict[str, Any] = "star",
    *,
    delay_s: float = 0.0,
    num_servers: int = 0,
    seed: int = 1,
    overrides: Mapping[tuple[str, str], LinkSpec] | None = None,
) -> tuple[SimulatedNetwork, tuple[str, ...]]:
    """The network and its participants, packed."""
    num_ends = num_workers + num_servers
    fabric = TOPOLOGIES.parse(topology).grown(num_ends).fabric(num_ends)
    nodes = fabric.network(fabric.places[:num_ends], num_workers=num_workers, num_servers=num_servers)
    specs = {
        hop: link(rate_bps=RATE_BPS * edge.rate_factor, delay_s=delay_s)
        for edge in nodes.edges
        for hop in ((edge.first, edge.second), (edge.second, edge.first))
    }
    return SimulatedNetwork(nodes, specs | dict(overrides or {}), seed=seed), participant_names(
        num_workers, num_servers
    )
