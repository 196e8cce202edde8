"""How long what is left of a sweep takes: by what each run is expected to take, and what those that are done took."""

from collections.abc import Sequence
from typing import Final

from testbed.plan.plan import Plan
from testbed.theory.predict import RunPrediction

AROUND_RUN_S: Final = 3.0
"""What a run takes beside its iterations."""


def expected_run_s(plan: Plan, predicted: RunPrediction | None) -> float | None:
    """A run of that plan, on the wall; None where nobody knows how long it computes."""
    workload = plan.experiment.workload
    lengths, table = workload.phase_lengths(), workload.timed_layers()
    if predicted is None or predicted.iteration_time_s is None or not lengths:
        return None
    compute_s = predicted.iteration_time_s if table is None else table.compute_s
    iterations_s = sum(
        number * (compute_s if phase == "compute_only" else predicted.iteration_time_s)
        for phase, number in lengths.items()
    )
    return AROUND_RUN_S + plan.clock.real_s(iterations_s)


def remaining_s(
    expected_s: Sequence[float | None], *, left: Sequence[int], done: Sequence[int], elapsed_s: float
) -> float | None:
    """Of runs at those positions, in real seconds: as expected, times what those that are done took for each second
    expected of them. Where nobody knows it of some, all count alike. None: none is done, and nobody knows."""
    known = [each_s for each_s in expected_s if each_s is not None]
    weights = known if len(known) == len(expected_s) else [1.0] * len(expected_s)
    expected_left = sum(weights[position] for position in left)
    if done:
        return elapsed_s * expected_left / sum(weights[position] for position in done)
    return expected_left if len(known) == len(expected_s) else None
