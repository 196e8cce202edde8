"""The buckets that one iteration's gradients go out in, and what they ask of the collective. Pure."""

from collections.abc import Callable, Iterator, Sequence
from math import prod

from testbed.errors import SpecError
from testbed.experiment.experiment import Experiment
from testbed.experiment.fusion import GRADIENT_ELEMENT_BYTES
from transports.collectives.cntk import Cntk
from transports.collectives.parameter_server import ParameterServer
from transports.compression.base import LENGTH_BYTES, Compressor, Exchange, Pattern, Shape
from transports.errors import OptionError


def fuse(gradient_counts: Sequence[int], limit_bytes: int) -> tuple[int, ...]:
    """Elements per bucket as DistributedDataParallel forms them: gradients join in the order they become ready,
    and a bucket closes when it has reached the limit (torch's `_compute_bucket_assignment_by_size`)."""
    buckets: list[int] = []
    filled = 0
    for count in gradient_counts:
        filled += count
        if filled * GRADIENT_ELEMENT_BYTES >= limit_bytes:
            buckets.append(filled)
            filled = 0
    return tuple([*buckets, filled] if filled else buckets)


def merge(
    layers: Sequence[int], backward_s: Sequence[float], *, startup_s: float, s_per_element: float
) -> tuple[int, ...]:
    """Elements per bucket, given those of each layer and how long its part of backward takes, both the last layer
    first, when an all-reduce of n elements takes `startup_s` + n x `s_per_element`.

    Shi, Chu, Li 2019, "MG-WFBP: Efficient Data Communication for Distributed Synchronous SGD Algorithms" (INFOCOM),
    algorithm 1: a layer joins the next one if that one's gradient is there before its own all-reduce, which may have to
    wait for those before it, is through its start-up.
    """
    ready_s = [sum(backward_s[: number + 1]) for number in range(len(layers))]
    buckets: list[int] = []
    free_s = 0.0  # when the all-reduce of the last closed bucket is over
    filled = 0
    for number, count in enumerate(layers):
        filled += count
        begins_s = max(free_s, ready_s[number])
        if number + 1 < len(layers) and ready_s[number + 1] < begins_s + startup_s:
            continue
        buckets.append(filled)
        free_s = begins_s + startup_s + filled * s_per_element
        filled = 0
    return tuple(buckets)


def require_synchronisable(experiment: "Experiment") -> None:
    """Raises SpecError where the rest of the spec does not go with the way workers synchronise."""
    kind = experiment.synchronisation.kind
    if kind == "every_iteration":
        return
    where = f"synchronisation: {kind}"
    if reason := experiment.workload.synchronisation_refusal():
        raise SpecError(f"{where} {reason}")
    if experiment.compression.kind != "none":
        raise SpecError(
            f"{where} exchanges parameters, and compression {experiment.compression.kind} is made for gradients; leave "
            "one of them out"
        )
    if kind == "local_sgd":
        if experiment.fusion.by_engine:
            raise SpecError(
                f"{where} averages parameters when the optimizer has stepped, so that fusion {experiment.fusion.kind} "
                "has nothing to order; allowed: size, layers, none"
            )
        return
    collective = experiment.collective
    if experiment.stack is not None or not isinstance(collective, ParameterServer) or not collective.num_servers:
        raise SpecError(f"{where} needs servers of its own: write `collective: parameter_server`, and no stack")
    if collective.pipelined:
        raise SpecError(f"{where} answers a gradient that has come whole; leave collective.pipelined out")
    if experiment.fusion.kind != "none":
        raise SpecError(f"{where} pushes a gradient when backward has ended; write `fusion: none`")


def buckets_of(experiment: Experiment, all_reduce_s: Callable[[int], float]) -> tuple[int, ...]:
    """Elements in each bucket, in the order they become ready, when an all-reduce of n elements takes
    `all_reduce_s(n)`; where buckets depend on when gradients become ready, as if all were ready at once.

    Raises SpecError for a fusion that cannot be had here.
    """
    fusion, workload = experiment.fusion, experiment.workload
    if not fusion.by_engine:
        return fuse([prod(shape) for shape in workload.gradient_shapes()], fusion.limit_bytes)
    if experiment.stack is not None:
        raise SpecError(
            f"fusion: {fusion.kind} goes through an engine on our own transports, and stack {experiment.stack.kind} "
            "brings its own; leave one of them out"
        )
    if reason := workload.fusion_refusal(fusion):
        raise SpecError(f"fusion: {reason}")
    layers = _layers(experiment)
    if not layers:
        return ()
    if fusion.kind == "merged":
        backward_s = list(reversed(workload.layer_backward_s()))
        stretched = fusion.backward_s / sum(backward_s) if fusion.backward_s else 1.0
        fewest, most = min(layers), sum(layers)
        s_per_element = (all_reduce_s(most) - all_reduce_s(fewest)) / (most - fewest) if most > fewest else 0.0
        return merge(
            layers,
            [stretched * each for each in backward_s],
            startup_s=max(0.0, all_reduce_s(fewest) - fewest * s_per_element),
            s_per_element=s_per_element,
        )
    order = fusion.order(())
    items = order.items(layers)
    if fusion.kind == "priority":
        return tuple(item.num_elements for item in items)
    return tuple(items[run[-1]].stop - items[run[0]].start for run in order.choose(range(len(items)), items))


def exchanges(experiment: Experiment, buckets: Sequence[int]) -> tuple[Exchange, ...]:
    """Of all buckets, in order. Raises SpecError for a compression, or a collective, that cannot be right here."""
    return tuple(exchange for each in exchanges_by_bucket(experiment, buckets) for exchange in each)


def exchanges_by_bucket(experiment: Experiment, buckets: Sequence[int]) -> tuple[tuple[Exchange, ...], ...]:
    """Those of each bucket. Raises SpecError as :func:`exchanges` does."""
    compressor = experiment.compression
    _require_right(experiment, compressor)
    _require_whole_tensors(experiment, buckets)
    agreement = _agreement(experiment, buckets)
    return tuple(
        (*agreement, *compressor.exchanges(shapes, experiment.workers))
        for shapes in _bucket_shapes(experiment, buckets)
    )


def patterns(experiment: Experiment, buckets: Sequence[int]) -> tuple[Pattern, ...]:
    """How the payloads of each bucket meet."""
    shapes = _bucket_shapes(experiment, buckets)
    return tuple(experiment.compression.pattern(each, experiment.workers) for each in shapes)


def _layers(experiment: Experiment) -> list[int]:
    """Elements of each, the last one first."""
    return [sum(map(prod, shapes)) for shapes in reversed(experiment.workload.layer_shapes())]


def _agreement(experiment: Experiment, buckets: Sequence[int]) -> tuple[Exchange, ...]:
    """What goes before a bucket where ranks agree on it: from everybody to everybody a bit for each item."""
    fusion = experiment.fusion
    if not fusion.by_engine or not buckets or not (order := fusion.order(buckets)).agrees:
        return ()
    mask_bytes = -(-len(order.items(_layers(experiment))) // 8)
    return (Exchange("all_to_all", experiment.workers * mask_bytes, 1, of_gradients=False),)


def _bucket_shapes(experiment: Experiment, buckets: Sequence[int]) -> Iterator[list[Shape]]:
    workload = experiment.workload
    if not experiment.fusion.by_engine:
        yield from shapes_of(workload.gradient_shapes(), buckets)
        return
    layers = [list(shapes) for shapes in reversed(workload.layer_shapes())]
    if experiment.fusion.kind != "priority":
        yield from shapes_of([shape for shapes in layers for shape in shapes], buckets)
        return
    parts = iter(buckets)
    for shapes in layers:
        missing = sum(map(prod, shapes))
        while missing:
            part = next(parts)
            yield shapes if part == sum(map(prod, shapes)) else [(part,)]
            missing -= part


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
    gathered = [
        exchange for exchange in asked_for if exchange.operation == "all_gather" and exchange.element_bytes == 1
    ]
    planned_bytes = sum(exchange.num_elements for exchange in gathered) / num_workers
    lengths_bytes = LENGTH_BYTES * len(gathered)
    factor = (payload_bytes - lengths_bytes) / planned_bytes if planned_bytes else 1.0
    return tuple(
        exchange._replace(num_elements=round(exchange.num_elements * factor)) if exchange in gathered else exchange
        for exchange in asked_for
    )


def _require_whole_tensors(experiment: Experiment, buckets: Sequence[int]) -> None:
    """CNTK's pattern takes the whole gradient apart into tensors; what is not all of them would be one tensor."""
    collective = experiment.collective
    if experiment.stack is not None or not isinstance(collective, Cntk) or not buckets:
        return
    if len(buckets) > 1:
        raise SpecError(
            f"collective: cntk sums tensor by tensor when backward has ended, and the fusion makes {len(buckets)} "
            "buckets; write `fusion: none`"
        )
    if collective.tensors and sum(collective.tensors) != buckets[0]:
        raise SpecError(
            f"collective.tensors: {sum(collective.tensors):,} elements, and the workload's gradients have "
            f"{buckets[0]:,}; leave it out for the tensors of the workload"
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
    warmup = experiment.workload.phase_lengths().get("warmup", 0)
    if compressor.settled_after > warmup:
        raise SpecError(
            f"compression: {compressor.kind} compresses from iteration {compressor.settled_after} on, and after "
            f"{warmup} of warm-up the measured ones would not all send the same; set workload.warmup to "
            f"{compressor.settled_after} or more"
        )
    try:
        compressor.check_world(experiment.workers)
    except OptionError as error:
        raise SpecError(str(error)) from None
