"""Items and rules of the orders: a gradient is cut without loss, and the rule takes what is ready."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transports.torch_backend.ordering import Grouped, Item, Order, Priority, Timed, layer_counts, layers_of

LAYERS = st.lists(st.integers(1, 10_000), min_size=1, max_size=20)


def test_a_layer_is_a_matrix_and_the_vectors_behind_it() -> None:
    shapes = [(8, 1, 3, 3), (8,), (8,), (8, 8, 3, 3), (8,), (10, 8)]
    assert layers_of(shapes) == ((0, 3), (3, 5), (5, 6))
    assert layer_counts(shapes) == (72 + 8 + 8, 576 + 8, 80)
    assert layers_of([]) == ()


def test_vectors_in_front_are_a_layer_of_their_own() -> None:
    assert layers_of([(4,), (4,), (2, 4)]) == ((0, 2), (2, 3))


@given(LAYERS, st.integers(1, 50_000))
def test_priority_cuts_layers_into_parts_that_are_small_enough(layers: list[int], partition_bytes: int) -> None:
    items = Priority(partition_bytes=partition_bytes).items(layers)
    assert _is_whole(items, sum(layers))
    assert all(4 * item.num_elements <= max(4, partition_bytes) for item in items)
    ends = {item.stop for item in items}
    assert all(sum(layers[: number + 1]) in ends for number in range(len(layers))), "no part is of two layers"


@given(LAYERS, st.integers(1, 100_000), st.data())
def test_what_is_ready_is_sent_once_and_joined_up_to_the_size(
    layers: list[int], bucket_bytes: int, data: st.DataObject
) -> None:
    order = Timed(bucket_bytes=bucket_bytes, cycle_s=0.005)
    items = order.items(layers)
    ready = sorted(data.draw(st.sets(st.integers(0, len(items) - 1), min_size=1)))
    runs = order.choose(ready, items)
    assert [number for run in runs for number in run] == ready
    for run in runs:
        assert list(run) == list(range(run[0], run[-1] + 1))
        assert len(run) == 1 or 4 * (items[run[-1]].stop - items[run[0]].start) <= bucket_bytes


def test_priority_takes_the_front() -> None:
    order = Priority(partition_bytes=4096)
    assert order.choose([0, 3, 7], order.items([100] * 9)) == [[7]]


def test_groups_are_of_whole_layers() -> None:
    assert Grouped(counts=(5, 4)).items([2, 3, 4]) == [Item(0, 5), Item(5, 9)]
    for counts in ((4, 5), (5,), (5, 4, 1)):
        with pytest.raises(ValueError, match="do not consist of layers"):
            Grouped(counts=counts).items([2, 3, 4])


@pytest.mark.parametrize("order", [Priority(partition_bytes=64), Timed(bucket_bytes=64, cycle_s=0.0)])
def test_the_same_is_ready_and_the_same_is_chosen(order: Order) -> None:
    items = order.items([10, 20, 30])
    ready = list(range(len(items)))
    assert order.choose(ready, items) == order.choose(ready, items)


def _is_whole(items: list[Item], num_elements: int) -> bool:
    return [item.start for item in items] == [0, *(item.stop for item in items[:-1])] and items[-1].stop == num_elements
