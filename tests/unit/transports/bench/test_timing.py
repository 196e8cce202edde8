import threading
import time

import pytest
import torch

from tests.threads import run_communicators
from transports.baselines.base import CommunicatorLike, WorkLike
from transports.bench import timing
from transports.bench.rows import TIMED_OPERATIONS, Sample
from transports.bench.stacks import parse_stack
from transports.bench.timing import Operands, allowed_error, timed
from transports.execution.communicator import Communicator, Work
from transports.execution.operations import ReduceOperation


@pytest.mark.parametrize("operation", TIMED_OPERATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_every_operation_gives_what_every_rank_expects(operation, dtype: torch.dtype) -> None:  # type: ignore[no-untyped-def]
    allowed = allowed_error(parse_stack("ring/tcp"), dtype=dtype, num_workers=3, num_elements=30)

    def measure(communicator: Communicator) -> list[Sample]:
        operands = Operands(operation, rank=communicator.rank, num_workers=3, num_elements=30, dtype=dtype)
        return list(timed({"a": communicator}, operands, allowed={"a": allowed}, num_warmup=1, num_samples=2))

    for rank, samples in enumerate(run_communicators(measure, 3)):
        assert [(sample.rank, sample.number) for sample in samples] == [(rank, 0), (rank, 1)]


def test_a_wrong_result_fails() -> None:
    def measure(communicator: Communicator) -> None:
        operands = Operands("all_reduce", rank=0, num_workers=2, num_elements=30)  # both give rank 0's values
        list(timed({"a": communicator}, operands, allowed={"a": 1e-6}, num_warmup=0, num_samples=1))

    for result in run_communicators(measure, 2):
        assert isinstance(result, ValueError)
        assert "a: the result of all_reduce of 120 bytes is wrong" in str(result)


def test_the_time_of_the_ring_that_stands_in_for_an_aggregator_is_no_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = {"lost": "the aggregator 10.0.0.9 (ebpf) is lost: epoch 7 has begun"}
    monkeypatch.setattr(Communicator, "reducer_statistics", lambda _: lost)

    def measure(communicator: Communicator) -> None:
        operands = Operands("all_reduce", rank=communicator.rank, num_workers=2, num_elements=30)
        list(timed({"a": communicator}, operands, allowed={"a": 1e-6}, num_warmup=0, num_samples=1))

    for result in run_communicators(measure, 2):
        assert isinstance(result, ValueError)
        assert str(result).startswith(f"a: {lost['lost']}")


@pytest.mark.parametrize(("lasting_s", "num_operations"), [(0.0, 3), (1000.0, 4)])
def test_a_turn_has_one_operation_more_than_is_timed_unless_they_last(
    lasting_s: float, num_operations: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "LASTING_S", lasting_s)

    class Counting(Operands):
        num_started = 0

        def start(self, communicator: CommunicatorLike) -> WorkLike:
            self.num_started += 1
            return super().start(communicator)

    def measure(communicator: Communicator) -> int:
        operands = Counting("all_reduce", rank=communicator.rank, num_workers=2, num_elements=30)
        assert len(list(timed({"a": communicator}, operands, allowed={"a": 1e-6}, num_warmup=1, num_samples=1))) == 1
        return operands.num_started

    assert run_communicators(measure, 2) == [num_operations, num_operations]


def test_links_rest_before_each_operation() -> None:
    """So that what a link lets pass at once does not depend on how quickly hosts have passed the barriers before."""

    def measure(communicator: Communicator) -> list[float]:
        operands = Operands("all_reduce", rank=communicator.rank, num_workers=2, num_elements=30)
        every = timed({"a": communicator}, operands, allowed={"a": 1e-6}, num_warmup=0, num_samples=4, rest_s=0.05)
        samples = list(every)
        ends_s = [sample.begun_s + sample.duration_s for sample in samples]
        return [after.begun_s - end_s for end_s, after in zip(ends_s, samples[1:], strict=False)]

    assert all(gap_s >= 2 * 0.05 for gaps_s in run_communicators(measure, 2) for gap_s in gaps_s)


def test_nobody_does_anything_else_before_all_are_done() -> None:
    """What a rank does after its operation would take the processor from those that are still at theirs."""
    order: list[str] = []

    class Slow(Communicator):
        def all_reduce(self, tensor: torch.Tensor, op: ReduceOperation = "sum") -> Work:
            work = super().all_reduce(tensor, op)
            if self.rank == 1:
                work.wait()
                time.sleep(0.05)
                order.append("done")
            return work

    class Checking(Operands):
        def error(self) -> float:
            order.append("checked")
            return super().error()

    def measure(communicator: Communicator) -> None:
        communicator.__class__ = Slow
        operands = Checking("all_reduce", rank=communicator.rank, num_workers=2, num_elements=30)
        assert len(list(timed({"a": communicator}, operands, allowed={"a": 1e-6}, num_warmup=0, num_samples=1))) == 1

    assert run_communicators(measure, 2) == [None, None]
    assert order == ["done", "done", "checked", "checked"]


class Clock(threading.local):
    """What `timed` uses of the module `time`, for each rank's thread: nothing but sleeping takes any of it. On a
    machine's own clock a thread may have to wait for a core for longer than any rank here is late."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    process_time = monotonic

    def sleep(self, time_s: float) -> None:
        self.now_s += time_s


@pytest.mark.parametrize(("latency_s", "together"), [(None, False), (1e-6, False), (30e-3, True)])
def test_ranks_that_leave_a_barrier_apart_begin_at_a_time_that_is_agreed_on(
    latency_s: float | None, together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(timing, "time", clock)
    begun_s = [0.0, 0.0]
    late_s = 20e-3

    class Far(Communicator):
        def barrier(self, timeout_s: float | None = None) -> Work:
            latest_s = torch.tensor([clock.now_s], dtype=torch.float64)
            self.all_reduce(latest_s, "max").wait()  # nobody leaves before the last has come
            clock.now_s = latest_s.item()
            if self.rank == 1:
                clock.sleep(late_s)  # the last message comes then
            return _Done()  # type: ignore[return-value]  # all that is used of it

    class Noting(Operands):
        def start(self, communicator: CommunicatorLike) -> WorkLike:
            begun_s[communicator.rank] = clock.monotonic()
            return super().start(communicator)

    def measure(communicator: Communicator) -> None:
        communicator.__class__ = Far
        operands = Noting("all_reduce", rank=communicator.rank, num_workers=2, num_elements=30)
        list(
            timed(
                {"a": communicator},
                operands,
                allowed={"a": 1e-6},
                num_warmup=0,
                num_samples=1,
                latency_s=latency_s,
            )
        )

    assert run_communicators(measure, 2) == [None, None]
    assert (abs(begun_s[0] - begun_s[1]) < late_s / 2) == together


class _Done:
    """Nothing to wait for."""

    def wait(self, timeout_s: float | None = None) -> None:
        pass


def test_what_a_compression_loses_is_allowed_and_no_more() -> None:
    def of(stack: str) -> float:
        return allowed_error(parse_stack(stack), dtype=torch.float32, num_workers=4, num_elements=1000)

    assert of("ring/tcp") < 1e-6
    assert of("in_network/ebpf") < 1e-6
    assert 5e-4 < of("in_network:payload=fp16/ebpf") < 1e-2 < of("in_network:payload=int8/ebpf") < 0.2
    assert of("ring/tcp/top_k") == float("inf") > of("ring/tcp/top_k:error_feedback=false")
    assert 4 * 2**-11 <= of("ring/tcp/fp16") < 5 * 2**-11
