"""Workers that train or replay over real sockets on loopback, in processes of their own; only the control plane is left
out."""

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from testbed.control.worker import WorkerConfiguration, WorkerControl
from testbed.experiment.experiment import validate
from testbed.experiment.workloads.base import WORKLOADS, AgentWorkload
from testbed.plan.plan import make_plan
from testbed.worker.agent import work_of
from tests.ranks import ADDRESS, Rank, run_ranks

if TYPE_CHECKING:
    from testbed.control.control_pb2 import Event


class Listener(WorkerControl):
    """Keeps what a worker reports; barriers go through files in the store's directory."""

    def __init__(self, rank: Rank) -> None:
        from torch._C._distributed_c10d import FileStore

        self._rank = rank
        self._store = FileStore(rank.store_path + ".barriers", rank.size)
        self.barriers: list[str] = []
        self.events: list[Event] = []

    def barrier(self, name: str) -> None:
        self.barriers.append(name)
        if self._store.add(name, 1) == self._rank.size:
            self._store.set(f"{name} complete", "")
        self._store.wait([f"{name} complete"])

    def report(self, event: object) -> None:
        self.events.append(copy.deepcopy(event))  # type: ignore[arg-type]


class Worker:
    """One worker's account, as the coordinator would read it."""

    def __init__(self, value: dict[str, Any]) -> None:
        from testbed.control.control_pb2 import Finished, Iteration

        self.barriers: list[str] = value["barriers"]
        self.iterations = [Iteration.FromString(item) for item in value["iterations"]]
        self.finished = Finished.FromString(value["finished"])

    def phase(self, name: str) -> "Sequence[Any]":
        return [iteration for iteration in self.iterations if iteration.phase == name]

    def losses(self) -> list[float]:
        return [iteration.loss for iteration in self.iterations if iteration.phase in ("warmup", "measured")]


def account(control: Listener) -> dict[str, Any]:
    """What the listener heard, in a form that passes between processes."""
    iterations = [event.iteration for event in control.events if event.HasField("iteration")]
    (finished,) = (event.finished for event in control.events if event.HasField("finished"))
    return {
        "barriers": control.barriers,
        "iterations": [iteration.SerializeToString() for iteration in iterations],
        "finished": finished.SerializeToString(),
    }


def trained(spec: Mapping[str, Any], num_workers: int = 2, *, dilation: float = 1.0) -> list[Worker]:
    """Each worker's account of a run of the spec."""
    outcomes = run_ranks(_work, num_workers, {"name": "x", "workers": num_workers, **spec}, dilation)
    return [Worker(outcome.value) for outcome in outcomes]


def _work(rank: Rank, spec: dict[str, Any], dilation: float) -> dict[str, Any]:
    experiment = validate(spec)
    plan, dump, control = make_plan(experiment), experiment.dump(), Listener(rank)
    configuration = WorkerConfiguration(
        run_id="test",
        rank=rank.rank,
        num_workers=rank.size,
        host=f"w{rank.rank}",
        interface="lo",
        address=ADDRESS,
        seed=experiment.seed,
        workload=dump["workload"],
        collective=dump["collective"],
        channel=dump["channel"],
        compression=dump["compression"],
        stack=dump["stack"],
        fusion=experiment.fusion,
        synchronisation=experiment.synchronisation,
        buckets=plan.buckets,
        dilation=dilation,
        timeout_s=30.0,
        store_path=rank.store_path,
        num_threads=1,
    )
    workload = WORKLOADS.parse(configuration.workload)
    assert isinstance(workload, AgentWorkload)
    work_of(workload)(workload, configuration, control)
    return account(control)
