"""Times the layers of a torch model on this machine: real forward and backward passes, hooks on every layer.

A layer is a module that has parameters of its own; what follows it without any (activations, pooling) counts as its
part. Of forward, moments are when each layer begins; of backward, when the last gradient of each layer is there. On the
processor they are the clock's, on a GPU events in its stream, so that nothing waits for it while it computes.

Hooks take time, too: where a GPU waits for its host to launch kernels, up to half of an iteration (ResNet-50 with 8
images on an H100). So each iteration with hooks is followed by one without, whose passes count; of those with hooks
only the layers' shares do.
"""

import importlib
import sys
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NamedTuple, TypeVar, get_args

from testbed.errors import MissingRequirementError, SpecError
from testbed.experiment.workloads.training import Training
from testbed.system.environment import cpu_model
from testbed.traces.table import ELEMENT_BYTES, Layer, LayerTable

if TYPE_CHECKING:
    import torch
    from torch import nn

Autocast = Literal["bfloat16"]
"""float16 needs a scaled loss, which is a program of its own."""

_LEARNING_RATE: Final = 1e-6
_MOMENTUM: Final = 0.9


@dataclass(frozen=True, kw_only=True, slots=True)
class Recording:
    """What is recorded."""

    model: str
    """Its name, for messages."""
    make: "Callable[[], nn.Module]"
    sample_shape: tuple[int, ...]
    num_tokens: int | None
    """Inputs are whole numbers below it; None: they are floating-point numbers."""
    batch_size: int
    device: str
    """As torch calls it: `cpu`, `cuda`, `cuda:1`."""
    num_iterations: int
    num_warmup: int
    autocast: Autocast | None = None
    """What forward computes with where torch.autocast deems it safe; None: float32, as torch is set."""


class Shipped(NamedTuple):
    """A model of ours."""

    make: "Callable[[], nn.Module]"
    sample_shape: tuple[int, ...]


def shipped(name: str) -> Shipped | None:
    """The model of that name that workload `training` trains; None: there is none."""
    if name not in get_args(Training.model_fields["model"].annotation):
        return None
    training = Training.model_validate({"model": name})
    return Shipped(training.build, training.sample_shape())


def imported(model: str) -> "Callable[[], nn.Module]":
    """Of `module:function`, which is looked for in the present directory, too; imported when it is called."""
    return lambda: _made(model)


class Recorded(NamedTuple):
    """What came of it."""

    table: LayerTable
    hooked_s: float
    """Median of iterations with hooks on the layers."""
    unhooked_s: float
    """Without them, as in the table."""


def record_layers(recording: Recording) -> Recorded:
    """The table of the model's layers: medians over iterations.

    Raises SpecError for what cannot be timed, and MissingRequirementError for a device that is not there.
    """
    import torch

    device = _device(recording.device)
    torch.manual_seed(1)
    with _as_spec_errors(recording.model):
        model = recording.make().to(device).train()
    layers = _layers(model)
    inputs = _inputs(recording)
    stopwatch: Stopwatch[Any] = _Events(device) if device.type == "cuda" else _Clock()
    timer = _Timer(model, layers, stopwatch)
    optimizer = torch.optim.SGD(model.parameters(), lr=_LEARNING_RATE, momentum=_MOMENTUM)
    hooked, unhooked = [], []
    with _as_spec_errors(recording.model):
        for _ in range(recording.num_warmup + recording.num_iterations):
            with timer.attached():
                hooked.append(timer.iteration(inputs, device, optimizer, recording.autocast))
            unhooked.append(timer.iteration(inputs, device, optimizer, recording.autocast))
    hooked, unhooked = hooked[recording.num_warmup :], unhooked[recording.num_warmup :]
    computed = f", autocast to {recording.autocast}" if recording.autocast else ""
    return Recorded(
        _table(layers, hooked, unhooked, recording, f"{described(device)}{computed}"),
        median(each.whole_s for each in hooked),
        median(each.whole_s for each in unhooked),
    )


def described(device: "torch.device") -> str:
    """`NVIDIA H200, torch 2.13.0`, `AMD EPYC 7B13 (2 threads), torch 2.13.0`."""
    import torch

    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    return f"{cpu_model() or 'an unknown processor'} ({torch.get_num_threads()} threads), torch {torch.__version__}"


def _device(name: str) -> "torch.device":
    import torch

    try:
        device = torch.device(name)
    except RuntimeError:
        raise SpecError(f"--device: {name!r} is none that torch knows; allowed: cpu, cuda, cuda:1, ...") from None
    if device.type not in ("cpu", "cuda"):
        raise SpecError(f"--device: nobody has measured what hooks cost on {device.type}; allowed: cpu, cuda, cuda:1")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise MissingRequirementError(
            f"--device: torch {torch.__version__} sees {torch.cuda.device_count()} CUDA devices here, and {name} is "
            "none of them; allowed: cpu, or a machine with a GPU and a torch that is built for it"
        )
    return device


def _made(model: str) -> "nn.Module":
    from torch import nn

    module, _, function = model.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:  # as `python -m` would have it
        sys.path.insert(0, here)
    made = getattr(importlib.import_module(module), function)()
    if not isinstance(made, nn.Module):
        raise TypeError(f"it returns a {type(made).__name__} and not a torch.nn.Module")
    return made


@contextmanager
def _as_spec_errors(model: str) -> Iterator[None]:
    """What somebody's model raises says whose it is."""
    try:
        yield
    except SpecError:
        raise
    except Exception as error:
        raise SpecError(f"--model: {model}: {type(error).__name__}: {error}") from error


class _ModelLayer(NamedTuple):
    name: str
    module: "nn.Module"
    parameters: "tuple[nn.Parameter, ...]"


def _layers(model: "nn.Module") -> list[_ModelLayer]:
    """Modules with parameters of their own that are trained, in the order of registration; one that two modules share
    is the first's. Raises SpecError where there are none, or they are not float32."""
    import torch

    seen: set[int] = set()
    found = []
    for name, module in model.named_modules():
        own = [each for each in module.parameters(recurse=False) if each.requires_grad and id(each) not in seen]
        seen.update(map(id, own))
        if own:
            found.append(_ModelLayer(name or type(module).__name__, module, tuple(own)))
    if not found:
        raise SpecError("--model: it has no parameters that are trained")
    for layer in found:
        for parameter in layer.parameters:
            if parameter.dtype != torch.float32:
                raise SpecError(f"--model: layer {layer.name} has parameters of {parameter.dtype}; allowed: float32")
    return found


def _inputs(recording: Recording) -> "torch.Tensor":
    """A batch, on the host; where it can be copied from at once if it has to be."""
    import torch

    shape = (recording.batch_size, *recording.sample_shape)
    made = torch.randn(shape) if recording.num_tokens is None else torch.randint(recording.num_tokens, shape)
    return made.pin_memory() if recording.device.startswith("cuda") else made


Moment = TypeVar("Moment")


class Stopwatch(Generic[Moment]):
    """Notes moments of the device that computes."""

    @abstractmethod
    def mark(self) -> Moment:
        """Now."""

    @abstractmethod
    def settle(self) -> None:
        """Return when all that was marked has passed."""

    @abstractmethod
    def between_s(self, begin: Moment, end: Moment) -> float:
        """Seconds, of marks that have passed."""


class _Clock(Stopwatch[float]):
    def mark(self) -> float:
        return time.perf_counter()

    def settle(self) -> None:
        """It has."""

    def between_s(self, begin: float, end: float) -> float:
        return end - begin


class _Events(Stopwatch["torch.cuda.Event"]):
    def __init__(self, device: "torch.device") -> None:
        self._device = device

    def mark(self) -> "torch.cuda.Event":
        import torch

        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def settle(self) -> None:
        import torch

        torch.cuda.synchronize(self._device)

    def between_s(self, begin: "torch.cuda.Event", end: "torch.cuda.Event") -> float:
        milliseconds: float = begin.elapsed_time(end)
        return 1e-3 * milliseconds


@dataclass(frozen=True, kw_only=True, slots=True)
class _Iteration:
    """Seconds."""

    host_to_device_s: float
    begins_s: Mapping[int, float]
    """Of layers by number, since the beginning of forward."""
    forward_s: float
    ready_s: Mapping[int, float]
    """The last gradient of each layer, since the beginning of backward."""
    backward_s: float
    update_s: float

    @property
    def whole_s(self) -> float:
        """All of it."""
        return self.host_to_device_s + self.forward_s + self.backward_s + self.update_s


@dataclass(slots=True)
class _Timer(Generic[Moment]):
    """One model's."""

    model: "nn.Module"
    layers: Sequence[_ModelLayer]
    stopwatch: Stopwatch[Moment]
    begins: dict[int, Moment] = field(default_factory=dict)
    ready: dict[int, Moment] = field(default_factory=dict)

    @contextmanager
    def attached(self) -> Iterator[None]:
        """With its hooks on the model."""
        handles = []
        for number, layer in enumerate(self.layers):
            handles.append(layer.module.register_forward_pre_hook(self._begin(number)))
            handles += [
                each.register_post_accumulate_grad_hook(self._end(number))  # type: ignore[no-untyped-call]
                for each in layer.parameters
            ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _begin(self, number: int) -> Callable[..., None]:
        def hook(*_: object) -> None:
            if number not in self.begins:  # of a module that is called again the first time
                self.begins[number] = self.stopwatch.mark()

        return hook

    def _end(self, number: int) -> Callable[..., None]:
        def hook(*_: object) -> None:
            self.ready[number] = self.stopwatch.mark()

        return hook

    def iteration(
        self,
        inputs: "torch.Tensor",
        device: "torch.device",
        optimizer: "torch.optim.Optimizer",
        autocast: Autocast | None = None,
    ) -> _Iteration:
        """Copy, forward, backward, update."""
        import torch

        mark, between_s = self.stopwatch.mark, self.stopwatch.between_s
        self.begins.clear()
        self.ready.clear()
        begun = mark()
        batch = inputs.to(device, non_blocking=True)
        copied = mark()
        with torch.autocast(device.type, torch.bfloat16, enabled=autocast is not None):
            loss = _loss(self.model(batch))
        forward = mark()
        loss.backward()  # type: ignore[no-untyped-call]
        backward = mark()
        optimizer.step()
        updated = mark()
        optimizer.zero_grad()
        self.stopwatch.settle()
        return _Iteration(
            host_to_device_s=between_s(begun, copied) if device.type != "cpu" else 0.0,
            begins_s={number: between_s(copied, each) for number, each in self.begins.items()},
            forward_s=between_s(copied, forward),
            ready_s={number: between_s(forward, each) for number, each in self.ready.items()},
            backward_s=between_s(forward, backward),
            update_s=between_s(backward, updated),
        )


def _loss(output: Any) -> "torch.Tensor":
    """Something that all of the first tensor of an output takes part in. Raises TypeError where there is none."""
    import torch

    if isinstance(output, torch.Tensor):
        return output.float().mean()
    values = output.values() if isinstance(output, Mapping) else output if isinstance(output, list | tuple) else ()
    for each in values:
        if isinstance(each, torch.Tensor):
            return each.float().mean()
    raise TypeError(f"its output is a {type(output).__name__} in which no tensor was found to start backward from")


def _table(
    layers: Sequence[_ModelLayer],
    hooked: Sequence[_Iteration],
    unhooked: Sequence[_Iteration],
    recording: Recording,
    device: str,
) -> LayerTable:
    """Layers in the order in which they began, with medians of moments, so that parts add up to the whole; in
    proportion to the passes without hooks."""
    for number, layer in enumerate(layers):
        for what, found in (("forward", hooked[0].begins_s), ("backward", hooked[0].ready_s)):
            if number not in found:
                raise SpecError(
                    f"--model: layer {layer.name} has parameters and takes no part in the {what} pass, so that nobody "
                    "would exchange its gradients; take it out, or freeze it (requires_grad=False)"
                )
    begins_s = {number: median(each.begins_s[number] for each in hooked) for number in range(len(layers))}
    ready_s = {number: median(each.ready_s[number] for each in hooked) for number in range(len(layers))}
    forward_s = median(each.forward_s for each in hooked)
    backward_s = median(each.backward_s for each in hooked)
    order = sorted(begins_s, key=lambda number: begins_s[number])
    borders_s = [0.0, *(begins_s[number] for number in order[1:]), max(forward_s, begins_s[order[-1]])]
    # Branches may be through in another order than they began in: a layer is, when all behind it are.
    through_s = [*accumulate((ready_s[number] for number in reversed(order)), max)]
    through_s[-1] = max(through_s[-1], backward_s)
    backwards_s = [later - earlier for earlier, later in pairwise([0.0, *through_s])][::-1]
    forward_factor = median(each.forward_s for each in unhooked) / borders_s[-1]
    backward_factor = median(each.backward_s for each in unhooked) / through_s[-1]
    return LayerTable(
        layers=tuple(
            Layer(
                name=layers[number].name,
                forward_s=(end_s - begin_s) * forward_factor,
                backward_s=layer_backward_s * backward_factor,
                size_bytes=ELEMENT_BYTES * sum(each.numel() for each in layers[number].parameters),
                shapes=tuple(tuple(each.shape) for each in layers[number].parameters),
            )
            for number, (begin_s, end_s), layer_backward_s in zip(order, pairwise(borders_s), backwards_s, strict=True)
        ),
        host_to_device_s=median(each.host_to_device_s for each in unhooked),
        update_s=median(each.update_s for each in unhooked),
        batch_size=recording.batch_size,
        recorded_on=device,
    )
