"""The what-if model on the logs of "Is Network the Bottleneck of Distributed Training?" (arXiv:2006.10103).

Expected values marked `figure` were read off the paper's figures (accuracy about one point); the others were computed
from the authors' public code and data, apart from this project.
"""

from math import ceil
from pathlib import Path

import pytest

from testbed.theory.buckets import ByTime
from testbed.theory.what_if import Addition, FullAggregation, FullRing, read_addition, smallest_factor, what_if
from testbed.traces.formats.backward_log import BackwardLog
from testbed.traces.formats.base import read_table
from testbed.traces.table import LayerTable

RATES_GBPS = (1, 10, 25, 40, 100)
ITERATION_S = {
    "resnet50": 0.12808580219559176,
    "resnet101": 0.19200599479476405,
    "vgg16": 0.19452352295080985,
}
"""From the authors' `simulation/`."""
SCALING_FACTORS = {
    ("resnet50", 2): (14.4, 84.9, 99.9, 100, 100),
    ("resnet50", 4): (9.9, 66.7, 99.9, 99.9, 100),
    ("resnet50", 8): (8.5, 60.1, 99.9, 99.9, 99.9),
    ("resnet50", 16): (8.0, 57.2, 97.0, 99.8, 99.9),
    ("resnet50", 32): (7.7, 55.4, 94.2, 99.7, 99.7),
    ("resnet50", 64): (7.6, 54.0, 91.0, 99.4, 99.5),
    ("resnet101", 2): (12.7, 81.9, 100, 100, 100),
    ("resnet101", 4): (8.6, 62.7, 100, 100, 100),
    ("resnet101", 8): (7.4, 56.1, 99.6, 100, 100),
    ("resnet101", 16): (6.9, 53.1, 95.3, 99.9, 99.9),
    ("resnet101", 64): (6.6, 50.0, 89.0, 99.7, 99.7),
    ("vgg16", 2): (4.3, 36.9, 74.2, 99.5, 100),
    ("vgg16", 4): (2.9, 25.9, 55.4, 77.3, 100),
    ("vgg16", 8): (2.5, 22.6, 49.1, 69.4, 99.9),
    ("vgg16", 16): (2.3, 21.2, 46.3, 65.9, 99.9),
    ("vgg16", 64): (2.2, 20.1, 43.9, 62.2, 99.3),
}
"""Per cent, at each rate."""
AGGREGATED = {
    "resnet50": (14.4, 85.1, 99.9, 100, 100),
    "resnet101": (12.7, 82.1, 100, 100, 100),
    "vgg16": (4.3, 36.9, 74.6, 100, 100),
}
SMALLEST_RATIOS = {
    ("resnet50", 0.95): (27.6, 2.8, 1.2, 1, 1),
    ("resnet50", 0.99): (30.4, 3.1, 1.3, 1, 1),
    ("resnet101", 0.95): (28.5, 2.9, 1.2, 1, 1),
    ("resnet101", 0.99): (31.1, 3.2, 1.3, 1, 1),
    ("vgg16", 0.95): (79.3, 8.0, 3.2, 2.0, 1),
    ("vgg16", 0.99): (85.8, 8.6, 3.5, 2.2, 1),
}
"""Among 64 workers, rounded up to tenths."""
FIGURE_8 = {
    "resnet50": {1: 54.0, 2: 81.4, 5: 99.0},
    "resnet101": {1: 49.5, 2: 77.9, 5: 98.0},
    "vgg16": {1: 20.2, 2: 36.6, 5: 72.0, 10: 98.1},
}
"""Figure: scaling factor by compression ratio, 64 workers at 10 Gbit/s."""


@pytest.fixture(scope="module")
def tables(data: Path) -> dict[str, LayerTable]:
    return {
        model: read_table(data / "training_bottleneck" / f"{model}.bk.log", BackwardLog()).with_iteration(iteration_s)
        for model, iteration_s in ITERATION_S.items()
    }


@pytest.fixture(scope="module")
def addition(data: Path) -> Addition:
    return read_addition((data / "training_bottleneck" / "cuda_vec_add.log").read_text().splitlines())


@pytest.mark.parametrize(
    ("model", "num_tensors", "size_bytes", "backward_ms"),
    [("resnet50", 161, 102_228_128, 64.8), ("resnet101", 314, 178_196_640, 106.4), ("vgg16", 58, 553_463_968, 111.6)],
)
def test_the_logs_are_those_that_the_paper_used(
    tables: dict[str, LayerTable], model: str, num_tensors: int, size_bytes: int, backward_ms: float
) -> None:
    table = tables[model]
    assert (len(table.layers), table.size_bytes) == (num_tensors, size_bytes)
    assert table.backward_s * 1e3 == pytest.approx(backward_ms, abs=0.05)


@pytest.mark.parametrize(("model", "num_buckets"), [("resnet50", 12), ("resnet101", 20), ("vgg16", 15)])
def test_fusion_makes_as_many_buckets(tables: dict[str, LayerTable], model: str, num_buckets: int) -> None:
    assert len(ByTime().buckets(tables[model].gradients())) == num_buckets


@pytest.mark.parametrize(("model", "num_workers"), SCALING_FACTORS)
def test_scaling_factors(tables: dict[str, LayerTable], addition: Addition, model: str, num_workers: int) -> None:
    for rate_gbps, expected in zip(RATES_GBPS, SCALING_FACTORS[model, num_workers], strict=True):
        ring = FullRing(num_workers=num_workers, rate_bps=rate_gbps * 1e9, addition=addition)
        assert 100 * what_if(tables[model], ring.time_s).scaling_factor == pytest.approx(expected, abs=0.1), rate_gbps


@pytest.mark.parametrize("model", AGGREGATED)
def test_scaling_factors_with_a_switch_that_aggregates(tables: dict[str, LayerTable], model: str) -> None:
    for rate_gbps, expected in zip(RATES_GBPS, AGGREGATED[model], strict=True):
        answer = what_if(tables[model], FullAggregation(rate_bps=rate_gbps * 1e9).time_s)
        assert 100 * answer.scaling_factor == pytest.approx(expected, abs=0.1), rate_gbps


@pytest.mark.parametrize(("model", "target"), SMALLEST_RATIOS)
def test_smallest_compression_ratios(
    tables: dict[str, LayerTable], addition: Addition, model: str, target: float
) -> None:
    for rate_gbps, expected in zip(RATES_GBPS, SMALLEST_RATIOS[model, target], strict=True):

        def scaling_factor(ratio: float, rate_bps: float = rate_gbps * 1e9) -> float:
            ring = FullRing(num_workers=64, rate_bps=rate_bps, addition=addition, compression_ratio=ratio)
            return what_if(tables[model], ring.time_s).scaling_factor

        ratio = smallest_factor(scaling_factor, target, tolerance=1e-6)
        assert ratio is not None
        assert ceil(ratio * 10 - 1e-3) / 10 == pytest.approx(expected, abs=0.01), rate_gbps


@pytest.mark.parametrize("model", FIGURE_8)
def test_the_papers_figure_8(tables: dict[str, LayerTable], addition: Addition, model: str) -> None:
    for compression_ratio, expected in FIGURE_8[model].items():
        ring = FullRing(num_workers=64, rate_bps=10e9, addition=addition, compression_ratio=compression_ratio)
        assert 100 * what_if(tables[model], ring.time_s).scaling_factor == pytest.approx(expected, abs=2)


@pytest.mark.parametrize(
    ("cycle_s", "num_buckets", "expected"),
    [(0.0, 161, 58.7), (1e-3, 44, 60.7), (5e-3, 12, 60.1), (20e-3, 4, 58.6), (10.0, 2, 58.6)],
)
def test_fusion_by_cycle(
    tables: dict[str, LayerTable], addition: Addition, cycle_s: float, num_buckets: int, expected: float
) -> None:
    fusion = ByTime(cycle_s=cycle_s)
    ring = FullRing(num_workers=8, rate_bps=10e9, addition=addition)
    answer = what_if(tables["resnet50"], ring.time_s, fusion)
    assert len(answer.exchanges) == num_buckets
    assert 100 * answer.scaling_factor == pytest.approx(expected, abs=0.1)
