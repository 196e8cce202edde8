import pytest

from testbed.traces.derived import derived_table
from testbed.traces.generators.data_parallel import DataParallel


def test_every_layers_gradients_are_reduced_once_they_are_there() -> None:
    table = derived_table("resnet50")
    graph = DataParallel().generate(table, 3)
    assert graph.sent_bytes == table.size_bytes
    assert len(graph.matches) == len(table.gradients())
    assert graph.critical_path_s() == pytest.approx(table.compute_s)
