"""CNTK's pattern: no fusion, one all-reduce for each tensor, and a header that the main node gathers from the others
one by one, adds up and sends back one by one (CNTK 2, SimpleDistGradAggregator.h).

The all-reduces are MPI's: recursive doubling below 8 KiB, halving and doubling from there (Open MPI's fixed rules for 4
to 15 ranks, coll_tuned_decision_fixed.c). The header's sums of losses and sample counts are the framework's; here it is
as long, and zeros. A buffer is taken apart into tensors where it is as long as all of them together, which it is when
`fusion.bytes` exceeds the gradient; any other counts as one tensor.
"""

from collections.abc import Iterator, Sequence
from typing import ClassVar, Final, Self

from pydantic import Field

from transports.collectives.base import COLLECTIVES, Chunk, Collective, Operation, Step, World, relocated
from transports.collectives.halving_doubling import HalvingDoubling
from transports.collectives.network_info import NetworkInfo
from transports.collectives.recursive_doubling import RecursiveDoubling
from transports.units import Size

LONG_BYTES: Final = 8 * 1024
MAIN: Final = 0


@COLLECTIVES.register
class Cntk(Collective):
    """One all-reduce for each tensor, and a header through the main node."""

    operations: ClassVar[frozenset[Operation]] = frozenset(("all_reduce",))

    header_bytes: Size = Field(48, ge=1, description="of the header that each worker sends and gets back")
    tensors: tuple[int, ...] = ()
    """Elements of each tensor, in the order in which they lie in the buffer; open: those of the workload's model."""

    def with_network_info(self, info: NetworkInfo, *, tensors: tuple[int, ...] = ()) -> Self:  # noqa: ARG002 (no link changes it)
        """See :class:`Collective`."""
        return self.model_copy(update={"tensors": self.tensors or tensors})

    def buckets_incompatibility(self, buckets: Sequence[int]) -> str | None:
        """It takes the whole gradient apart into tensors; what is not all of them would be one tensor."""
        if len(buckets) > 1:
            return (
                f"collective: cntk sums tensor by tensor when backward has ended, and the fusion makes {len(buckets)} "
                "buckets; write `fusion: none`"
            )
        if buckets and self.tensors and sum(self.tensors) != buckets[0]:
            return (
                f"collective.tensors: {sum(self.tensors):,} elements, and the workload's gradients have "
                f"{buckets[0]:,}; leave it out for the tensors of the workload"
            )
        return None

    def schedule(
        self,
        operation: Operation,  # noqa: ARG002 (there is one)
        world: World,
        participant: int,
        num_elements: int,
        *,
        element_bytes: int,
        root: int = 0,
    ) -> Sequence[Step]:
        """See :class:`Collective`."""
        steps = list(self._header(world.num_workers, participant, element_bytes))
        start = 0
        for count in self.tensors if sum(self.tensors) == num_elements else (num_elements,):
            mpi = RecursiveDoubling() if count * element_bytes < LONG_BYTES else HalvingDoubling()
            tensor = mpi.schedule("all_reduce", world, participant, count, element_bytes=element_bytes, root=root)
            steps += relocated(tensor, start=start)
            start += count
        return steps

    def _header(self, num_workers: int, participant: int, element_bytes: int) -> Iterator[Step]:
        header = Chunk("scratch", 0, -(-self.header_bytes // element_bytes))
        if participant == MAIN:
            others = [worker for worker in range(num_workers) if worker != MAIN]
            yield from (Step("reduce", header, worker) for worker in others)
            yield from (Step("send", header, worker) for worker in others)
        else:
            yield Step("send", header, MAIN)
            yield Step("receive", header, MAIN)
