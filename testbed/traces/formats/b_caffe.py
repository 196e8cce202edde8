"""Layer-wise logs of B-Caffe (github.com/hclhkbu/B-Caffe), by the authors of the DAG model and of MG-WFBP.

Every line ends in `[param_id, n_params, compute_us, comm_us]`; some have a fifth number that is not used here (the time
of the exchange after merging). Parameters are numbered from 0 in the order of the forward pass. Weight and bias of a
layer are neighbours and both show the layer's backward time, so two neighbours with the same time are one layer. A file
may hold several dumps, each from parameter 0 on; the last one counts, for earlier ones were taken before anything was
measured.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from testbed.traces.formats.base import TRACE_FORMATS, Line, TextFormat, non_empty
from testbed.traces.table import Layer, LayerTable

_ROW: Final = re.compile(r"\[([^\[\]]*)\]\s*$")
_ELEMENT_BYTES: Final = 4


class _Row(NamedTuple):
    parameter: int
    num_elements: int
    compute_us: float
    communication_us: float


@TRACE_FORMATS.register
class BCaffe(TextFormat):
    """The trace format of B-Caffe; it has no options."""

    def recognises(self, lines: Sequence[Line]) -> bool:
        """Every line is one of the logger's and ends in a bracket."""
        return all("distributed.cpp" in line.text and _ROW.search(line.text) for line in lines)

    def parse(self, lines: Sequence[Line]) -> LayerTable:
        """The table of the last dump. Raises TraceError."""
        rows = [_row(line) for line in lines]
        starts = [index for index, row in enumerate(rows) if row.parameter == 0]
        if not starts:
            lines[0].fail("the dump does not begin with parameter 0")
        last = starts[-1]
        for expected, (row, line) in enumerate(zip(rows[last:], lines[last:], strict=True)):
            if row.parameter != expected:
                line.fail(f"parameter {row.parameter} where parameter {expected} is expected")
        return LayerTable(layers=non_empty(lines[0].path, _layers(rows[last:])))


def _row(line: Line) -> _Row:
    found = _ROW.search(line.text)
    fields = found.group(1).split(",") if found else []
    if len(fields) not in (4, 5):
        line.fail("the line does not end in [param_id, n_params, compute_us, comm_us] or these and merged_us")
    return _Row(
        parameter=line.count_in(fields[0].strip(), "param_id"),
        num_elements=line.count_in(fields[1].strip(), "n_params"),
        compute_us=line.number_in(fields[2].strip(), "compute_us"),
        communication_us=line.number_in(fields[3].strip(), "comm_us"),
    )


def _layers(rows: Sequence[_Row]) -> Iterator[Layer]:
    for compute_us, neighbours in groupby(rows, key=lambda row: row.compute_us):
        alike = list(neighbours)
        for members in (alike[begin : begin + 2] for begin in range(0, len(alike), 2)):
            yield Layer(
                name=f"parameter {members[0].parameter}",
                forward_s=0.0,
                backward_s=compute_us * 1e-6,
                size_bytes=sum(row.num_elements for row in members) * _ELEMENT_BYTES,
                communication_s=sum(row.communication_us for row in members) * 1e-6,
            )
