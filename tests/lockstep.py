"""Several workers' compressors in one thread: their exchanges, request by request, without a network."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch

from transports.compression._sharded import ShardedCodec
from transports.compression.base import (
    COMPRESSORS,
    LENGTH_BYTES,
    AllReduce,
    AllToAll,
    Array,
    Layout,
    Meanwhile,
    Piece,
    Request,
)
from transports.execution.gradients import GradientCompression


class Workers:
    """As many as exchange gradients with each other, and the bytes that the first hands over."""

    def __init__(self, compression: object, num_workers: int, *, seed: int = 0) -> None:
        self.compressor = COMPRESSORS.parse(compression)
        self.members = [
            GradientCompression(self.compressor, rank=rank, num_workers=num_workers, seed=seed)
            for rank in range(num_workers)
        ]
        self.requests: list[Request] = []

    def mean(self, buffers: Sequence[torch.Tensor], layout: Layout | None = None) -> list[torch.Tensor]:
        """What each worker gets for its buffer (n,), which stays as it is."""
        return self._reduced(buffers, layout, "avg")

    def sum(self, buffers: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The same in a process group of which the sum is requested and which knows no parameters."""
        return self._reduced(buffers, None, "sum")

    def _reduced(
        self, buffers: Sequence[torch.Tensor], layout: Layout | None, operation: Literal["sum", "avg"]
    ) -> list[torch.Tensor]:
        copies = [buffer.clone() for buffer in buffers]
        layout = layout or [Piece("parameter", tuple(buffers[0].shape))]
        exchanges = [
            member.exchange(copy, layout, operation) for member, copy in zip(self.members, copies, strict=True)
        ]
        self.requests = []
        answers: list[Any] = [None] * len(exchanges)
        while True:
            requests = [step for step in map(_advance, exchanges, answers) if step is not None]
            if not requests:
                return copies
            assert len(requests) == len(exchanges), "some workers ask for more than others"
            self.requests.append(requests[0])
            answers = _answer(requests)

    def errors(self, layout: Layout) -> list[torch.Tensor]:
        """What each has not sent yet; what it owes of a shard's mean, in the measure of its own gradients."""
        return [
            torch.from_numpy(member._errors.flat(layout) + len(self.members) * _owed(member, layout))
            for member in self.members
        ]

    def payload_bytes(self) -> int:
        """Of the first worker in the last exchange."""
        return sum(
            request.tensor.nbytes
            if isinstance(request, AllReduce)
            else request.payloads.nbytes
            if isinstance(request, AllToAll)
            else len(request.payload) + LENGTH_BYTES * request.varying
            for request in self.requests
        )


def _owed(member: GradientCompression, layout: Layout) -> Array:
    codec = member._codec
    errors = member._errors.flat(layout)
    return codec.owed.flat(layout) if isinstance(codec, ShardedCodec) else np.zeros_like(errors)


def _advance(exchange: Any, answer: Any) -> Request | None:
    try:
        step: Request | Meanwhile = exchange.send(answer)
    except StopIteration:
        return None
    if isinstance(step, Meanwhile):
        step.work()
        return step.request
    return step


def _answer(requests: Sequence[Any]) -> list[Any]:
    first = requests[0]
    if isinstance(first, AllToAll):
        assert len({request.payloads.shape for request in requests}) == 1
        return [np.stack([request.payloads[rank] for request in requests]) for rank in range(len(requests))]
    if not isinstance(first, AllReduce):
        assert first.varying or len({len(request.payload) for request in requests}) == 1
        return [[request.payload.copy() for request in requests] for _ in requests]
    assert len({(request.operation, request.tensor.shape, request.tensor.dtype) for request in requests}) == 1
    reduced = first.tensor.clone()
    for request in requests[1:]:
        reduced = reduced + request.tensor if first.operation == "sum" else torch.maximum(reduced, request.tensor)
    for request in requests:
        request.tensor.copy_(reduced)
    return [None] * len(requests)
