import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from testbed.cli import app
from testbed.errors import MissingRequirementError, SpecError
from testbed.experiment.experiment import validate
from testbed.experiment.workloads.training import Training
from testbed.machine import layer_times
from testbed.machine.layer_times import Recording, imported, record_layers, shipped
from testbed.traces.formats.base import read_table
from testbed.traces.table import LayerTable


class Slow(nn.Module):
    """A layer that takes a while in both directions."""

    class _Sleep(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: torch.Tensor, seconds: float) -> torch.Tensor:
            ctx.seconds = seconds
            time.sleep(seconds)
            return value.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            time.sleep(2 * ctx.seconds)
            return gradient, None

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        # Backward comes to the sleep before it comes to the parameter.
        slept: torch.Tensor = self._Sleep.apply(inputs * self.scale, self.seconds)
        return slept


def recorded(make: Callable[[], nn.Module], **changes: Any) -> LayerTable:
    given: dict[str, Any] = {"model": "m:f", "sample_shape": (3,), "num_tokens": None, "batch_size": 4}
    given |= {"device": "cpu", "num_iterations": 3, "num_warmup": 1, **changes}
    return record_layers(Recording(make=make, **given)).table


@pytest.mark.quiet
def test_each_layer_has_its_own_times_and_they_make_the_whole() -> None:
    table = recorded(lambda: nn.Sequential(Slow(0.02), nn.Tanh(), Slow(0.04)))
    assert [layer.name for layer in table.layers] == ["0", "2"]
    assert [layer.shapes for layer in table.layers] == [((3,),), ((3,),)]
    assert [layer.size_bytes for layer in table.layers] == [12, 12]
    first, second = table.layers
    assert first.forward_s >= 0.02
    assert second.forward_s >= 0.04
    assert first.backward_s >= 0.04
    assert second.backward_s >= 0.08
    assert (table.batch_size, table.input_s, table.host_to_device_s) == (4, 0, 0)
    assert table.update_s > 0
    assert "torch" in table.recorded_on


class Branches(nn.Module):
    """Registered in another order than it is computed in; one of its layers is called twice, one not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(3, 2)
        self.left = nn.Linear(3, 3)
        self.right = nn.Linear(3, 3, bias=False)
        self.frozen = nn.Linear(3, 3).requires_grad_(requires_grad=False)

    def forward(self, inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        left = self.left(self.left(inputs))
        return {"logits": self.last(left + self.right(self.frozen(inputs)))}


@pytest.mark.quiet
def test_what_hooks_take_is_not_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU that waits for its host they made iterations half as long again, and the table with them."""
    hook = layer_times._Timer._begin

    def slow(timer: layer_times._Timer[Any], number: int) -> Callable[..., None]:
        return lambda *given: (hook(timer, number)(*given), time.sleep(0.03))[0]

    monkeypatch.setattr(layer_times._Timer, "_begin", slow)
    model = nn.Sequential(Slow(0.02), Slow(0.02))
    given: dict[str, Any] = {"model": "m:f", "sample_shape": (3,), "num_tokens": None, "batch_size": 4}
    found = record_layers(Recording(make=lambda: model, device="cpu", num_iterations=3, num_warmup=1, **given))
    assert found.hooked_s > found.unhooked_s + 0.05
    table = found.table
    assert table.forward_s + table.backward_s + table.update_s == pytest.approx(found.unhooked_s, rel=0.05)
    assert 0.04 <= table.forward_s < 0.06
    first, second = table.layers
    assert first.forward_s == pytest.approx(second.forward_s, rel=0.3)


def test_layers_come_in_the_order_of_the_forward_pass() -> None:
    table = recorded(Branches)
    assert [layer.name for layer in table.layers] == ["left", "right", "last"]
    assert table.layers[0].shapes == ((3, 3), (3,))
    assert all(layer.forward_s >= 0 for layer in table.layers)
    assert all(layer.backward_s >= 0 for layer in table.layers)


def test_a_parameter_that_two_layers_share_counts_once() -> None:
    def tied() -> nn.Module:
        first, second = nn.Linear(3, 3, bias=False), nn.Linear(3, 3)
        second.weight = first.weight
        return nn.Sequential(first, second)

    assert [layer.shapes for layer in recorded(tied).layers] == [((3, 3),), ((3,),)]


def test_mixed_precision_is_computed_with_and_said() -> None:
    seen: list[torch.dtype] = []

    def linear() -> nn.Module:
        made = nn.Linear(3, 2)
        made.register_forward_hook(lambda _, __, output: seen.append(output.dtype))
        return made

    assert not recorded(linear).recorded_on.endswith("bfloat16")
    table = recorded(linear, autocast="bfloat16")
    assert seen == [torch.float32] * 8 + [torch.bfloat16] * 8
    assert table.recorded_on.endswith(", autocast to bfloat16")
    assert table.layers[0].size_bytes == 4 * (3 * 2 + 2), "gradients are those of the parameters: float32"


def test_samples_may_be_whole_numbers() -> None:
    table = recorded(lambda: nn.Embedding(10, 4), sample_shape=(7,), num_tokens=10)
    assert table.size_bytes == 160


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.used(inputs)
        return result


class Wordless(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, inputs: torch.Tensor) -> str:
        return str(self.layer(inputs))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (nn.Tanh, "no parameters that are trained"),
        (lambda: nn.Linear(3, 3).double(), "layer Linear has parameters of torch.float64; allowed: float32"),
        (Unused, "layer unused has parameters and takes no part in the forward pass"),
        (Wordless, "its output is a str in which no tensor was found"),
        (lambda: nn.Linear(4, 4), "m:f: RuntimeError: .*shape"),
        (imported("no.such.module:make"), "m:f: ModuleNotFoundError"),
        (imported("math:sqrt"), "m:f: TypeError"),
        (imported("builtins:dict"), "returns a dict and not a torch.nn.Module"),
    ],
)
def test_what_cannot_be_timed_is_refused_by_name(make: Callable[[], nn.Module], why: str) -> None:
    with pytest.raises(SpecError, match=why):
        recorded(make)


def test_devices_are_those_that_are_there() -> None:
    with pytest.raises(SpecError, match="--device: 'abacus' is none"):
        recorded(nn.Tanh, device="abacus")
    with pytest.raises(MissingRequirementError, match=r"--device: torch .* sees"):
        recorded(nn.Tanh, device=f"cuda:{torch.cuda.device_count()}")


def run(*argv: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["trace", "record", *argv])
    return done.exit_code, done.output + (str(done.exception) if done.exception else "")


def test_the_shipped_model_is_recorded_and_replayed(tmp_path: Path) -> None:
    path = tmp_path / "cnn.txt"
    status, output = run(str(path), "--model", "cnn", "--batch", "2", "--iterations", "3", "--warmup", "1")
    assert status == 0, output
    table = read_table(path)
    training = Training.model_validate({})
    assert [shape for layer in table.layers for shape in layer.tensors] == list(training.parameter_shapes())
    assert table.batch_size == 2
    assert table.compute_s > 0
    workload = validate({"name": "x", "workload": {"kind": "replay", "trace": str(path)}}).workload
    assert f"(recorded on {table.recorded_on})" in workload.computing()
    larger = validate({"name": "x", "workload": {"kind": "replay", "trace": str(path), "batch_size": 8}}).workload
    assert "times multiplied by 4" in larger.computing(), "which nobody has recorded"


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (["--model", "resnet50"], "is no model; allowed: cnn, or MODULE:FUNCTION"),
        (["--model", "cnn", "--sample", "3"], "has samples of its own"),
        (["--model", "a:b"], "--sample: required"),
        (["--model", "a:b", "--sample", "3x-1"], "'3x-1' is no shape"),
    ],
)
def test_what_is_said_of_the_model_must_fit(tmp_path: Path, argv: list[str], why: str) -> None:
    status, output = run(str(tmp_path / "out"), *argv)
    assert status != 0
    assert why in " ".join(output.split())
    assert not (tmp_path / "out").exists()


def test_a_model_of_ones_own_is_found_in_the_present_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_model_of_a_test.py").write_text("from torch import nn\ndef make():\n    return nn.Linear(3, 2)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert recorded(imported("own_model_of_a_test:make")).size_bytes == 4 * 8
    assert shipped("own_model_of_a_test:make") is None
