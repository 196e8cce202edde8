"""Shipped compressors by what they leave on the links."""

import pytest

from testbed.theory.compressors import link_ratios
from testbed.traces.derived import derived_table
from testbed.traces.table import Layer, LayerTable

TABLE = derived_table("resnet50")


def test_payloads_that_are_gathered_lose_half_as_many_times_as_there_are_workers() -> None:
    """terngrad sends a sixteenth."""
    for num_workers in (4, 32):
        ratios = link_ratios(TABLE, num_workers)
        assert ratios["fp16"] == pytest.approx(2.0)
        assert ratios["terngrad"] == pytest.approx(16 / (num_workers / 2), rel=0.01)
        assert ratios["int8"] == pytest.approx(4.0, rel=0.02)  # in two phases, whatever the number of workers
        assert list(ratios.values()) == sorted(ratios.values())
        assert not {"none", "divide"} & set(ratios)


def test_of_gradients_that_are_no_floats_nothing_is_known() -> None:
    assert link_ratios(LayerTable(layers=(Layer("a", 0.1, 0.1, 1001),)), 4) == {}
