"""Which switches add gradients, and for whom. Pure.

An aggregator is a node of its own (`a0`) beside its switch, on a link as fast as the machine. With the data plane
`reference` a process there adds. With `ebpf` a program at the switch's end of that link does, and nothing but the
workers' joining and leaving crosses the link.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from switch_agg.job import MAX_WORKERS, Job
from testbed.addresses import Port
from testbed.errors import SpecError
from testbed.links.tc import MTU
from testbed.routing import Hop, next_hops
from testbed.spec.experiment import Experiment
from testbed.topologies.base import Network
from transports.collectives.in_network import InNetwork

ETHERNET_BYTES = 14


@dataclass(frozen=True, kw_only=True, slots=True)
class AggregatorPlan:
    """One aggregator."""

    collective: InNetwork
    port: Port
    """Its own end of its link."""
    switch_port: Port
    workers: tuple[str, ...]
    """Their addresses, by rank."""

    @property
    def name(self) -> str:
        """`a0`."""
        return self.port.node

    @property
    def title(self) -> str:
        """`aggregator a0 at s0 (ebpf)`."""
        return f"aggregator {self.name} at {self.switch_port.node} ({self.collective.dataplane})"

    @property
    def job(self) -> Job:
        """What it serves."""
        return self.collective.job(self.workers)

    @property
    def idle_hops(self) -> tuple[Hop, ...]:
        """Those that no gradient crosses although paths lead over them: the program takes packets off before."""
        if self.collective.dataplane != "ebpf":
            return ()
        return (self.port.node, self.switch_port.node), (self.switch_port.node, self.port.node)


def used_collectives(experiment: Experiment) -> list[InNetwork]:
    """Those that need an aggregator. Raises SpecError for one that cannot be had here."""
    if experiment.stack is not None:
        if isinstance(experiment.collective, InNetwork):
            raise SpecError(
                f"stack: {experiment.stack.kind} is a whole stack and has no use for the switch of collective "
                "in_network; leave one of the two out"
            )
        return []
    used = dict.fromkeys(experiment.workload.collectives(experiment.collective))
    found = [collective for collective in used if isinstance(collective, InNetwork)]
    for collective in found:
        _require_possible(experiment, collective)
    return found


def _require_possible(experiment: Experiment, collective: InNetwork) -> None:
    if collective.aggregator is not None:
        raise SpecError("collective.aggregator: a run makes its own; leave it out, and say `at: s0` where it is to be")
    if collective.frame_bytes > MTU + ETHERNET_BYTES:
        raise SpecError(
            f"collective.num_elements: a frame of {collective.num_elements} elements has {collective.frame_bytes} "
            f"bytes, and links carry packets of {MTU}; allowed: at most 256"
        )
    if experiment.workers > MAX_WORKERS:
        raise SpecError(f"workers: a switch adds for at most {MAX_WORKERS} workers, not {experiment.workers}")
    if experiment.switch == "bridged":
        raise SpecError("switch: in_network needs switches that route to the aggregator; allowed: routed")


def attached_aggregators(experiment: Experiment, network: Network, switches: Sequence[str]) -> dict[str, str]:
    """The switch of each aggregator. Raises SpecError when there is no such switch."""
    found = {}
    for number, collective in enumerate(used_collectives(experiment)):
        if collective.at is not None and collective.at not in switches:
            raise SpecError(f"collective.at: {collective.at!r} is no switch; there are {', '.join(switches)}")
        found[f"a{number}"] = collective.at or nearest_switch(network, switches, experiment.workers)
    return found


def nearest_switch(network: Network, switches: Sequence[str], num_workers: int) -> str:
    """From which the farthest worker is least far away; of several the one with the shortest ways together, and of
    those the first."""
    towards = next_hops(network, [f"w{rank}" for rank in range(num_workers)])

    def distance(switch: str, worker: str) -> int:
        steps, node = 0, switch
        while node != worker:
            node, steps = towards[worker][node][0], steps + 1
        return steps

    def cost(switch: str) -> tuple[int, int]:
        distances = [distance(switch, worker) for worker in towards]
        return max(distances), sum(distances)

    return min(switches, key=cost)


def plan_aggregators(experiment: Experiment, links: Sequence[tuple[Port, Port]]) -> tuple[AggregatorPlan, ...]:
    """Those of :func:`attached_aggregators`, once there are addresses."""
    ends: Mapping[str, tuple[Port, Port]] = {first.node: (first, second) for first, second in links}
    return tuple(
        AggregatorPlan(
            collective=collective,
            port=ends[f"a{number}"][0],
            switch_port=ends[f"a{number}"][1],
            workers=tuple(ends[f"w{rank}"][0].address for rank in range(experiment.workers)),
        )
        for number, collective in enumerate(used_collectives(experiment))
    )


def addresses_of(aggregators: Sequence[AggregatorPlan]) -> dict[str, str]:
    """By `InNetwork.identity`."""
    return {each.collective.identity: each.port.address for each in aggregators}
