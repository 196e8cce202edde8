"""Sums by a real aggregator on loopback, and what happens when it is lost."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from switch_agg.dataplanes.reference import ReferenceDataPlane
from switch_agg.job import Job
from switch_agg.wire import PORTS
from tests.loopback import own_address
from tests.threads import groups, run_threads
from transports.channels.base import CHANNELS
from transports.channels.framing import DTYPE_BYTES
from transports.collectives._switch_reducer import SwitchReducer
from transports.collectives.base import COLLECTIVES, COUNT_BYTES
from transports.collectives.in_network import LOST_VARIABLE
from transports.errors import OptionError, TransportError
from transports.execution.communicator import Communicator
from transports.execution.executor import Program
from transports.group import Group

AGGREGATOR = own_address(0)
SIZE = 3
HOSTS = tuple(own_address(rank + 1) for rank in range(SIZE))
TIMEOUT_S = 20.0


@pytest.fixture
def plane() -> Iterator[ReferenceDataPlane]:
    made = ReferenceDataPlane((AGGREGATOR, PORTS.start), generation=1)
    made.configure(Job(workers=HOSTS))
    yield made
    made.close()


def run(function: Callable[[Communicator], Any], *, timeout_s: float = TIMEOUT_S) -> list[Any]:
    collective = COLLECTIVES.parse({"kind": "in_network", "dataplane": "reference", "aggregator": AGGREGATOR})

    def life(group: Group) -> Any:
        with closing(Communicator(collective, CHANNELS.parse("memory"), group)) as communicator:
            return function(communicator)

    members = [replace(group, address=HOSTS[group.rank]) for group in groups(SIZE, timeout_s=timeout_s)]
    return run_threads(life, members)


def lose_it_soon(communicator: Communicator) -> None:
    """The aggregator is dead: a second of silence says so from now on. Before, threads of a busy machine may be silent
    for as long, with nobody dead."""
    reducer = communicator._transport.reducer
    assert isinstance(reducer, SwitchReducer)
    carried = reducer._client._carried
    assert carried.max_silence_s == pytest.approx(TIMEOUT_S / 3), "the rest of the timeout is for going on without it"
    carried.max_silence_s = 1.0


def own(rank: int, number: int = 0, count: int = 1000) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(100 * number + rank))


def exact(number: int = 0, count: int = 1000) -> torch.Tensor:
    return torch.stack([own(rank, number, count).double() for rank in range(SIZE)]).sum(dim=0)


def test_floats_are_summed_by_the_switch_and_all_have_the_same_bits(plane: ReferenceDataPlane) -> None:
    def body(communicator: Communicator) -> tuple[list[torch.Tensor], dict[str, Any]]:
        sums = [own(communicator.rank, number) for number in range(3)]
        for values in sums:
            communicator.all_reduce(values).wait()
        averages = own(communicator.rank).to(torch.bfloat16)
        communicator.all_reduce(averages, "avg").wait()
        return [*sums, averages], communicator.reducer_statistics() or {}

    results = run(body)
    for number in range(3):
        assert all(torch.equal(tensors[number], results[0][0][number]) for tensors, _ in results)
        assert torch.allclose(results[0][0][number].double(), exact(number), atol=1e-6)
    assert torch.allclose(results[0][0][3].double(), exact() / SIZE, atol=0.02)
    counters = plane.counters()
    assert counters.violations(plane.in_flight()) == []
    assert counters.done == 4 * 4 + results[0][1]["repeated"]
    assert all(statistics["lost"] is None for _, statistics in results)


def test_an_aggregator_is_found_by_its_name() -> None:
    made = ReferenceDataPlane(("127.0.0.1", PORTS.start), generation=1)
    made.configure(Job(workers=HOSTS))
    collective = COLLECTIVES.parse({"kind": "in_network", "dataplane": "reference", "aggregator": "localhost"})

    def life(group: Group) -> torch.Tensor:
        with closing(Communicator(collective, CHANNELS.parse("memory"), group)) as communicator:
            values = own(communicator.rank)
            communicator.all_reduce(values).wait()
            return values

    with closing(made):
        members = [replace(group, address=HOSTS[group.rank]) for group in groups(SIZE, timeout_s=TIMEOUT_S)]
        sums = run_threads(life, members)
    assert all(torch.allclose(values.double(), exact(), atol=1e-6) for values in sums)
    assert made.counters().rx > 0


def test_members_that_are_no_job_of_a_switch_are_refused_in_words() -> None:
    collective = COLLECTIVES.parse({"kind": "in_network", "dataplane": "reference", "aggregator": AGGREGATOR})

    def life(group: Group) -> str:
        with pytest.raises(OptionError) as refused:
            Communicator(collective, CHANNELS.parse("memory"), group)
        return str(refused.value)

    members = [replace(group, address=HOSTS[0]) for group in groups(SIZE, timeout_s=TIMEOUT_S)]
    assert all("the ranks of this group are no job of a switch: workers" in text for text in run_threads(life, members))


def test_who_cannot_join_leaves_no_socket_behind() -> None:
    collective = COLLECTIVES.parse({"kind": "in_network", "dataplane": "reference", "aggregator": AGGREGATOR})
    for _ in range(2):  # on the same port, which is the first one's own as long as it is open

        def life(group: Group) -> str:
            with pytest.raises(TransportError) as refused:
                Communicator(collective, CHANNELS.parse("memory"), group)
            return str(refused.value)

        members = [replace(group, address=HOSTS[group.rank]) for group in groups(SIZE, timeout_s=1.0)]
        assert all("cannot be joined" in text and "in use" not in text for text in run_threads(life, members))


def test_everything_else_goes_around_the_ring(plane: ReferenceDataPlane) -> None:
    def body(communicator: Communicator) -> list[Any]:
        greatest, whole = own(communicator.rank), torch.tensor([communicator.rank + 1])
        communicator.all_reduce(greatest, "max").wait()
        communicator.all_reduce(whole).wait()
        communicator.barrier().wait()
        return [greatest, int(whole)]

    for greatest, whole in run(body):
        assert torch.equal(greatest, torch.stack([own(rank) for rank in range(SIZE)]).amax(dim=0))
        assert whole == 6
    assert plane.counters().rx == 0


def test_what_comes_after_a_sum_waits_for_one_message_from_everybody(plane: ReferenceDataPlane) -> None:
    """Around the ring it would be SIZE - 1, one after the other."""

    def body(communicator: Communicator) -> list[tuple[str, int]]:
        executor = communicator._transport._executor
        run_program, done = executor.run, list[tuple[str, int]]()

        def noted(program: Program, *arguments: Any, **keys: Any) -> Any:
            exchange = program.exchange
            done.append((exchange.operation, exchange.num_elements * DTYPE_BYTES[exchange.dtype]))
            return run_program(program, *arguments, **keys)

        executor.run = noted  # type: ignore[method-assign]
        for _ in range(2):
            communicator.all_reduce(own(communicator.rank)).wait()
        for _ in range(2):
            communicator.barrier().wait()
        return done

    for done in run(body):
        assert done == [("all_to_all", SIZE * COUNT_BYTES), ("barrier", 1), ("barrier", 1)]


def test_a_bucket_is_known_again_in_the_next_iteration(plane: ReferenceDataPlane) -> None:
    def body(communicator: Communicator) -> list[int]:
        repeated = []
        for _ in range(6):
            for count in (3000, 1000, 2000):
                communicator.all_reduce(own(communicator.rank, count, count)).wait()
            repeated.append((communicator.reducer_statistics() or {})["repeated"])
        return repeated

    for repeated in run(body):
        assert repeated[0] > 0, "nothing is known of the first iteration's exponents"
        assert repeated[-1] == repeated[2]


def test_without_an_aggregator_joining_says_where_none_is() -> None:
    errors = run(lambda _: None, timeout_s=3.0)
    assert all(isinstance(error, TransportError) and AGGREGATOR in str(error) for error in errors)


def test_when_the_aggregator_is_lost_the_ring_goes_on_with_the_same_bits(plane: ReferenceDataPlane) -> None:
    dead = threading.Barrier(SIZE, action=plane.close)

    def body(communicator: Communicator) -> tuple[list[torch.Tensor], str]:
        tensors = [own(communicator.rank, number) for number in range(4)]
        for number, values in enumerate(tensors):
            if number == 2:
                dead.wait()
                lose_it_soon(communicator)
            communicator.all_reduce(values).wait()
        communicator.barrier().wait()
        return tensors, (communicator.reducer_statistics() or {})["lost"]

    results = run(body)
    for number in range(4):
        assert all(torch.equal(tensors[number], results[0][0][number]) for tensors, _ in results)
        assert torch.allclose(results[0][0][number].double(), exact(number), atol=1e-5)
    assert all(AGGREGATOR in lost for _, lost in results)


@pytest.mark.parametrize("restarts", [False, True], ids=["reset", "restarted"])
def test_when_the_aggregator_forgets_everything_in_mid_run_the_ring_goes_on(restarts: bool) -> None:
    planes = [ReferenceDataPlane((AGGREGATOR, PORTS.start), generation=1)]
    planes[0].configure(Job(workers=HOSTS))

    def forget() -> None:
        if not restarts:
            planes[0].reset(0)
            return
        planes[0].close()
        planes[0] = ReferenceDataPlane((AGGREGATOR, PORTS.start), generation=2)
        planes[0].configure(Job(workers=HOSTS))

    forgotten = threading.Barrier(SIZE, action=forget)

    def body(communicator: Communicator) -> tuple[list[torch.Tensor], str]:
        tensors = [own(communicator.rank, number) for number in range(4)]
        for number, values in enumerate(tensors):
            if number == 2:
                forgotten.wait()
            communicator.all_reduce(values).wait()
        return tensors, (communicator.reducer_statistics() or {})["lost"]

    try:
        results = run(body)  # the word of another epoch is enough: nobody waits for silence
    finally:
        planes[0].close()
    for number in range(4):
        assert all(torch.equal(tensors[number], results[0][0][number]) for tensors, _ in results)
        assert torch.allclose(results[0][0][number].double(), exact(number), atol=1e-5)
    assert all("epoch" in lost for _, lost in results)


def test_when_a_worker_is_gone_the_others_end_with_its_name_and_no_sum(plane: ReferenceDataPlane) -> None:
    def body(communicator: Communicator) -> str:
        if communicator.rank == 2:
            return "gone"
        values = own(communicator.rank)
        with pytest.raises(TransportError) as caught:
            communicator.all_reduce(values).wait(20)
        assert torch.equal(values, own(communicator.rank)), "half a sum"
        return str(caught.value)

    said = run(body, timeout_s=2.0)
    assert any("rank 2" in each for each in said[:2]), said
    assert plane.counters().done == 0
    assert plane.counters().violations(plane.in_flight()) == []


@pytest.mark.parametrize("file", ["there", "gone"])
def test_each_member_says_once_in_the_environment_s_file_why_it_lost_the_switch(
    plane: ReferenceDataPlane, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lost"
    monkeypatch.setenv(LOST_VARIABLE, str(path))
    if file == "there":
        path.touch()

    def reset() -> None:
        plane.reset(0)

    about_to_lose = threading.Barrier(SIZE, action=reset)

    def body(communicator: Communicator) -> str:
        communicator.all_reduce(own(communicator.rank)).wait()
        about_to_lose.wait()
        for number in range(2):
            communicator.all_reduce(own(communicator.rank, number)).wait()
        return (communicator.reducer_statistics() or {})["lost"]

    lost = run(body)
    assert all("epoch" in reason for reason in lost)
    assert path.exists() == (file == "there"), "nobody waits for it"
    if file == "there":
        assert sorted(path.read_text().splitlines()) == sorted(lost)


def test_a_reduction_that_the_member_s_own_closing_ends_is_no_lost_switch(
    plane: ReferenceDataPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lost"
    path.touch()
    monkeypatch.setenv(LOST_VARIABLE, str(path))

    def body(communicator: Communicator) -> bool:
        reducer = communicator._transport.reducer
        assert reducer is not None
        if communicator.rank > 0:
            return False
        reducer.cancel()
        return reducer.all_reduce(own(0))  # to which the others never contribute

    assert run(body) == [False] * SIZE
    assert plane.counters().done == 0
    assert path.read_text() == ""


@pytest.mark.parametrize("ahead", [(0,), (1, 2)])
def test_whoever_is_ahead_hands_the_last_sum_on(plane: ReferenceDataPlane, ahead: tuple[int, ...]) -> None:
    """The aggregator dies after some have the sum of the second reduction and others have not."""
    held = threading.Barrier(SIZE, action=plane.close)

    def body(communicator: Communicator) -> list[torch.Tensor]:
        tensors = [own(communicator.rank, number) for number in range(4)]
        communicator.all_reduce(tensors[0]).wait()
        if communicator.rank not in ahead:
            reducer = communicator._transport.reducer
            assert isinstance(reducer, SwitchReducer)
            reduce = reducer._client.all_reduce

            def lose_the_result(name: str, values: Any) -> Any:
                reduce(name, values)
                held.wait()
                lose_it_soon(communicator)
                return reduce(name, values)  # of an aggregator that is dead

            reducer._client.all_reduce = lose_the_result  # type: ignore[method-assign]
        communicator.all_reduce(tensors[1]).wait()
        communicator.all_reduce(torch.empty(0)).wait()  # a sum of nothing lets nobody get further ahead
        if communicator.rank in ahead:
            held.wait()
            lose_it_soon(communicator)
        for values in tensors[2:]:
            communicator.all_reduce(values).wait()
        return tensors

    results = run(body)
    for number in range(4):
        assert all(torch.equal(tensors[number], results[0][number]) for tensors in results)
        assert torch.allclose(results[0][number].double(), exact(number), atol=1e-5)


def test_where_partial_sums_let_some_get_further_ahead_the_loss_ends_the_run(plane: ReferenceDataPlane) -> None:
    def body(communicator: Communicator) -> str:
        reducer = communicator._transport.reducer
        assert reducer is not None
        communicator.all_reduce(own(communicator.rank)).wait()
        with pytest.raises(TransportError) as caught:
            reducer.settle(lambda count: [count, count + 2, count], lambda values, root: None)
        return str(caught.value)

    assert all("2 reductions ahead of the slowest" in said and "partial_after" in said for said in run(body))
    assert plane.counters().violations(plane.in_flight()) == []


def test_closing_ends_a_reduction_that_waits_for_others(plane: ReferenceDataPlane) -> None:
    def body(communicator: Communicator) -> str:
        if communicator.rank > 0:
            return ""
        work = communicator.all_reduce(own(0))
        communicator.close()
        with pytest.raises(TransportError):
            work.wait(5)
        return "ended"

    assert run(body)[0] == "ended"
    assert plane.counters().violations(plane.in_flight()) == []
