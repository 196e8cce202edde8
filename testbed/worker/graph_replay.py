"""A worker that replays its part of a graph: computing is time that passes, exchanges are real.

One thread starts whatever the graph lets start and waits for whatever ends next. What is computed ends when it is due:
each part begins where the one before it ended, or what it waited for, whatever the host did meanwhile; by how much the
host was late is counted.
"""

import json
import queue
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist

from testbed.control import control_pb2
from testbed.control.worker import WorkerConfiguration, WorkerControl, WorkerResult
from testbed.experiment.clock import Clock
from testbed.experiment.slowdowns.base import SLOWDOWNS, iteration_random
from testbed.experiment.workloads.replay import GraphReplay
from testbed.system.kernel import return_free_memory
from testbed.traces.graph import Collective, Compute, Exchange, Graph, Node, Receive, Send
from testbed.traces.progress import Progress
from testbed.worker.contents import Contents
from testbed.worker.run_queue import RunQueueClock, threads
from testbed.worker.trainer import process_group_of
from transports.channels.base import CHANNELS, PeerStatistics
from transports.execution.communicator import Communicator, Work
from transports.torch_backend.process_group import TestbedProcessGroup


def work(options: GraphReplay, configuration: WorkerConfiguration, control: WorkerControl) -> None:
    """Warm up, measure, report. Raises what a communicator raises when a peer is lost."""
    torch.set_num_threads(1)
    graph, timeout_s = options.graph(), Clock(configuration.dilation).real_s(configuration.timeout_s)
    computing = threads(without=CHANNELS.parse(configuration.channel).shared_threads)
    with process_group_of(configuration, timeout_s, lambda _: None) as world:
        members = _communicators(graph, world, timedelta(seconds=timeout_s))
        replayer = _Replayer(graph, configuration, members, RunQueueClock(computing))
        control.report(control_pb2.Event(computing=control_pb2.Threads(ids=sorted(computing))))
        return_free_memory()
        control.barrier("warmup")
        replayer.run("warmup", options.warmup, control)
        control.barrier("measure")
        before = replayer.statistics()
        replayer.run("measured", options.iterations, control)
        control.barrier("done")
        if CHANNELS.parse(configuration.channel).counts_itself:
            found = WorkerResult.dump(None, (before, replayer.statistics()))
            control.report(control_pb2.Event(result=control_pb2.Result(json=json.dumps(found))))
    control.report(control_pb2.Event(finished=control_pb2.Finished()))


class _Member(NamedTuple):
    """This rank in a group."""

    communicator: Communicator
    ranks: Sequence[int]
    """The group's members."""


def _communicators(graph: Graph, world: dist.ProcessGroup, timeout: timedelta) -> dict[str | None, _Member]:
    """By the name of the group; None: of all ranks, over which messages go."""
    everybody = tuple(range(graph.num_ranks))
    own = dist.get_rank()
    found: dict[str | None, _Member] = {None: _member(world, everybody)}
    for name, ranks in graph.groups.items():
        group = world if name == graph.first_group_of_all else dist.new_group(list(ranks), timeout=timeout)
        if own in ranks:
            assert isinstance(group, dist.ProcessGroup), "torch gives members a group"
            found[name] = _member(group, ranks)
    return found


def _member(group: dist.ProcessGroup, ranks: Sequence[int]) -> _Member:
    assert isinstance(group, TestbedProcessGroup), "a graph is not replayed over others"
    assert isinstance(group.communicator, Communicator), "nor over a baseline library"
    return _Member(group.communicator, ranks)


class _Ended(NamedTuple):
    """An exchange, on its thread."""

    number: int
    at_s: float
    error: BaseException | None


class _Started(NamedTuple):
    """An exchange that goes on."""

    at_s: float
    buffers: Sequence[torch.Tensor]
    """To be given back."""


class _Computing(NamedTuple):
    """What the device is busy with."""

    number: int
    due_s: float


class _Replayer:
    """One rank's iterations, one after the other."""

    def __init__(
        self,
        graph: Graph,
        configuration: WorkerConfiguration,
        members: dict[str | None, _Member],
        run_queue: RunQueueClock,
    ) -> None:
        self._graph = graph
        self._configuration = configuration
        self._rank = configuration.rank
        self._nodes: Sequence[Node] = graph.ranks[configuration.rank]
        self._members = members
        self._run_queue = run_queue
        self._clock = Clock(configuration.dilation)
        slowdown = configuration.slowdown
        self._slowdown = None if slowdown is None else SLOWDOWNS.parse(slowdown)
        self._sequence = {place: number for number, match in enumerate(graph.matches) for place in match}
        self._received = {
            place[1]: [graph.num_given(other, place[0]) for other in match]
            for match in graph.matches
            for place in match
            if place[0] == self._rank
        }
        largest: dict[str, int] = {}
        for node in self._nodes:
            if not isinstance(node, Compute):
                largest[node.element_type] = max(largest.get(node.element_type, 0), node.num_elements)
        seed = configuration.seed * configuration.num_workers + configuration.rank
        self._contents = Contents(seed, largest)
        self._ended: queue.SimpleQueue[_Ended] = queue.SimpleQueue()

    def statistics(self) -> dict[int, PeerStatistics]:
        """Of all groups together, by worker."""
        found: dict[int, PeerStatistics] = {}
        for member in {id(each.communicator): each for each in self._members.values()}.values():
            for place, counts in member.communicator.statistics().items():
                rank = member.ranks[place]
                found[rank] = found[rank] + counts if rank in found else counts
        return found

    def run(self, phase: str, num_iterations: int, control: WorkerControl) -> None:
        """A phase's; each begins where the one before has ended."""
        start_s = time.monotonic()
        for index in range(num_iterations):
            iteration = _Iteration(self, start_s, self._factor(phase, index)).run()
            iteration.phase, iteration.index = phase, index
            start_s = iteration.end_s
            control.report(control_pb2.Event(iteration=iteration))

    def _factor(self, phase: str, index: int) -> float:
        """How many times as long this worker's computing takes in that iteration."""
        if self._slowdown is None:
            return 1.0
        seed = self._configuration.seed
        return self._slowdown.draw(iteration_random(seed=seed, rank=self._rank, phase=phase, index=index))

    # What an iteration needs.

    @property
    def nodes(self) -> Sequence[Node]:
        """This rank's."""
        return self._nodes

    def real_s(self, virtual_s: float) -> float:
        """On the wall."""
        return self._clock.real_s(virtual_s)

    def lap(self) -> tuple[float, float]:
        """The run-queue delay since the last one: of all threads, and of those that move data."""
        delay = self._run_queue.lap()
        return delay.total_s, delay.communication_s

    def start(self, number: int) -> _Started:
        """Start an exchange; its end comes to :meth:`next_ended`."""
        node = self._nodes[number]
        assert not isinstance(node, Compute), "the device computes"
        buffers: list[torch.Tensor] = []
        started = _Started(time.monotonic(), buffers)
        work = self._post(number, node, buffers)
        work.add_end_callback(lambda error: self._ended.put(_Ended(number, time.monotonic(), error)))
        work.proceed(waiting=False)  # nobody waits for it: it would lie there for as long as somebody may
        return started

    def give_back(self, started: _Started) -> None:
        """An exchange has ended."""
        for buffer in started.buffers:
            self._contents.give_back(buffer)

    def next_ended(self, timeout_s: float | None) -> _Ended | None:
        """The next exchange to end; None: none within that time."""
        try:
            return self._ended.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def bucket(self, number: int, started: _Started, done_s: float) -> control_pb2.Bucket:
        """The account of an exchange; whoever took part has the same sequence."""
        node = self._nodes[number]
        assert not isinstance(node, Compute), "the device computes"
        return control_pb2.Bucket(
            sequence=self._sequence[self._rank, number],
            size_bytes=node.size_bytes,
            payload_bytes=node.size_bytes,
            enqueued_s=started.at_s,
            started_s=started.at_s,
            first_byte_s=started.at_s,
            done_s=done_s,
        )

    def _post(self, number: int, node: Exchange, buffers: list[torch.Tensor]) -> Work:
        if isinstance(node, Collective):
            return self._post_collective(number, node, buffers)
        communicator = self._members[None].communicator
        if isinstance(node, Send):
            return communicator.send(self._contents.take(node.element_type, node.num_elements), node.peer, node.tag)
        return communicator.receive(self._buffer(node, node.num_elements, buffers), node.peer, node.tag)

    def _buffer(self, node: Collective | Receive, count: int, buffers: list[torch.Tensor]) -> torch.Tensor:
        buffers.append(self._contents.buffer(node.element_type, count))
        return buffers[-1]

    def _post_collective(self, number: int, node: Collective, buffers: list[torch.Tensor]) -> Work:
        communicator, ranks = self._members[node.group]
        count, part = node.num_elements, node.num_elements // len(ranks)

        def given(length: int) -> torch.Tensor:
            return self._contents.take(node.element_type, length)

        def room(length: int) -> torch.Tensor:
            return self._buffer(node, length, buffers)

        root = 0 if node.root is None else ranks.index(node.root)
        is_root = node.root == self._rank
        operations: dict[str, Callable[[], Work]] = {
            "all_reduce": lambda: communicator.all_reduce(room(count).copy_(given(count))),
            "reduce": lambda: communicator.reduce(room(count).copy_(given(count)), root),
            "broadcast": lambda: communicator.broadcast(
                room(count).copy_(given(count)) if is_root else room(count), root
            ),
            "all_gather": lambda: communicator.all_gather(room(count), given(part)),
            "reduce_scatter": lambda: communicator.reduce_scatter(room(part), given(count)),
            "gather": lambda: communicator.gather(room(count) if is_root else None, given(part), root),
            "scatter": lambda: communicator.scatter(room(part), given(count) if is_root else None, root),
            "all_to_all": lambda: self._all_to_all(communicator, number, node, given, room),
            "barrier": communicator.barrier,
        }
        return operations[node.operation]()

    def _all_to_all(
        self,
        communicator: Communicator,
        number: int,
        node: Collective,
        given: Callable[[int], torch.Tensor],
        room: Callable[[int], torch.Tensor],
    ) -> Work:
        received = self._received[number]
        sent = node.splits or [node.num_elements // len(received)] * len(received)
        inputs = torch.split(given(node.num_elements), list(sent))
        outputs = torch.split(room(sum(received)), received)
        return communicator.all_to_all(outputs, inputs)


class _Iteration:
    """One iteration of one rank, under way."""

    def __init__(self, replayer: _Replayer, start_s: float, factor: float) -> None:
        self._replayer = replayer
        self._start_s = start_s
        self._factor = factor
        self._progress = Progress(replayer.nodes, start_s)
        self._free_s = start_s
        """When the device has done what it has begun."""
        self._end_s = start_s
        self._busy_s = self._overrun_s = 0.0
        self._stall_s = 0.0
        """How long it had nothing to do before what it began; added up, as a difference of times is never exactly 0."""
        self._started: dict[int, _Started] = {}
        self._buckets: list[control_pb2.Bucket] = []

    def run(self) -> control_pb2.Iteration:
        """Its account, without phase and index. Raises what an exchange has failed with."""
        cpu_before_s = time.process_time()
        computing: _Computing | None = None
        while not self._progress.finished:
            while (number := self._progress.next_exchange()) is not None:
                self._started[number] = self._replayer.start(number)
            computing = computing or self._compute()
            left_s = None if computing is None else computing.due_s - time.monotonic()
            if computing is not None and left_s is not None and left_s <= 0:
                self._overrun_s = max(self._overrun_s, -left_s)
                self._progress.ended(*computing)
                computing = None
            elif (ended := self._replayer.next_ended(left_s)) is not None:
                self._exchanged(ended)
        return self._account(time.process_time() - cpu_before_s)

    def _compute(self) -> _Computing | None:
        """Begin what the device computes next, if anything is ready."""
        ready = self._progress.next_compute()
        if ready is None:
            return None
        node = self._replayer.nodes[ready.number]
        assert isinstance(node, Compute), "the device computes"
        duration_s = self._factor * self._replayer.real_s(node.duration_s)
        self._busy_s += duration_s
        self._stall_s += max(0.0, ready.since_s - self._free_s)
        self._free_s = max(self._free_s, ready.since_s) + duration_s
        self._end_s = max(self._end_s, self._free_s)
        return _Computing(ready.number, self._free_s)

    def _exchanged(self, ended: _Ended) -> None:
        if ended.error is not None:
            raise ended.error
        started = self._started.pop(ended.number)
        self._replayer.give_back(started)
        self._buckets.append(self._replayer.bucket(ended.number, started, ended.at_s))
        self._end_s = max(self._end_s, ended.at_s)
        self._progress.ended(ended.number, ended.at_s)

    def _account(self, cpu_s: float) -> control_pb2.Iteration:
        """What the device waited for between its first and its last computing counts as a stall of the forward pass:
        communication that nothing hides."""
        delay_s, communication_delay_s = self._replayer.lap()
        return control_pb2.Iteration(
            start_s=self._start_s,
            data_end_s=self._start_s,
            host_to_device_end_s=self._start_s,
            forward_end_s=self._free_s,
            backward_compute_end_s=self._free_s,
            backward_end_s=self._end_s,
            optimizer_end_s=self._end_s,
            end_s=self._end_s,
            loss=float("nan"),
            cpu_s=cpu_s,
            run_queue_delay_s=delay_s,
            communication_run_queue_delay_s=communication_delay_s,
            slowdown=self._factor,
            forward_stall_s=self._stall_s,
            pace_s=self._busy_s,
            overrun_s=self._overrun_s,
            buckets=self._buckets,
        )
