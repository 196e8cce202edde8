"""The DAG of S-SGD: its solver against brute force, its strategies against the closed forms."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.theory.dag import (
    Bucket,
    ExchangeCost,
    Resource,
    Task,
    buckets_by_layer,
    buckets_merged,
    iteration_s,
    sgd_tasks,
    solve,
)
from testbed.traces.table import Layer, LayerTable

TABLE = LayerTable(
    layers=(
        Layer("conv1", 1.0, 2.0, 100, 4.0),
        Layer("pool", 0.5, 0.5, 0, None),
        Layer("conv2", 1.0, 3.0, 200, 2.0),
        Layer("fc", 0.5, 1.0, 900, 6.0),
    ),
    input_s=3.0,
    host_to_device_s=1.0,
    update_s=0.25,
)
FORWARD_BACKWARD_S = 9.5


def test_naive_is_the_sum_of_everything() -> None:
    assert iteration_s(TABLE, "naive", buckets_by_layer(TABLE)) == pytest.approx(4 + FORWARD_BACKWARD_S + 12 + 0.25)


def test_reading_ahead_hides_the_shorter_of_the_two() -> None:
    assert iteration_s(TABLE, "input_overlap", buckets_by_layer(TABLE)) == pytest.approx(FORWARD_BACKWARD_S + 12 + 0.25)
    slow_disk = LayerTable(layers=TABLE.layers, input_s=50.0, host_to_device_s=1.0, update_s=0.25)
    assert iteration_s(slow_disk, "input_overlap", buckets_by_layer(TABLE)) == pytest.approx(51.0)


def test_wait_free_backpropagation_follows_the_published_recursion() -> None:
    backward_s, exchange_s = [1.0, 3.0, 0.5, 2.0], [6.0, 2.0, 0.0, 4.0]
    ready = free = 0.0
    for own_s, wire_s in zip(backward_s, exchange_s, strict=True):
        ready += own_s
        free = max(free, ready) + wire_s
    exposed_s = free - sum(backward_s)
    assert exposed_s == pytest.approx(13 - 6.5)
    expected_s = FORWARD_BACKWARD_S + exposed_s + 0.25
    assert iteration_s(TABLE, "wfbp", buckets_by_layer(TABLE)) == pytest.approx(expected_s)


def test_merging_saves_what_it_costs_to_start() -> None:
    cost = ExchangeCost(startup_s=4.0, s_per_byte=0.001)
    apart = iteration_s(TABLE, "wfbp", buckets_by_layer(TABLE, cost.time_s))
    merged = buckets_merged(TABLE, cost)
    assert len(merged) < 3
    assert merged[-1].last_layer == 3
    assert iteration_s(TABLE, "merged", merged) < apart


def test_layers_without_gradients_do_not_join_what_lies_before_and_behind_them() -> None:
    quiet = tuple(Layer(f"relu{number}", 0.0, 2e-3, 0) for number in range(4))
    table = LayerTable(layers=(Layer("a", 0.0, 2e-3, 10_000_000), *quiet, Layer("b", 0.0, 10e-3, 10_000_000)))
    cost = ExchangeCost(startup_s=2.5e-3, s_per_byte=1e-9)
    apart = buckets_by_layer(table, cost.time_s)
    assert buckets_merged(table, cost) == tuple(each for each in apart if each.exchange_s > cost.startup_s)
    assert iteration_s(table, "merged", buckets_merged(table, cost)) <= iteration_s(table, "wfbp", apart)


def test_a_trace_without_times_of_exchanges_needs_a_cost() -> None:
    table = LayerTable(layers=(Layer("a", 1, 1, 4),))
    with pytest.raises(ValueError, match="layer a took; give a cost"):
        buckets_by_layer(table)
    assert buckets_by_layer(table, float) == (Bucket(0, 4.0),)


def test_an_edge_that_points_up_is_refused() -> None:
    with pytest.raises(ValueError, match=r"task 0 \(a\) waits for a task that does not come before it"):
        solve([Task("a", "device", 1.0, (0,))])


def test_no_tasks_take_no_time() -> None:
    assert solve([]).makespan_s == 0.0
    assert solve([]).critical_path() == ()


@st.composite
def graphs(draw: st.DrawFn) -> list[Task]:
    tasks: list[Task] = []
    resources: tuple[Resource, ...] = ("input", "device", "network")
    for number in range(draw(st.integers(1, 12))):
        after = draw(st.sets(st.integers(0, number - 1), max_size=3)) if number else set()
        duration_s = draw(st.integers(0, 5))
        tasks.append(Task(str(number), draw(st.sampled_from(resources)), float(duration_s), tuple(sorted(after))))
    return tasks


@given(graphs())
def test_no_resource_does_two_things_and_none_rests_while_something_is_ready(tasks: list[Task]) -> None:
    solution = solve(tasks)
    for number, task in enumerate(tasks):
        ready_s = max((solution.end_s[before] for before in task.after), default=0.0)
        assert solution.start_s[number] >= ready_s
        if solution.start_s[number] > ready_s:  # then its resource has worked from when it was ready until it began
            same = [other for other, each in enumerate(tasks) if each.resource == task.resource and other != number]
            busy_s = sum(
                min(solution.end_s[other], solution.start_s[number]) - max(solution.start_s[other], ready_s)
                for other in same
                if solution.end_s[other] > ready_s and solution.start_s[other] < solution.start_s[number]
            )
            assert busy_s == pytest.approx(solution.start_s[number] - ready_s)
    for resource in {task.resource for task in tasks}:
        spans = sorted(
            (solution.start_s[number], solution.end_s[number])
            for number, task in enumerate(tasks)
            if task.resource == resource
        )
        assert all(before[1] <= after[0] for before, after in pairwise(spans))


@given(graphs())
def test_the_critical_path_has_no_gap_and_is_as_long_as_everything(tasks: list[Task]) -> None:
    solution = solve(tasks)
    path = solution.critical_path()
    assert sum(tasks[number].duration_s for number in path) == pytest.approx(solution.makespan_s)
    assert solution.start_s[path[0]] == 0.0
    assert all(solution.end_s[before] == solution.start_s[after] for before, after in pairwise(path))


def test_input_is_read_at_most_one_batch_ahead() -> None:
    tasks = sgd_tasks(TABLE, "input_overlap", buckets_by_layer(TABLE), 3)
    solution = solve(tasks)
    started = {task.name: solution.start_s[number] for number, task in enumerate(tasks)}
    ended = {task.name: solution.end_s[number] for number, task in enumerate(tasks)}
    assert started["input ahead of iteration 0"] == ended["input of iteration 0"]
    assert started["input ahead of iteration 1"] == ended["update of iteration 0"]
