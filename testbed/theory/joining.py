"""What an engine joins that looks at what is ready whenever it may (`transports/torch_backend/engine.py`). Pure."""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from testbed.experiment.experiment import Experiment
from testbed.plan.buckets import agreement, agreement_mask, bucket_ready_s, gradients_of
from testbed.theory.buckets import Looks
from testbed.traces.table import LayerTable
from transports.compression.base import Exchange


class Joined(NamedTuple):
    """A bucket."""

    num_elements: int
    ready_s: float
    """When its last gradient is there on a worker that nothing slows, since the beginning of the iteration."""
    exchanges: tuple[Exchange, ...]
    """What workers agree by is before those of a decision's first bucket."""


class Decision(NamedTuple):
    """What goes out at once."""

    looks_s: tuple[float, ...]
    """When each worker looks at what it has ready, since the beginning of the iteration."""
    waited: bool
    """Whether something was ready before all had looked: communication, or a cycle, was under way."""
    buckets: tuple[Joined, ...]


class Joining:
    """The buckets of one iteration, decision by decision. It begins with no cycle under way."""

    def __init__(self, experiment: Experiment, table: LayerTable | None, factors: Sequence[float]) -> None:
        """For workers whose computing takes `factors` times as long as the table says; None: no time."""
        self._experiment = experiment
        self._layers = gradients_of(experiment).layers
        order = experiment.fusion.order(())
        self._items = order.items([sum(map(prod, shapes)) for shapes in self._layers])
        counts = [item.num_elements for item in self._items]
        forward_s = 0.0 if table is None else table.forward_s
        backward_s = [0.0] * len(counts) if table is None else bucket_ready_s(table, counts)
        self._ready_s = [forward_s + each_s for each_s in backward_s]
        self._mask = agreement_mask(experiment, counts)
        self._looks = Looks(order, self._items, self._ready_s, factors)

    @property
    def done(self) -> bool:
        """Whether everything has gone out."""
        return self._looks.done

    def decide(self, free_s: Sequence[float]) -> Decision:
        """The next one, where each worker's communication thread is free from then on: see :meth:`Looks.look`."""
        looks_s, waited, runs = self._looks.look(free_s)
        return Decision(looks_s, waited, tuple(self._bucket(run, agrees=not at) for at, run in enumerate(runs)))

    def _bucket(self, run: Sequence[int], *, agrees: bool) -> Joined:
        items = self._items[run[0]], self._items[run[-1]]
        shapes = [shape for shapes in self._layers[run[0] : run[-1] + 1] for shape in shapes]
        exchanges = self._experiment.compression.exchanges(shapes, self._experiment.workers)
        agreed = agreement(self._experiment, self._mask, exchanges) if agrees else ()
        return Joined(items[1].stop - items[0].start, self._ready_s[run[-1]], (*agreed, *exchanges))
