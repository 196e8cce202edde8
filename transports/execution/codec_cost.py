"""What a codec takes of one worker's processor, measured without a network.

One worker's exchanges are driven as a run drives them, by the same function and with the same account of CPU time; what
it asks for is answered as if every other worker had sent the same bytes, so that all of them are decoded. Processes do
so side by side: cores that share memory and caches with busy ones are slower (by up to a half, on the machine that this
was written on), and in a run all workers compress at once.
"""

import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from statistics import median
from typing import Final

import numpy as np
import torch

from transports.compression.base import COMPRESSORS, Compressor, Layout, Piece, Shape, count
from transports.compression.memory import Scratch
from transports.execution.gradients import GradientCompression, run
from transports.execution.operations import ReduceOperation
from transports.execution.trace import CodecAccount, CodecTime

ENOUGH_S: Final = 0.3
"""Wall seconds after which no further iteration is begun."""
_PATIENCE_S: Final = 120.0
_LARGEST_KEPT_BYTES: Final = 2**25 - 2**16
"""What its threshold grows to, less a little: DEFAULT_MMAP_THRESHOLD_MAX in glibc's malloc.c."""
_GRADIENT_SIZE: Final = 1e-2


class _Alike:
    """A transport to workers that send what this one sends."""

    def __init__(self, num_workers: int) -> None:
        self.size = num_workers
        self.codec = CodecAccount()

    def all_reduce(self, tensor: torch.Tensor, op: ReduceOperation = "sum") -> None:
        """The sum of equal values; their maximum is what is there."""
        if op == "sum":
            tensor.mul_(self.size)

    def all_gather(self, output: torch.Tensor, input: torch.Tensor) -> None:  # noqa: A002 (torch's word)
        """Everybody's part is this one's."""
        output.view(self.size, -1).copy_(input)

    def all_to_all(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
        """Everybody sends rank 0, which this one is, what it sends itself."""
        for output in outputs:
            output.copy_(inputs[0])


def iterations_of(
    compressor: Compressor,
    buckets: Sequence[Sequence[Shape]],
    num_workers: int,
    settled: Callable[[], object] = lambda: None,
) -> list[list[CodecTime]]:
    """What each bucket of gradients of these shapes took in each iteration, for ENOUGH_S and in one at least; `settled`
    is called before the first that counts.

    Gradients are drawn at random (normal); what a codec takes that sends more or less by their values is of these.
    Raises OptionError where so many workers cannot use the compressor's options.
    """
    worker = _Worker(compressor, buckets, num_workers)
    for _ in range(compressor.settled_after + 1):  # the first makes what is kept
        worker.iterate()
    settled()
    begun_s = time.monotonic()
    found = [worker.iterate()]
    while time.monotonic() - begun_s < ENOUGH_S:
        found.append(worker.iterate())
    return found


def codec_times(
    compressor: Compressor, buckets: Sequence[Sequence[Shape]], num_workers: int, num_processes: int
) -> list[CodecTime]:
    """Of each bucket, medians over the iterations of as many processes at once. They are forked: nothing else of the
    calling process may have threads. Raises RuntimeError where one of them fails."""
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(num_processes)
    receivers = []
    for _ in range(num_processes):
        receiver, sender = context.Pipe(duplex=False)
        arguments = (compressor, buckets, num_workers, barrier, sender)
        context.Process(target=_send_iterations, args=arguments, daemon=True).start()
        sender.close()  # what is left is the child's: where it dies the pipe ends
        receivers.append(receiver)
    try:
        iterations = [iteration for receiver in receivers for iteration in receiver.recv()]
    except EOFError:
        raise RuntimeError("a process that measures has failed") from None
    return [
        CodecTime(median(each.encode_s for each in times), median(each.decode_s for each in times))
        for times in zip(*iterations, strict=True)
    ]


def _send_iterations(
    compressor: Compressor,
    buckets: Sequence[Sequence[Shape]],
    num_workers: int,
    barrier: Barrier,
    sender: "Connection[list[list[CodecTime]], object]",
) -> None:
    """In a process of its own, beginning together with the others."""
    # Trainings have freed larger arrays before. From then on the C library keeps what is freed, where it would give it
    # back to the kernel and ask for it again in every exchange (mallopt(3), M_MMAP_THRESHOLD).
    freed = np.empty(_LARGEST_KEPT_BYTES, np.uint8)
    del freed
    sender.send(iterations_of(compressor, buckets, num_workers, partial(barrier.wait, _PATIENCE_S)))


class _Worker:
    def __init__(self, compressor: Compressor, buckets: Sequence[Sequence[Shape]], num_workers: int) -> None:
        self._num_workers = num_workers
        self._compression = GradientCompression(compressor, rank=0, num_workers=num_workers)
        self._layouts: list[Layout] = [
            [Piece((bucket, number), tuple(shape)) for number, shape in enumerate(shapes)]
            for bucket, shapes in enumerate(buckets)
        ]
        self._random = np.random.default_rng(0)
        self._buffers = [torch.zeros(count(shapes)) for shapes in buckets]
        self._scratch = Scratch()

    def iterate(self) -> list[CodecTime]:
        """Exchange every bucket once, with new gradients."""
        return [self._exchanged(*each) for each in zip(self._buffers, self._layouts, strict=True)]

    def _exchanged(self, buffer: torch.Tensor, layout: Layout) -> CodecTime:
        values = buffer.numpy()
        self._random.standard_normal(dtype=np.float32, out=values)
        values *= _GRADIENT_SIZE
        others = _Alike(self._num_workers)
        run(self._compression.exchange(buffer, layout), others, self._scratch)
        return CodecTime(others.codec.encode_s, others.codec.decode_s)


def main() -> None:
    """What `{"compression": ..., "num_workers": ..., "num_processes": ..., "buckets": [[shape, ...], ...]}` on standard
    input takes: the seconds of encoding and of decoding each bucket, as JSON on standard output. In a process of its
    own nothing else has threads, and whoever asks needs no torch."""
    question = json.load(sys.stdin)
    torch.set_num_threads(1)
    buckets = [[tuple(shape) for shape in shapes] for shapes in question["buckets"]]
    compressor = COMPRESSORS.parse(question["compression"])
    json.dump(codec_times(compressor, buckets, question["num_workers"], question["num_processes"]), sys.stdout)


if __name__ == "__main__":
    main()
