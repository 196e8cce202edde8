"""Layers joined where that saves time, from the cost of an all-reduce and the time of backward (MG-WFBP, Shi et al.
2019)."""

from collections.abc import Callable, Sequence
from typing import ClassVar

from pydantic import ConfigDict, Field

from testbed.experiment.fusion.base import FUSIONS, EngineFusion, Gradients
from transports.torch_backend.ordering import Grouped, Order
from transports.units import Time


@FUSIONS.register
class Merged(EngineFusion):
    """Groups of layers, decided beforehand, by what all-reduces of gradients cost that are not compressed."""

    model_config = ConfigDict(populate_by_name=True)
    goes_by_costs: ClassVar[bool] = True

    backward_s: Time | None = Field(None, alias="backward", gt=0, le=3600)
    """How long a backward pass takes, which its layers share by their multiplications, or alike where the workload
    gives them no time; where nothing is said, as long as they take at 50e9 operations a second, or as the workload
    says."""

    @property
    def text(self) -> str:
        """See :class:`Fusion`."""
        return "merged layers"

    def order(self, buckets: Sequence[int]) -> Order:
        """See :class:`Fusion`."""
        return Grouped(counts=tuple(buckets))

    def buckets(self, gradients: Gradients, all_reduce_s: Callable[[int], float]) -> tuple[int, ...]:
        """See :func:`merge`."""
        layers = gradients.layer_counts
        if not layers:
            return ()
        parts_s = gradients.backward_s if any(gradients.backward_s) or not self.backward_s else [1.0] * len(layers)
        stretched = self.backward_s / sum(parts_s) if self.backward_s else 1.0
        fewest, most = min(layers), sum(layers)
        s_per_element = (all_reduce_s(most) - all_reduce_s(fewest)) / (most - fewest) if most > fewest else 0.0
        return merge(
            layers,
            [stretched * each for each in parts_s],
            startup_s=max(0.0, all_reduce_s(fewest) - fewest * s_per_element),
            s_per_element=s_per_element,
        )


def merge(
    layers: Sequence[int], backward_s: Sequence[float], *, startup_s: float, s_per_element: float
) -> tuple[int, ...]:
    """Elements per bucket, given those of each layer and how long its part of backward takes, both the last layer
    first, when an all-reduce of n elements takes `startup_s` + n x `s_per_element`.

    Shi, Chu, Li 2019, "MG-WFBP: Efficient Data Communication for Distributed Synchronous SGD Algorithms" (INFOCOM),
    algorithm 1: a layer joins the next one if that one's gradient is there before its own all-reduce, which may have to
    wait for those before it, is through its start-up.
    """
    ready_s = [sum(backward_s[: number + 1]) for number in range(len(layers))]
    buckets: list[int] = []
    free_s = 0.0  # when the all-reduce of the last closed bucket is over
    filled = 0
    for number, count in enumerate(layers):
        filled += count
        begins_s = max(free_s, ready_s[number])
        if number + 1 < len(layers) and ready_s[number + 1] < begins_s + startup_s:
            continue
        buckets.append(filled)
        free_s = begins_s + startup_s + filled * s_per_element
        filled = 0
    return tuple(buckets)
