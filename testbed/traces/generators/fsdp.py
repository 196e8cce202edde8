"""Fully sharded data parallelism (Rajbhandari et al., "ZeRO", SC 2020, stage 3; Zhao et al., "PyTorch FSDP", VLDB
2023).

Each rank keeps one part of the parameters. A unit's are gathered before its forward pass and again before its backward
pass, and dropped after it; its gradients are reduced and scattered. The next unit's gather goes while a unit computes,
and waits until the unit before is through, so that two units' parameters are there at a time. A unit's parameters are
padded to equal parts, as FlatParameter is.
"""

from typing import Literal

from testbed.traces.generators.base import (
    GENERATORS,
    Generator,
    RankBuilder,
    Unit,
    alike,
    blocks,
    in_parts,
    require_whole,
)
from testbed.traces.graph import Graph
from testbed.traces.table import LayerTable


@GENERATORS.register
class Fsdp(Generator):
    """All-gather forward and backward, reduce-scatter."""

    unit: Literal["block", "layer"] = "block"
    """What is gathered at once: layers whose names are alike up to the first dot, or each layer."""

    def generate(self, table: LayerTable, num_ranks: int) -> Graph:
        """See :class:`Generator`."""
        require_whole(table, num_ranks)
        layers = table.layers
        units = blocks(layers) if self.unit == "block" else [Unit(layer.name, (layer,)) for layer in layers]
        rank = RankBuilder()
        begun = rank.compute("input", table.undivided_s) if table.undivided_s else None
        forward = self._forward(rank, units, begun, num_ranks)
        last, scattered = self._backward(rank, units, forward, num_ranks)
        rank.compute("update of a part", table.update_s / num_ranks, [last, *scattered])
        return alike(rank, num_ranks)

    def _forward(self, rank: RankBuilder, units: list[Unit], begun: int | None, num_ranks: int) -> int:
        computed: list[int | None] = [None, begun]
        for unit in units:
            gathered = self._gather(rank, unit, "forward", computed[-2], num_ranks)
            computed.append(rank.compute(f"forward {unit.name}", unit.forward_s, [computed[-1], gathered]))
        assert computed[-1] is not None, "a table has a layer"
        return computed[-1]

    def _backward(self, rank: RankBuilder, units: list[Unit], forward: int, num_ranks: int) -> tuple[int, list[int]]:
        """The last computing, and the reduce-scatters. A unit's gather stands before the reduce-scatter of the one
        before it, so that it does not wait behind that."""
        order = units[::-1]
        scattered: list[int] = []
        computed = [forward, forward]
        gathered = self._gather(rank, order[0], "backward", forward, num_ranks)
        for unit, following in zip(order, [*order[1:], None], strict=True):
            now = gathered
            if following is not None:
                gathered = self._gather(rank, following, "backward", computed[-1], num_ranks)
            computed.append(rank.compute(f"backward {unit.name}", unit.backward_s, [computed[-1], now]))
            if count := in_parts(unit.num_parameters, num_ranks):
                node = self.all_ranks("reduce_scatter", count)
                scattered.append(rank.exchange(f"gradients {unit.name}", node, [computed[-1]]))
        return computed[-1], scattered

    def _gather(self, rank: RankBuilder, unit: Unit, when: str, after: int | None, num_ranks: int) -> int | None:
        count = in_parts(unit.num_parameters, num_ranks)
        if not count:
            return None
        return rank.exchange(f"parameters {unit.name} {when}", self.all_ranks("all_gather", count), [after])
