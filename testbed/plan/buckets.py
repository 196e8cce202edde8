"""The buckets that one iteration's gradients go out in, and what they ask of the collective. Pure."""

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

from testbed.errors import SpecError
from testbed.experiment.experiment import Experiment
from testbed.experiment.fusion.base import GRADIENT_ELEMENT_BYTES, Gradients
from testbed.traces.table import LayerTable
from transports.collectives.base import COUNT_BYTES
from transports.compression.base import LENGTH_BYTES, Compressor, Exchange, Pattern, Shape
from transports.errors import OptionError


def require_synchronisable(experiment: Experiment) -> None:
    """Raises SpecError where the rest of the spec does not go with the way workers synchronise."""
    if reason := experiment.synchronisation.incompatibility(experiment):
        raise SpecError(f"synchronisation: {experiment.synchronisation.kind} {reason}")


def buckets_of(experiment: Experiment, all_reduce_s: Callable[[int], float]) -> tuple[int, ...]:
    """Elements in each bucket, in the order they become ready, when an all-reduce of n elements takes
    `all_reduce_s(n)`; where buckets depend on when gradients become ready, as if all were ready at once.

    Raises SpecError for a fusion that cannot be had here.
    """
    fusion, workload = experiment.fusion, experiment.workload
    if fusion.by_engine and experiment.stack is not None:
        raise SpecError(
            f"fusion: {fusion.kind} goes through an engine on our own transports, and stack {experiment.stack.kind} "
            "brings its own; leave one of them out"
        )
    if reason := workload.unsupported_fusion(fusion):
        raise SpecError(f"fusion: {reason}")
    return fusion.buckets(gradients_of(experiment), all_reduce_s)


def bucket_ready_s(table: LayerTable, buckets: Sequence[int]) -> list[float]:
    """When the last gradient of each bucket is there, since the beginning of backward."""
    gradients = table.gradients()
    made = list(accumulate(each.size_bytes // GRADIENT_ELEMENT_BYTES for each in gradients))
    return [
        gradients[next(number for number, count in enumerate(made) if count >= filled)].ready_s
        for filled in accumulate(buckets)
    ]


def exchanges(experiment: Experiment, buckets: Sequence[int]) -> tuple[Exchange, ...]:
    """Of all buckets, in order. Raises SpecError for a compression, or a collective, that cannot be right here."""
    return tuple(exchange for each in exchanges_by_bucket(experiment, buckets) for exchange in each)


def exchanges_by_bucket(experiment: Experiment, buckets: Sequence[int]) -> tuple[tuple[Exchange, ...], ...]:
    """Those of each bucket; where an engine joins what is ready, as if all were ready at once: it agrees once, and all
    buckets go out. Raises SpecError as :func:`exchanges` does."""
    return _by_bucket(experiment, buckets, agrees_each=not experiment.fusion.joins_ready)


def exchanges_of_layers(experiment: Experiment) -> tuple[Exchange, ...]:
    """The most that an engine requests that joins what is ready: where layers become ready one by one, it agrees
    before each of them and joins none."""
    items = experiment.fusion.order(()).items(gradients_of(experiment).layer_counts)
    by_layer = _by_bucket(experiment, [item.num_elements for item in items], agrees_each=True)
    return tuple(exchange for each in by_layer for exchange in each)


def _by_bucket(
    experiment: Experiment, buckets: Sequence[int], *, agrees_each: bool
) -> tuple[tuple[Exchange, ...], ...]:
    """Members agree before each bucket, or before the first alone, if they agree on buckets at all."""
    compressor = experiment.compression
    _require_right(experiment, compressor)
    if experiment.stack is None and (reason := experiment.collective.buckets_incompatibility(buckets)):
        raise SpecError(reason)
    mask = agreement_mask(experiment, buckets)
    found: list[tuple[Exchange, ...]] = []
    for shapes in bucket_shapes(experiment, buckets):
        requested = compressor.exchanges(shapes, experiment.workers)
        agreed = agreement(experiment, mask, requested) if agrees_each or not found else ()
        found.append((*agreed, *requested))
    return tuple(found)


def patterns(experiment: Experiment, buckets: Sequence[int]) -> tuple[Pattern, ...]:
    """How the payloads of each bucket meet."""
    shapes = bucket_shapes(experiment, buckets)
    return tuple(experiment.compression.pattern(each, experiment.workers) for each in shapes)


def gradients_of(experiment: Experiment) -> Gradients:
    """What backward makes, in its order."""
    workload = experiment.workload
    return Gradients(
        tensors=workload.gradient_shapes(),
        layers=list(reversed(workload.layer_shapes())),
        backward_s=list(reversed(workload.layer_backward_s())),
    )


def agreement_mask(experiment: Experiment, buckets: Sequence[int]) -> Exchange | None:
    """What goes before buckets where ranks agree on them: from everybody to everybody a bit for each item."""
    fusion = experiment.fusion
    if not fusion.by_engine or not buckets or not (order := fusion.order(buckets)).agrees:
        return None
    mask_bytes = -(-len(order.items(gradients_of(experiment).layer_counts)) // 8)
    return Exchange("all_to_all", experiment.workers * mask_bytes, 1, of_gradients=False)


def agreement(experiment: Experiment, mask: Exchange | None, requested: Sequence[Exchange]) -> Iterator[Exchange]:
    """What goes before a bucket of these exchanges: where the one before it was summed on its way, too, members first
    tell each other that they have the sum (`Reducer.settle`)."""
    if mask is None:
        return
    if any(each.link_bytes(experiment.collective) is not None for each in requested):
        yield Exchange("all_to_all", experiment.workers, COUNT_BYTES, of_gradients=False)
    yield mask


def bucket_shapes(experiment: Experiment, buckets: Sequence[int]) -> Iterator[list[Shape]]:
    """The gradients in each."""
    return experiment.fusion.bucket_shapes(gradients_of(experiment), buckets)


def scaled(requested_exchanges: Sequence[Exchange], *, payload_bytes: float, num_workers: int) -> tuple[Exchange, ...]:
    """The same with payloads as long as they were found to be, in one iteration of one worker."""
    gathered = [
        exchange
        for exchange in requested_exchanges
        if exchange.operation == "all_gather" and exchange.element_bytes == 1
    ]
    planned_bytes = sum(exchange.num_elements for exchange in gathered) / num_workers
    lengths_bytes = LENGTH_BYTES * len(gathered)
    factor = (payload_bytes - lengths_bytes) / planned_bytes if planned_bytes else 1.0
    return tuple(
        exchange._replace(num_elements=round(exchange.num_elements * factor)) if exchange in gathered else exchange
        for exchange in requested_exchanges
    )


def _require_right(experiment: Experiment, compressor: Compressor) -> None:
    if not compressor.compresses:
        return
    if experiment.stack is not None:
        raise SpecError(
            f"compression: {compressor.kind} works on our own transports, and stack {experiment.stack.kind} brings "
            "its own; leave one of them out"
        )
    if reason := experiment.workload.unsupported_compression(compressor):
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
