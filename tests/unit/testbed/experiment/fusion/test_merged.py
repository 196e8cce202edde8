"""MG-WFBP: which layers join."""

from hypothesis import given
from hypothesis import strategies as st

from testbed.experiment.fusion.base import Gradients
from testbed.experiment.fusion.merged import Merged, merge


def _iteration_s(
    groups: tuple[int, ...], layers: list[int], backward_s: list[float], startup_s: float, s_per_element: float
) -> float:
    """From the beginning of backward until the last all-reduce is over."""
    free_s, ready_s, layer, filled = 0.0, 0.0, 0, 0
    for group in groups:
        while filled < group:
            ready_s += backward_s[layer]
            filled += layers[layer]
            layer += 1
        free_s = max(free_s, ready_s) + startup_s + group * s_per_element
        filled = 0
    return free_s


@given(
    st.lists(st.tuples(st.integers(1, 1000), st.floats(1e-4, 1.0)), min_size=1, max_size=9),
    st.floats(1e-4, 1.0),
    st.floats(1e-5, 1e-2),
)
def test_merged_groups_are_never_worse_than_layers_or_one_bucket(
    layers: list[tuple[int, float]], startup_s: float, s_per_element: float
) -> None:
    counts, backward_s = [count for count, _ in layers], [time_s for _, time_s in layers]
    groups = merge(counts, backward_s, startup_s=startup_s, s_per_element=s_per_element)
    found_s = _iteration_s(groups, counts, backward_s, startup_s, s_per_element)
    for others in (tuple(counts), (sum(counts),)):
        assert found_s <= _iteration_s(others, counts, backward_s, startup_s, s_per_element) * (1 + 1e-9)


def test_a_layer_joins_the_next_whose_gradient_is_there_before_its_own_start_up_is_over() -> None:
    """The second is ready at 1.5, within the first one's start-up; the third at 2.5, when theirs is over."""
    assert merge([1, 1, 1], [1.0, 0.5, 1.0], startup_s=1.0, s_per_element=0.0) == (2, 1)
    assert merge([1, 1, 1], [1.0, 0.5, 0.9], startup_s=1.0, s_per_element=0.0) == (3,)
    assert merge([1, 1, 1], [1.0, 1.0, 1.0], startup_s=0.5, s_per_element=0.1) == (1, 1, 1)
    assert merge([5, 1, 1], [1.0, 1.0, 1.0], startup_s=0.5, s_per_element=1.0) == (5, 2)
    assert merge([], [], startup_s=1.0, s_per_element=1.0) == ()


def test_a_pass_is_shared_alike_by_layers_that_the_workload_gives_no_time() -> None:
    """They divided its length by zero."""
    untimed = Gradients(tensors=[(1,)] * 3, layers=[[(1,)]] * 3, backward_s=[0.0] * 3)
    stated = Merged.model_validate({"backward": "3s"})
    assert stated.buckets(untimed, lambda count: 0.5 + 0.1 * count) == (1, 1, 1)
    assert stated.buckets(untimed, lambda count: 1.5 + 0.1 * count) == (3,)
    assert Merged.model_validate({}).buckets(untimed, lambda count: 0.5 + 0.1 * count) == (3,)
