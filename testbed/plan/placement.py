"""Who sits where: the topology's places, given to workers' hosts, servers, and whatever else is attached. Pure."""

from testbed.errors import SpecError
from testbed.experiment.experiment import Experiment
from testbed.experiment.host import traffic_hosts
from testbed.experiment.storage.base import STORAGE_NODE
from testbed.experiment.topologies.base import Network
from testbed.plan.aggregators import attached_aggregators


def place(experiment: Experiment) -> Network:
    """The topology with the workers' hosts where the placement puts them, and hosts for background traffic where the
    spec does. Raises SpecError when there are too few places, or no such switch."""
    topology, num_workers, sharing = experiment.topology, experiment.workers, experiment.workers_per_host
    num_servers = num_servers_of(experiment)
    num_hosts = sharing.num_hosts(num_workers)
    require_several_hosts(experiment)
    fabric = topology.fabric(num_hosts + num_servers)
    if len(fabric.places) < num_hosts + num_servers:
        shared = f" on {num_hosts} hosts" if sharing.count > 1 else ""
        servers = f" and {num_servers} parameter servers" if num_servers else ""
        raise SpecError(
            f"workers: {num_workers}{shared}{servers} do not fit the {len(fabric.places)} places of topology "
            f"{topology.kind}; allowed: at most {(len(fabric.places) - num_servers) * sharing.count}, or "
            f"{topology.larger}"
        )
    attached = experiment.placement.attach(fabric.places, num_hosts + num_servers, seed=experiment.seed)
    network = fabric.network(attached, num_workers=num_workers, workers_per_host=sharing.count, num_servers=num_servers)
    network = network.with_traffic_hosts(traffic_hosts(experiment.hosts, fabric.switches))
    network = with_storage(experiment, network)
    return network.with_aggregators(attached_aggregators(experiment, network))


def require_several_hosts(experiment: Experiment) -> None:
    """Raises SpecError where all workers share one host."""
    num_workers, sharing = experiment.workers, experiment.workers_per_host
    if sharing.num_hosts(num_workers) < 2 and sharing.count > 1:
        raise SpecError(
            f"workers_per_host: {sharing.count} puts all {num_workers} workers on one host, and no link between hosts "
            f"carries anything; allowed: {f'less than {num_workers}' if num_workers > 1 else '1'}"
        )


def with_storage(experiment: Experiment, network: Network) -> Network:
    """The network with the experiment's storage node, if it has one: on the switch that the spec names, else on that of
    the first worker's host. Raises SpecError."""
    storage = experiment.storage
    if storage is None:
        return network
    switches = [node.name for node in network.nodes if node.role == "switch"]
    if storage.at is not None and storage.at not in switches:
        raise SpecError(f"storage.at: {storage.at!r} is no switch; there are {', '.join(switches)}")
    first = next(edge.second for edge in network.edges if edge.second in switches and edge.first[0] in "wh")
    return network.with_storage(STORAGE_NODE, storage.at or first)


def num_servers_of(experiment: Experiment) -> int:
    """Parameter servers with nodes of their own."""
    served = experiment.workload.served_groups(experiment.collective, experiment.channel)
    return max((each.collective.num_servers for each in served), default=0)


def racks_of(network: Network, num_workers: int) -> tuple[int, ...]:
    """For each worker, the number of its rack: workers on one switch, or on one host, are in one."""
    switch_of = {edge.first: edge.second for edge in network.edges}
    switches = [switch_of[f"w{rank}"] for rank in range(num_workers)]
    numbers = {switch: number for number, switch in enumerate(dict.fromkeys(switches))}
    return tuple(numbers[switch] for switch in switches)
