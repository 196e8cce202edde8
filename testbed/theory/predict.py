"""What an experiment's iteration takes, by every model there is, without running it. Pure.

The prediction is the cost model's: each worker computes, its buckets are exchanged one after the other as they become
ready, and an exchange is timed message by message on the plan's links (`transports/collectives/timing.py`). Where an
engine joins what is ready, the buckets are those that it makes then (`joining.py`), and not the plan's. Beside it
stand models that know less (architectures, the DAG of S-SGD, full utilization) and one that knows more of sharing and
nothing of hosts (the flow simulation), so that one sees how far they are apart.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import prod
from typing import Final, Literal, NamedTuple

from testbed.errors import SpecError
from testbed.experiment.experiment import Experiment, validate
from testbed.experiment.fusion.base import GRADIENT_ELEMENT_BYTES
from testbed.experiment.slowdowns.base import iteration_random
from testbed.experiment.workloads.base import Workload
from testbed.plan.bounds import fully_used_s, worker_ends
from testbed.plan.buckets import bucket_ready_s, exchanges_by_bucket
from testbed.plan.plan import Plan
from testbed.plan.prediction import exchanged_alone, plan_links
from testbed.theory import dag
from testbed.theory.alone import alone_s
from testbed.theory.architectures import ARCHITECTURES, Architecture, Servers
from testbed.theory.architectures import Links as ArchitectureLinks
from testbed.theory.joining import Joined, Joining
from testbed.theory.lone_exchange import NUM_TURNS, lone_exchange_s
from testbed.theory.reach import Expected, outside
from testbed.theory.simulation.simulate import simulate
from testbed.traces.table import Layer, LayerTable
from transports.bench.stacks import Composed, parse_stack
from transports.channels.base import CHANNELS
from transports.collectives.base import COLLECTIVES, Collective
from transports.collectives.costs import FREE
from transports.collectives.timing import Connections, Exchanged, exchanged
from transports.compression.base import Exchange
from transports.execution.trace import CodecTime

NUM_ITERATIONS: Final = 32
"""Over which stragglers are drawn, at most, for the mean; where all iterations are alike one stands for all."""
MAX_EXCHANGES: Final = 400
"""That are timed for them, message by message: of many buckets fewer iterations are drawn, one at least."""
Decider = Literal["computing", "input", "cycles", "links", "latency", "hosts"]


class Piece(NamedTuple):
    """A stretch of the critical path."""

    what: str
    start_s: float
    end_s: float


class LinkLoad(NamedTuple):
    """One direction of a link."""

    name: str
    num_bytes: float
    """In one iteration; where flows choose among equal paths, their mean."""
    utilization: float
    """Of its rate, over the iteration."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IterationPrediction:
    """The prediction of one iteration, in virtual seconds."""

    iteration_time_s: float
    compute_s: float | None
    """Forward, backward and optimizer of a worker that nothing slows; None: computing is real, its time is not known
    before, and the prediction is of communication alone."""
    straggler_s: float
    """How much longer the slowest worker computes, on the mean."""
    communication_s: float
    """While an exchange is under way, on the mean."""
    exposed_s: float
    """What the iteration takes beyond the slowest worker's computing, and its input where that takes longer."""
    cycles_s: float
    """Of that, what waits for an engine to look again at what is ready, and for nothing else, on the mean."""
    codec_s: float | None
    """What compressing and decompressing its gradients takes each worker; None: nobody knows, and it counts as no
    time."""
    scaling_factor: float | None
    """T_n / (n T_1), as a run has it: what workers take alone, slowdowns included, over the iteration."""
    decides: Decider
    """What the iteration would be shorter without, most: computing, reading and copying its input, an engine's cycles,
    the links' rates, propagation, or hosts."""
    critical_path: tuple[Piece, ...]
    links: tuple[LinkLoad, ...]
    models: dict[str, float | None]
    """The iteration's time by other models, in seconds; None where one does not apply."""
    outside: tuple[str, ...]
    """In what the experiment lies beyond what predictions were compared with; empty: it lies inside."""
    fitted_at: str | None


def predict_iteration(
    plan: Plan, expected: Expected | None = None, codecs: Sequence[CodecTime] | None = None
) -> IterationPrediction:
    """Of a plan's experiment; `expected` says what predictions were compared with, `codecs` what compressing each
    bucket takes each worker while all do, in virtual time (None: nobody knows, and no time is counted). Raises
    SpecError for what has no iterations to predict."""
    return _Predictor(plan, codecs).predict(outside(plan, expected))


class RunPrediction(NamedTuple):
    """What is said of a run's iterations before any of them is measured."""

    iteration_time_s: float | None
    """The mean, in virtual seconds; None: not predicted, and `missing` says why."""
    missing: str | None
    expected: Expected | None
    """None: with parameters that nobody has compared with this machine."""
    outside: tuple[str, ...]
    fitted_at: str | None


def predict_run(
    plan: Plan, expected: Expected | None, codecs: Sequence[CodecTime] | None = None
) -> RunPrediction | None:
    """The cost model's answer alone, as :func:`predict_iteration` has it; None where nothing is exchanged."""
    if not plan.buckets:
        return None
    time_s: float | None = None
    missing: str | None = None
    try:
        time_s = _Predictor(plan, codecs).run_iteration_time_s
    except SpecError as error:
        missing = str(error)
    if time_s is None and missing is None:
        missing = "computing is real, and how long it takes is not known before; what communication takes is predicted"
    return RunPrediction(time_s, missing, expected, tuple(outside(plan, expected)), plan.costs.fitted_at)


class ExchangePrediction(NamedTuple):
    """One all-reduce by itself."""

    stack: str
    size_bytes: int
    time_s: float | None
    """None: of a baseline library, whose schedule is its own, or a compression, whose codec takes time."""
    outside: tuple[str, ...]
    """In what it lies beyond what predictions were compared with; empty: it lies inside, or is not predicted."""


def predict_exchanges(
    experiment: Experiment, planned: Callable[[Experiment], Plan], expected: Expected | None
) -> list[ExchangePrediction]:
    """Of workload `allreduce`: each size on each stack. `planned` makes a plan, and raises SpecError for what cannot be
    right; `expected` says what predictions were compared with."""
    planned(experiment)  # refuses what could not be run
    plans: dict[tuple[str, int], Plan] = {}
    for stack, size_bytes in experiment.workload.lone_exchanges():
        parsed = parse_stack(stack)
        if isinstance(parsed, Composed) and not parsed.compression.compresses:
            spec = {
                **experiment.dump(),
                "collective": COLLECTIVES.dump(parsed.collective),
                "channel": CHANNELS.dump(parsed.channel),
                "workload": {"kind": "synthetic", "layers": [f"{size_bytes}B"]},
                "fusion": "none",
            }
            plans[stack, size_bytes] = planned(validate(spec))
    found = []
    for stack, size_bytes in experiment.workload.lone_exchanges():
        plan = plans.get((stack, size_bytes))
        if plan is None:
            found.append(ExchangePrediction(stack, size_bytes, None, ()))
            continue
        in_turn = [each for at, each in plans.items() if at[1] == size_bytes and each is not plan]
        time_s = lone_exchange_s(plan, in_turn)
        found.append(ExchangePrediction(stack, size_bytes, time_s, tuple(outside(plan, expected))))
    return found


class _Predictor:
    def __init__(self, plan: Plan, codecs: Sequence[CodecTime] | None = None) -> None:
        experiment = plan.experiment
        if not experiment.synchronisation.gradients_in_every_iteration:
            raise SpecError(
                f"synchronisation: {experiment.synchronisation.kind} is not predicted; allowed: every_iteration"
            )
        if experiment.storage is not None and experiment.storage.reads_batches:
            raise SpecError(
                f"storage: {experiment.storage.kind} shares links with the gradients in every iteration, which is not "
                "predicted; allowed: what is read before the first iteration"
            )
        if not plan.buckets:
            raise SpecError(
                f"workload: {experiment.workload.kind} says nothing of gradients, so there is no iteration to predict; "
                "allowed: training, synthetic"
            )
        self._plan = plan
        timed = experiment.workload.timed_layers()
        self._known = timed is not None
        self._table = timed or _untimed(experiment.workload)
        self._passes_s = self._table.forward_s + self._table.backward_s
        exchanges = exchanges_by_bucket(experiment, plan.buckets)
        self._codecs_known = codecs is not None or not experiment.compression.compresses
        self._codecs = [CodecTime(0.0, 0.0)] * len(exchanges) if codecs is None else codecs
        self._buckets = [
            _Bucket(*each) for each in zip(plan.buckets, self._bucket_ready_s(), exchanges, self._codecs, strict=True)
        ]
        self._links = plan_links(
            plan.directions, plan.paths, plan.participants, experiment=experiment, costs=plan.costs
        )
        self._alike: dict[tuple[Exchange, float, Connections | None], Exchanged] = {}

    def _bucket_ready_s(self) -> list[float]:
        """When each bucket of the plan is complete, since the beginning of the iteration."""
        if self._plan.experiment.fusion.whole_gradient:
            return [self._passes_s] * len(self._plan.buckets)
        return [self._table.forward_s + each_s for each_s in bucket_ready_s(self._table, self._plan.buckets)]

    @property
    def run_iteration_time_s(self) -> float | None:
        """The mean over iterations; None where computing is real."""
        return _mean_time_s(self._iterations()) if self._known else None

    def _iterations(self) -> list["_Iteration"]:
        """Where connections idle between iterations for so long that their windows are halved, each iteration finds
        what the one before has left of them, and a few come before the first."""
        iteration, so_far = self._iteration(0)
        if not so_far.connections:
            return [iteration, *(self._iteration(number)[0] for number in range(1, self._num_iterations))]
        found = []
        for number in [*[0] * NUM_TURNS, *range(1, self._num_iterations)]:
            iteration, so_far = self._iteration(number, so_far.after(iteration.time_s))
            found.append(iteration)
        return found[NUM_TURNS - 1 :]

    def predict(self, beyond: Sequence[str]) -> IterationPrediction:
        """All of it; `beyond` says in what it lies outside."""
        plan = self._plan
        iterations = self._iterations()
        time_s = _mean_time_s(iterations)
        slowest_s = sum(max(each.factors) for each in iterations) / len(iterations) * self._table.compute_s
        factors, input_s = [each.factors for each in iterations], self._table.input_and_copy_s
        alone = alone_s(self._table.compute_s, factors, input_s=input_s)
        shown = iterations[0]
        return IterationPrediction(
            iteration_time_s=time_s,
            compute_s=self._table.compute_s if self._known else None,
            straggler_s=slowest_s - self._table.compute_s,
            communication_s=sum(each.communication_s for each in iterations) / len(iterations),
            exposed_s=max(0.0, time_s - max(slowest_s, input_s)),
            codec_s=sum(map(sum, self._codecs)) if self._codecs_known else None,
            scaling_factor=alone / time_s if self._known and time_s else None,
            cycles_s=sum(each.cycles_s for each in iterations) / len(iterations),
            decides=self._decides(shown),
            critical_path=tuple(shown.critical_path()),
            links=tuple(
                LinkLoad(each.name, each.balanced_bytes, each.balanced_s / time_s if time_s else 0.0)
                for each in sorted(plan.directions, key=lambda each: -each.balanced_s)
                if each.balanced_bytes and not each.requested.unshaped
            ),
            models=self._models(time_s, shown.buckets),
            outside=tuple(beyond),
            fitted_at=plan.costs.fitted_at,
        )

    @property
    def _num_iterations(self) -> int:
        slowdowns = [spec.slowdown for spec in self._plan.hosts.values() if spec.slowdown]
        if not any(slowdown.varies for slowdown in slowdowns):
            return 1
        measured = self._plan.experiment.workload.phase_lengths().get("measured", NUM_ITERATIONS)
        buckets = self._iteration(0)[0].buckets if self._joins_ready else self._buckets
        num_exchanges = sum(len(bucket.exchanges) for bucket in buckets)
        return max(1, min(measured, NUM_ITERATIONS, MAX_EXCHANGES // max(1, num_exchanges)))

    def _iteration(self, number: int, before: "_SoFar | None" = None) -> tuple["_Iteration", "_SoFar"]:
        """And what it leaves to the next one, as `before` is of the one before it; None: all connections have grown, or
        are new if they have been idle for long."""
        factors = [1.0] * self._plan.experiment.workers
        for name, spec in self._plan.hosts.items():
            if spec.slowdown is not None:
                rank = int(name[1:])
                seed = self._plan.experiment.seed
                factors[rank] = spec.slowdown.draw(
                    iteration_random(seed=seed, rank=rank, phase="measured", index=number)
                )
        update_s = self._table.update_s * max(factors)
        so_far = _SoFar(
            free_s=[0.0] * (len(factors) + self._plan.world.num_servers),
            last_s=-update_s if before is None else before.last_s,
            connections=None if before is None else before.connections,
        )
        if self._joins_ready:
            self._exchange_joined(so_far, factors)
        else:
            for bucket in self._buckets:
                computed_s = [bucket.ready_s * factor for factor in factors]
                begins_s = so_far.with_servers(list(map(max, so_far.free_s, computed_s)))
                self._exchange(so_far, bucket, begins_s, waited=max(computed_s) < max(so_far.free_s))
        iteration = _Iteration(
            factors=tuple(factors),
            passes_s=self._passes_s * max(factors),
            update_s=update_s,
            input_s=self._table.input_and_copy_s,
            buckets=tuple(so_far.buckets),
            exchanged=tuple(so_far.exchanged),
            waits=tuple(so_far.waits),
        )
        return iteration, so_far

    @property
    def _joins_ready(self) -> bool:
        return self._plan.experiment.fusion.joins_ready

    def _exchange_joined(self, so_far: "_SoFar", factors: Sequence[float]) -> None:
        """What is ready, whenever the engine looks."""
        joining = Joining(self._plan.experiment, self._table, factors)
        while not joining.done:
            decision = joining.decide(so_far.free_s[: len(factors)])
            begins_s, waited = so_far.with_servers(decision.looks_s), decision.waited
            for each in decision.buckets:
                self._exchange(so_far, self._with_codec(each), begins_s, waited=waited)
                begins_s, waited = so_far.free_s, True

    def _with_codec(self, joined: Joined) -> "_Bucket":
        """Codecs are known of the plan's buckets: its share of these, by its elements."""
        share = joined.num_elements / sum(self._plan.buckets)
        return _Bucket(*joined, CodecTime(*(share * sum(part) for part in zip(*self._codecs, strict=True))))

    def _exchange(self, so_far: "_SoFar", bucket: "_Bucket", begins_s: list[float], *, waited: bool) -> None:
        """All of one bucket, which each participant may begin then."""
        workers = self._plan.world.num_workers
        so_far.buckets.append(bucket)
        so_far.waits.append(waited)
        start_s = max(begins_s)
        begins_s = _later(begins_s, bucket.codec.encode_s, workers)
        for each in bucket.exchanges:
            quiet_s = max(0.0, min(begins_s[:workers]) - so_far.last_s) if self._known else 0.0
            if not so_far.connections:
                quiet_s = self._links.quiet_class_s(quiet_s)
            found = self._exchanged(each, begins_s, quiet_s, so_far)
            begins_s, so_far.connections, so_far.links_free_s = found
            so_far.last_s = max(begins_s)
        so_far.free_s = _later(begins_s, bucket.codec.decode_s, workers)
        so_far.exchanged.append((start_s, max(so_far.free_s)))

    def _chosen(self, exchange: Exchange) -> Collective:
        operation, num_elements, element_bytes = exchange.operation, exchange.num_elements, exchange.element_bytes
        return self._plan.collective.chosen_for(operation, self._plan.world, num_elements, element_bytes=element_bytes)

    def _exchanged(self, exchange: Exchange, begins_s: Sequence[float], quiet_s: float, so_far: "_SoFar") -> Exchanged:
        plan, collective = self._plan, self._chosen(exchange)
        workers = begins_s[: plan.world.num_workers]
        own_bytes = exchange.link_bytes(collective)
        connections = so_far.connections
        if own_bytes is None and max(begins_s) > min(workers):
            return self._times(exchange, collective, begins_s, quiet_s, connections, so_far.links_free_s)
        key = exchange, quiet_s, connections  # all workers begin together: every such exchange is as long
        if key not in self._alike:
            if own_bytes is None:
                self._alike[key] = self._times(exchange, collective, [0.0] * len(begins_s), quiet_s, connections)
            else:
                self._alike[key] = exchanged_alone(
                    collective,
                    plan.world,
                    exchange,
                    self._links,
                    plan.costs,
                    latency_s=plan.prediction.latency_s,
                    rate_bps=plan.prediction.aggregation_bps,
                    quiet_s=quiet_s,
                    connections=connections,
                )
        found = self._alike[key]
        ends_s = found.ends_s if own_bytes is None else [found.end_s] * len(begins_s)
        return Exchanged(
            [max(workers) + end_s for end_s in ends_s],
            found.connections,
            [max(workers) + free_s for free_s in found.links_free_s],
        )

    def _times(
        self,
        exchange: Exchange,
        collective: Collective,
        begins_s: Sequence[float],
        quiet_s: float,
        connections: Connections | None,
        links_free_s: Sequence[float] = (),
    ) -> Exchanged:
        return exchanged(
            collective,
            exchange.operation,
            self._plan.world,
            exchange.num_elements,
            exchange.element_bytes,
            self._links,
            self._plan.costs,
            begins_s=begins_s,
            quiet_s=quiet_s,
            connections=connections,
            links_free_s=links_free_s,
        )

    def _decides(self, shown: "_Iteration") -> Decider:
        """By what the iteration would shrink most if there were none of it: the exchanges' parts by what the largest
        bucket takes of each."""
        if shown.time_s <= shown.input_s:
            return "input"
        exposed_s = max(0.0, shown.time_s - shown.passes_s - shown.update_s)
        if self._table.compute_s >= exposed_s and self._known:
            return "computing"
        if shown.cycles_s > exposed_s / 2:
            return "cycles"
        largest, codec = max(
            ((each, bucket.codec) for bucket in shown.buckets for each in bucket.exchanges),
            key=lambda each: each[0].num_elements,
        )
        rounds_s = self._latency_part_s(largest)
        of_messages_s = self._hosts_part_s(largest)
        links_s = self.whole_s(largest) - rounds_s - of_messages_s
        hosts_s = of_messages_s + sum(codec)
        parts: dict[Decider, float] = {"links": links_s, "latency": rounds_s, "hosts": hosts_s}
        return max(parts, key=lambda name: parts[name])

    def whole_s(self, exchange: Exchange) -> float:
        """The time of one exchange that all workers begin together."""
        size = self._plan.world.size
        return self._exchanged(exchange, [0.0] * size, 0.0, _SoFar(free_s=[0.0] * size)).end_s

    def _hosts_part_s(self, exchange: Exchange) -> float:
        free = replace(FREE, host_latency_s=1e-9, link_share=self._plan.costs.link_share, tcp=self._plan.costs.tcp)
        return self.whole_s(exchange) - _Predictor(replace(self._plan, costs=free)).whole_s(exchange)

    def _latency_part_s(self, exchange: Exchange) -> float:
        near = tuple(
            replace(each, requested=each.requested.model_copy(update={"delay_s": 0.0}))
            for each in self._plan.directions
        )
        prediction = replace(self._plan.prediction, latency_s=0.0)
        plan = replace(self._plan, directions=near, propagation_s=0.0, prediction=prediction)
        return self.whole_s(exchange) - _Predictor(plan).whole_s(exchange)

    def _simulated_s(self) -> float | None:
        """A mean over as many iterations as the cost model's, or, where those have too many messages, of one, whose
        slowdowns are what was drawn for it; None where that has too many."""
        for num_iterations in dict.fromkeys((self._num_iterations, 1)):
            with suppress(SpecError):
                simulation = simulate(
                    self._plan.experiment,
                    num_iterations=num_iterations,
                    buckets=self._plan.buckets,
                    collective=self._plan.collective,
                )
                return simulation.iteration_time_s
        return None

    def _models(self, time_s: float, buckets: Sequence["_Bucket"]) -> dict[str, float | None]:
        plan, table = self._plan, self._table
        workers, size_bytes = plan.experiment.workers, self._reduced_bytes()
        codec_s = sum(map(sum, self._codecs))
        links = ArchitectureLinks(
            rate_bps=plan.prediction.goodput_bps,
            latency_s=plan.propagation_s + plan.costs.host_latency_s,
            addition_s_per_byte=plan.costs.addition_s_per_byte,
        )
        found: dict[str, float | None] = {"cost model": time_s}
        found["flow simulation"] = self._simulated_s()
        servers = plan.collective.num_servers
        architectures: dict[str, Architecture] = {**ARCHITECTURES}
        if servers > 1:
            architectures[f"{servers} servers"] = Servers(servers)
        for name, architecture in architectures.items():
            found[f"architecture: {name}, no overlap"] = (
                None
                if size_bytes is None
                else max(
                    table.compute_s + architecture.time_s(size_bytes, workers, links) + codec_s, table.input_and_copy_s
                )
            )
        cost = self._cost_of_gradients(buckets)
        by_layer, merged = dag.buckets_by_layer(table, cost.time_s), dag.buckets_merged(table, cost)
        for strategy in ("naive", "wfbp"):
            found[f"DAG: {strategy}"] = dag.iteration_s(table, strategy, by_layer)
        found["DAG: merged"] = dag.iteration_s(table, "merged", merged)
        ends_s, ends = 0.0, worker_ends(plan.directions, workers, 1.0)  # headers left out
        for bucket in buckets:
            least_s = sum(fully_used_s(each, plan.collective, ends) for each in bucket.exchanges)
            ends_s = max(ends_s, bucket.ready_s) + least_s
        computed_s = max(self._passes_s, ends_s) + table.update_s
        found["what if the network were fully used"] = max(computed_s, table.input_and_copy_s)
        return found

    def _reduced_bytes(self) -> int | None:
        """What each worker hands over to be added up, in an iteration; None where anything of it does not add up, so
        that it is not exchanged in the way of an architecture."""
        if not self._plan.experiment.compression.compresses:
            return self._table.size_bytes
        handed_over = [each for bucket in self._buckets for each in bucket.exchanges if each.of_gradients]
        if any(each.operation != "all_reduce" for each in handed_over):
            return None
        return sum(each.payload_bytes(self._plan.experiment.workers) for each in handed_over)

    def _cost_of_gradients(self, buckets: Sequence["_Bucket"]) -> dag.ExchangeCost:
        """Of exchanging so many bytes of gradients, before they are compressed, codec included: a line through the
        smallest bucket and the largest."""
        of_size = {bucket.num_elements: bucket for bucket in buckets}
        fewest, most = min(of_size), max(of_size)
        fewest_s, most_s = (
            sum(map(self.whole_s, of_size[count].exchanges)) + sum(of_size[count].codec) for count in (fewest, most)
        )
        s_per_element = (most_s - fewest_s) / (most - fewest) if most > fewest else most_s / most
        return dag.ExchangeCost(
            startup_s=max(0.0, fewest_s - fewest * s_per_element), s_per_byte=s_per_element / GRADIENT_ELEMENT_BYTES
        )


class _Bucket(NamedTuple):
    num_elements: int
    ready_s: float
    """On a worker that nothing slows, since the beginning of the iteration."""
    exchanges: tuple[Exchange, ...]
    codec: CodecTime


@dataclass(kw_only=True, slots=True)
class _SoFar:
    """What has been exchanged in an iteration."""

    free_s: list[float]
    """When each participant was done with it."""
    last_s: float = 0.0
    """When the last byte came; in the iteration before, if less than 0."""
    connections: Connections | None = None
    links_free_s: Sequence[float] = ()
    """When each link has sent its last byte."""
    buckets: list[_Bucket] = field(default_factory=list)
    exchanged: list[tuple[float, float]] = field(default_factory=list)
    waits: list[bool] = field(default_factory=list)

    def with_servers(self, workers_s: Sequence[float]) -> list[float]:
        """When each participant begins, given when workers do: servers, once they are done with what was before, have
        nothing to do until the first of them does."""
        servers_s = self.free_s[len(workers_s) :]
        return [*workers_s, *(max(free_s, min(workers_s)) for free_s in servers_s)]

    def after(self, time_s: float) -> "_SoFar":
        """As the next iteration finds it, which begins then."""
        return _SoFar(free_s=[], last_s=self.last_s - time_s, connections=self.connections)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Iteration:
    factors: tuple[float, ...]
    passes_s: float
    """Forward and backward of the slowest worker."""
    update_s: float
    """Its optimizer, once all gradients are there."""
    input_s: float
    """The next batch is read and copied for so long, from the beginning of this iteration."""
    buckets: tuple[_Bucket, ...]
    exchanged: tuple[tuple[float, float], ...]
    """From when each bucket went until all had it."""
    waits: tuple[bool, ...]
    """Whether a bucket waited for the one before it, or for a cycle after that, and not for backward."""

    @property
    def time_s(self) -> float:
        return max(max(self.passes_s, self.exchanged[-1][1]) + self.update_s, self.input_s)

    @property
    def communication_s(self) -> float:
        """In which something was exchanged."""
        return sum(end_s - start_s for start_s, end_s in self.exchanged)

    @property
    def cycles_s(self) -> float:
        """After all workers had computed, what waited for the end of a cycle."""
        waited = (piece for piece in self.critical_path() if piece.what == "cycle")
        return sum(max(0.0, piece.end_s - max(piece.start_s, self.passes_s)) for piece in waited)

    def critical_path(self) -> list[Piece]:
        """Backwards from the end: the exchanges that waited for each other, and before them computing."""
        if self.time_s <= self.input_s:
            return [Piece("input", 0.0, self.time_s)]
        if self.passes_s >= self.exchanged[-1][1]:
            return [Piece("computing", 0.0, self.time_s)]
        path = [Piece("optimizer", self.exchanged[-1][1], self.time_s)] if self.update_s else []
        for number in reversed(range(len(self.exchanged))):
            start_s, end_s = self.exchanged[number]
            path.append(Piece(f"bucket {number}", start_s, end_s))
            if not self.waits[number]:
                break
            if start_s > (before_s := self.exchanged[number - 1][1]):
                path.append(Piece("cycle", before_s, start_s))
        if path[-1].start_s > 0:
            path.append(Piece("computing", 0.0, path[-1].start_s))
        return path[::-1]


def _later(times_s: Sequence[float], codec_s: float, num_workers: int) -> list[float]:
    """Of workers, whose codecs take so long; servers have none."""
    return [time_s + codec_s * (number < num_workers) for number, time_s in enumerate(times_s)]


def _mean_time_s(iterations: Sequence[_Iteration]) -> float:
    return sum(each.time_s for each in iterations) / len(iterations)


def _untimed(workload: Workload) -> LayerTable:
    """The layers of computing that is real, in no time."""
    return LayerTable(
        layers=tuple(
            Layer(f"layer {number}", 0.0, 0.0, GRADIENT_ELEMENT_BYTES * sum(map(prod, shapes)))
            for number, shapes in enumerate(workload.layer_shapes())
        )
    )
