"""The front layers first, large ones in parts, hidden behind the next forward pass as well (ByteScheduler, Peng et al.
2019; P3, Jayarajan et al. 2019)."""

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import ClassVar

from pydantic import ConfigDict, Field

from testbed.experiment.fusion.base import FUSIONS, EngineFusion, Gradients
from transports.compression.base import Shape
from transports.torch_backend.ordering import Order, Priority
from transports.units import Size, format_size


@FUSIONS.register
class ByPriority(EngineFusion):
    """Layers in the order in which the next forward pass needs them."""

    model_config = ConfigDict(populate_by_name=True)

    steps_in_forward: ClassVar[bool] = True
    in_turn: ClassVar[bool] = False

    bucket_bytes: Size = Field(2**20, alias="bytes", ge=1024, le=2**31)
    """The most that goes out in one piece, 1KiB to 2GiB; 1MiB where nothing is said."""

    @property
    def limit_bytes(self) -> int:
        """See :class:`Fusion`."""
        return self.bucket_bytes

    @property
    def text(self) -> str:
        """See :class:`Fusion`."""
        return f"front layers first, {format_size(self.bucket_bytes)} at once"

    def order(self, buckets: Sequence[int]) -> Order:  # noqa: ARG002 (parts of layers do)
        """See :class:`Fusion`."""
        return Priority(partition_bytes=self.bucket_bytes)

    def buckets(self, gradients: Gradients, all_reduce_s: Callable[[int], float]) -> tuple[int, ...]:  # noqa: ARG002
        """The parts, in the order in which they become ready."""
        return tuple(item.num_elements for item in self.order(()).items(gradients.layer_counts))

    def bucket_shapes(self, gradients: Gradients, buckets: Sequence[int]) -> Iterator[list[Shape]]:
        """The shapes in each bucket: those of a layer, or the elements of a part of one."""
        parts = iter(buckets)
        for shapes in gradients.layers:
            missing = whole = sum(map(prod, shapes))
            while missing:
                part = next(parts)
                yield list(shapes) if part == whole else [(part,)]
                missing -= part
