"""Compressed gradients over a transport: drives codecs' exchanges and keeps the errors that are fed back."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from itertools import count
from typing import Final, Literal, Protocol

import numpy as np
import torch

from transports.compression.base import (
    LENGTH_BYTES,
    AllGather,
    AllReduce,
    AllToAll,
    Bytes,
    Compressor,
    Exchanging,
    Layout,
    Meanwhile,
    OwnTypeCodec,
    Piece,
    Place,
    Request,
)
from transports.compression.memory import Memory, Scratch, forget_infinite
from transports.errors import OptionError
from transports.execution.operations import ReduceOperation, Transport
from transports.execution.trace import CodecAccount

COMPRESSIBLE: Final = (torch.float32, torch.float16, torch.bfloat16)
"""Element types that codecs take; they compute in float32. A process group leaves tensors of other types exact. Where
the gradients of a model are to be compressed, others are refused: float64 has more than twice the bits of float32."""


def require_compressible(compressor: Compressor, dtype: torch.dtype, what: str = "a gradient") -> None:
    """Raises OptionError, with the fix, for gradients of a type that the compressor does not take."""
    if dtype in COMPRESSIBLE or (compressor.own_type and dtype.is_floating_point):
        return
    raise OptionError(
        f"compression {compressor.kind}: {what} is {str(dtype).removeprefix('torch.')}, and codecs compute in float32; "
        f"allowed: {', '.join(str(each).removeprefix('torch.') for each in COMPRESSIBLE)}. Convert the model, or leave "
        "compression out: uncompressed, float64 stays exact"
    )


Answer = list[Bytes] | Bytes | None
"""To a request."""


class Carrier(Protocol):
    """What requests are carried out by: a transport, or what stands for one where a codec's cost is measured."""

    size: int
    codec: CodecAccount

    def all_reduce(self, tensor: torch.Tensor, op: ReduceOperation = "sum") -> None:
        """See :class:`Transport`."""

    def all_gather(self, output: torch.Tensor, input: torch.Tensor) -> None:  # noqa: A002 (torch's word)
        """See :class:`Transport`."""

    def all_to_all(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
        """See :class:`Transport`."""


class GradientCompression:
    """One worker's compressor, with all that it keeps between exchanges."""

    def __init__(self, compressor: Compressor, *, rank: int, num_workers: int, seed: int = 0) -> None:
        """Raises OptionError where so many workers cannot use the compressor's options."""
        compressor.check_world(num_workers)
        self.compressor: Final = compressor
        self._num_workers = num_workers
        self._codec = compressor.codec(Place(rank=rank, num_workers=num_workers, seed=seed))
        self._errors = Memory()
        self._scratch = Scratch()

    def exchange(self, buffer: torch.Tensor, layout: Layout, operation: Literal["sum", "avg"] = "avg") -> Exchanging:
        """The contiguous buffer (n,), of a type that :func:`require_compressible` allows, becomes the mean, or the sum,
        of what the workers sent of theirs.

        Where an element of anybody's is not finite, the result has such elements; and none is ever fed back.
        """
        require_compressible(self.compressor, buffer.dtype)
        if not buffer.numel():
            return
        weight = 1.0 if operation == "sum" else 1.0 / self._num_workers
        if isinstance(self._codec, OwnTypeCodec):
            yield from self._codec.exchange_tensor(buffer, weight)
            return
        values = buffer.float().numpy()  # the buffer itself where it is float32
        with np.errstate(all="ignore"):
            if self.compressor.error_feedback:
                errors = self._errors.flat(layout)
                errors += values
                yield from self._codec.exchange(errors, values, layout, weight)
                forget_infinite(errors)
            else:
                yield from self._codec.exchange(values, values, layout, weight)
        if buffer.dtype != torch.float32:
            buffer.copy_(torch.from_numpy(values))

    def reduce(
        self, transport: Transport, buffer: torch.Tensor, layout: Layout, operation: Literal["sum", "avg"] = "avg"
    ) -> None:
        """The exchange, over a transport: a job for the communication thread."""
        run(self.exchange(buffer, layout, operation), transport, self._scratch)

    def all_reduce(self, transport: Transport, tensor: torch.Tensor, operation: Literal["sum", "avg"]) -> None:
        """For a tensor of any shape, of such a type: a job as well. All of one shape are one parameter's."""
        flat = tensor.detach().contiguous().view(-1)
        self.reduce(transport, flat, [Piece(tuple(tensor.shape), tuple(tensor.shape))], operation)
        if not tensor.is_contiguous():
            tensor.detach().copy_(flat.view(tensor.shape))


def run(exchange: Exchanging, transport: Carrier, scratch: Scratch) -> None:
    """Drive an exchange; the transport keeps the account of its bytes and of the codec's CPU time: what follows the
    last request is decoding. Answers lie in the scratch memory, each in its own."""
    account = transport.codec
    numbers = count()
    begun_s = time.thread_time()
    try:
        step = next(exchange)
        while True:
            account.encode_s += time.thread_time() - begun_s
            request, work = step if isinstance(step, Meanwhile) else (step, None)
            perform = partial(_perform, request, transport, partial(scratch.bytes, next(numbers)))
            answer = perform() if work is None else _concurrently(work, perform, transport)
            account.payload_bytes += _payload_bytes(request)
            begun_s = time.thread_time()
            step = exchange.send(answer)
    except StopIteration:
        account.decode_s += time.thread_time() - begun_s


def _concurrently(work: Callable[[], None], perform: Callable[[], Answer], transport: Carrier) -> Answer:
    """The request on this thread, which has the endpoint, and the work on another."""

    def timed() -> float:
        begun_s = time.thread_time()
        work()
        return time.thread_time() - begun_s

    with ThreadPoolExecutor(1, "codec") as helper:
        done = helper.submit(copy_context().run, timed)  # numpy keeps what it ignores in the context
        answer = perform()
    transport.codec.encode_s += done.result()
    return answer


def _payload_bytes(request: Request) -> int:
    if isinstance(request, AllReduce):
        return request.tensor.nbytes
    if isinstance(request, AllToAll):
        return request.payloads.nbytes
    return len(request.payload) + LENGTH_BYTES * request.varying


def _perform(request: Request, transport: Carrier, memory: Callable[[int], Bytes]) -> Answer:
    if isinstance(request, AllReduce):
        transport.all_reduce(request.tensor, request.operation)
        return None
    if isinstance(request, AllToAll):
        received = memory(request.payloads.nbytes).reshape(request.payloads.shape)
        transport.all_to_all(list(torch.from_numpy(received)), list(torch.from_numpy(request.payloads)))
        return received
    return _gather(request, transport, memory)


def _gather(request: AllGather, transport: Carrier, memory: Callable[[int], Bytes]) -> list[Bytes]:
    payload = request.payload
    lengths = torch.full((transport.size,), len(payload))
    if request.varying:
        transport.all_gather(lengths, torch.tensor([len(payload)]))
    longest = int(lengths.max())
    part = torch.from_numpy(payload)
    if len(part) < longest:
        part = torch.cat([part, torch.zeros(longest - len(part), dtype=torch.uint8)])
    rows = memory(transport.size * longest).reshape(transport.size, longest)
    transport.all_gather(torch.from_numpy(rows).view(-1), part)
    return [row[:length] for row, length in zip(rows, lengths.tolist(), strict=True)]
