"""Sends a model's gradients while backward makes them, in an order that DistributedDataParallel does not have.

    import torch.distributed as dist
    from transports.torch_backend.engine import GradientEngine, OverlappedOptimizer
    from transports.torch_backend.ordering import Priority

    dist.init_process_group("testbed")
    engine = GradientEngine(list(model.parameters()), dist.group.WORLD, Priority(partition_bytes=2**20))
    optimizer = OverlappedOptimizer(model, engine, lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    for images, labels in data:
        loss(model(images), labels).backward()     # that is all: layers step when the next forward comes to them
    optimizer.flush()

Or, where the order hides nothing behind the forward pass: `backward()`, `engine.finish()`, `optimizer.step()`.

Every member must have the same parameters with the same values, and use all of them once in each backward pass. What is
reduced is the mean, computed as DistributedDataParallel does: each gradient times 1/size, then summed. Two members get
the same bits as there; more add the same numbers in the order in which the collective meets them, which depends on
where in a buffer an element lies.

A gradient that is ready is a job of the group's communication thread. Where the order depends on what is ready, the job
begins with an agreement: everybody sends everybody a bit for each item, and what all have goes on. A job has work left
as long as fewer items are done than jobs have begun, which is the same everywhere, because what was done was agreed
on.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from switch_agg import clock
from transports.compression.base import Layout, Piece
from transports.errors import OptionError, TransportError
from transports.execution.gradients import GradientCompression, require_compressible
from transports.execution.operations import Transport
from transports.execution.trace import CodecAccount, OperationTrace
from transports.torch_backend.ordering import Item, Order, layers_of
from transports.torch_backend.process_group import TestbedProcessGroup

_LOOK_AGAIN_S: Final = 0.005
"""Where no item is ready everywhere, for so long a member waits for one of its own before it asks again."""

HandOver = Callable[[int, Callable[[], None]], None]
"""Given a layer, and what hands its gradient over."""
Waiting = Callable[[int], AbstractContextManager[object]]
"""Given the layer."""


class GradientEngine:
    """One member's side. Layers are numbered from the front, as in
    :func:`transports.torch_backend.ordering.layers_of`."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        group: dist.ProcessGroup,
        order: Order,
        *,
        compression: GradientCompression | None = None,
        on_trace: Callable[[OperationTrace], None] | None = None,
        hand_over: HandOver | None = None,
        around_wait: Waiting = nullcontext,
    ) -> None:
        """Take over the gradients of a model's parameters, given in the order of registration.

        `on_trace` is called on the communication thread for every reduction; `hand_over` gets the number of each layer
        whose gradient is there, and what hands it over: it calls that when it likes, on whatever thread, layer after
        layer as it got them. `around_wait`, given a layer's number, gives what is entered while the caller waits for
        it. Raises OptionError for a group, or parameters, that it cannot serve.
        """
        if not isinstance(group, TestbedProcessGroup):
            raise OptionError(f"gradients are ordered on the backend `testbed`; this group is {group.name()}")
        if not parameters or len({parameter.dtype for parameter in parameters}) != 1:
            raise OptionError("an engine needs parameters, all of one type of element")
        if compression is not None:
            require_compressible(compression.compressor, parameters[0].dtype)
        self._group = group
        self._order = order
        self._compression = compression
        self._on_trace = on_trace
        self._hand_over = hand_over or _at_once
        self._around_wait = around_wait
        self._parameters = list(parameters)
        borders = layers_of([tuple(parameter.shape) for parameter in parameters])
        self.layers: Final = [self._parameters[start:stop] for start, stop in borders]
        self._flat, self._views, runs = _lay_out(self.layers)
        self._items = order.items([run.num_elements for run in reversed(runs)])
        self._items_of = [
            [number for number, item in enumerate(self._items) if item.start < run.stop and run.start < item.stop]
            for run in runs
        ]
        self._layouts = [self._layout(item, runs) for item in self._items]
        self._layer_of = {parameter: number for number, layer in enumerate(self.layers) for parameter in layer}

        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._gradients_missing = [len(layer) for layer in self.layers]
        self._layers_missing = self._layers_by_item()
        self._ready_s: dict[int, float] = {}
        """Items that are ready here and not reduced yet, and since when."""
        self._done: set[int] = set()
        self._held: set[int] = set()
        """Items that are ready and have no job yet, because one before them is not."""
        self._taken = set(range(len(self.layers)))
        """Layers whose gradient has been waited for; all of them before the first backward."""
        self._num_jobs = self._num_done = self._num_traces = 0
        """Since the beginning; the second and third belong to the communication thread."""
        self._next_decision_s = 0.0
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(self._accumulated)  # type: ignore[no-untyped-call]

    @property
    def hides_behind_forward(self) -> bool:
        """Whether the order is made for an :class:`OverlappedOptimizer`."""
        return self._order.hides_behind_forward

    def wait(self, layer: int) -> bool:
        """Return when that layer's gradient is the mean of all members', in `grad`; at once, and False, when there is
        none to wait for.

        Raises DistBackendError when the exchange failed, and OptionError when this member's backward has not made it,
        or another that goes out with it or before it.
        """
        if layer in self._taken:
            return False
        for needed in self._needed(layer) if any(self._gradients_missing) else ():
            if self._gradients_missing[needed]:
                missing = sum(map(len, self.layers[:needed])) + 1
                raise OptionError(
                    f"backward has made no gradient for all of layer {needed} (parameter {missing} of "
                    f"{len(self._parameters)} and what follows it): every parameter must be used in every backward pass"
                )
        wanted = self._items_of[layer]
        with self._around_wait(layer), self._changed:
            self._changed.wait_for(lambda: self._error is not None or self._done.issuperset(wanted))
            if self._error is not None:
                raise dist.DistBackendError(str(self._error)) from self._error
        for parameter in self.layers[layer]:
            parameter.grad = self._views[parameter]
        self._taken.add(layer)
        if len(self._taken) == len(self.layers):
            self._begin_anew()
        return True

    def finish(self) -> None:
        """Wait for all layers. Raises what :meth:`wait` raises."""
        for layer in range(len(self.layers)):
            self.wait(layer)

    def _needed(self, layer: int) -> Sequence[int]:
        """The layers without which that layer's gradient does not go out."""
        if self._order.agrees:
            return [layer]
        last = self._items_of[layer][-1]
        return [each for each, numbers in enumerate(self._items_of) if numbers[0] <= last]

    def _layout(self, item: Item, runs: Sequence[Item]) -> Layout:
        """Whole parameters keep their shape; a part of a layer is a vector of its own."""
        inside = [layer for layer, run in enumerate(runs) if item.start <= run.start and run.stop <= item.stop]
        if not inside:
            return [Piece(item, (item.num_elements,))]
        return [
            Piece((layer, number), tuple(parameter.shape))
            for layer in reversed(inside)
            for number, parameter in enumerate(self.layers[layer])
        ]

    def _layers_by_item(self) -> list[int]:
        missing = [0] * len(self._items)
        for numbers in self._items_of:
            for number in numbers:
                missing[number] += 1
        return missing

    def _begin_anew(self) -> None:
        """What the next backward finds."""
        with self._changed:
            self._done.clear()
        self._gradients_missing = [len(layer) for layer in self.layers]
        self._layers_missing = self._layers_by_item()

    def _accumulated(self, parameter: torch.Tensor) -> None:
        """Autograd's hook: a parameter's gradient is there."""
        layer = self._layer_of[parameter]  # type: ignore[index]
        if len(self._taken) == len(self.layers):
            self._taken.clear()
        if layer in self._taken or not self._gradients_missing[layer]:
            raise OptionError("backward has made a gradient again before the one before it was waited for")
        gradient = parameter.grad
        assert gradient is not None, "autograd says that it is there"
        if gradient.layout != torch.strided:
            raise OptionError(f"gradients must be dense, not {gradient.layout}")
        view = self._views[parameter]  # type: ignore[index]
        if self._compression is None:
            torch.mul(gradient, 1.0 / self._group.size(), out=view)
        else:
            view.copy_(gradient)  # codecs divide by themselves
        parameter.grad = None
        self._gradients_missing[layer] -= 1
        if not self._gradients_missing[layer]:
            self._hand_over(layer, partial(self._handed_over, layer))

    def _handed_over(self, layer: int) -> None:
        try:
            self._layer_ready(layer)
        except Exception as error:
            self._job_ended(error)  # whoever waits for a layer hears of it, whatever thread this is
            raise

    def _layer_ready(self, layer: int) -> None:
        for number in self._items_of[layer]:
            self._layers_missing[number] -= 1
            if not self._layers_missing[number]:
                self._item_ready(number)

    def _item_ready(self, number: int) -> None:
        with self._changed:
            self._ready_s[number] = time.monotonic()
            self._changed.notify_all()
        self._held.add(number)
        while self._held and (self._order.agrees or self._num_jobs % len(self._items) in self._held):
            # Where ranks agree any item that is ready is worth a job, whichever it will reduce.
            self._held.discard(number if self._order.agrees else self._num_jobs % len(self._items))
            self._num_jobs += 1
            work = self._group.ours.submit("exchange", self._job(self._num_jobs), 0)
            work.add_done_callback(self._job_ended)

    # On the communication thread.

    def _job(self, number: int) -> Callable[[Transport], None]:
        def run(transport: Transport) -> None:
            if self._num_done >= number:
                return
            ready = self._agree(transport) if self._order.agrees else [(number - 1) % len(self._items)]
            for neighbours in self._order.choose(ready, self._items):
                self._reduce(transport, neighbours)

        return run

    def _agree(self, transport: Transport) -> list[int]:
        """The items that are ready at all members and not done, ascending; at least one."""
        time.sleep(max(0.0, self._next_decision_s - time.monotonic()))
        self._next_decision_s = time.monotonic() + self._order.cycle_s
        while True:
            with self._changed:
                mine = set(self._ready_s)
            common = self._common(transport, mine)
            if common:
                return common
            if time.monotonic() > transport.deadline_s:
                raise TransportError(
                    "no layer's gradient is ready at all members: their backward passes differ, and go on differing"
                )
            with self._changed:
                self._changed.wait_for(lambda: set(self._ready_s) != mine, clock.machine_s(_LOOK_AGAIN_S))  # noqa: B023

    def _common(self, transport: Transport, mine: set[int]) -> list[int]:
        bits = np.zeros(len(self._items), np.uint8)
        bits[list(mine)] = 1
        mask = torch.from_numpy(np.packbits(bits))
        masks = [torch.empty_like(mask) for _ in range(transport.size)]
        transport.all_to_all(masks, [mask] * transport.size)
        everywhere = np.bitwise_and.reduce([each.numpy() for each in masks])
        return [int(number) for number in np.flatnonzero(np.unpackbits(everywhere, count=len(self._items)))]

    def _reduce(self, transport: Transport, run: Sequence[int]) -> None:
        """Neighbouring items, in one."""
        started_s = time.monotonic()
        buffer = self._flat[self._items[run[0]].start : self._items[run[-1]].stop]
        transport.first_byte_s, transport.codec = None, CodecAccount()
        if self._compression is None:
            transport.all_reduce(buffer)
        else:
            self._compression.reduce(transport, buffer, [piece for number in run for piece in self._layouts[number]])
        done_s, codec = time.monotonic(), transport.codec
        with self._changed:
            ready_s = max(self._ready_s[number] for number in run)
        self._num_done += len(run)
        if self._on_trace is not None:
            self._num_traces += 1
            self._on_trace(
                OperationTrace(
                    sequence=self._num_traces,
                    operation="all_reduce",
                    size_bytes=buffer.nbytes,
                    enqueued_s=ready_s,
                    started_s=started_s,
                    first_byte_s=done_s if transport.first_byte_s is None else transport.first_byte_s,
                    done_s=done_s,
                    payload_bytes=codec.payload_bytes or buffer.nbytes,
                    encode_s=codec.encode_s,
                    decode_s=codec.decode_s,
                )
            )
        with self._changed:
            for number in run:
                del self._ready_s[number]
            self._done.update(run)
            self._changed.notify_all()

    def _job_ended(self, error: BaseException | None) -> None:
        if error is not None:
            with self._changed:
                self._error = self._error or error
                self._changed.notify_all()


def _at_once(_: int, ready: Callable[[], None]) -> None:
    ready()


class OverlappedOptimizer:
    """Steps each layer when the next forward pass comes to it, and its gradient is there.

    The same numbers as an optimizer that steps all layers after backward, for those that treat each parameter by itself
    (SGD, Adam, and all others of torch.optim but LBFGS); clipping by the norm of all gradients has no place here.
    """

    def __init__(
        self,
        model: nn.Module,
        engine: GradientEngine,
        make: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
    ) -> None:
        """`make` gives an optimizer for the parameters of a layer. A layer is waited for where the first module that
        has one of its parameters, by itself or in a list, is called."""
        self._engine = engine
        self.optimizers: Final = [make(layer) for layer in engine.layers]
        layer_of = {parameter: number for number, layer in enumerate(engine.layers) for parameter in layer}
        for module in model.modules():
            needed = sorted({layer_of[parameter] for parameter in _held(module)})
            if needed:
                module.register_forward_pre_hook(self._before(needed))

    def _before(self, layers: Sequence[int]) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            for layer in layers:
                self._step(layer)

        return hook

    def _step(self, layer: int) -> None:
        if self._engine.wait(layer):
            optimizer = self.optimizers[layer]
            optimizer.step()
            optimizer.zero_grad()

    def flush(self) -> None:
        """Step whatever is left: after the last backward, or before the parameters are looked at."""
        for layer in range(len(self.optimizers)):
            self._step(layer)


def _held(module: nn.Module) -> Iterator[nn.Parameter]:
    """Those that its call needs: its own, and those of lists and mappings, which are never called."""
    yield from module.parameters(recurse=False)
    for child in module.children():
        if isinstance(child, nn.ParameterList | nn.ParameterDict):
            yield from child.parameters()


def _lay_out(
    layers: Sequence[Sequence[nn.Parameter]],
) -> tuple[torch.Tensor, dict[nn.Parameter, torch.Tensor], list[Item]]:
    """The flat buffer, each parameter's view of it, and each layer's run: the last layer lies first."""
    num_elements = sum(parameter.numel() for layer in layers for parameter in layer)
    flat = torch.zeros(num_elements, dtype=layers[0][0].dtype)
    views: dict[nn.Parameter, torch.Tensor] = {}
    runs: list[Item] = []
    start = 0
    for layer in reversed(layers):
        begin = start
        for parameter in layer:
            views[parameter] = flat[start : start + parameter.numel()].view(parameter.shape)
            start += parameter.numel()
        runs.append(Item(begin, start))
    return flat, views, runs[::-1]
