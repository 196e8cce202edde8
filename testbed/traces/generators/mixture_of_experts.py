"""Mixture of experts with expert parallelism (Lepikhin et al., "GShard", ICLR 2021): each rank has its own experts, and
tokens go to their experts and back by two all-to-alls, in the forward pass and again in the backward pass.

Which experts tokens choose is stated, not learned: expert ranks are chosen in proportion to (rank + 1) ^ -skew, by all
ranks alike. Experts on a rank compute as much longer as more tokens come to it. All other layers are data-parallel:
each block's gradients are reduced by all as soon as they are there. Experts' gradients stay where they are.
"""

from collections.abc import Sequence
from itertools import groupby

from pydantic import Field

from testbed.traces.generators.base import (
    GENERATORS,
    WORLD,
    Generator,
    RankBuilder,
    Unit,
    matching,
    require_any,
    require_whole,
    whole,
)
from testbed.traces.graph import Collective, Graph
from testbed.traces.table import LayerTable
from transports.units import Size


@GENERATORS.register
class MixtureOfExperts(Generator):
    """All-to-all with a stated skew."""

    tokens_bytes: Size = Field(alias="tokens", ge=1, le=2**34)
    """What a rank sends to experts at each layer of them, its own included: tokens x experts of each x width x bytes of
    an element."""
    skew: float = Field(0.0, ge=0, le=10)
    """0: all experts alike. 1: the first rank's get twice as many tokens as the second's, three times as many as the
    third's."""
    experts: str = "*.mlp.*"
    """Names of the layers that are experts; patterns, separated by commas. Neighbours are one layer of experts."""

    def generate(self, table: LayerTable, num_ranks: int) -> Graph:
        """See :class:`Generator`."""
        require_whole(table, num_ranks)
        require_any(table, "experts", self.experts)
        units = [
            Unit(name, tuple(layers))
            for (name, _), layers in groupby(
                table.layers, lambda layer: (layer.name.partition(".")[0], matching(layer, self.experts))
            )
        ]
        splits = self.splits(num_ranks)
        return whole([tuple(self._rank(table, units, splits, rank).nodes) for rank in range(num_ranks)])

    def splits(self, num_ranks: int) -> tuple[int, ...]:
        """Elements that each rank sends to each rank's experts; they add up to `tokens`."""
        total = self.elements(self.tokens_bytes)
        weights = [(rank + 1) ** -self.skew for rank in range(num_ranks)]
        counts = [int(total * weight / sum(weights)) for weight in weights]
        counts[0] += total - sum(counts)
        return tuple(counts)

    def _rank(self, table: LayerTable, units: Sequence[Unit], splits: tuple[int, ...], rank: int) -> RankBuilder:
        builder = RankBuilder()
        load = len(splits) * splits[rank] / sum(splits)
        last: int | None = builder.compute("input", table.undivided_s) if table.undivided_s else None
        reduced: list[int] = []
        for direction, order in (("forward", units), ("backward", units[::-1])):
            for unit in order:
                lasting_s = unit.forward_s if direction == "forward" else unit.backward_s
                name = f"{direction} {unit.name}"
                if matching(unit.layers[0], self.experts):
                    last = self._experts(builder, name, load * lasting_s, splits, rank, last)
                    continue
                last = builder.compute(name, lasting_s, [last])
                if direction == "backward" and unit.num_parameters:
                    node = self.all_ranks("all_reduce", unit.num_parameters)
                    reduced.append(builder.exchange(f"gradients {unit.name}", node, [last]))
        builder.compute("update", table.update_s, [last, *reduced])
        return builder

    def _experts(
        self, builder: RankBuilder, name: str, lasting_s: float, splits: tuple[int, ...], rank: int, last: int | None
    ) -> int:
        """Tokens to their experts, those, and what they have made of them back."""
        there = Collective("all_to_all", sum(splits), self.element_type, WORLD, splits=splits)
        own = (splits[rank],) * len(splits)
        back = Collective("all_to_all", sum(own), self.element_type, WORLD, splits=own)
        sent = builder.exchange(f"{name}: tokens to experts", there, [last])
        computed = builder.compute(f"{name}: experts", lasting_s, [last, sent])
        return builder.exchange(f"{name}: tokens back", back, [computed])
