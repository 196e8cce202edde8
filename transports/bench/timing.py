"""Collective operations one by one, timed and checked: for `python -m transports.bench` and `testbed bench`."""

import time
from collections.abc import Iterator, Mapping
from typing import Final

import torch

from transports.baselines.base import CommunicatorLike, WorkLike
from transports.bench.procedure import LASTING_S, appointment_s
from transports.bench.rows import TIMED_OPERATIONS, Sample, matrix_shape
from transports.bench.stacks import Composed, StackLike
from transports.collectives.base import Operation
from transports.execution.communicator import Communicator

_SUMMED: Final = ("all_reduce", "reduce_scatter", "reduce")
_GATHERED: Final = ("all_gather", "gather")
_SCATTERED: Final = ("reduce_scatter", "scatter")
_UNIT_ROUNDOFF: Final = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.float16: 2.0**-11}
_BFLOAT16_ROUNDOFF: Final = 2.0**-8


class Operands:
    """One rank's buffers for an operation, and what must come of them.

    Every rank derives every other's input from the seed, so that results are checked without another exchange. Whole
    numbers are small enough that their sums fit the type and are exact in float64.
    """

    def __init__(
        self,
        operation: Operation,
        *,
        rank: int,
        num_workers: int,
        num_elements: int,
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
    ) -> None:
        """`num_elements` are those of the larger buffer; a multiple of `num_workers` where each rank has a part."""
        assert operation in TIMED_OPERATIONS, operation
        self.operation: Final = operation
        self.size_bytes: Final = num_elements * dtype.itemsize
        self._rank, self._num_workers = rank, num_workers
        self._shape = matrix_shape(num_elements)
        part = num_elements // num_workers
        own = slice(rank * part, (rank + 1) * part)
        expected = torch.zeros(num_elements, dtype=torch.float64)
        generator = torch.Generator()
        for member in range(num_workers):
            generator.manual_seed(seed * 1000 + member)
            values = _values(num_elements, dtype, generator)
            if operation in _SUMMED:
                expected += values
            elif operation in ("broadcast", "scatter") and member == 0:
                expected.copy_(values)
            elif operation in _GATHERED:
                expected[member * part : (member + 1) * part] = values[:part]
            elif operation == "all_to_all":
                expected[member * part : (member + 1) * part] = values[own]
            if member == rank:
                self._input = values
        if operation in _GATHERED:
            self._input = self._input[:part].clone()
        self._expected: Final = expected[own] if operation in _SCATTERED else expected
        self._result = torch.empty(len(self._expected), dtype=dtype)

    def reset(self) -> None:
        """Make the buffers what they must be before the operation."""
        if self.operation in ("all_reduce", "reduce", "broadcast"):  # those work in place
            self._result.copy_(self._input)
        else:
            self._result.zero_()

    def start(self, communicator: CommunicatorLike) -> WorkLike:
        """The operation, with rank 0 as its root."""
        match self.operation:
            case "all_reduce":
                return communicator.all_reduce(self._result.view(self._shape))
            case "reduce":
                return communicator.reduce(self._result, 0)
            case "broadcast":
                return communicator.broadcast(self._result, 0)
            case "all_gather":
                return communicator.all_gather(self._result, self._input)
            case "reduce_scatter":
                return communicator.reduce_scatter(self._result, self._input)
            case "gather":
                return communicator.gather(None if self._rank else self._result, self._input, 0)
            case "scatter":
                return communicator.scatter(self._result, None if self._rank else self._input, 0)
            case _:
                outputs, inputs = (list(each.chunk(self._num_workers)) for each in (self._result, self._input))
                return communicator.all_to_all(outputs, inputs)

    def error(self) -> float:
        """Of the result, relative to what it must be, both in float64, in the L2 norm."""
        if self.operation in ("reduce", "gather") and self._rank != 0:
            return 0.0
        return float((self._result.double() - self._expected).norm() / self._expected.norm())


def _values(num_elements: int, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    if dtype.is_floating_point:
        return torch.empty(num_elements).uniform_(0.5, 1.5, generator=generator).to(dtype)
    return torch.randint(1, 1000, (num_elements,), dtype=dtype, generator=generator)


def allowed_error(stack: StackLike, *, dtype: torch.dtype, num_workers: int, num_elements: int) -> float:
    """The largest relative error of a correct sum: a rounding for each rank, sixteen where they are fewer, and what a
    compressor with a known contraction loses of each worker's values. Infinity where a compressor promises nothing of
    a single sum, as those that send later what they have left out."""
    if not dtype.is_floating_point:
        return 0.0
    allowed = max(num_workers, 16) * _UNIT_ROUNDOFF.get(dtype, _BFLOAT16_ROUNDOFF)
    if isinstance(stack, Composed) and (roundoff := stack.collective.sum_roundoff) is not None:
        allowed = max(num_workers, 16) * roundoff
    if isinstance(stack, Composed) and stack.compression.compresses:
        lost = stack.compression.lost(num_elements, num_workers)
        return allowed + (num_workers * lost if lost is not None else float("inf"))
    return allowed


def timed(
    communicators: Mapping[str, CommunicatorLike],
    operands: Operands,
    *,
    allowed: Mapping[str, float],
    num_warmup: int,
    num_samples: int,
    latency_s: float | None = None,
    rest_s: float = 0.0,
) -> Iterator[Sample]:
    """Every communicator in turn, again and again; a sample after each turn but those of `num_warmup` rounds. A turn is
    one operation that is not timed and one that is: while the others had theirs TCP has forgotten its window (RFC 5681,
    4.1), which it has not where one operation follows another, as in nccl-tests and in the OSU benchmarks. Of
    operations that last for seconds, as rank 0 has found, only the one that is timed.

    A barrier lets one rank go up to ceil(log2 ranks) messages before another, which is then part of its time. Ranks of
    one machine have one monotonic clock: where the latency from rank to rank is given and longer than it takes to wake
    up, they begin at a time that is agreed on. Before the barrier each rests for `rest_s`, so that the links let their
    bursts pass again, as after computing; without, that depends on how quickly hosts pass the barriers.

    Raises ValueError for a result whose error is above what is `allowed` for that communicator, or not a number, and
    when a communicator has lost its aggregator."""
    lasting: set[str] = set()
    for number in range(-num_warmup, num_samples):
        for name, communicator in communicators.items():
            if name not in lasting:
                _once(communicator, operands, latency_s, rest_s)
            begun_s, duration_s, cpu_s = _once(communicator, operands, latency_s, rest_s)
            error = operands.error()
            if not (error <= allowed[name] and error < float("inf")):
                raise ValueError(
                    f"{name}: the result of {operands.operation} of {operands.size_bytes} bytes is wrong on rank "
                    f"{communicator.rank}: relative L2 error {error:.2e} (allowed {allowed[name]:.0e})"
                )
            _check_aggregator(name, communicator)
            if _of_rank_0(communicator, duration_s) > LASTING_S:
                lasting.add(name)
            if number >= 0:
                yield Sample(
                    rank=communicator.rank,
                    stack=name,
                    size_bytes=operands.size_bytes,
                    number=number,
                    begun_s=begun_s,
                    duration_s=duration_s,
                    cpu_s=cpu_s,
                    error=error,
                )


def _once(
    communicator: CommunicatorLike, operands: Operands, latency_s: float | None, rest_s: float
) -> tuple[float, float, float]:
    """One operation between two barriers: its beginning, its wall time and CPU time in seconds. With the second one,
    whoever is done leaves the processor to those that are not, as on machines of their own: a rank's next buffers and
    its check of the result would delay the last bytes of the others."""
    operands.reset()
    time.sleep(rest_s)
    communicator.barrier().wait()
    if (wait_s := appointment_s(communicator.size, latency_s)) is not None:
        _await_appointment(communicator, wait_s)
    cpu_s, start_s = time.process_time(), time.monotonic()
    operands.start(communicator).wait()
    duration_s, cpu_s = time.monotonic() - start_s, time.process_time() - cpu_s
    communicator.barrier().wait()
    return start_s, duration_s, cpu_s


def _await_appointment(communicator: CommunicatorLike, wait_s: float) -> None:
    """Return on all ranks of one machine at once, and at rest."""
    begins_s = _of_rank_0(communicator, time.monotonic() + wait_s)
    time.sleep(max(0.0, begins_s - time.monotonic()))


def _check_aggregator(name: str, communicator: CommunicatorLike) -> None:
    """Raise ValueError when the gradients go around a ring because the aggregator is lost: that has other times."""
    statistics = communicator.reducer_statistics() if isinstance(communicator, Communicator) else None
    if statistics is not None and statistics["lost"] is not None:
        raise ValueError(
            f"{name}: {statistics['lost']}; an aggregator serves one stack of a kind: no two with the same options"
        )


def _of_rank_0(communicator: CommunicatorLike, value: float) -> float:
    """What all ranks agree on."""
    agreed = torch.tensor([value], dtype=torch.float64)
    communicator.broadcast(agreed, 0).wait()
    return agreed.item()
