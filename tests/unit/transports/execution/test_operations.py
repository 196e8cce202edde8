"""Where the memory of what is exchanged lies."""

import pytest
import torch

from tests.threads import run_communicators
from transports.execution.communicator import Communicator
from transports.execution.operations import _in_a_row

LAYOUTS = ("in a row", "backwards", "strided", "apart")


def _parts(way: str, lengths: list[int], rank: int) -> list[torch.Tensor]:
    whole = torch.arange(sum(lengths), dtype=torch.float32) + 100 * rank
    if way == "in a row":
        return list(whole.split(lengths))
    if way == "backwards":
        return list(whole.split(lengths[::-1]))[::-1]
    if way == "strided":
        return list(torch.stack([whole, whole], dim=1)[:, 0].split(lengths))
    return [part.clone() for part in whole.split(lengths)]


@pytest.mark.parametrize("sent", LAYOUTS)
@pytest.mark.parametrize("received", LAYOUTS)
@pytest.mark.parametrize("lengths", [[2, 2, 2], [3, 0, 1]], ids=str)
def test_parts_are_exchanged_wherever_they_lie(sent: str, received: str, lengths: list[int]) -> None:
    """Each rank sends rank p `lengths[p]` elements, so that what comes to it is of one length."""

    def exchange(communicator: Communicator) -> list[list[float]]:
        inputs = _parts(sent, lengths, communicator.rank)
        outputs = _parts(received, [lengths[communicator.rank]] * 3, -1)
        communicator.all_to_all(outputs, inputs).wait(20)
        return [each.tolist() for each in outputs]

    for rank, found in enumerate(run_communicators(exchange, 3)):
        assert found == [_parts(sent, lengths, peer)[rank].tolist() for peer in range(3)]


@pytest.mark.parametrize("way", LAYOUTS)
def test_parts_are_exchanged_in_place(way: str) -> None:
    """What arrives first does not go out again."""

    def exchange(communicator: Communicator) -> list[list[float]]:
        parts = _parts(way, [1000] * 3, communicator.rank)
        communicator.all_to_all(parts, parts).wait(20)
        return [each.tolist() for each in parts]

    for rank, found in enumerate(run_communicators(exchange, 3)):
        assert found == [_parts(way, [1000] * 3, peer)[rank].tolist() for peer in range(3)]


@pytest.mark.parametrize("way", LAYOUTS)
def test_rows_of_one_memory_are_not_copied(way: str) -> None:
    parts = _parts(way, [2, 3, 1], 0)
    joined = _in_a_row(parts)
    assert joined.tolist() == [value for part in parts for value in part.tolist()]
    shared = joined.untyped_storage().data_ptr() == parts[0].untyped_storage().data_ptr()
    assert shared == (way == "in a row")
