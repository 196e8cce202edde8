"""B-Caffe's logs: the last dump, weight and bias of a layer together."""

from pathlib import Path

import pytest

from testbed.traces.formats.b_caffe import BCaffe
from testbed.traces.formats.base import TraceError, read_trace

PREFIX = "I0214 23:25:18.918774 37167 distributed.cpp:112] "


def written(tmp_path: Path, *rows: str) -> Path:
    path = tmp_path / "nodes.log"
    path.write_text("".join(f"{PREFIX}{row}\n" for row in rows))
    return path


def test_the_last_dump_counts_and_neighbours_of_one_time_are_one_layer(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        *("[0, 100, 0, 0]", "[1, 10, 0, 0]", "[2, 50, 0, 0]"),
        *("[0, 100, 7.5, 300, 1]", "[1, 10, 7.5, 20, 0]", "[2, 50, 3, 40, 0]"),
    )
    assert [tuple(layer) for layer in read_trace(path).layers] == [
        ("parameter 0", 0.0, pytest.approx(7.5e-6), 440, pytest.approx(320e-6), None),
        ("parameter 2", 0.0, pytest.approx(3e-6), 200, pytest.approx(40e-6), None),
    ]


def test_layers_that_took_as_long_as_their_neighbours_are_two(tmp_path: Path) -> None:
    path = written(tmp_path, "[0, 100, 5, 1]", "[1, 10, 5, 1]", "[2, 200, 5, 1]", "[3, 10, 5, 1]")
    assert [(layer.size_bytes, layer.backward_s) for layer in read_trace(path).layers] == [
        (440, pytest.approx(5e-6)),
        (840, pytest.approx(5e-6)),
    ]


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (["[0, 1, 2, 3]", "[2, 1, 2, 3]"], ":2: parameter 2 where parameter 1 is expected"),
        (["[1, 1, 2, 3]"], ":1: the dump does not begin with parameter 0"),
        (["[0, 1, 2]"], ":1: the line does not end in"),
        (["[0, 1, x, 3]"], ":1: compute_us is 'x'"),
        (["[0, 1, 2, 3]", "no bracket"], ":2: the line does not end in"),
        (["[0, 0, 2, 3]"], "no layer with gradients"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, rows: list[str], problem: str) -> None:
    with pytest.raises(TraceError, match=problem):
        BCaffe().read(written(tmp_path, *rows))
