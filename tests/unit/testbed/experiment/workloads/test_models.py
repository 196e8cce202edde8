import subprocess
import sys

import pytest

from testbed.experiment.workloads._models import MODELS


@pytest.mark.parametrize("name", sorted(MODELS))
def test_parameter_shapes_are_those_of_the_real_module(name: str) -> None:
    module = MODELS[name].build()
    assert list(MODELS[name].parameter_shapes()) == [tuple(parameter.shape) for parameter in module.parameters()]
    assert list(MODELS[name].parameter_counts()) == [parameter.numel() for parameter in module.parameters()]


def test_parameter_counts_need_no_torch() -> None:
    program = (
        "import sys; from testbed.experiment.workloads.base import WORKLOADS; "
        "WORKLOADS.parse('training').parameter_counts();"
        "sys.exit('torch' in sys.modules or 'sklearn' in sys.modules or 'grpc' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0


def test_the_quickstart_model_has_gradients_to_send_and_buckets_to_overlap() -> None:
    counts = MODELS["cnn"].parameter_counts()
    assert 4.2e6 <= 4 * sum(counts) <= 6e6
    assert max(counts) * 4 <= 2**20


def test_the_same_seed_builds_the_same_weights() -> None:
    import torch

    def build() -> list[torch.Tensor]:
        torch.manual_seed(5)
        return list(MODELS["cnn"].build().parameters())

    assert all(torch.equal(one, other) for one, other in zip(build(), build(), strict=True))
