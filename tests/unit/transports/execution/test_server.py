"""A server beside workers in threads."""

import torch

from tests.threads import run_communicators
from transports.execution.communicator import Communicator

SERVERS = {"kind": "parameter_server", "servers": 2, "segment_bytes": "64B"}


def test_servers_take_part_in_what_needs_them_and_in_nothing_else() -> None:
    def body(communicator: Communicator) -> list[float]:
        values = torch.full((101,), float(communicator.rank + 1))
        communicator.barrier().wait()
        communicator.all_reduce(values).wait()
        communicator.broadcast(values, 1).wait()
        halves = values.to(torch.bfloat16)
        communicator.all_reduce(halves, "avg").wait()
        alone = torch.tensor([communicator.rank])
        communicator.all_reduce(alone, "max").wait()  # less than there are servers
        communicator.all_reduce(torch.empty(0)).wait()
        truth = torch.tensor([communicator.rank == 1] * 5)
        communicator.all_reduce(truth, "product").wait()
        communicator.barrier().wait()  # the last operation is one that no server takes part in
        return [values[-1].item(), halves[-1].item(), alone.item(), float(truth.any())]

    for channel in ("memory", "tcp"):
        assert run_communicators(body, 3, channel=channel, collective=SERVERS) == [[6.0, 6.0, 2, 0.0]] * 3
