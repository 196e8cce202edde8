"""A parameter server's side of a run: `main` is the entry that the fork server calls on each server's node.

Servers are not registered with the coordinator: what they do follows from what workers send them, they end when all
workers have left, and a status other than 0 before that ends the run.
"""

from functools import partial

from switch_agg import clock
from testbed.control.worker import ServerConfiguration
from testbed.experiment.workloads.base import ServedGroup
from testbed.worker.raising_threads import RaisingThreads
from transports.group import Group


def main(configuration_json: str) -> None:
    """Serve every group, each on a thread of its own, until the workers have left it. Raises what serving raises."""
    configuration = ServerConfiguration.model_validate_json(configuration_json)
    clock.dilate(configuration.dilation)
    threads = RaisingThreads()
    for served in configuration.groups:
        if configuration.number < served.collective.num_servers:
            threads.start(partial(_serve, configuration, served), name=f"server of {served.name}")
    threads.join()


def _serve(configuration: ServerConfiguration, served: ServedGroup) -> None:
    import torch
    from torch._C._distributed_c10d import FileStore, PrefixStore

    from transports.execution.asynchronous import serve_asynchronously
    from transports.execution.server import serve

    torch.set_num_threads(1)
    store = PrefixStore(served.name, FileStore(configuration.store_path, configuration.num_workers))
    group = Group(
        name=served.name,
        rank=0,
        size=configuration.num_workers,
        address=configuration.address,
        store=store,
        timeout_s=clock.machine_s(configuration.timeout_s),
    )
    asynchronous, number = configuration.asynchronous, configuration.number
    if asynchronous is None:
        serve(served.collective, served.channel, group, number)
        return
    serve_asynchronously(
        served.channel,
        group,
        number,
        served.collective.num_servers,
        lambda shard: torch.optim.SGD(shard, lr=asynchronous.learning_rate, momentum=asynchronous.momentum),
        asynchronous.num_pushes,
    )
