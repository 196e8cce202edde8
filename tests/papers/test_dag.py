"""The DAG model on layer-wise logs of GoogLeNet by its authors (github.com/hclhkbu/B-Caffe, K80, 10 GbE).

Expected values were computed from the logs with the recursion in the authors' public code, apart from this project.
"""

from pathlib import Path

import pytest

from testbed.theory.dag import buckets_by_layer, iteration_s
from testbed.traces.formats.base import read_table
from testbed.traces.table import LayerTable


@pytest.fixture(params=[2, 4, 8])
def num_nodes(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def table(data: Path, num_nodes: int) -> LayerTable:
    return read_table(data / "b_caffe" / f"tmp{num_nodes}comm.log")


def test_the_logs_have_all_layers(table: LayerTable) -> None:
    assert len(table.layers) == 64
    assert table.size_bytes == 13_379_136 * 4


def test_communication_that_backward_does_not_hide(table: LayerTable, num_nodes: int) -> None:
    exposed_ms = (iteration_s(table, "wfbp", buckets_by_layer(table)) - table.backward_s) * 1e3
    assert exposed_ms == pytest.approx({2: 0.4, 4: 55, 8: 106}[num_nodes], abs=0.5)


def test_everything_one_after_the_other(table: LayerTable, num_nodes: int) -> None:
    serial_ms = iteration_s(table, "naive", buckets_by_layer(table)) * 1e3
    assert serial_ms == pytest.approx({2: 354, 4: 468, 8: 516}[num_nodes], abs=0.5)


@pytest.mark.parametrize("name", ["tmp4ocomm", "tmp8ocomm", "tmpcomm"])
def test_the_other_logs_are_read_too(data: Path, name: str) -> None:
    assert read_table(data / "b_caffe" / f"{name}.log").size_bytes == 13_379_136 * 4
