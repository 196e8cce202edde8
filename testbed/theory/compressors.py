"""What shipped compressors leave on the links of a ring: the ratio that an advice asks for, by name. Pure."""

from typing import Final

from testbed.traces.table import LayerTable
from transports.collectives.base import World
from transports.collectives.cost import bound_s
from transports.compression.base import COMPRESSORS, Compressor
from transports.errors import OptionError

_ANY_BPS: Final = 1e9
"""Ratios of bytes are those of times, at whatever rate."""


def link_ratios(table: LayerTable, num_workers: int) -> dict[str, float]:
    """How many times fewer bytes cross each link with each compressor, by kind, as its options are by default, than of
    an all-reduce of a table's gradients. Ascending; without what so many workers cannot use, and of a table whose
    gradients are no float32, none."""
    world = World(num_workers=num_workers)
    try:
        shapes = [shape for layer in reversed(table.layers) for shape in layer.tensors]
    except ValueError:
        return {}
    whole_s = bound_s("all_reduce", world=world, size_bytes=table.size_bytes, goodput_bps=_ANY_BPS)
    found = {}
    for kind in COMPRESSORS.kinds():
        compressor: Compressor = COMPRESSORS.parse(kind)
        if not (compressor.compresses and compressor.replicas_agree):  # who does not agree trains on wrong numbers
            continue
        try:
            compressor.check_world(num_workers)
        except OptionError:
            continue
        exchanges = compressor.exchanges(shapes, num_workers)
        sizes = ((each.operation, each.num_elements * each.element_bytes) for each in exchanges)
        found[kind] = whole_s / sum(
            bound_s(operation, world=world, size_bytes=size_bytes, goodput_bps=_ANY_BPS)
            for operation, size_bytes in sizes
        )
    return dict(sorted(found.items(), key=lambda pair: pair[1]))
