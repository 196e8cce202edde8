"""All-reduce and nothing else: every size on every stack, interleaved on the same links, every result checked."""

import json
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, field_validator

from testbed.workloads.base import WORKLOADS, ServedGroup, WorkerConfiguration, WorkerControl, Workload
from transports.channels.base import Channel
from transports.collectives.base import Collective
from transports.compression.base import Compressor
from transports.stacks import Composed, StackLike, parse_stack
from transports.units import Size

if TYPE_CHECKING:
    import torch

RELATIVE_ERROR_MAX = 1e-6
"""Of a float32 sum against the float64 sum, in the L2 norm."""


@WORKLOADS.register
class AllReduce(Workload):
    """The micro-benchmark behind `testbed bench allreduce`."""

    preload: ClassVar[Sequence[str]] = ("torch", "torch.distributed")

    sizes_bytes: tuple[Size, ...] = Field((25_000_000,), alias="sizes")
    """Buffer sizes; float32, so multiples of 4."""
    stacks: tuple[str, ...] = ("ring/tcp", "gloo")
    """COLLECTIVE/CHANNEL, the collective's options behind it (`parameter_server:servers=2/tcp`), or the name of a whole
    stack."""
    repeat: int = Field(10, ge=1, le=10_000)
    """Samples of each size and stack, after one that warms up."""

    @field_validator("sizes_bytes")
    @classmethod
    def _whole_elements(cls, sizes_bytes: tuple[int, ...]) -> tuple[int, ...]:
        for size_bytes in sizes_bytes:
            if size_bytes % 4 or not 4 <= size_bytes <= 2**31:
                raise ValueError(f"{size_bytes} bytes: sizes are multiples of 4 (float32), 4B to 2GiB")
        return sizes_bytes

    @field_validator("stacks")
    @classmethod
    def _known(cls, stacks: tuple[str, ...]) -> tuple[str, ...]:
        for stack in stacks:
            parsed = parse_stack(stack)
            if isinstance(parsed, Composed) and parsed.channel.kind == "memory":
                raise ValueError(f"{stack!r} joins ranks of one process and cannot cross a link")
        return stacks

    def parameter_counts(self) -> Sequence[int]:
        """No model: no gradients per iteration."""
        return ()

    def refusal(self, compressor: Compressor) -> str | None:
        """Every result is checked against the exact sum."""
        return f"workload allreduce checks exact sums, which {compressor.kind} does not keep; leave it out"

    def num_iterations(self) -> int:
        """Samples of each size and stack."""
        return self.repeat

    def phase_lengths(self) -> Mapping[str, int]:
        """It reports samples, not iterations."""
        return {}

    def sends_only_gradients(self) -> bool:
        """It reports samples, not iterations."""
        return False

    def served_groups(self, collective: Collective, channel: Channel) -> Sequence[ServedGroup]:  # noqa: ARG002
        """Those of the stacks that need servers."""
        stacks = ((name, parse_stack(name)) for name in self.stacks)
        return [
            ServedGroup(name=name, collective=stack.collective, channel=stack.channel)
            for name, stack in stacks
            if isinstance(stack, Composed) and stack.collective.num_servers
        ]

    def collectives(self, collective: Collective) -> Sequence[Collective]:  # noqa: ARG002 (it has its own)
        """Those of the stacks."""
        parsed = (parse_stack(name) for name in self.stacks)
        return [stack.collective for stack in parsed if isinstance(stack, Composed)]

    def work(self, configuration: WorkerConfiguration, control: WorkerControl) -> None:
        """Open every stack, then time them in turn; reports one Result with a row per sample."""
        import torch
        from torch._C._distributed_c10d import FileStore, PrefixStore

        from testbed.control.control_pb2 import Event, Result
        from transports.channels.base import Group

        torch.set_num_threads(configuration.num_threads)
        store = FileStore(configuration.store_path, configuration.num_workers)
        communicators = {
            name: _informed(parse_stack(name), configuration).open(
                Group(
                    name=name,
                    rank=configuration.rank,
                    size=configuration.num_workers,
                    address=configuration.address,
                    store=PrefixStore(name, store),
                    timeout_s=configuration.timeout_s,
                    racks=configuration.racks,
                )
            )
            for name in self.stacks
        }
        control.barrier("measure")
        rows: list[dict[str, object]] = []
        for size_bytes in self.sizes_bytes:
            own, expected = _operands(size_bytes // 4, configuration)
            work = torch.empty_like(own)
            for sample in range(self.repeat + 1):
                for name, communicator in communicators.items():
                    work.copy_(own)
                    communicator.barrier().wait()
                    cpu_s, start_s = time.process_time(), time.monotonic()
                    communicator.all_reduce(work).wait()
                    duration_s, cpu_s = time.monotonic() - start_s, time.process_time() - cpu_s
                    _check(work, expected, f"{name}, {size_bytes} bytes, sample {sample}")
                    if sample > 0:
                        rows.append(
                            {"stack": name, "size_bytes": size_bytes, "sample": sample}
                            | {"duration_s": duration_s, "cpu_s": cpu_s}
                        )
        control.barrier("done")
        for communicator in communicators.values():
            communicator.close()
        control.report(Event(result=Result(json=json.dumps(rows))))


def _informed(stack: StackLike, configuration: WorkerConfiguration) -> StackLike:
    """A stack whose collective wants to know the links is told them."""
    if not isinstance(stack, Composed):
        return stack
    known = stack.collective.informed(latency_s=configuration.latency_s, rate_bps=configuration.goodput_bps)
    return Composed(known.served_by(configuration.aggregators), stack.channel)


def _operands(num_elements: int, configuration: WorkerConfiguration) -> "tuple[torch.Tensor, torch.Tensor]":
    """This worker's input and the float64 sum over all workers' inputs, which every worker can derive by itself."""
    import torch

    generator = torch.Generator()
    expected = torch.zeros(num_elements, dtype=torch.float64)
    own = torch.empty(0)
    for rank in range(configuration.num_workers):
        generator.manual_seed(configuration.seed * 1000 + rank)
        values = torch.empty(num_elements).uniform_(0.5, 1.5, generator=generator)
        expected += values
        if rank == configuration.rank:
            own = values
    return own, expected


def _check(result: "torch.Tensor", expected: "torch.Tensor", what: str) -> None:
    error = float((result.double() - expected).norm() / expected.norm())
    if not error <= RELATIVE_ERROR_MAX:
        raise ValueError(f"{what}: the sum is wrong, relative L2 error {error:.2e} (allowed {RELATIVE_ERROR_MAX:.0e})")
