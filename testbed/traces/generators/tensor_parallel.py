"""Tensor parallelism inside of layers (Shoeybi et al., "Megatron-LM", 2019, arXiv:1909.08053, figure 3): each rank has
a part of every matrix.

The second matrix of a pair is cut by rows, and its partial outputs are added by an all-reduce in the forward pass; the
first is cut by columns, and the gradients of its input are added by one in the backward pass. Nobody can go on before
that. Computing, and the update, is divided by the number of ranks; gradients are exchanged with nobody.
"""

from pydantic import Field

from testbed.traces.generators.base import (
    GENERATORS,
    Generator,
    RankBuilder,
    alike,
    matching,
    require_any,
    require_whole,
)
from testbed.traces.graph import Graph
from testbed.traces.table import LayerTable
from transports.units import Size


@GENERATORS.register
class TensorParallel(Generator):
    """All-reduces of activations, twice in each pass of a transformer's block."""

    activations_bytes: Size = Field(alias="activations", ge=1, le=2**34)
    """What a layer hands to the next one: for a transformer, tokens x width x bytes of an element."""
    by_rows: str = "*.projection,*.down"
    """Names of the layers whose outputs are added in the forward pass; patterns, separated by commas."""
    by_columns: str = "*.query_key_value,*.up"
    """Names of those whose inputs' gradients are added in the backward pass."""

    def generate(self, table: LayerTable, num_ranks: int) -> Graph:
        """See :class:`Generator`."""
        require_whole(table, num_ranks)
        require_any(table, "by_rows", self.by_rows)
        require_any(table, "by_columns", self.by_columns)
        rank = RankBuilder()
        node = self.all_ranks("all_reduce", self.elements(self.activations_bytes))
        last: int | None = rank.compute("input", table.undivided_s) if table.undivided_s else None
        for layer in table.layers:
            last = rank.compute(f"forward {layer.name}", layer.forward_s / num_ranks, [last])
            if matching(layer, self.by_rows):
                last = rank.exchange(f"outputs of {layer.name}", node, [last])
        for layer in reversed(table.layers):
            last = rank.compute(f"backward {layer.name}", layer.backward_s / num_ranks, [last])
            if matching(layer, self.by_columns):
                last = rank.exchange(f"gradients of the input of {layer.name}", node, [last])
        rank.compute("update", table.update_s / num_ranks, [last])
        return alike(rank, num_ranks)
