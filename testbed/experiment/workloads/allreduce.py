"""All-reduce and nothing else: every size on every stack, interleaved on the same links, every result checked."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from pydantic import Field, field_validator

from testbed.experiment.workloads.base import WORKLOADS, AgentWorkload, ServedGroup, unread
from transports.baselines.base import Stack
from transports.bench.stacks import Composed, parse_stack
from transports.channels.base import Channel
from transports.collectives.base import Collective
from transports.compression.base import Compressor
from transports.units import Size

if TYPE_CHECKING:
    from testbed.experiment.experiment import Experiment

SHORT_BYTES: Final = 256 * 1024
"""Buffers of no more are short."""


@WORKLOADS.register
class AllReduce(AgentWorkload):
    """The micro-benchmark behind `testbed bench allreduce`."""

    entry: ClassVar[str] = "testbed.worker.allreduce:work"
    preload: ClassVar[Sequence[str]] = ("torch", "torch.distributed")

    sizes_bytes: tuple[Size, ...] = Field((25_000_000,), alias="sizes")
    """Buffer sizes; float32, so multiples of 4."""
    stacks: tuple[str, ...] = ("ring/tcp", "gloo")
    """COLLECTIVE/CHANNEL, the collective's options behind it (`parameter_server:servers=2/tcp`), perhaps a compression
    (`ring/tcp/fp16`), or the name of a baseline library."""
    repeat: int = Field(10, ge=1, le=10_000)
    """Samples of each size and stack, after one that warms up."""
    repeat_short: int | None = Field(None, ge=1, le=10_000)
    """The same of buffers of up to 256 KiB, whose times differ more from sample to sample; open: as `repeat`."""

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
            if isinstance(parsed, Composed) and not parsed.channel.crosses_links:
                raise ValueError(f"{stack!r} joins ranks of one process and cannot cross a link")
        return stacks

    def lone_exchanges(self) -> Sequence[tuple[str, int]]:
        """Each size on each stack."""
        return [(stack, size_bytes) for stack in self.stacks for size_bytes in self.sizes_bytes]

    def parameter_counts(self) -> Sequence[int]:
        """No model: no gradients per iteration."""
        return ()

    def unsupported_compression(self, compressor: Compressor) -> str | None:
        """Why it has no use for compression: its stacks name their own."""
        return f"workload allreduce: say it in `stacks`, as in ring/tcp/{compressor.kind}"

    def incompatibilities(self, experiment: "Experiment") -> Sequence[str]:
        """What its stacks say themselves, and what only training has."""
        standard = type(experiment)(name="standard")
        slowed = [name for name, host in experiment.hosts.items() if host.slowdown is not None]
        return [
            *unread(
                experiment,
                standard,
                ("collective", "channel", "stack"),
                "workload allreduce has stacks of its own; say it in `workload.stacks`, as in tree/tcp:streams=4 or "
                "gloo (of channel tcp, `congestion` is for every stack)",
            ),
            *unread(experiment, standard, ("fusion",), "workload allreduce has no gradients to fuse; leave it out"),
            *(f"hosts.{name}.slowdown: workload allreduce computes nothing; leave it out" for name in slowed),
            *self._unlike_subflows(experiment.channel),
        ]

    def _unlike_subflows(self, channel: Channel) -> Iterator[str]:
        """A host announces its ports to every connection alike."""
        counts = sorted({each.num_subflows for each in self.channels(channel)} - {1})
        if len(counts) > 1:
            yield (
                f"workload.stacks: connections of {' and of '.join(map(str, counts))} subflows cannot be told apart by "
                "the hosts' path managers; compare them in a sweep over `workload.stacks`"
            )

    def num_samples(self, size_bytes: int) -> int:
        """Of a size on each stack."""
        return self.repeat if self.repeat_short is None or size_bytes > SHORT_BYTES else self.repeat_short

    def num_iterations(self) -> int:
        """Samples of a size on a stack, at most."""
        return max(map(self.num_samples, self.sizes_bytes))

    def phase_lengths(self) -> Mapping[str, int]:
        """Empty: it reports samples, not iterations."""
        return {}

    def sends_only_gradients(self) -> bool:
        """False: it reports samples, not iterations."""
        return False

    def served_groups(self, collective: Collective, channel: Channel) -> Sequence[ServedGroup]:  # noqa: ARG002
        """The groups of those of its stacks that need servers."""
        stacks = ((name, parse_stack(name)) for name in self.stacks)
        return [
            ServedGroup(name=name, collective=stack.collective, channel=stack.channel)
            for name, stack in stacks
            if isinstance(stack, Composed) and stack.collective.num_servers
        ]

    def collectives(self, collective: Collective) -> Sequence[Collective]:  # noqa: ARG002 (it has its own)
        """The collectives of its stacks."""
        parsed = (parse_stack(name) for name in self.stacks)
        return [stack.collective for stack in parsed if isinstance(stack, Composed)]

    def channels(self, channel: Channel) -> Sequence[Channel]:  # noqa: ARG002 (it has its own)
        """The channels of its stacks."""
        parsed = (parse_stack(name) for name in self.stacks)
        return [stack.channel for stack in parsed if isinstance(stack, Composed)]

    def compressors(self, compressor: Compressor) -> Sequence[Compressor]:  # noqa: ARG002 (it has its own)
        """The compressors of its stacks."""
        parsed = (parse_stack(name) for name in self.stacks)
        return [stack.compression for stack in parsed if isinstance(stack, Composed)]

    def baselines(self, stack: Stack | None) -> Sequence[Stack]:  # noqa: ARG002 (it has its own)
        """Those of its stacks that are baseline libraries."""
        parsed = (parse_stack(name) for name in self.stacks)
        return [stack for stack in parsed if isinstance(stack, Stack)]
