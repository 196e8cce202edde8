"""How files of traces are read: the axis of formats. Pure but for reading the file."""

import gzip
import io
import zlib
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

from testbed.errors import SpecError
from testbed.traces.graph import MAX_DURATION_S, MAX_NODE_BYTES, Graph, GraphError
from testbed.traces.table import Layer, LayerTable
from transports.registry import Options, Registry


class TraceError(SpecError):
    """A trace cannot be used; the message names the file and, where there is one, the line."""


_MOST: Final = 1e6 * MAX_DURATION_S


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
        """The number, at least 0 and at most a day of microseconds, that `field` spells. Raises TraceError."""
        try:
            value = float(field)
        except ValueError:
            self.fail(f"{what} is {field!r}, which is not a number")
        if not isfinite(value) or value < 0:
            self.fail(f"{what} is {field}; it must be finite and at least 0")
        if value > _MOST:
            self.fail(f"{what} is {field}; it is at most {_MOST:g}")
        return value

    def count_in(self, field: str, what: str) -> int:
        """The whole number, at least 0 and no more than a graph's exchange has bytes, that `field` spells. Raises
        TraceError."""
        value = self.number_in(field, what)
        if value != int(value):
            self.fail(f"{what} is {field}, which is not a whole number")
        if value > MAX_NODE_BYTES:
            self.fail(f"{what} is {field}; it is at most {MAX_NODE_BYTES}")
        return int(value)


MAX_TRACE_BYTES: Final = 256 * 2**20
"""Of all of a trace's files, unpacked. A larger one is something else, or of more iterations than can be meant."""

Trace = LayerTable | Graph


class File(NamedTuple):
    """One file of a trace."""

    path: Path
    data: bytes
    """Unpacked, where the file was compressed by gzip."""

    def fail(self, problem: str) -> NoReturn:
        """Raises TraceError that names the file."""
        raise TraceError(f"{self.path}: {problem}")

    def text(self) -> str:
        """Raises TraceError where it is none."""
        try:
            return self.data.decode()
        except UnicodeDecodeError as error:
            raise TraceError(f"{self.path} cannot be read as text: {error}") from None


class Source(NamedTuple):
    """What a trace is read from: a file, or a directory with a file for each rank."""

    path: Path
    files: tuple[File, ...]
    """At least one; those of a directory in the order of their names."""


class TraceFormat(Options):
    """A value on the axis of trace formats: how a kind of file is read, and perhaps written."""

    @abstractmethod
    def takes(self, source: Source) -> bool:
        """Whether this looks like a trace of this format."""

    @abstractmethod
    def load(self, source: Source) -> Trace:
        """The trace. Raises TraceError naming the file and the line or node that is wrong."""

    def files(self, trace: Trace) -> Mapping[str, bytes]:  # noqa: ARG002 (for those who can)
        """The trace as files of this format, by what is appended to the name given: one without an appendix, or one for
        each rank. Raises TraceError for what the format cannot say."""
        raise TraceError(f"format {self.kind} is only read; allowed: {', '.join(writable())}")


class TextFormat(TraceFormat):
    """A format of one file of text, line by line, which says a table of layers."""

    @abstractmethod
    def recognises(self, lines: Sequence[Line]) -> bool:
        """Whether lines (at least one, none of them blank) look like a file of this format."""

    @abstractmethod
    def parse(self, lines: Sequence[Line]) -> LayerTable:
        """The trace in lines (at least one, none of them blank). Raises TraceError naming the line that is wrong."""

    def takes(self, source: Source) -> bool:
        """See :class:`TraceFormat`."""
        try:
            return len(source.files) == 1 and self.recognises(_source_lines(source))
        except TraceError:
            return False

    def load(self, source: Source) -> LayerTable:
        """See :class:`TraceFormat`."""
        if len(source.files) != 1:
            raise TraceError(f"{source.path} is a directory; a trace of format {self.kind} is one file")
        return self.parse(_source_lines(source))

    def read(self, path: Path) -> LayerTable:
        """The table in a file. Raises TraceError."""
        return self.load(read_source(path))


TRACE_FORMATS: Final[Registry[TraceFormat]] = Registry("trace format", "testbed.traces.formats")


def writable() -> list[str]:
    """The kinds of formats that can be written."""
    return [each.__module__.rpartition(".")[2] for each in TRACE_FORMATS if each.files is not TraceFormat.files]


def read_trace(path: Path, trace_format: TraceFormat | None = None) -> Trace:
    """The trace in a file or directory of the given format, or of the one that recognises it. Raises TraceError."""
    source = read_source(path)
    with _naming(path):
        return (trace_format or _recognised(source)).load(source)


def read_table(path: Path, trace_format: TraceFormat | None = None) -> LayerTable:
    """The same where only a table of layers will do. Raises TraceError."""
    trace = read_trace(path, trace_format)
    if isinstance(trace, LayerTable):
        return trace
    raise TraceError(
        f"{path} is a graph of {trace.num_ranks} ranks, and a table of layers is needed here; a graph is replayed: "
        "`workload: {kind: replay, trace: FILE}`"
    )


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """A node that is wrong is a node of this file."""
    try:
        yield
    except GraphError as error:
        raise TraceError(f"{path}: {error}") from None


def read_source(path: Path) -> Source:
    """Raises TraceError."""
    try:
        paths = sorted(each for each in path.iterdir() if each.is_file()) if path.is_dir() else [path]
        if not paths:
            raise TraceError(f"{path} has no files")
        if (size_bytes := sum(each.stat().st_size for each in paths)) > MAX_TRACE_BYTES:
            raise TraceError(f"{path} has {size_bytes} bytes; a trace has at most {MAX_TRACE_BYTES}")
        return Source(path, tuple(File(each, _unpacked(each)) for each in paths))
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(f"{path} cannot be read: {error}") from error


def _unpacked(path: Path) -> bytes:
    data = path.read_bytes()
    if not data.startswith(b"\x1f\x8b"):
        return data
    with gzip.open(io.BytesIO(data)) as packed:
        unpacked = packed.read(MAX_TRACE_BYTES + 1)
    if len(unpacked) > MAX_TRACE_BYTES:
        raise TraceError(f"{path} has more than {MAX_TRACE_BYTES} bytes when it is unpacked")
    return unpacked


def _source_lines(source: Source) -> list[Line]:
    return lines_of(source.files[0].path, source.files[0].text())


def lines_of(path: Path, text: str) -> list[Line]:
    """The lines of a text that are not blank; at least one. Raises TraceError, which names the path."""
    lines = [Line(path, number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise TraceError(f"{path} is empty")
    return lines


def _recognised(source: Source) -> TraceFormat:
    formats = [cls() for cls in TRACE_FORMATS]
    matching = [each for each in formats if each.takes(source)]
    if len(matching) != 1:
        known = ", ".join(each.kind for each in formats)
        beginning = source.files[0].data.lstrip()[:60].decode(errors="replace").partition("\n")[0]
        raise TraceError(f"{source.path} is not recognised as a trace: it begins {beginning!r}; known formats: {known}")
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
