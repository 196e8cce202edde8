"""The six-column layer table, read and written."""

from math import prod
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.traces.formats.base import TraceError, read_trace
from testbed.traces.formats.layers import Layers, layers_text
from testbed.traces.table import Layer, LayerTable

HEAD = "Id\tName\tForward\tBackward\tComm\tSize\n"
SHAPED_HEAD = HEAD.replace("Size", "Size\tShapes")


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "table.trace"
    path.write_text(text)
    return path


def test_columns_are_microseconds_and_bytes(tmp_path: Path) -> None:
    text = "# input_us=7\n# made manually\n" + HEAD + "0 conv1 10 20 30 400\n1 relu 1.5 2.5 - 0\n"
    table = read_trace(written(tmp_path, text))
    assert [tuple(layer) for layer in table.layers] == [
        ("conv1", pytest.approx(10e-6), pytest.approx(20e-6), 400, pytest.approx(30e-6), None),
        ("relu", pytest.approx(1.5e-6), pytest.approx(2.5e-6), 0, None, None),
    ]
    assert table.input_s == pytest.approx(7e-6)


def test_a_comment_may_say_anything_else(tmp_path: Path) -> None:
    table = Layers().read(written(tmp_path, "# optimizer=sgd\n# lr = 0.1\n#\n# x == y\n" + HEAD + "0 a 1 2 3 4\n"))
    assert (table.update_s, table.batch_size, table.recorded_on) == (0.0, None, "")


def test_units_and_blanks_change_nothing(tmp_path: Path) -> None:
    head = HEAD.replace("Forward", "Forward(us)").replace("Size", "Size(bytes)")
    table = read_trace(written(tmp_path, "# update_us = 5000\n# recorded_on = a GPU\n" + head + "0 a 10 20 - 400\n"))
    assert isinstance(table, LayerTable)
    assert (table.update_s, table.recorded_on, table.size_bytes) == (pytest.approx(5e-3), "a GPU", 400)


def test_several_iterations_give_medians(tmp_path: Path) -> None:
    rows = "".join(f"0,conv,{forward},20,-,400\n1,fc,1,{2 * forward},9,40\n" for forward in (10, 99, 12))
    first, second = read_trace(written(tmp_path, HEAD.replace("\t", ",") + rows)).layers
    assert first.forward_s == pytest.approx(12e-6)
    assert second.backward_s == pytest.approx(24e-6)
    assert (first.communication_s, second.communication_s) == (None, pytest.approx(9e-6))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("0 conv 1 2 3 4\n", ":1: the columns are expected first"),
        (HEAD, "ends after the names"),
        (HEAD + "0 conv 1 2 3\n", ":2: 5 columns where 6"),
        (HEAD + "0 conv 1 2 3 -4\n", ":2: Size is -4"),
        (HEAD + "0 conv - 2 3 4\n", ":2: Forward is '-'"),
        (HEAD + "0 a 1 2 3 4\n1 b 1 2 3 4\n0 a 1 2 3 4\n", ":4: this iteration has 1 layers and the first has 2"),
        (HEAD + "0 a 1 2 3 4\n1 b 1 2 3 4\n1 b 1 2 3 4\n", ":4: Id 1 stands twice"),
        (HEAD + "0 a 1 2 3 4\n0 a 1 2 3 5\n", ":3: layer 0 is a with 5 bytes, and a with 4 bytes in line 2"),
        ("# input_us=x\n" + HEAD + "0 a 1 2 3 4\n", ":1: input_us is 'x'"),
        ("# input_us=1\n# input_us=2\n" + HEAD + "0 a 1 2 3 4\n", ":2: input_us is given twice"),
        ("# update_us = x\n" + HEAD + "0 a 1 2 3 4\n", ":1: update_us is 'x'"),
        (HEAD.replace("Forward", "Forward(ms)") + "0 a 1 2 3 4\n", ":1: column forward is in 'ms'; allowed: us"),
        (HEAD.replace("Size", "Size(MB)") + "0 a 1 2 3 4\n", ":1: column size is in 'MB'; allowed: B or bytes"),
        (HEAD.replace("Id", "Id(hex)") + "0 a 1 2 3 4\n", ":1: column id is in 'hex'; allowed: no unit"),
        ("# batch_size=0\n" + HEAD + "0 a 1 2 3 4\n", ":1: batch_size is 0"),
        ("# batch_size=2.5\n" + HEAD + "0 a 1 2 3 4\n", ":1: batch_size is 2.5"),
        ("# update_ms=5\n" + HEAD + "0 a 1 2 3 4\n", ":1: update_ms is not read; do you mean update_us"),
        ("# Batch size = 64\n" + HEAD + "0 a 1 2 3 4\n", ":1: Batch size is not read; do you mean batch_size"),
        ("# host_to_devise_us=5\n" + HEAD + "0 a 1 2 3 4\n", ":1: host_to_devise_us is not read; do you mean host_to_"),
        (SHAPED_HEAD + "0 a 1 2 3 4\n", ":2: 6 columns where 7"),
        (SHAPED_HEAD + "0 a 1 2 3 4 2x3\n", ":2: Shapes 2x3 are 6 float32 elements"),
        (SHAPED_HEAD + "0 a 1 2 3 24 2xx3\n", ":2: Shapes is ''"),
        (SHAPED_HEAD + "0 a 1 2 3 24 2x3\n0 a 1 2 3 24 3x2\n", ":3: layer 0 is a"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(TraceError, match=problem):
        Layers().read(written(tmp_path, text))


TIME = st.floats(0, 10, allow_nan=False)
NAME = st.from_regex(r"[A-Za-z][\w.]{0,8}", fullmatch=True)
SIZED = st.builds(Layer, NAME, TIME, TIME, st.integers(1, 2**31), st.none() | TIME, st.none())
SHAPES = st.lists(st.lists(st.integers(1, 99), min_size=1, max_size=4).map(tuple), min_size=1, max_size=3).map(tuple)
SHAPED = st.builds(
    lambda name, time_s, shapes: Layer(name, time_s, time_s, 4 * sum(map(prod, shapes)), None, shapes),
    NAME,
    TIME,
    SHAPES,
)
TABLE = st.builds(
    LayerTable,
    layers=st.lists(SIZED | SHAPED, min_size=1, max_size=5).map(tuple),
    input_s=TIME,
    update_s=TIME,
    batch_size=st.none() | st.integers(1, 9999),
)


@given(TABLE)
def test_a_table_that_is_written_reads_back(tmp_path_factory: pytest.TempPathFactory, table: LayerTable) -> None:
    path = tmp_path_factory.mktemp("layers") / "table"
    path.write_text(layers_text(table))
    again = read_trace(path)
    assert again.input_s == pytest.approx(table.input_s)
    assert again.update_s == pytest.approx(table.update_s)
    assert again.batch_size == table.batch_size
    assert [layer.shapes for layer in again.layers] == [layer.shapes for layer in table.layers]
    for layer, same in zip(table.layers, again.layers, strict=True):
        assert same.name == layer.name
        assert same.size_bytes == layer.size_bytes
        assert same.forward_s == pytest.approx(layer.forward_s)
        assert same.backward_s == pytest.approx(layer.backward_s)
        assert same.communication_s == (None if layer.communication_s is None else pytest.approx(layer.communication_s))


def test_computing_that_no_layer_has_goes_to_the_first_one(tmp_path: Path) -> None:
    table = LayerTable(layers=(Layer("a layer", 0.0, 0.002, 4),), undivided_s=0.25)
    again = read_trace(written(tmp_path, layers_text(table)))
    assert tuple(again.layers[0]) == ("a_layer", pytest.approx(0.25), pytest.approx(0.002), 4, None, None)


def test_a_name_without_characters_is_refused() -> None:
    with pytest.raises(ValueError, match="layer 0 has no name"):
        layers_text(LayerTable(layers=(Layer(" , ", 0.0, 0.0, 4),)))
