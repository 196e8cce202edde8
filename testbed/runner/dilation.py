"""Runs a spec at k and multiples of it, one beside the other, and says whether the answer is the same."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from testbed.errors import SpecError
from testbed.experiment.clock import MAX_DILATION
from testbed.experiment.experiment import Experiment
from testbed.machine.doctor import Planner, plan_here
from testbed.record.summary import Summary
from testbed.runner.run import require_iterations
from testbed.verdict.dilation import FACTORS, MEASURES, TOLERANCE, Agreement, Comparison, compare, overall

RunOne = Callable[[Experiment], Summary]


@dataclass(frozen=True, kw_only=True, slots=True)
class Validation:
    """What came of it."""

    name: str
    dilations: tuple[float, ...]
    tolerance: float
    runs: tuple[Summary, ...]
    """Round by round, in the order of the dilations."""
    compared: tuple[Comparison, ...]
    """Of the measures that every run has; empty where a run has no iteration times."""

    @property
    def not_compared(self) -> tuple[str, ...]:
        """Measures that a run has not, beside those that are compared."""
        found = {each.measure for each in self.compared}
        return tuple(measure for measure in MEASURES if measure not in found) if found else ()

    @property
    def agreement(self) -> Agreement | None:
        """None: a run failed, or its numbers cannot be trusted."""
        broken = any(run.outcome not in {"valid", "degraded"} for run in self.runs)
        return None if broken or not self.compared else overall(self.compared)

    def to_json(self) -> dict[str, Any]:
        """Plain data. Bounds that are not known are null."""
        return {
            "name": self.name,
            "dilations": list(self.dilations),
            "tolerance": self.tolerance,
            "agreement": self.agreement,
            "compared": [_finite(asdict(each)) for each in self.compared],
            "not_compared": list(self.not_compared),
            "runs": [
                {
                    "dilation": run.dilation,
                    "outcome": run.outcome,
                    "reasons": run.reasons,
                    "notes": run.notes,
                    "iteration_time_s": run.iteration_time_s.mean if run.iteration_time_s else None,
                    "scaling_factor": run.scaling_factor,
                    "record": run.record,
                }
                for run in self.runs
            ],
        }


def at_dilations(
    experiment: Experiment, factors: Sequence[float] = FACTORS, plan: Planner = plan_here
) -> list[Experiment]:
    """The spec at its own dilation, or what `auto` is here, and at each of these multiples of it.

    Raises SpecError for a spec that cannot be had in slower time and for a multiple given twice, and
    MissingRequirementError as a plan does.
    """
    require_iterations(experiment)
    if undilatable := experiment.undilatable():
        raise SpecError("\n".join(undilatable))
    if twice := {factor for factor in factors if factors.count(factor) > 1}:
        raise SpecError(f"the multiple {min(twice):g} of the dilation is given twice")
    least = plan(experiment).clock.dilation
    if least * max(factors) > MAX_DILATION:
        raise SpecError(
            f"dilation: {least:g} is to be compared with {least * max(factors):g}, and the greatest is "
            f"{MAX_DILATION:g}; allowed: at most {MAX_DILATION / max(factors):g}"
        )
    found = [experiment.model_copy(update={"dilation": _plain(least * factor)}) for factor in (1, *factors)]
    for each in found:
        plan(each)  # whatever is refused is refused before the first runs
    return found


def validate_dilation(
    experiment: Experiment,
    *,
    repeat: int,
    run: RunOne,
    factors: Sequence[float] = FACTORS,
    tolerance: float = TOLERANCE,
    plan: Planner = plan_here,
) -> Validation:
    """Run it so often at each dilation, in turns, so that what the machine does meanwhile meets all alike."""
    points = at_dilations(experiment, factors, plan)
    runs = [run(point) for _ in range(repeat) for point in points]
    dilations = tuple(float(point.dilation) for point in points)
    measured = [_measures(each) for each in runs]
    compared: list[Comparison] = []
    if all(measured):
        common = [measure for measure in MEASURES if all(measure in found for found in measured)]
        compared = compare(
            {
                dilation: {measure: [found[measure] for found in measured[index :: len(points)]] for measure in common}
                for index, dilation in enumerate(dilations)
            },
            tolerance=tolerance,
        )
    return Validation(
        name=experiment.name,
        dilations=dilations,
        tolerance=tolerance,
        runs=tuple(runs),
        compared=tuple(compared),
    )


def _measures(summary: Summary) -> dict[str, float]:
    """Nothing where it has no iteration times; it may have them and no scaling factor, as a replayed graph has."""
    if summary.iteration_time_s is None:
        return {}
    factor = {} if summary.scaling_factor is None else {"scaling_factor": summary.scaling_factor}
    return {"iteration_time_s": summary.iteration_time_s.mean, **factor}


def _plain(dilation: float) -> int | float:
    return int(dilation) if dilation == int(dilation) else dilation


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and value in (float("inf"), float("-inf")) else value
