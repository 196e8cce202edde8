"""How files of traces are read: the axis of formats. Pure but for reading the file."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from math import isfinite
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

from testbed.errors import SpecError
from testbed.traces.table import Layer, LayerTable
from transports.registry import Options, Registry


class TraceError(SpecError):
    """A trace cannot be used; the message names the file and, where there is one, the line."""


class Line(NamedTuple):
    """One line of a trace file, and where it stands: what an error names."""

    path: Path
    number: int
    """Counted from 1."""
    text: str

    def fail(self, problem: str) -> NoReturn:
        """Raises TraceError that names this line."""
        raise TraceError(f"{self.path}:{self.number}: {problem}")

    def number_in(self, field: str, what: str) -> float:
        """The finite number, at least 0, that `field` spells. Raises TraceError."""
        try:
            value = float(field)
        except ValueError:
            self.fail(f"{what} is {field!r}, which is not a number")
        if not isfinite(value) or value < 0:
            self.fail(f"{what} is {field}; it must be finite and at least 0")
        return value

    def count_in(self, field: str, what: str) -> int:
        """The whole number, at least 0, that `field` spells. Raises TraceError."""
        value = self.number_in(field, what)
        if value != int(value):
            self.fail(f"{what} is {field}, which is not a whole number")
        return int(value)


MAX_TRACE_BYTES: Final = 64 * 2**20
"""A layer-wise trace of the largest models has some thousand lines; a larger file is something else."""


class TraceFormat(Options):
    """A value on the axis of trace formats: how a kind of file is read."""

    @abstractmethod
    def recognises(self, lines: Sequence[Line]) -> bool:
        """Whether lines (at least one, none of them blank) look like a file of this format."""

    @abstractmethod
    def parse(self, lines: Sequence[Line]) -> LayerTable:
        """The trace in lines (at least one, none of them blank). Raises TraceError naming the line that is wrong."""

    def read(self, path: Path) -> LayerTable:
        """The trace in a file. Raises TraceError."""
        return self.parse(read_lines(path))


TRACE_FORMATS: Final[Registry[TraceFormat]] = Registry("trace format", "testbed.traces.formats")


def read_trace(path: Path, trace_format: TraceFormat | None = None) -> LayerTable:
    """The trace in a file of the given format, or of the one that recognises it. Raises TraceError."""
    lines = read_lines(path)
    if trace_format is None:
        trace_format = _recognised(path, lines)
    return trace_format.parse(lines)


def read_lines(path: Path) -> list[Line]:
    """The lines of a text file that are not blank; at least one. Raises TraceError."""
    try:
        if path.stat().st_size > MAX_TRACE_BYTES:
            raise TraceError(
                f"{path} has {path.stat().st_size} bytes; a layer-wise trace has at most {MAX_TRACE_BYTES}"
            )
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path} cannot be read as text: {error}") from error
    return lines_of(path, text)


def lines_of(path: Path, text: str) -> list[Line]:
    """The lines of a text that are not blank; at least one. Raises TraceError, which names the path."""
    lines = [Line(path, number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise TraceError(f"{path} is empty")
    return lines


def _recognised(path: Path, lines: Sequence[Line]) -> TraceFormat:
    formats = [cls() for cls in TRACE_FORMATS]
    matching = [each for each in formats if each.recognises(lines)]
    if len(matching) != 1:
        known = ", ".join(each.kind for each in formats)
        raise TraceError(
            f"{path} is not recognised as a trace: it begins {lines[0].text[:60]!r}; known formats: {known}"
        )
    return matching[0]


def non_empty(path: Path, layers: Iterable[Layer]) -> tuple[Layer, ...]:
    """The layers. Raises TraceError if nobody would have anything to exchange."""
    found = tuple(layers)
    if not any(layer.size_bytes for layer in found):
        raise TraceError(f"{path} has no layer with gradients")
    return found


def cells(line: Line) -> list[str]:
    """The fields of a line, separated by commas or white space."""
    return line.text.replace(",", " ").split()
