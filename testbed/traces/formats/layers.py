"""Tables with the columns `Id Name Forward Backward Comm Size`, one row for each layer, times in microseconds, bytes.

The layout of the traces that Shi et al. published with "A DAG Model of Synchronous Stochastic Gradient Descent in
Distributed Deep Learning" (2018, arXiv:1805.03812), as far as it is known from descriptions; columns are separated by
white space or commas. A table may hold several iterations, each from the same first Id on: a layer's times are then the
medians of its rows. `Comm` is `-` where no exchange was measured. Lines that begin with `#` are comments, but for
`# input_us=...`, `# host_to_device_us=...` and `# update_us=...`, which say how long these parts of an iteration take.
"""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Final, NamedTuple

from testbed.traces.formats.base import TRACE_FORMATS, Line, TraceError, TraceFormat, cells, non_empty
from testbed.traces.table import Layer, LayerTable

COLUMNS: Final = ("id", "name", "forward", "backward", "comm", "size")
_PARTS: Final = ("input_us", "host_to_device_us", "update_us")


class _Row(NamedTuple):
    line: Line
    identity: str
    layer: Layer


@TRACE_FORMATS.register
class Layers(TraceFormat):
    """Nothing to choose."""

    def recognises(self, lines: Sequence[Line]) -> bool:
        """The first line that is no comment names the columns."""
        rows = [line for line in lines if not line.text.startswith("#")]
        return bool(rows) and _names_columns(rows[0])

    def parse(self, lines: Sequence[Line]) -> LayerTable:
        """The table. Raises TraceError."""
        path = lines[0].path
        rows = [line for line in lines if not line.text.startswith("#")]
        if not rows or not _names_columns(rows[0]):
            (rows or lines)[0].fail(f"the columns are expected first: {' '.join(COLUMNS)}")
        if len(rows) == 1:
            raise TraceError(f"{path} ends after the names of its columns")
        parts = _parts(lines)
        return LayerTable(
            layers=non_empty(path, _layers([_row(line) for line in rows[1:]])),
            input_s=parts.get("input_us", 0.0) * 1e-6,
            host_to_device_s=parts.get("host_to_device_us", 0.0) * 1e-6,
            update_s=parts.get("update_us", 0.0) * 1e-6,
        )


def layers_text(table: LayerTable) -> str:
    """The table as a file of this format. What `undivided_s` counts is added to the first layer's forward time.

    Raises ValueError for a layer whose name has no characters left when white space and commas are taken out."""
    lines = [
        f"# {part}={value_s * 1e6!r}"
        for part, value_s in zip(_PARTS, (table.input_s, table.host_to_device_s, table.update_s), strict=True)
        if value_s
    ]
    lines.append("Id\tName\tForward\tBackward\tComm\tSize")
    for number, layer in enumerate(table.layers):
        name = "_".join(layer.name.replace(",", " ").split())
        if not name:
            raise ValueError(f"layer {number} has no name that a table can hold")
        forward_us = (layer.forward_s + (table.undivided_s if number == 0 else 0.0)) * 1e6
        communication = "-" if layer.communication_s is None else repr(layer.communication_s * 1e6)
        lines.append(
            f"{number}\t{name}\t{forward_us!r}\t{layer.backward_s * 1e6!r}\t{communication}\t{layer.size_bytes}"
        )
    return "\n".join(lines) + "\n"


def _names_columns(line: Line) -> bool:
    return tuple(cell.partition("(")[0].lower() for cell in cells(line)) == COLUMNS


def _parts(lines: Sequence[Line]) -> Mapping[str, float]:
    found: dict[str, float] = {}
    for line in lines:
        name, equals, value = line.text.removeprefix("#").strip().partition("=")
        if line.text.startswith("#") and equals and name in _PARTS:
            if name in found:
                line.fail(f"{name} is given twice")
            found[name] = line.number_in(value, name)
    return found


def _row(line: Line) -> _Row:
    fields = cells(line)
    if len(fields) != len(COLUMNS):
        line.fail(f"{len(fields)} columns where {len(COLUMNS)} are expected: {' '.join(COLUMNS)}")
    identity, name, forward_us, backward_us, communication_us, size_bytes = fields
    layer = Layer(
        name=name,
        forward_s=line.number_in(forward_us, "Forward") * 1e-6,
        backward_s=line.number_in(backward_us, "Backward") * 1e-6,
        size_bytes=line.count_in(size_bytes, "Size"),
        communication_s=None if communication_us == "-" else line.number_in(communication_us, "Comm") * 1e-6,
    )
    return _Row(line, identity, layer)


def _layers(rows: Sequence[_Row]) -> Iterator[Layer]:
    """One for each Id, over all iterations."""
    iterations = _iterations(rows)
    for samples in zip(*iterations, strict=True):
        first = samples[0].layer
        for row in samples[1:]:
            if (row.layer.name, row.layer.size_bytes) != (first.name, first.size_bytes):
                row.line.fail(
                    f"layer {row.identity} is {row.layer.name} with {row.layer.size_bytes} bytes, and "
                    f"{first.name} with {first.size_bytes} bytes in line {samples[0].line.number}"
                )
        measured = [row.layer.communication_s for row in samples if row.layer.communication_s is not None]
        yield first._replace(
            forward_s=median(row.layer.forward_s for row in samples),
            backward_s=median(row.layer.backward_s for row in samples),
            communication_s=median(measured) if measured else None,
        )


def _iterations(rows: Sequence[_Row]) -> list[list[_Row]]:
    """The rows of each iteration. Raises TraceError where one has other Ids than the first."""
    iterations: list[list[_Row]] = []
    for row in rows:
        if row.identity == rows[0].identity:
            iterations.append([])
        iterations[-1].append(row)
    expected = [row.identity for row in iterations[0]]
    if len(set(expected)) != len(expected):
        repeated = next(row for index, row in enumerate(iterations[0]) if row.identity in expected[:index])
        repeated.line.fail(f"Id {repeated.identity} stands twice in one iteration")
    for iteration in iterations[1:]:
        if [row.identity for row in iteration] != expected:
            iteration[-1].line.fail(
                f"this iteration has {len(iteration)} layers and the first has {len(expected)}, or other Ids"
            )
    return iterations
