"""Reading traces: what a table says, how a file's format is recognised, what is refused and where."""

import gzip
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from testbed.traces.formats.base import TRACE_FORMATS, Line, TextFormat, TraceError, read_trace
from testbed.traces.table import Layer, LayerTable

TABLE = LayerTable(
    layers=(Layer("a", 0.001, 0.002, 100), Layer("pool", 0.001, 0.003, 0), Layer("b", 0.002, 0.004, 50)),
    update_s=0.005,
    undivided_s=0.01,
)


def test_gradients_become_ready_from_the_last_layer_to_the_first() -> None:
    assert [tuple(each) for each in TABLE.gradients()] == [(pytest.approx(0.004), 50), (pytest.approx(0.009), 100)]


def test_totals_are_of_all_layers() -> None:
    assert TABLE.forward_s == pytest.approx(0.014)
    assert TABLE.backward_s == pytest.approx(0.009)
    assert TABLE.compute_s == pytest.approx(0.028)
    assert TABLE.size_bytes == 150


def test_a_file_that_no_format_recognises_is_refused_with_its_first_line(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("\nlayer by layer\n")
    with pytest.raises(
        TraceError, match=r"notes\.txt is not recognised .*'layer by layer'; known formats: b_caffe, ba"
    ):
        read_trace(path)


@pytest.mark.parametrize("content", [b"", b"\n \n", b"\xff\xfe\x00"])
def test_files_without_text_are_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "trace"
    path.write_bytes(content)
    with pytest.raises(TraceError, match="trace"):
        read_trace(path)


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="absent cannot be read"):
        read_trace(tmp_path / "absent")


@pytest.mark.parametrize("field", ["nan", "inf", "-1", "x", "1e400", "1e11"])
def test_numbers_must_be_finite_and_not_negative(field: str) -> None:
    with pytest.raises(TraceError, match="f:3: size is"):
        Line(Path("f"), 3, "").number_in(field, "size")


def test_counts_must_be_whole() -> None:
    assert Line(Path("f"), 3, "").count_in("4.0", "size") == 4
    with pytest.raises(TraceError, match="not a whole number"):
        Line(Path("f"), 3, "").count_in("4.5", "size")
    with pytest.raises(TraceError, match="size is 7e10; it is at most 68719476736"):
        Line(Path("f"), 3, "").count_in("7e10", "size")


@given(
    st.text(alphabet="0123456789.,-# \n[]IdNameForwardBackwardCommSizeabc:\t", max_size=200),
    st.sampled_from(["", "Id Name Forward Backward Comm Size\n", "c\n1\n2\n", "I0 1 distributed.cpp:112] ["]),
)
def test_any_text_is_a_trace_or_is_refused_with_the_file_named(text: str, beginning: str) -> None:
    lines = [Line(Path("f"), number, line) for number, line in enumerate((beginning + text).splitlines(), 1)]
    lines = [line for line in lines if line.text.strip()]
    for cls in TRACE_FORMATS:
        if lines and isinstance(trace_format := cls(), TextFormat):
            outcome = parsed(trace_format, lines)
            assert outcome.startswith("f") if isinstance(outcome, str) else outcome.size_bytes > 0


def parsed(trace_format: TextFormat, lines: list[Line]) -> LayerTable | str:
    """The table, or what the file is refused with."""
    try:
        return trace_format.parse(lines)
    except TraceError as error:
        return str(error)


@given(
    st.binary(max_size=300), st.sampled_from(["x.0.et", "x.json", "x.txt", "x.groups.json", "x.1.et.gz"]), st.booleans()
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_under_any_name_are_a_trace_or_are_refused_with_their_name(
    tmp_path: Path, data: bytes, name: str, says_kineto: bool
) -> None:
    path = tmp_path / name
    path.write_bytes((b'{"schemaVersion": 1, ' if says_kineto else b"") + data)
    for cls in (None, *TRACE_FORMATS):
        try:
            read_trace(path, cls and cls())
            outcome = "valid"
        except TraceError as error:
            outcome = str(error)
        assert outcome == "valid" or str(path) in outcome


def test_a_compressed_file_is_unpacked_and_a_broken_one_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.txt.gz"
    packed = gzip.compress(b"Id Name Forward Backward Comm Size\n0 a 1 2 - 4\n")
    path.write_bytes(packed)
    assert isinstance(read_trace(path), LayerTable)
    path.write_bytes(packed[:-9])
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(path)


def test_an_empty_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="has no files"):
        read_trace(tmp_path)
