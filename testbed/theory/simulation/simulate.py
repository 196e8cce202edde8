"""Iterations of an experiment, on the network that its spec describes or a larger one of the same kind. Pure.

What is simulated: forward and backward passes and the optimizer of every worker, stragglers included, and input that
is read and copied while the batch before is computed with; buckets that are
exchanged one after the other as they become ready, overlapping with backward; every message of the collective's own
schedule, or, of rings and hierarchies of hundreds of workers, every step (`symmetric.py`); links shared fairly, by
several jobs too. Where an engine joins what is ready, the buckets are those that a job makes whose exchanges each take
what they take by themselves.
What is not: packets, losses, congestion windows, queues, the processors that serve the network. Jitter is drawn for
each message, but not for a stream of chunks that is aggregated on its way.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final, Literal, NamedTuple

import numpy as np

from switch_agg.wire import MAX_SLOTS
from testbed.errors import SpecError
from testbed.experiment.experiment import Experiment
from testbed.experiment.fusion.base import GRADIENT_ELEMENT_BYTES
from testbed.experiment.host import resolve_hosts
from testbed.experiment.link import LinkSpec
from testbed.experiment.slowdowns.base import iteration_random
from testbed.experiment.storage.base import STORAGE_NODE
from testbed.experiment.topologies.base import Network, participant_names
from testbed.plan.buckets import bucket_ready_s, buckets_of, exchanges_by_bucket
from testbed.plan.link_configuration import link_configs
from testbed.plan.paths import Hop
from testbed.plan.placement import num_servers_of, racks_of, require_several_hosts, with_storage
from testbed.theory.alone import alone_s
from testbed.theory.joining import Joining
from testbed.theory.simulation.aggregation import aggregation_tree
from testbed.theory.simulation.collectives import Exchangers, HostCosts, add_collective
from testbed.theory.simulation.fair_sharing import Floats
from testbed.theory.simulation.network import SimulatedNetwork
from testbed.theory.simulation.symmetric import SymmetricExchange, messages_of
from testbed.theory.simulation.transfers import TaskGraph
from testbed.traces.table import LayerTable
from transports.collectives.base import Collective, World
from transports.collectives.in_network import InNetwork
from transports.collectives.network_info import NetworkInfo
from transports.compression.base import Exchange

MAX_MESSAGES: Final = 500_000
"""Of a schedule that is expanded: minutes, and about 1 GB."""
_MANY: Final = 256
"""Participants, beyond which not all are looked at for the two that are farthest from each other."""
EXPANDED_MESSAGES: Final = 20_000
"""Up to here a schedule is expanded even where all workers do the same."""
WARMUP: Final = 1
"""Iterations before those that count: what the last one leaves on links is there when the next one begins."""
Method = Literal["messages", "steps"]


class LinkUse(NamedTuple):
    """What one direction of a link carried."""

    name: str
    num_bytes: float
    """In an iteration, in the mean."""
    utilization: float
    """Of its rate, over all simulated time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulation:
    """What came out."""

    num_workers: int
    """Of each job."""
    num_jobs: int
    topology: str
    method: Method
    """Whether every message was simulated, or every step of workers that all do the same."""
    num_tasks: int
    """Messages, pieces of work and joins; or steps."""
    iterations_s: tuple[tuple[float, ...], ...]
    """Of each job, how long each iteration took; the first one that was simulated, from idle links, is none of them."""
    compute_s: float | None
    """Computing of a worker that nothing slows; None: the spec does not say, and nothing is computed."""
    alone_s: float | None
    """What a worker of the slowest job takes alone, slowdowns included: the harmonic mean over them."""
    exchanged_s: tuple[float, ...]
    """Of each bucket of the first of the first job's iterations: from the last worker's start to the last one's end."""
    busiest: tuple[LinkUse, ...]
    """The links that were in use most, at most ten."""
    assumptions: tuple[str, ...] = ()
    """What the topology leaves out of somebody else's description, and what it took for what; and what of the links is
    not simulated."""

    @property
    def iteration_time_s(self) -> float:
        """The mean over iterations of the slowest job."""
        return max(float(np.mean(each)) for each in self.iterations_s)

    @property
    def scaling_factor(self) -> float | None:
        """T_n / (n T_1) of the slowest job; None where the spec does not say how long computing takes."""
        return None if self.alone_s is None else self.alone_s / self.iteration_time_s


def scaled(experiment: Experiment, num_workers: int) -> Experiment:
    """The same experiment with so many workers, on a topology of the same kind that has places for them; for models
    alone, so that what limits an emulation does not limit it. Raises SpecError for fewer than two."""
    if num_workers < 2:
        raise SpecError(f"workers: {num_workers} has nobody to exchange gradients with; allowed: at least 2")
    return experiment.model_copy(update={"workers": num_workers})


def grown(experiment: Experiment, *, num_jobs: int = 1) -> Experiment:
    """The same experiment on a topology that has grown, where it can, to have places for all hosts of so many jobs."""
    num_ends = experiment.workers_per_host.num_hosts(num_jobs * experiment.workers)
    num_ends += num_jobs * num_servers_of(experiment)
    return experiment.model_copy(update={"topology": experiment.topology.grown(num_ends)})


def simulate(
    experiment: Experiment,
    *,
    num_iterations: int = 1,
    num_jobs: int = 1,
    costs: HostCosts | None = None,
    buckets: Sequence[int] | None = None,
    collective: Collective | None = None,
) -> Simulation:
    """Simulate so many iterations of so many jobs that are alike, placed one after the other, and one before them that
    does not count: links are still in use when an iteration begins, but for the first. `buckets` are a plan's,
    in elements; None: those that the fusion makes where an all-reduce takes what it takes in the simulation; where an
    engine joins what is ready they decide nothing. `collective` is a plan's, which knows more than the simulation has;
    None: the experiment's, which knows latency and rate of the simulated links. Raises SpecError for what cannot be
    simulated, saying what can."""
    _require_simulable(experiment)
    if num_iterations < 1 or num_jobs < 1:
        raise SpecError("a simulation has one iteration and one job at least")
    return _Simulator(experiment, num_iterations, num_jobs, costs or HostCosts(), buckets, collective).run()


def _require_simulable(experiment: Experiment) -> None:
    if experiment.workers < 2:
        raise SpecError(f"workers: {experiment.workers} has nobody to exchange gradients with; allowed: at least 2")
    if not experiment.synchronisation.gradients_in_every_iteration:
        raise SpecError(
            f"synchronisation: {experiment.synchronisation.kind} is not simulated; allowed: every_iteration"
        )
    if experiment.storage is not None and experiment.storage.reads_batches:
        raise SpecError(
            f"storage: {experiment.storage.kind} shares links with the gradients in every iteration, which is not "
            "simulated; allowed: what is read before the first iteration"
        )
    aggregation = experiment.collective.aggregation
    others = {
        "background": experiment.background,
        "changes": experiment.changes,
        "collective.tenants": () if aggregation is None else aggregation.tenants,
    }
    for path, values in others.items():
        if values:
            raise SpecError(f"{path}: links stay as they are, for the gradients alone, in a simulation; allowed: []")
    if aggregation is not None and aggregation.partial_after_s is not None:
        raise SpecError(
            "collective.partial_after: every sum is of all workers in a simulation, and waits for the slowest; leave "
            "it out"
        )
    require_several_hosts(experiment)
    if experiment.stack is not None:
        raise SpecError(
            f"stack: {experiment.stack.kind} has schedules of its own, which nobody here knows; leave it out, and name "
            "a collective"
        )
    if not experiment.workload.parameter_counts():
        raise SpecError(
            f"workload: {experiment.workload.kind} has no gradients to exchange; allowed: training, or synthetic with "
            "the sizes that you ask about"
        )


class _Bucket(NamedTuple):
    ready_s: float
    """On a worker that nothing slows, since the beginning of the iteration."""
    exchanges: tuple[Exchange, ...]
    after_cycle: bool = False
    """Whether it waits until a cycle has passed since the last one that did."""


class _Simulator:
    def __init__(
        self,
        experiment: Experiment,
        num_iterations: int,
        num_jobs: int,
        costs: HostCosts,
        buckets: Sequence[int] | None,
        collective: Collective | None,
    ) -> None:
        self._experiment = experiment
        self._num_iterations, self._num_jobs, self._costs = num_iterations, num_jobs, costs
        self._num_workers = experiment.workers
        self._num_servers = num_servers_of(experiment)
        network = self._placed()
        specs = self._specs(network)
        self._network = SimulatedNetwork(network, specs, seed=experiment.seed)
        self._racks = racks_of(network, num_jobs * experiment.workers)
        used = [spec for spec in specs.values() if not spec.unshaped]
        self._goodput_bps = min(spec.rate_bps for spec in used) * experiment.channel.goodput_fraction(experiment.mtu)
        self._random = np.random.default_rng(experiment.seed)
        self._wire: dict[int, float] = {}
        self._by_themselves_s: dict[Exchange, float] = {}
        self._jobs = [self._job(number) for number in range(num_jobs)]
        self._collective = self._with_network_info() if collective is None else collective
        self._table = experiment.workload.timed_layers()
        jobs, iterations = range(num_jobs), range(WARMUP + num_iterations)
        self._factors = [[self._drawn(job, iteration) for iteration in iterations] for job in jobs]
        # Refuses what cannot be right, whatever the buckets.
        planned = self._planned(buckets_of(experiment, self._all_reduce_s) if buckets is None else buckets)
        self._buckets = [[planned] * len(iterations)] * num_jobs
        if experiment.fusion.joins_ready:
            self._buckets = [[self._joined(self._factors[job][each]) for each in iterations] for job in jobs]

    def _placed(self) -> Network:
        """All jobs' hosts, one job's after the other's."""
        experiment, count = self._experiment, self._num_jobs
        sharing = experiment.workers_per_host
        num_hosts = sharing.num_hosts(count * self._num_workers)
        num_ends = num_hosts + count * self._num_servers
        topology = grown(experiment, num_jobs=count).topology
        fabric = topology.fabric(num_ends)
        if len(fabric.places) < num_ends:
            raise SpecError(
                f"workers: {count * self._num_workers} do not fit the {len(fabric.places)} places of topology "
                f"{topology.kind}{f'; allowed: {topology.larger}' if topology.larger else ''}"
            )
        attached = experiment.placement.attach(fabric.places, num_ends, seed=experiment.seed)
        return fabric.network(
            attached,
            num_workers=count * self._num_workers,
            workers_per_host=sharing.count,
            num_servers=count * self._num_servers,
        )

    def _specs(self, network: Network) -> Mapping[Hop, LinkSpec]:
        experiment = self._experiment
        requested = link_configs(
            with_storage(experiment, network),  # `links` may name its own
            experiment.link,
            experiment.workers_per_host.intra_host,
            experiment.links,
            packet_bytes=experiment.packet_bytes,
            emulated=False,
        )
        return {hop: each.spec for hop, each in requested.items() if STORAGE_NODE not in hop}

    def _job(self, number: int) -> Exchangers:
        workers, servers = self._num_workers, self._num_servers
        every = participant_names(self._num_jobs * workers, self._num_jobs * servers)
        names = every[number * workers : (number + 1) * workers]
        names += every[self._num_jobs * workers :][number * servers : (number + 1) * servers]
        return Exchangers(
            names=names,
            wire_bytes=self._wire_bytes,
            costs=self._costs,
            first_resource=number * (workers + servers),
            random=self._random,
        )

    def _wire_bytes(self, payload_bytes: int) -> float:
        channel = self._experiment.channel
        if payload_bytes not in self._wire:
            with_header = payload_bytes + channel.header_bytes
            self._wire[payload_bytes] = float(channel.wire_bytes(with_header, self._experiment.mtu).forward)
        return self._wire[payload_bytes]

    def _with_network_info(self) -> Collective:
        return self._experiment.collective.with_network_info(
            NetworkInfo(latency_s=self._farthest_s(), rate_bps=self._goodput_bps),
            tensors=tuple(prod(shape) for shape in self._experiment.workload.gradient_shapes()),
        )

    def _farthest_s(self) -> float:
        """One way between the participants that are farthest from each other. From anybody to the farthest, and from
        the farthest to that one: on a tree these are the two; of many participants the last is far from the first."""
        names = self._jobs[0].names

        def delays_s(pairs: list[tuple[str, str]]) -> Floats:
            return self._network.path_delays_s(self._network.paths(pairs))

        if len(names) < 2:
            return 0.0
        if len(names) > _MANY:
            return float(delays_s([(names[0], names[-1])])[0])
        others = names[1:]
        down_s = delays_s([(names[0], name) for name in others])
        farthest = others[int(np.argmax(down_s))]
        up_s = delays_s([(name, farthest) for name in names if name != farthest])
        return float(max(*down_s, *up_s))

    def _planned(self, buckets: Sequence[int]) -> list[_Bucket]:
        exchanges = exchanges_by_bucket(self._experiment, buckets)
        ready_s = [0.0] * len(buckets) if self._table is None else self._bucket_ready_s(self._table, buckets)
        return [_Bucket(*each) for each in zip(ready_s, exchanges, strict=True)]

    def _bucket_ready_s(self, table: LayerTable, buckets: Sequence[int]) -> list[float]:
        """Since the iteration's begin."""
        if self._experiment.fusion.whole_gradient:
            return [table.forward_s + table.backward_s] * len(buckets)
        return [table.forward_s + each_s for each_s in bucket_ready_s(table, buckets)]

    def _joined(self, factors: Floats) -> list[_Bucket]:
        """What an engine makes of an iteration."""
        joining, found = Joining(self._experiment, self._table, factors.tolist()), []
        free_s = [0.0] * self._num_workers
        while not joining.done:
            decision = joining.decide(free_s)
            end_s, ready_s = max(decision.looks_s), decision.buckets[-1].ready_s
            for number, bucket in enumerate(decision.buckets):
                found.append(_Bucket(ready_s, bucket.exchanges, after_cycle=number == 0))
                end_s += sum(map(self._by_itself_s, bucket.exchanges))
            free_s = [end_s] * self._num_workers
        return found

    def _world(self, job: int, collective: Collective) -> World:
        start = job * self._num_workers
        return collective.world(self._num_workers, racks=self._racks[start : start + self._num_workers])

    def _chosen(self, exchange: Exchange) -> Collective:
        world = self._world(0, self._collective)
        operation, num_elements, element_bytes = exchange.operation, exchange.num_elements, exchange.element_bytes
        return self._collective.chosen_for(operation, world, num_elements, element_bytes=element_bytes)

    def _all_reduce_s(self, num_elements: int) -> float:
        return self._by_itself_s(Exchange("all_reduce", num_elements, GRADIENT_ELEMENT_BYTES))

    def _by_itself_s(self, exchange: Exchange) -> float:
        if exchange not in self._by_themselves_s:
            self._by_themselves_s[exchange] = self._simulated_by_itself_s(exchange)
        return self._by_themselves_s[exchange]

    def _simulated_by_itself_s(self, exchange: Exchange) -> float:
        chosen = self._chosen(exchange)
        if self._moves_alike(chosen, exchange):
            starts_s = np.zeros(self._num_workers)
            ends_s = self._steps().all_reduce(
                chosen, exchange.num_elements, exchange.element_bytes, starts_s, sums_floats=exchange.sums_floats
            )
            return float(ends_s.max())
        self._require_expandable(self._messages_of(chosen, exchange))
        graph = TaskGraph(self._network)
        through = self._add_exchange(graph, 0, exchange, [graph.work() for _ in self._jobs[0].names])
        return float(graph.run().arrived_s[through[: self._num_workers]].max())

    def run(self) -> Simulation:
        method = self._method()
        return self._by_steps() if method == "steps" else self._by_messages()

    def _method(self) -> Method:
        num_messages = 0.0
        symmetric = self._num_jobs == 1
        aggregated = symmetric
        for exchange, count in self._exchanges().items():
            chosen = self._chosen(exchange)
            symmetric &= self._moves_alike(chosen, exchange)
            aggregated &= _adds(chosen, exchange)
            num_messages += count * self._messages_of(chosen, exchange)
        if aggregated or (symmetric and num_messages > EXPANDED_MESSAGES):
            return "steps"
        self._require_expandable(num_messages)
        return "messages"

    def _exchanges(self) -> Counter[Exchange]:
        """Of all iterations of all jobs."""
        buckets = (bucket for job in self._buckets for iteration in job for bucket in iteration)
        return Counter(exchange for bucket in buckets for exchange in bucket.exchanges)

    def _moves_alike(self, chosen: Collective, exchange: Exchange) -> bool:
        """Whether all workers do the same in it."""
        return exchange.operation == "all_reduce" and (
            chosen.phases(self._world(0, chosen), exchange.num_elements, exchange.element_bytes) is not None
        )

    def _messages_of(self, chosen: Collective, exchange: Exchange) -> float:
        if _adds(chosen, exchange):
            return self._num_workers
        return messages_of(chosen, self._world(0, chosen), exchange.num_elements * exchange.element_bytes)

    def _require_expandable(self, num_messages: float) -> None:
        if num_messages > MAX_MESSAGES:
            raise SpecError(
                f"workers: {self._num_workers} of collective {self._collective.kind} exchange about {num_messages:.2g} "
                f"messages, and {MAX_MESSAGES:.0g} are simulated one by one; allowed: fewer workers, jobs or "
                "iterations, longer messages, or collective ring, hierarchical or in_network with one job"
            )

    def _drawn(self, job: int, iteration: int) -> Floats:
        """By how much each worker's computing is slowed."""
        factors = np.ones(self._num_workers)
        names = participant_names(self._num_workers)
        for name, spec in resolve_hosts(self._experiment.hosts, names).items():
            if spec.slowdown is not None:
                rank = job * self._num_workers + int(name[1:])
                phase, index = ("measured", iteration - WARMUP) if iteration >= WARMUP else ("warmup", iteration)
                random = iteration_random(seed=self._experiment.seed, rank=rank, phase=phase, index=index)
                factors[int(name[1:])] = spec.slowdown.draw(random)
        return factors

    # One job whose workers all do the same: from vectors of times to vectors of times.

    def _by_steps(self) -> Simulation:
        exchange = self._steps()
        begins_s = np.zeros(self._num_workers)
        ended_s, exchanged_s = [0.0], []
        for iteration, factors in enumerate(self._factors[0]):
            free_s = begins_s
            for bucket in self._buckets[0][iteration]:
                for each in bucket.exchanges:
                    starts_s = np.maximum(free_s, begins_s + bucket.ready_s * factors)
                    free_s = exchange.all_reduce(
                        self._chosen(each),
                        each.num_elements,
                        each.element_bytes,
                        starts_s,
                        sums_floats=each.sums_floats,
                    )
                    if iteration == WARMUP:
                        exchanged_s.append(float(free_s.max() - starts_s.max()))
            updated_s = np.maximum(free_s, begins_s + self._passes_s * factors) + self._update_s * factors
            begins_s = np.maximum(updated_s, begins_s + self._input_s)
            ended_s.append(float(begins_s.max()))
        return self._simulation(
            "steps",
            exchange.num_steps,
            [list(np.diff(ended_s[WARMUP:]))],
            exchanged_s,
            exchange.link_bytes,
            ended_s[-1],
        )

    def _steps(self) -> SymmetricExchange:
        return SymmetricExchange(self._network, self._jobs[0], self._world(0, self._collective))

    @property
    def _passes_s(self) -> float:
        return 0.0 if self._table is None else self._table.forward_s + self._table.backward_s

    @property
    def _update_s(self) -> float:
        return 0.0 if self._table is None else self._table.update_s

    @property
    def _input_s(self) -> float:
        """Of the next batch, from when computing with this one begins: a worker waits for what is not there yet."""
        return 0.0 if self._table is None else self._table.input_and_copy_s

    # Any jobs: tasks for every message.

    def _by_messages(self) -> Simulation:
        graph = TaskGraph(self._network)
        ends: list[list[int]] = []
        marks: list[tuple[list[int], list[int]]] = []
        for job in range(self._num_jobs):
            through: list[int] = [graph.work() for _ in self._jobs[job].names]
            ends.append([])
            for iteration in range(WARMUP + self._num_iterations):
                through, exchanged = self._add_iteration(graph, job, iteration, through)
                ends[-1].append(through[-1])
                if job == 0 and iteration == WARMUP:
                    marks = exchanged
                through = through[:-1]
        timeline = graph.run()
        iterations = [list(np.diff(timeline.arrived_s[of_job[WARMUP - 1 :]])) for of_job in ends]
        exchanged_s = [
            float(timeline.arrived_s[after].max() - timeline.arrived_s[before].max()) for before, after in marks
        ]
        return self._simulation(
            "messages", len(graph), iterations, exchanged_s, timeline.link_bytes, timeline.makespan_s
        )

    def _add_iteration(
        self, graph: TaskGraph, job: int, iteration: int, begins: list[int]
    ) -> tuple[list[int], list[tuple[list[int], list[int]]]]:
        """Each participant's last task, and one that joins those of the workers; and where each exchange lies."""
        factors, buckets = self._factors[job][iteration], self._buckets[job][iteration]
        exchanged = []
        free = begins
        ready_s = [*(bucket.ready_s for bucket in buckets), self._passes_s]
        computed = [
            self._computed(graph, begins[worker], factors[worker], ready_s) for worker in range(self._num_workers)
        ]
        looks: list[int] = []
        for number, bucket in enumerate(buckets):
            for position, each in enumerate(bucket.exchanges):
                entries = []
                for participant in range(len(begins)):
                    entry = graph.work()
                    graph.after(free[participant], entry)
                    if participant < self._num_workers:
                        graph.after(computed[participant][number], entry)
                    entries.append(entry)
                if bucket.after_cycle and position == 0:
                    self._pass_cycle(graph, looks, entries[: self._num_workers])
                    looks = entries
                free = self._add_exchange(graph, job, each, entries)
                exchanged.append((entries[: self._num_workers], free[: self._num_workers]))
        ends = []
        for participant in range(len(begins)):
            works = participant < self._num_workers
            end = graph.work(self._update_s * factors[participant] if works else 0.0)
            graph.after(free[participant], end)
            if works:
                graph.after(computed[participant][-1], end)
            if works and self._input_s:
                updated, end = end, graph.work()
                read = graph.work(self._input_s)
                graph.after(begins[participant], read)
                graph.after(read, end)
                graph.after(updated, end)
            ends.append(end)
        last = graph.work()
        for end in ends[: self._num_workers]:
            graph.after(end, last)
        return [*ends, last], exchanged

    def _computed(self, graph: TaskGraph, begin: int, factor: float, ready_s: Sequence[float]) -> list[int]:
        """A task that is done when each of these is there."""
        tasks = []
        for each_s in ready_s:
            tasks.append(graph.work(each_s * factor))
            graph.after(begin, tasks[-1])
        return tasks

    def _pass_cycle(self, graph: TaskGraph, looks: Sequence[int], entries: Sequence[int]) -> None:
        """Between a look of each worker at what is ready and the next one; the first waits for none."""
        for look, entry in zip(looks, entries, strict=False):
            cycle = graph.work(self._experiment.fusion.order(()).cycle_s)
            graph.after(look, cycle)
            graph.after(cycle, entry)

    def _add_exchange(self, graph: TaskGraph, job: int, exchange: Exchange, entries: list[int]) -> list[int]:
        chosen = self._chosen(exchange)
        aggregation = chosen.aggregation
        if aggregation is not None and _adds(chosen, exchange):
            return self._add_aggregation(graph, job, aggregation, exchange.num_elements, entries)
        return add_collective(
            graph,
            self._jobs[job],
            chosen,
            exchange.operation,
            self._world(job, chosen),
            exchange.num_elements,
            exchange.element_bytes,
            entries,
        )

    def _add_aggregation(
        self, graph: TaskGraph, job: int, collective: InNetwork, num_elements: int, entries: list[int]
    ) -> list[int]:
        """One transfer over all links of the tree, which all carry the same bytes at the same time, up and down; no
        faster than the job's slots let it be."""
        tree = aggregation_tree(self._network, self._jobs[job].names[: self._num_workers], collective.at)
        num_slots = min(collective.num_slots, MAX_SLOTS // self._num_jobs)
        stream = tree.stream(collective, num_elements, num_slots=num_slots)
        path = graph.add_path([*tree.links, graph.limit(stream.limit_bps)])
        task = graph.transfer(path, stream.wire_bytes, stream.latency_s + self._costs.message_s)
        through = []
        for entry in entries:
            graph.after(entry, task)
            done = graph.work()
            graph.after(task, done)
            through.append(done)
        return through

    def _simulation(
        self,
        method: Method,
        num_tasks: int,
        iterations: Sequence[Sequence[float]],
        exchanged_s: Sequence[float],
        link_bytes: Floats,
        until_s: float,
    ) -> Simulation:
        shares = 8 * link_bytes / (self._network.rates_bps * until_s) if until_s else np.zeros(len(link_bytes))
        shares[self._network.unshaped] = 0.0
        order = np.argsort(-shares, kind="stable")[:10]
        return Simulation(
            num_workers=self._num_workers,
            num_jobs=self._num_jobs,
            topology=self._experiment.topology.kind,
            method=method,
            num_tasks=num_tasks,
            iterations_s=tuple(tuple(map(float, each)) for each in iterations),
            compute_s=None if self._table is None else self._table.compute_s,
            alone_s=self._alone_s(iterations),
            exchanged_s=tuple(exchanged_s),
            busiest=tuple(
                LinkUse(
                    " -> ".join(self._network.hops[link]),
                    float(link_bytes[link]) / (WARMUP + self._num_iterations),
                    float(shares[link]),
                )
                for link in order
                if link_bytes[link]
            ),
            assumptions=(*self._experiment.topology.assumptions(), *self._left_out()),
        )

    def _alone_s(self, iterations: Sequence[Sequence[float]]) -> float | None:
        if self._table is None:
            return None
        slowest = max(range(self._num_jobs), key=lambda job: float(np.mean(iterations[job])))
        return alone_s(self._table.compute_s, self._factors[slowest][WARMUP:], input_s=self._input_s)

    def _left_out(self) -> Iterator[str]:
        if self._network.jitters_s.any() and any(_adds(self._chosen(each), each) for each in self._exchanges()):
            yield "jitter is not simulated where chunks are aggregated on their way"
        if self._experiment.fusion.joins_ready and self._num_jobs > 1:
            yield f"fusion {self._experiment.fusion.kind} joins what it would join where its job is alone"
        if self._experiment.fusion.steps_in_forward:
            yield (
                f"an iteration ends with its exchanges, as in no run with fusion {self._experiment.fusion.kind}: those "
                "go on in the next forward pass, so that its iterations are shorter"
            )


def _adds(collective: Collective, exchange: Exchange) -> bool:
    """Whether something on the way does the exchange."""
    return exchange.link_bytes(collective) is not None
