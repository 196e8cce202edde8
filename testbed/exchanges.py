"""The operations that one iteration's gradients ask of the collective, compressed or not. Pure."""

from collections.abc import Iterator, Sequence
from math import prod

from testbed.errors import SpecError
from testbed.spec.experiment import Experiment
from transports.compression.base import LENGTH_BYTES, Compressor, Exchange, Shape
from transports.errors import OptionError


def exchanges(experiment: Experiment, buckets: Sequence[int]) -> tuple[Exchange, ...]:
    """Of all buckets, in order. Raises SpecError for a compression that cannot be right here."""
    compressor = experiment.compression
    _require_right(experiment, compressor)
    return tuple(
        exchange
        for shapes in shapes_of(experiment.workload.gradient_shapes(), buckets)
        for exchange in compressor.exchanges(shapes, experiment.workers)
    )


def shapes_of(gradients: Sequence[Shape], buckets: Sequence[int]) -> Iterator[list[Shape]]:
    """The gradients in each bucket, by its number of elements."""
    waiting = iter(gradients)
    for num_elements in buckets:
        shapes: list[Shape] = []
        while sum(map(prod, shapes)) < num_elements:
            shapes.append(next(waiting))
        yield shapes


def scaled(asked_for: Sequence[Exchange], *, payload_bytes: float, num_workers: int) -> tuple[Exchange, ...]:
    """The same with payloads as long as they were found to be, in one iteration of one worker."""
    gathered = [exchange for exchange in asked_for if exchange.element_bytes == 1]
    planned_bytes = sum(exchange.num_elements for exchange in gathered) / num_workers
    lengths_bytes = LENGTH_BYTES * len(gathered)
    factor = (payload_bytes - lengths_bytes) / planned_bytes if planned_bytes else 1.0
    return tuple(
        exchange._replace(num_elements=round(exchange.num_elements * factor)) if exchange in gathered else exchange
        for exchange in asked_for
    )


def _require_right(experiment: Experiment, compressor: Compressor) -> None:
    if compressor.kind == "none":
        return
    if experiment.stack is not None:
        raise SpecError(
            f"compression: {compressor.kind} works on our own transports, and stack {experiment.stack.kind} brings "
            "its own; leave one of them out"
        )
    if reason := experiment.workload.refusal(compressor):
        raise SpecError(f"compression: {reason}")
    try:
        compressor.check_world(experiment.workers)
    except OptionError as error:
        raise SpecError(str(error)) from None
