"""The points of a comparison: what each run of a sweep says, as plain data."""

import json
import statistics
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import polars as pl

from testbed.errors import SpecError
from testbed.experiment.sweep import settings_text, value_text
from testbed.record.summary import STANDING, Outcome, Summary, kind_of_reason, magnitude_of_reason
from testbed.report import wording
from testbed.report.comparison.answer import answer
from testbed.store.reuse import Reuse
from testbed.theory.predict import RunPrediction

State = Literal["valid", "degraded", "invalid", "failed", "unsupported", "not run"]
SCHEMA_VERSION: Final = 3
_REPEATABLE: Final[tuple[Outcome, ...]] = ("degraded", "invalid")
_SEVERITY: Final[tuple[State, ...]] = ("valid", "degraded", "not run", "invalid", "unsupported", "failed")


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedPoint:
    """One point of a sweep with what theory says of it and the runs that it has."""

    settings: Mapping[str, Any]
    spec_sha256: str
    bound_s: float
    """Of one iteration's all-reduces, the task's, as planned; the others too."""
    schedule_bound_s: float
    predicted_s: float
    predicted: RunPrediction | None = None
    """Of its iterations, as planned; None: nothing is exchanged."""
    num_requested: int
    """Runs that the sweep wants of it."""
    num_retries: int = 0
    """So many invalid runs are repeated, and degraded ones where these are not accepted."""
    accepted: Container[Outcome] = STANDING
    """Outcomes for which no run is repeated."""
    runs: tuple[Summary, ...]
    """All that there are, in the order in which they were made."""
    unlike: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Of runs that count although they were made otherwise than when the sweep began, by their record: in what."""
    machines: Mapping[str, str] = field(default_factory=dict)
    """Of runs that were made on another machine for this sweep, by their record: on which."""

    @property
    def is_repeated(self) -> tuple[bool, ...]:
        """Of each run, whether it is not accepted and another was made in its place, or is to be."""
        left, found = self.num_retries, []
        for run in self.runs:
            repeated = run.outcome in _REPEATABLE and run.outcome not in self.accepted and left > 0
            left -= repeated
            found.append(repeated)
        return tuple(found)

    @property
    def counted(self) -> list[Summary]:
        """Its runs without those that were repeated: one for each that the sweep wants, as far as it has come."""
        return [run for run, repeated in zip(self.runs, self.is_repeated, strict=True) if not repeated]

    @property
    def num_missing(self) -> int:
        """Runs that the sweep wants of it beside those that count."""
        return max(0, self.num_requested - len(self.counted))

    @property
    def repeated(self) -> list[Summary]:
        """Its runs that were repeated."""
        return [run for run, repeated in zip(self.runs, self.is_repeated, strict=True) if repeated]

    @property
    def outcome(self) -> State:
        """The worst of its runs that count; `not run` where runs are missing."""
        found: list[State] = [run.outcome for run in self.counted]
        if self.num_missing:
            found.append("not run")
        return max(found, key=_SEVERITY.index)

    @property
    def degraded(self) -> bool:
        """Whether its numbers are, in part or all, those of degraded runs."""
        return any(run.outcome == "degraded" for run in self.usable)

    @property
    def usable(self) -> list[Summary]:
        """Runs whose numbers stand."""
        standing = [run for run in self.counted if run.stands]
        return [run for run in standing if run.iteration_time_s or run.command]

    def row(self) -> dict[str, float | int | str | None]:
        """Its numbers; None where no run has them. Times in virtual seconds."""
        runs = self.usable
        times = [run.iteration_time_s for run in runs if run.iteration_time_s]
        means, trained = [time.mean for time in times], [run for run in runs if run.iteration_time_s]
        theory = next((run.allreduce for run in runs if run.allreduce), None)  # with the latency that was measured
        said = next((run.prediction for run in runs if run.prediction), None)
        planned_s = self.predicted.iteration_time_s if self.predicted else None
        predicted_s, mean_s = planned_s if said is None else said.iteration_time_s, _mean(means)
        took_s = _of(runs, lambda run: run.allreduce.time_s if run.allreduce else None)
        exchange_s = self.predicted_s if theory is None else theory.predicted_s
        beyond = (self.predicted.outside if self.predicted else ()) if said is None else said.outside
        single = times[0] if len(times) == 1 else None
        every = next((run.synchronisation.every for run in runs if run.synchronisation), None)
        return {
            **{path: value_text(value) for path, value in self.settings.items()},
            "outcome": self.outcome,
            "num_runs": len(runs),
            "iteration_time_s": mean_s,
            "iteration_time_low_s": single.p10 if single else min(means, default=None),
            "iteration_time_high_s": single.p90 if single else max(means, default=None),
            "iteration_predicted_s": predicted_s,
            "iteration_prediction_error": _error(predicted_s, mean_s),
            "prediction_outside": "; ".join(beyond) or None,
            **{field: _mean([getattr(run, field) for run in trained]) for _, field, *_ in wording.PARTS},
            "compute_only_time_s": _of(runs, lambda run: run.compute_only_time_s),
            "compute_alone_time_s": _of(runs, lambda run: run.compute_alone_time_s),
            "samples_per_s": _of(runs, lambda run: run.samples_per_s),
            "scaling_factor": _of(runs, lambda run: run.scaling_factor),
            "network_efficiency": _of(runs, lambda run: run.network_efficiency),
            "iterations_per_exchange": every or 1,
            "allreduce_time_s": took_s,
            "allreduce_predicted_s": exchange_s,
            "allreduce_prediction_error": _error(exchange_s, took_s),
            "allreduce_bound_s": self.bound_s if theory is None else theory.bound_s,
            "allreduce_schedule_bound_s": self.schedule_bound_s if theory is None else theory.schedule_bound_s,
            "utilization_mean": _of(runs, _utilization),
            "payload_ratio": _of(runs, lambda run: run.compression.payload_ratio if run.compression else 1.0),
            "codec_time_s": _of(runs, _codec_time_s),
            "command_time_s": _of(runs, lambda run: run.command.time_s if run.command else None),
            "loss": _of(runs, lambda run: run.loss.end if run.loss else None),
            "num_degraded": sum(run.outcome == "degraded" for run in runs),
            "num_repeated": len(self.repeated),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Procedure:
    """How the runs of a sweep are made and found."""

    order_seed: int = 1
    """Draws the order of the runs."""
    reuse: Reuse = "same"
    last_number: int = 0
    """The greatest fencing number when results were looked for (testbed.runner.attempts)."""
    begun_at: str = ""
    """ISO 8601: when the sweep began that these runs belong to; one that goes on after an interruption keeps it."""
    not_reused: Mapping[str, int] = field(default_factory=dict)
    """How many results there are that were not reused, by what is different about them."""
    notes: tuple[str, ...] = ()
    """What happened to machines and attempts on them, for those who read the results."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """A sweep as far as it has come."""

    name: str
    axes: tuple[tuple[str, ...], ...]
    """The paths of what varies; several where they vary together."""
    points: tuple[ComparedPoint, ...]
    directory: Path
    """Of sweep.json and the others."""
    procedure: Procedure = field(default_factory=Procedure)
    target_loss: float | None = None
    """Until which training is timed (testbed.report.comparison.time_to_loss); None: until one that all points reach."""

    @property
    def finished(self) -> bool:
        """Whether every point has as many runs as were requested."""
        return not any(point.num_missing for point in self.points)

    @property
    def paths(self) -> tuple[str, ...]:
        """Everything that varies."""
        return tuple(path for axis in self.axes for path in axis)

    @property
    def outcomes(self) -> set[State]:
        """The outcomes of the point's runs."""
        return {point.outcome for point in self.points}

    @property
    def reasons(self) -> list[str]:
        """Why points are not valid: what differs only in its numbers is said once, as the worst of them has it. And
        which runs count although they were made otherwise."""
        found: dict[tuple[str, bool], list[tuple[ComparedPoint, Summary, str]]] = {}
        for point in self.points:
            for run, repeated in zip(point.runs, point.is_repeated, strict=True):
                for reason in run.reasons:
                    found.setdefault((kind_of_reason(reason), repeated), []).append((point, run, reason))
        texts = []
        for (_, repeated), alike in found.items():
            worst, run, reason = max(
                alike, key=lambda each: (_SEVERITY.index(each[1].outcome), magnitude_of_reason(each[2]))
            )
            num_points = len({id(point) for point, *_ in alike})
            among = f" (the worst of {num_points} points)" if num_points > 1 else ""
            outcome = f"{run.outcome}, and repeated" if repeated else run.outcome
            texts.append(f"{settings_text(worst.settings)}: {outcome}{among}: {reason}")
        return [*texts, *self._unlike(), *self._machines(), *self.procedure.notes]

    def _machines(self) -> list[str]:
        made = Counter(machine for point in self.points for machine in point.machines.values())
        listed = ", ".join(f"{machine} ({number} run{'s' if number != 1 else ''})" for machine, number in made.items())
        return [f"made on machines alike: {listed}"] if made else []

    def _unlike(self) -> list[str]:
        points = [point for point in self.points if point.unlike]
        differences = dict.fromkeys(each for point in points for unlike in point.unlike.values() for each in unlike)
        num_runs = sum(len(point.unlike) for point in points)
        return [f"counted although made otherwise, {num_runs} runs: {'; '.join(differences)}"] if num_runs else []

    def with_run(
        self, position: int, summary: Summary, *, unlike: tuple[str, ...] = (), machine: str = ""
    ) -> "Comparison":
        """The comparison with one more run of the point at that position, made on another machine if it is named, and
        in what it was made otherwise than when the sweep began."""
        points = list(self.points)
        point = points[position]
        others = {**point.unlike, summary.record: unlike} if unlike else point.unlike
        machines = {**point.machines, summary.record: machine} if machine else point.machines
        points[position] = replace(point, runs=(*point.runs, summary), unlike=others, machines=machines)
        return replace(self, points=tuple(points))

    def frame(self) -> pl.DataFrame:
        """A row for each point, in the order of the sweep."""
        return pl.DataFrame([point.row() for point in self.points], infer_schema_length=None)

    def to_json(self, *, goes_on: bool = False) -> dict[str, Any]:
        """sweep.json, and what `testbed sweep --json` prints. A sweep that goes on is not finished: even if every point
        has its runs, its page is to be written."""
        return {
            "schema_version": SCHEMA_VERSION,
            "name": self.name,
            "varied": list(self.paths),
            "directory": str(self.directory),
            "order_seed": self.procedure.order_seed,
            "reuse": self.procedure.reuse,
            "not_reused": dict(self.procedure.not_reused),
            "notes": list(self.procedure.notes),
            "begun_at": self.procedure.begun_at,
            "finished": self.finished and not goes_on,
            "target_loss": self.target_loss,
            "answer": answer(self),
            "points": [
                {
                    **{key: value for key, value in point.row().items() if key not in point.settings},
                    "settings": dict(point.settings),
                    "spec_sha256": point.spec_sha256,
                    "num_requested": point.num_requested,
                    "num_retries": point.num_retries,
                    "runs": [
                        {
                            "run_id": run.run_id,
                            "started_at": run.started_at,
                            "outcome": run.outcome,
                            "reasons": run.reasons,
                            "notes": run.notes,
                            "record": run.record,
                            "repeated": repeated,
                            "unlike": list(point.unlike.get(run.record, ())),
                            "machine": point.machines.get(run.record),
                        }
                        for run, repeated in zip(point.runs, point.is_repeated, strict=True)
                    ],
                }
                for point in self.points
            ],
        }


class Unfinished(NamedTuple):
    """What a sweep.json says of a sweep that has not come to its end."""

    begun_at: str
    reuse: Reuse


def unfinished(directory: Path) -> Unfinished | None:
    """Of the sweep in a directory; None where there is none, it is finished, or another version wrote it.

    Raises SpecError where sweep.json cannot be read: it is replaced as a whole, so somebody else has changed it.
    """
    path = directory / "sweep.json"
    if not path.exists():
        return None
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["schema_version"] != SCHEMA_VERSION or document["finished"]:
            return None
        return Unfinished(str(document["begun_at"]), document["reuse"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SpecError(
            f"{path} cannot be read: {type(error).__name__}: {error}; remove it: runs are found by their records"
        ) from error


def _error(predicted_s: float | None, measured_s: float | None) -> float | None:
    """Predicted over measured, less 1."""
    return predicted_s / measured_s - 1 if predicted_s is not None and measured_s else None


def _mean(values: Sequence[float]) -> float | None:
    """Of runs: only means of parts add up to the mean of the whole."""
    return statistics.fmean(values) if values else None


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _of(runs: Sequence[Summary], value: Callable[[Summary], float | None]) -> float | None:
    """The median; None where any run lacks it: those that have it would be chosen by what was measured."""
    known = [found for run in runs if (found := value(run)) is not None]
    return _median(known) if len(known) == len(runs) else None


def _codec_time_s(run: Summary) -> float | None:
    """CPU time of encoding and decoding in one iteration, on each worker."""
    return run.compression.encode_s + run.compression.decode_s if run.compression else None


def _utilization(run: Summary) -> float | None:
    known = [link.utilization_mean for link in run.links if link.utilization_mean is not None]
    return statistics.fmean(known) if known else None
