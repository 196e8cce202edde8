"""Workers that push and pull, and servers that step at once, in threads: gradients count once, and ages are true."""

import threading
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.threads import groups, run_threads
from transports.channels.base import CHANNELS
from transports.collectives.base import COLLECTIVES
from transports.errors import PeerLostError
from transports.execution.asynchronous import AsynchronousWorker, push_pull_trace, serve_asynchronously
from transports.execution.communicator import Communicator

NUM_ELEMENTS = 10
RATE = 0.5


def _exchange(
    num_workers: int, num_servers: int, num_pushes: int, *, channel: str = "memory", gate: Any = None, lost: int = -1
) -> tuple[list[Any], list[Any]]:
    """Each worker pushes `rank + 1` so often; what the workers pulled with its age each time, and the servers' ages.
    `gate(rank, push)` comes before each push; worker `lost` leaves before its first one."""
    members = groups(num_workers)
    collective = COLLECTIVES.parse({"kind": "parameter_server", "servers": num_servers})
    over = CHANNELS.parse(channel)
    together = threading.Barrier(num_workers)

    def work(rank: int) -> list[tuple[list[float], int]]:
        pulled = []
        with closing(Communicator(collective, over, members[rank])) as communicator:
            worker = AsynchronousWorker(members[rank].name, num_servers, torch.full((NUM_ELEMENTS,), 100.0))
            communicator.submit("begin", worker.begin, 0).wait()
            if rank == lost:
                return []
            for number in range(num_pushes):
                if gate is not None:
                    gate(rank, number)
                worker.gradient.fill_(rank + 1)

                def job(transport: Any) -> None:
                    age = worker.push_pull(transport)
                    assert push_pull_trace(worker, transport, 1, 0.0).size_bytes == 4 * NUM_ELEMENTS
                    pulled.append((worker.values.tolist(), age))

                communicator.submit("push_pull", job, 0).wait()
            together.wait(10)  # as in a run, nobody leaves before all are through
        return pulled

    def serve(number: int) -> list[int]:
        group = replace(members[0], rank=0)
        make = lambda shard: torch.optim.SGD(shard, lr=RATE)  # noqa: E731
        return serve_asynchronously(over, group, number, num_servers, make, num_pushes)

    def life(number: int) -> Any:
        return work(number) if number < num_workers else serve(number - num_workers)

    results = run_threads(life, list(range(num_workers + num_servers)))
    return results[:num_workers], results[num_workers:]


@pytest.mark.parametrize("channel", ["memory", "tcp"])
@pytest.mark.parametrize("num_servers", [1, 3])
def test_every_gradient_is_applied_once_on_every_shard(channel: str, num_servers: int) -> None:
    workers, servers = _exchange(3, num_servers, 5, channel=channel)
    least = min(values[element] for pulls in workers for values, _ in pulls for element in range(NUM_ELEMENTS))
    assert least == 100.0 - RATE * 5 * (1 + 2 + 3)
    for ages in servers:
        assert len(ages) == 15
        assert sum(ages) <= 15 * 14


def test_a_gradient_is_as_old_as_there_were_updates_of_others_since_its_worker_pulled() -> None:
    """Worker 1 pushes its second gradient when worker 0 has pushed three times since: the ages are 0, 1, 0, 0, 3."""
    turns = {(0, 0): 0, (1, 0): 1, (0, 1): 2, (0, 2): 3, (0, 3): 4, (1, 1): 5, (0, 4): 6}
    condition, done = threading.Condition(), []

    def gate(rank: int, number: int) -> None:
        with condition:
            done.append((rank, number - 1))
            condition.notify_all()
            turn = turns.get((rank, number), 99)
            finished = lambda: sum(pair in done for pair, at in turns.items() if at < turn)  # noqa: E731
            condition.wait_for(lambda: turn == 99 or finished() == turn, 10)

    workers, (ages,) = _exchange(2, 1, 5, gate=gate)
    assert [age for _, age in workers[0][:4]] == [0, 1, 0, 0]
    assert [age for _, age in workers[1][:2]] == [1, 3]
    assert ages[:6] == [0, 1, 1, 0, 0, 3]


def test_a_worker_that_leaves_early_is_lost_to_the_server() -> None:
    _, (error,) = _exchange(2, 1, 3, lost=1)
    assert isinstance(error, PeerLostError)
