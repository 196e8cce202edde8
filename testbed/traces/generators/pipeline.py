"""Pipeline parallelism, one forward pass and one backward pass in turn (1F1B with a flush: Narayanan et al., "Efficient
Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC 2021, figure 4).

The layers are cut into stages of neighbours so that the slowest is as fast as may be. A batch is cut into
micro-batches; a layer's time is divided among them. What a layer hands to the next one is not in a table of layers and
has to be said.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Literal, NamedTuple

from pydantic import Field

from testbed.errors import SpecError
from testbed.traces.generators.base import GENERATORS, Generator, RankBuilder, require_whole, whole
from testbed.traces.graph import Graph, Receive, Send
from testbed.traces.table import Layer, LayerTable
from transports.units import Size


class _Pass(NamedTuple):
    """Of one micro-batch through one stage."""

    direction: Literal["forward", "backward"]
    number: int


@GENERATORS.register
class Pipeline(Generator):
    """Send and receive between neighbouring stages; a rank is a stage."""

    activations_bytes: Size = Field(alias="activations", ge=1, le=2**34)
    """What a stage sends to the next one for a micro-batch, and gets back as gradients: for a transformer, tokens x
    width x bytes of an element."""
    micro_batches: int = Field(8, ge=1, le=4096)
    """Of a batch."""

    def generate(self, table: LayerTable, num_ranks: int) -> Graph:
        """See :class:`Generator`."""
        require_whole(table, num_ranks)
        if len(table.layers) < num_ranks:
            raise SpecError(f"{len(table.layers)} layers are not enough for {num_ranks} stages, one for each rank")
        stages = _stages(table.layers, num_ranks)
        return whole([tuple(self._stage(table, stages, number).nodes) for number in range(num_ranks)])

    def _stage(self, table: LayerTable, stages: Sequence[Sequence[Layer]], stage: int) -> RankBuilder:
        rank, layers = RankBuilder(), stages[stage]
        forward_s = sum(layer.forward_s for layer in layers) + (table.undivided_s if stage == 0 else 0.0)
        lasting_s = {"forward": forward_s, "backward": sum(layer.backward_s for layer in layers)}
        last = None
        for each in _passes(stage, len(stages), self.micro_batches):
            step = 1 if each.direction == "forward" else -1
            tag = 2 * each.number + (step < 0)
            before, following = stage - step, stage + step
            received = None
            if 0 <= before < len(stages):
                node = Receive(before, self.elements(self.activations_bytes), self.element_type, tag)
                received = rank.exchange(f"from stage {before}: {each.direction} {each.number}", node, [last])
            duration_s = lasting_s[each.direction] / self.micro_batches
            last = rank.compute(f"{each.direction} {each.number}", duration_s, [last, received])
            if 0 <= following < len(stages):
                sent = Send(following, self.elements(self.activations_bytes), self.element_type, tag)
                rank.exchange(f"to stage {following}: {each.direction} {each.number}", sent, [last])
        share = sum(layer.size_bytes for layer in layers) / max(1, table.size_bytes)
        rank.compute("update", table.update_s * share, [last])
        return rank


def _passes(stage: int, num_stages: int, num: int) -> Iterator[_Pass]:
    """What a stage does, in order: forward passes until the first backward pass can have come back, then one of each in
    turn, then the rest of the backward passes."""
    ahead = min(num, num_stages - 1 - stage)
    yield from (_Pass("forward", number) for number in range(ahead))
    for number in range(num - ahead):
        yield _Pass("forward", ahead + number)
        yield _Pass("backward", number)
    yield from (_Pass("backward", number) for number in range(num - ahead, num))


def _stages(layers: Sequence[Layer], count: int) -> list[Sequence[Layer]]:
    """Neighbours in `count` groups, none empty, so that the longest takes as little time as may be."""
    until_s = [0.0, *accumulate(layer.forward_s + layer.backward_s for layer in layers)]
    num = len(layers)
    longest_s = list(until_s)
    """Of the first layers in as many stages as have been tried."""
    cuts: list[list[int]] = []
    for stage in range(1, count):
        found, where = [float("inf")] * (num + 1), [0] * (num + 1)
        for end in range(stage + 1, num + 1):
            for start in range(stage, end):
                most_s = max(longest_s[start], until_s[end] - until_s[start])
                if most_s < found[end]:
                    found[end], where[end] = most_s, start
        longest_s = found
        cuts.append(where)
    borders = [num]
    for where in reversed(cuts):
        borders.append(where[borders[-1]])
    borders.append(0)
    borders.reverse()
    return [layers[start:end] for start, end in pairwise(borders)]
