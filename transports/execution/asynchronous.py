"""Asynchronous parameter servers: workers push gradients and pull parameters without waiting for each other.

Dean et al. 2012, "Large Scale Distributed Deep Networks" (Downpour SGD); Li et al. 2014, "Scaling Distributed Machine
Learning with the Parameter Server" (OSDI). Each server has a shard of the parameters, applies a gradient as soon as it
has come, and answers with its shard as it is then, and with the gradient's staleness: how many updates, of others, the
shard has had since the parameters were handed out that the gradient was computed from.

On the wire, between a worker and each server: the shard's gradient one way; the shard and an int64 the other. Before
that worker 0 gives the servers the parameters to begin with.
"""

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Final

import torch

from transports.channels.base import Channel, Endpoint, Header, Token
from transports.channels.framing import DTYPES, POINT_TO_POINT, group_id
from transports.collectives.schedules.segments import parts
from transports.execution.operations import Transport
from transports.execution.tensors import raw
from transports.execution.trace import OperationTrace
from transports.group import Group

_BEGIN, _PUSH, _PULL, _STALENESS = range(4)
"""Tags."""

MakeOptimizer = Callable[[list[torch.Tensor]], torch.optim.Optimizer]


class AsynchronousWorker:
    """One worker's side, for jobs on the communication thread; `values` (n,) are its parameters, float32."""

    def __init__(self, name: str, num_servers: int, values: torch.Tensor) -> None:
        """`name` is that of the group."""
        self._group = group_id(name)
        self._num_servers = num_servers
        self.values: Final = values
        self.gradient: Final = torch.zeros_like(values)
        self._sequence = 0

    def begin(self, transport: Transport) -> None:
        """Worker 0 hands out the parameters to begin with; nothing for the others."""
        if transport.rank:
            return
        tokens = {
            transport.endpoint.post_send(server, self._header(shard, _BEGIN, 0), _view(shard))
            for server, shard in self._shards(transport, self.values)
        }
        _complete(transport.endpoint, tokens, transport.deadline_s)

    def push_pull(self, transport: Transport) -> int:
        """Give all servers their part of `gradient`; `values` become theirs. Returns the largest staleness."""
        endpoint = transport.endpoint
        self._sequence += 1
        staleness = torch.zeros(self._num_servers, dtype=torch.int64)
        tokens = set()
        for (server, gradient), (_, shard), age in zip(
            self._shards(transport, self.gradient),
            self._shards(transport, self.values),
            torch.split(staleness, 1),
            strict=True,
        ):
            for tag, tensor, post in (
                (_PUSH, gradient, endpoint.post_send),
                (_PULL, shard, endpoint.post_receive),
                (_STALENESS, age, endpoint.post_receive),
            ):
                tokens.add(post(server, self._header(tensor, tag, self._sequence), _view(tensor)))
        first_s = _complete(endpoint, tokens, transport.deadline_s)
        transport.first_byte_s = transport.first_byte_s or first_s
        return int(staleness.max())

    def _shards(self, transport: Transport, tensor: torch.Tensor) -> list[tuple[int, torch.Tensor]]:
        """Each server's number among the participants, and its part."""
        runs = parts(len(tensor), self._num_servers)
        return [(transport.size + index, tensor[start : start + count]) for index, (start, count) in enumerate(runs)]

    def _header(self, tensor: torch.Tensor, tag: int, sequence: int) -> Header:
        return _header(self._group, tensor, tag, sequence)


def push_pull_trace(worker: AsynchronousWorker, transport: Transport, sequence: int, began_s: float) -> OperationTrace:
    """The account of a push and its pull, just done."""
    done_s = time.monotonic()
    return OperationTrace(
        sequence=sequence,
        operation="push_pull",
        size_bytes=worker.gradient.nbytes,
        enqueued_s=began_s,
        started_s=began_s,
        first_byte_s=done_s if transport.first_byte_s is None else transport.first_byte_s,
        done_s=done_s,
        payload_bytes=worker.gradient.nbytes,
    )


def serve_asynchronously(
    channel: Channel, group: Group, number: int, num_servers: int, make: MakeOptimizer, num_pushes: int
) -> list[int]:
    """Be server `number` until every worker has pushed so often and left; returns the staleness of each update.

    `group` has the workers' size and the server's own address. Raises what `Channel.open` and `Endpoint.progress`
    raise, at once when a worker dies.
    """
    participant, size = group.size + number, group.size + num_servers
    with closing(channel.open(replace(group, rank=participant, size=size))) as endpoint:
        header = endpoint.peek(0, float("inf"))
        if header is None:
            return []
        shard = torch.empty(header.count, dtype=getattr(torch, DTYPES[header.dtype]))
        _complete(endpoint, {endpoint.post_receive(0, header, _view(shard))}, time.monotonic() + group.timeout_s)
        server = _Server(endpoint, group_id(group.name), shard, make, [num_pushes] * group.size)
        while server.waits:
            server.progress(time.monotonic() + group.timeout_s)
        for worker in range(group.size):
            endpoint.peek(worker, time.monotonic() + group.timeout_s)
        return server.staleness


class _Server:
    """One shard, and what its workers have of it."""

    def __init__(
        self, endpoint: Endpoint, group: int, shard: torch.Tensor, make: MakeOptimizer, num_left: list[int]
    ) -> None:
        self._endpoint = endpoint
        self._group = group
        self._shard = shard
        self._optimizer = make([shard])
        self._num_left = num_left
        self._gradients = [torch.empty_like(shard) for _ in num_left]
        self._given = [0] * len(num_left)
        """The number of updates behind what each worker has."""
        self._sequences = [0] * len(num_left)
        self._pushing: dict[Token, int] = {}
        """Workers, by what is awaited of them."""
        self._answers: dict[Token, torch.Tensor] = {}
        """Kept as they are until they have left."""
        self.staleness: list[int] = []
        for worker in range(len(num_left)):
            self._expect(worker)

    @property
    def waits(self) -> bool:
        """Whether a push is to come, or an answer to leave."""
        return bool(self._pushing or self._answers)

    def progress(self, deadline_s: float) -> None:
        """Until something has come or left."""
        for (token,) in self._endpoint.progress(deadline_s):
            if token in self._pushing:
                self._apply(self._pushing.pop(token))
            else:
                del self._answers[token]

    def _expect(self, worker: int) -> None:
        if self._num_left[worker] == 0:
            return
        self._num_left[worker] -= 1
        self._sequences[worker] += 1
        gradient = self._gradients[worker]
        header = _header(self._group, gradient, _PUSH, self._sequences[worker])
        self._pushing[self._endpoint.post_receive(worker, header, _view(gradient))] = worker

    def _apply(self, worker: int) -> None:
        age = len(self.staleness) - self._given[worker]
        self._shard.grad = self._gradients[worker]
        self._optimizer.step()
        self.staleness.append(age)
        self._given[worker] = len(self.staleness)
        for tag, answer in ((_PULL, self._shard.clone()), (_STALENESS, torch.tensor([age]))):
            header = _header(self._group, answer, tag, self._sequences[worker])
            self._answers[self._endpoint.post_send(worker, header, _view(answer))] = answer
        self._expect(worker)


def _header(group: int, tensor: torch.Tensor, tag: int, sequence: int) -> Header:
    dtype = DTYPES.index(str(tensor.dtype).removeprefix("torch."))
    return Header(group, sequence, POINT_TO_POINT, dtype, tensor.numel(), tag)


def _view(tensor: torch.Tensor) -> memoryview:
    return raw(tensor.detach())


def _complete(endpoint: Endpoint, tokens: set[Token], deadline_s: float) -> float | None:
    """Return when all are complete, with the time at which the first was."""
    first_s = None
    while tokens:
        tokens -= {token for (token,) in endpoint.progress(deadline_s)}
        first_s = first_s or time.monotonic()
    return first_s
