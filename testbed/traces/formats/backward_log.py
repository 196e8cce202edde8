"""Backward logs of "Is Network the Bottleneck of Distributed Training?" (Zhang et al. 2020, arXiv:2006.10103).

Line 1 is a comment, line 2 the number of batches that the times are means of, line 3 the number of tensors; then one
line for each parameter tensor in the order in which backward makes their gradients: `wait_us,bytes`, the time since the
gradient before it and the size of this one (the authors' `simulation/layerwise_bk_done.py`).
"""

from collections.abc import Sequence

from testbed.traces.formats.base import TRACE_FORMATS, Line, TextFormat, TraceError, cells, non_empty
from testbed.traces.table import Layer, LayerTable

_NUM_HEADER_LINES = 3


@TRACE_FORMATS.register
class BackwardLog(TextFormat):
    """A log of gradients, which says nothing of the forward pass; the format has no options."""

    def recognises(self, lines: Sequence[Line]) -> bool:
        """The third line announces how many pairs follow."""
        if len(lines) <= _NUM_HEADER_LINES:
            return False
        return all(line.text.strip().isdecimal() for line in lines[1:_NUM_HEADER_LINES]) and all(
            len(cells(line)) == 2 for line in lines[_NUM_HEADER_LINES:]
        )

    def parse(self, lines: Sequence[Line]) -> LayerTable:
        """The table; a layer is one tensor. Raises TraceError."""
        path = lines[0].path
        if len(lines) <= _NUM_HEADER_LINES:
            raise TraceError(f"{path} ends before its first tensor: a comment, two counts and the tensors are expected")
        num_tensors = lines[2].count_in(lines[2].text.strip(), "the number of tensors")
        rows = lines[_NUM_HEADER_LINES:]
        if len(rows) != num_tensors:
            lines[2].fail(f"{num_tensors} tensors are announced and {len(rows)} follow")
        layers = non_empty(path, (_layer(row, number) for number, row in enumerate(rows)))
        return LayerTable(layers=layers[::-1])


def _layer(row: Line, number: int) -> Layer:
    fields = cells(row)
    if len(fields) != 2:
        row.fail(f"{row.text.strip()!r} is not `wait_us,bytes`")
    wait_s = row.number_in(fields[0], "wait_us") * 1e-6
    return Layer(f"tensor {number}", 0.0, wait_s, row.count_in(fields[1], "bytes"))
