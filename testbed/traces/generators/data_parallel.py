"""Data parallelism without fusion: every rank has the whole model, and each layer's gradients are reduced by themselves
as soon as backward has made them (wait-free backpropagation; Zhang et al., "Poseidon", ATC 2017).

What a table of layers says by itself, as a graph.
"""

from testbed.traces.generators.base import GENERATORS, Generator, RankBuilder, alike, require_whole
from testbed.traces.graph import Graph
from testbed.traces.table import ELEMENT_BYTES, LayerTable


@GENERATORS.register
class DataParallel(Generator):
    """An all-reduce for each layer."""

    def generate(self, table: LayerTable, num_ranks: int) -> Graph:
        """See :class:`Generator`."""
        require_whole(table, num_ranks)
        rank = RankBuilder()
        last: int | None = rank.compute("input", table.undivided_s) if table.undivided_s else None
        for layer in table.layers:
            last = rank.compute(f"forward {layer.name}", layer.forward_s, [last])
        reduced = []
        for layer in reversed(table.layers):
            last = rank.compute(f"backward {layer.name}", layer.backward_s, [last])
            if layer.size_bytes:
                node = self.all_ranks("all_reduce", layer.size_bytes // ELEMENT_BYTES)
                reduced.append(rank.exchange(f"gradients {layer.name}", node, [last]))
        rank.compute("update", table.update_s, [last, *reduced])
        return alike(rank, num_ranks)
