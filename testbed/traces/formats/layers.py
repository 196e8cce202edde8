"""Tables with the columns `Id Name Forward Backward Comm Size`, one row for each layer, times in microseconds, bytes.

The layout of the traces that Shi et al. published with "A DAG Model of Synchronous Stochastic Gradient Descent in
Distributed Deep Learning" (2018, arXiv:1805.03812), as far as it is known from descriptions; columns are separated by
white space or commas. A table may hold several iterations, each from the same first Id on: a layer's times are then the
medians of its rows. `Comm` is `-` where no exchange was measured. Lines that begin with `#` are comments, but for
`# input_us=...`, `# host_to_device_us=...` and `# update_us=...`, which say how long these parts of an iteration take,
`# batch_size=...`, the samples of an iteration, and `# recorded_on=...`, the device; what resembles one of these names
(another unit, a letter in between) is refused. A seventh column `Shapes` is ours:
the layer's parameter tensors in the order of their registration, as in `64x147;64;64`, or `-`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from math import prod
from statistics import median
from typing import Final, NamedTuple

from testbed.traces.formats.base import TRACE_FORMATS, Line, TextFormat, Trace, TraceError, cells, non_empty
from testbed.traces.table import ELEMENT_BYTES, Layer, LayerTable, Shape

COLUMNS: Final = ("id", "name", "forward", "backward", "comm", "size")
SHAPES: Final = "shapes"
_UNITS: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("forward", "backward", "comm"), ("us",)),
    "size": ("B", "bytes"),
}
"""That a column's name may have in parentheses."""
_RECORDED_ON: Final = "recorded_on"
_PARTS: Final = ("input_us", "host_to_device_us", "update_us", "batch_size")


class _Row(NamedTuple):
    line: Line
    identity: str
    layer: Layer


@TRACE_FORMATS.register
class Layers(TextFormat):
    """A table of layers as text; the format has no options."""

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
        _check_units(rows[0])
        if len(rows) == 1:
            raise TraceError(f"{path} ends after the names of its columns")
        _check_comments(lines)
        parts = _parts(lines)
        num_columns = len(cells(rows[0]))
        return LayerTable(
            layers=non_empty(path, _layers([_row(line, num_columns) for line in rows[1:]])),
            batch_size=int(parts["batch_size"]) if "batch_size" in parts else None,
            input_s=parts.get("input_us", 0.0) * 1e-6,
            host_to_device_s=parts.get("host_to_device_us", 0.0) * 1e-6,
            update_s=parts.get("update_us", 0.0) * 1e-6,
            recorded_on=_recorded_on(lines),
        )

    def files(self, trace: Trace) -> Mapping[str, bytes]:
        """See :class:`TraceFormat`."""
        if not isinstance(trace, LayerTable):
            raise TraceError(
                "a graph says what each rank does, and a table of layers cannot say that; allowed: graph, chakra"
            )
        return {"": layers_text(trace).encode()}


def layers_text(table: LayerTable) -> str:
    """The table as a file of this format. What `undivided_s` counts is added to the first layer's forward time.

    Raises ValueError for a layer whose name has no characters left when white space and commas are taken out."""
    times_s = (table.input_s, table.host_to_device_s, table.update_s)
    lines = [f"# {part}={value_s * 1e6!r}" for part, value_s in zip(_PARTS, times_s, strict=False) if value_s]
    if table.batch_size is not None:
        lines.append(f"# batch_size={table.batch_size}")
    if table.recorded_on:
        lines.append(f"# {_RECORDED_ON}={' '.join(table.recorded_on.split())}")
    shaped = any(layer.shapes for layer in table.layers)
    lines.append("Id\tName\tForward\tBackward\tComm\tSize" + ("\tShapes" if shaped else ""))
    for number, layer in enumerate(table.layers):
        name = "_".join(layer.name.replace(",", " ").split())
        if not name:
            raise ValueError(f"layer {number} has no name that a table can hold")
        forward_us = (layer.forward_s + (table.undivided_s if number == 0 else 0.0)) * 1e6
        communication = "-" if layer.communication_s is None else repr(layer.communication_s * 1e6)
        lines.append(
            f"{number}\t{name}\t{forward_us!r}\t{layer.backward_s * 1e6!r}\t{communication}\t{layer.size_bytes}"
            + (f"\t{_shapes_text(layer.shapes)}" if shaped else "")
        )
    return "\n".join(lines) + "\n"


def _shapes_text(shapes: Sequence[Shape] | None) -> str:
    """A scalar is written as a vector of one."""
    return ";".join("x".join(map(str, shape or (1,))) for shape in shapes) if shapes else "-"


def _shapes(line: Line, field: str, size_bytes: int) -> tuple[Shape, ...] | None:
    """The tensors that a cell names. Raises TraceError."""
    if field == "-":
        return None
    shapes = tuple(tuple(line.count_in(side, "Shapes") for side in text.split("x")) for text in field.split(";"))
    if ELEMENT_BYTES * sum(map(prod, shapes)) != size_bytes:
        line.fail(
            f"Shapes {field} are {sum(map(prod, shapes))} float32 elements, {ELEMENT_BYTES} bytes each, and Size is "
            f"{size_bytes}"
        )
    return shapes


def _names_columns(line: Line) -> bool:
    named = tuple(name for name, _ in _columns(line))
    return named in (COLUMNS, (*COLUMNS, SHAPES))


def _columns(line: Line) -> Iterator[tuple[str, str]]:
    """Each column's name, and its unit where it says one: `Forward(us)`."""
    for cell in cells(line):
        name, _, unit = cell.partition("(")
        yield name.lower(), unit.removesuffix(")")


def _check_units(line: Line) -> None:
    """Raises TraceError for a column in another unit."""
    for name, unit in _columns(line):
        allowed = _UNITS.get(name, ())
        if unit and unit not in allowed:
            line.fail(f"column {name} is in {unit!r}; allowed: {' or '.join(allowed) or 'no unit'}")


def _check_comments(lines: Sequence[Line]) -> None:
    """Raises TraceError for one that nearly says what is read from comments: it would count for nothing."""
    known = (*_PARTS, _RECORDED_ON)
    stems = {_stem(name): name for name in known}
    for line in lines:
        if line.text.startswith("#") and "=" in line.text and (name := _named(line)[0]) not in known:
            for close in get_close_matches(_stem(name), stems, n=1, cutoff=0.8):
                line.fail(f"{name} is not read; do you mean {stems[close]}?")


def _stem(name: str) -> str:
    """Without its unit."""
    words = re.sub(r"[\W_]+", "_", name.lower())
    return re.sub(r"_?(ns|us|ms|s|seconds)_?$", "", words)


def _recorded_on(lines: Sequence[Line]) -> str:
    """Empty where nobody says."""
    found = [line for line in lines if line.text.startswith("#") and _named(line)[0] == _RECORDED_ON]
    for line in found[1:]:
        line.fail(f"{_RECORDED_ON} is given twice")
    return _named(found[0])[1] if found else ""


def _named(line: Line) -> tuple[str, str]:
    """What a comment says: `# update_us=5000`."""
    name, _, value = line.text.removeprefix("#").partition("=")
    return name.strip(), value.strip()


def _parts(lines: Sequence[Line]) -> Mapping[str, float]:
    found: dict[str, float] = {}
    for line in lines:
        name, value = _named(line)
        if line.text.startswith("#") and "=" in line.text and name in _PARTS:
            if name in found:
                line.fail(f"{name} is given twice")
            found[name] = line.number_in(value, name)
            if name == "batch_size" and (found[name] < 1 or found[name] != int(found[name])):
                line.fail(f"batch_size is {value}; it is a whole number, at least 1")
    return found


def _row(line: Line, num_columns: int) -> _Row:
    fields = cells(line)
    if len(fields) != num_columns:
        expected = " ".join((*COLUMNS, SHAPES)[:num_columns])
        line.fail(f"{len(fields)} columns where {num_columns} are expected: {expected}")
    identity, name, forward_us, backward_us, communication_us, size_text, *shapes = fields
    size_bytes = line.count_in(size_text, "Size")
    layer = Layer(
        name=name,
        forward_s=line.number_in(forward_us, "Forward") * 1e-6,
        backward_s=line.number_in(backward_us, "Backward") * 1e-6,
        size_bytes=size_bytes,
        communication_s=None if communication_us == "-" else line.number_in(communication_us, "Comm") * 1e-6,
        shapes=_shapes(line, shapes[0], size_bytes) if shapes else None,
    )
    return _Row(line, identity, layer)


def _layers(rows: Sequence[_Row]) -> Iterator[Layer]:
    """One for each Id, over all iterations."""
    iterations = _iterations(rows)
    for samples in zip(*iterations, strict=True):
        first = samples[0].layer
        for row in samples[1:]:
            if (row.layer.name, row.layer.size_bytes, row.layer.shapes) != (first.name, first.size_bytes, first.shapes):
                row.line.fail(
                    f"layer {row.identity} is {_described(row.layer)}, and {_described(first)} in line "
                    f"{samples[0].line.number}"
                )
        measured = [row.layer.communication_s for row in samples if row.layer.communication_s is not None]
        yield first._replace(
            forward_s=median(row.layer.forward_s for row in samples),
            backward_s=median(row.layer.backward_s for row in samples),
            communication_s=median(measured) if measured else None,
        )


def _described(layer: Layer) -> str:
    shapes = f" ({_shapes_text(layer.shapes)})" if layer.shapes else ""
    return f"{layer.name} with {layer.size_bytes} bytes{shapes}"


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
