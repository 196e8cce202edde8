"""Compressors and orders on real links: the bytes that were declared, and the codec's time apart."""

from pathlib import Path
from typing import Any

import pytest

from tests.here import invoke, summary_of

pytestmark = [pytest.mark.privileged, pytest.mark.timeout(120)]


WORKLOAD = (
    "workload={kind: synthetic, layers: [256KiB, 256KiB, 256KiB, 256KiB], forward: 20ms, backward: 40ms, "
    "compute_only: 2, warmup: 2, iterations: 4}"
)


def run(output: Path, *overrides: str) -> dict[str, Any]:
    """The summary, whatever the verdict on the machine's cores is."""
    words = ["run", "experiments/quickstart.yaml", "--output", str(output), "--json"]
    for override in ("workers=2", "metrics.port=0", WORKLOAD, *overrides):
        words += ["--set", override]
    return summary_of(invoke(*words))


@pytest.mark.parametrize(
    "kind", [pytest.param("int8", marks=pytest.mark.slow), "top_k", pytest.param("powersgd", marks=pytest.mark.slow)]
)
def test_links_carry_the_bytes_that_the_compressor_declares(kind: str, tmp_path: Path) -> None:
    summary = run(tmp_path, "fusion=layers", f"compression={kind}")
    for link in summary["links"]:
        assert link["bytes"] == pytest.approx(link["expected_bytes"], rel=0.01, abs=5000)
    found = summary["compression"]
    assert found["encode_s"] > 0
    assert found["decode_s"] > 0
    assert found["payload_ratio"] < 0.3


@pytest.mark.parametrize(
    "fusion",
    [pytest.param("priority", marks=pytest.mark.slow), pytest.param("merged", marks=pytest.mark.slow), "horovod_5ms"],
)
def test_links_carry_the_whole_gradient_in_any_order(fusion: str, tmp_path: Path) -> None:
    summary = run(tmp_path, f"fusion={fusion}")
    for link in summary["links"]:
        assert link["bytes"] == pytest.approx(link["expected_bytes"], rel=0.01)
    assert summary["allreduce"]["size_bytes"] == 4 * 256 * 1024


@pytest.mark.slow
@pytest.mark.quiet
def test_a_run_s_layer_table_read_back_replays_its_iteration_and_its_bytes(tmp_path: Path) -> None:
    """Computing that was paced is paced again; the parameters' layers and sizes are the model's."""
    words = ["run", "experiments/quickstart.yaml", "--output", str(tmp_path), "--json", "--set", "metrics.port=0"]
    words += ["--set", "workers=2", "--set", "fusion=layers"]
    trained = summary_of(invoke(*words, "--set", "workload.iterations=8"))
    table = tmp_path / "layers.txt"
    assert invoke("trace", "export", trained["record"], table).returncode == 0
    workload = f"workload={{kind: replay, trace: {table}, iterations: 8, warmup: 2, compute_only: 1}}"
    replayed = summary_of(invoke(*words, "--set", workload))
    assert replayed["iteration_time_s"]["median"] == pytest.approx(trained["iteration_time_s"]["median"], rel=0.02)
    for before, after in zip(trained["links"], replayed["links"], strict=True):
        assert after["name"] == before["name"]
        assert after["expected_bytes"] == before["expected_bytes"]
        assert after["bytes"] == pytest.approx(before["bytes"], rel=1e-3)
