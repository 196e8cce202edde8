"""Records side by side: which belong to one setting, what settings differ in, and by how much their runs differ."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import polars as pl

from testbed.errors import SpecError
from testbed.experiment.link import AUTO
from testbed.record.reader import load_frame, load_summary
from testbed.record.summary import Summary, kind_of_reason, magnitude_of_reason
from testbed.store.differences import Difference, RunValues, difference
from testbed.store.documents import Origin, flat, origin, resolved_spec, value_text
from testbed.store.index import Index
from testbed.store.metrics import MORE_IS_BETTER, Metric
from testbed.store.reuse import changed_manually
from testbed.verdict.parts import by_rounds, measured_iterations

_OF_THE_QUESTION: Final = ("workload",)
"""Settings in which the answer to one question may not differ."""
_LENGTHS: Final = ("iterations", "warmup", "compute_only")
"""Of a workload: how long was looked, not at what."""
_CONTENTS: Final = ("workload.trace.graph", "workload.trace.layers")
"""Files' contents, which a resolved spec has beside their paths."""
_FILE: Final = "workload.trace.file"
_MOST_CHARACTERS: Final = 200
"""Of a setting's value, where it is shown."""

Finding = Literal[
    "better", "worse", "not distinguishable from noise", "noise between runs not known", "too few iterations to say"
]
"""What a difference amounts to."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """Runs of one resolved spec."""

    name: str
    """What it has that the others have not: `compression.kind=top_k`; the spec's name where nothing differs."""
    summaries: tuple[Summary, ...]
    """In the order in which the runs were made; `record` is where each was read from."""
    values: tuple[RunValues, ...]
    mean: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """Settings, the first of which the others are compared with."""

    metric: Metric
    settings: tuple[Setting, ...]
    differences: tuple[Difference, ...]
    """One for each setting but the first."""
    notes: tuple[str, ...]
    """What a reader should know before believing it."""

    def finding(self, found: Difference) -> Finding:
        """What one of the differences amounts to, for better or worse by the metric."""
        if found.low is None or found.high is None:
            return "too few iterations to say"
        if found.basis == "one run":
            return "noise between runs not known"
        if not found.distinguishable:
            return "not distinguishable from noise"
        return "better" if (found.ratio > 1) == (self.metric in MORE_IS_BETTER) else "worse"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Run:
    path: Path
    summary: Summary
    spec: Mapping[str, Any]
    origin: Origin


def records_of(operands: Sequence[str], *, output: Path) -> list[Path]:
    """Directories of records: each operand is one, a sweep's directory (all its runs), or the beginning of a run's id
    below `output`. Raises SpecError for what is none of them."""
    found: list[Path] = []
    for operand in operands:
        path = Path(operand)
        if _exists(path / "spec.yaml"):
            found.append(path)
        elif _exists(path / "sweep.json"):
            found += _runs_of_sweep(path)
        elif _exists(path) and path.is_dir():
            raise SpecError(f"{operand}: neither a record nor a sweep's directory")
        else:
            index = Index(output)
            try:
                index.refresh()
                found.append(output / index.find(operand)["record"])
            finally:
                index.close()
    return list(dict.fromkeys(found))


def _exists(path: Path) -> bool:
    """Not where the name is too long for a file, either."""
    try:
        return path.exists()
    except OSError:
        return False


def _runs_of_sweep(path: Path) -> Iterator[Path]:
    try:
        document = json.loads((path / "sweep.json").read_text(encoding="utf-8"))
        # Of an invalid run that was repeated the other one counts.
        runs = [run for point in document["points"] for run in point["runs"] if not run.get("repeated")]
        records = [Path(run["record"]) for run in runs]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SpecError(f"{path / 'sweep.json'} cannot be read: {error}") from error
    if not records:
        raise SpecError(f"{path}: the sweep has no runs yet")
    for record in records:
        # The sweep may have been moved together with its records.
        yield record if record.is_dir() else path.absolute().parent / record.name


def compare(records: Sequence[Path], *, metric: Metric = "iteration_time_s", force: bool = False) -> Compared:
    """Compare settings by their runs: records of one resolved spec are repetitions of one setting. Where all have the
    same one, settings are programs, or images: of a script, or an image, before and after a change.

    Raises SpecError when fewer than two settings are there, when a run's numbers do not stand, or when the settings are
    answers to different questions; with `force` the latter two are notes. A run without the number is always an error.
    """
    # A record may have been named twice: by itself and by its sweep.
    runs = list({run.summary.run_id: run for run in map(_read, records)}.values())
    groups = _grouped(runs)
    if len(groups) < 2:
        raise SpecError(f"there is nothing to compare: {len(runs)} record(s) of one setting; name records of two")
    objections = [*_objections(runs), *_unlike(groups), *_changed_between(groups), *_no_repetitions(groups)]
    if objections and not force:
        raise SpecError("\n".join([*objections, "--force compares them all the same"]))
    settings = tuple(_setting(name, group, metric) for name, group in zip(_names(groups), groups.values(), strict=True))
    first, *others = settings
    try:
        differences = tuple(difference(first.values, other.values) for other in others)
    except ValueError as error:
        raise SpecError(f"--metric {metric}: {error}") from error
    return Compared(
        metric=metric, settings=settings, differences=differences, notes=(*objections, *_notes(runs, differences))
    )


def _read(path: Path) -> _Run:
    # A record may have been moved since.
    summary = load_summary(path / "summary.json")
    return _Run(path=path, summary=summary, spec=resolved_spec(path), origin=origin(path))


def _grouped(runs: Sequence[_Run]) -> dict[str, list[_Run]]:
    """By their resolved specs; where all have the same one, by their programs, or else by their images."""
    kinds: Sequence[dict[str, list[_Run]]] = ({}, {}, {})
    for run in runs:
        image = (run.origin.image or "unknown").removeprefix("sha256:")
        keys = run.summary.spec_sha256, run.origin.program or "unknown", image
        for groups, key in zip(kinds, keys, strict=True):
            groups.setdefault(key, []).append(run)
    return next((groups for groups in kinds if len(groups) > 1), kinds[0])


def _objections(runs: Sequence[_Run]) -> Iterator[str]:
    for run in runs:
        summary = run.summary
        if not summary.stands:
            reason = summary.reasons[0] if summary.reasons else "no reason given"
            yield f"{run.path}: {summary.outcome}, so its numbers do not stand: {reason}"
        if changed_manually(summary):
            yield f"{run.path}: its links were changed manually while it ran, so its numbers are not those of its spec"
    machines = sorted({run.origin.machine for run in runs})
    if len(machines) > 1:
        yield f"the runs were made on different machines: {'; '.join(machines)}"
    for name, texts in _disagreements([run.origin.settings for run in runs]):
        yield f"the runs were made on a machine that was set otherwise: {name} {texts}"


def _disagreements(said: Sequence[Mapping[str, object]]) -> Iterator[tuple[str, str]]:
    """Names to which mappings have more than one value, with all of them; one may lack a name."""
    for name in dict.fromkeys(name for each in said for name in each):
        texts = {value_text(each[name]) for each in said if name in each}
        if len(texts) > 1:
            yield name, " or ".join(sorted(texts))


def _unlike(groups: Mapping[str, Sequence[_Run]]) -> Iterator[str]:
    """What makes the settings answers to different questions."""
    specs = [flat(group[0].spec) for group in groups.values()]
    for key in _differing(specs):
        if key.partition(".")[0] in _OF_THE_QUESTION and key.rpartition(".")[2] not in _LENGTHS:
            values = ", ".join(dict.fromkeys(_shown(spec, key) for spec in specs))
            yield f"the settings answer different questions: {key} is {values}"


def _changed_between(groups: Mapping[str, Sequence[_Run]]) -> Iterator[str]:
    """What differs beside the settings, which name the same script or image: it was changed from one to the next."""
    specs = [group[0].spec for group in groups.values()]
    if all(spec == specs[0] for spec in specs):
        return  # then it is what is compared
    for key, made_of in (("workload.argv", "program"), ("runtime.image", "image")):
        found: dict[str, set[str]] = {}
        for group in groups.values():
            named = _shown(flat(group[0].spec), key)
            found.setdefault(named, set()).update(filter(None, (getattr(run.origin, made_of) for run in group)))
        number = max(map(len, found.values()))
        if number > 1:
            of = f"the settings are of {number} {made_of}s"
            yield f"{of}, so a difference may be theirs: what {key} names has changed"


def _no_repetitions(groups: Mapping[str, Sequence[_Run]]) -> Iterator[str]:
    """Which settings are not one: a script or an image that their spec names was changed from run to run, or what it
    leaves to the machine was decided otherwise."""
    for name, group in zip(_names(groups), groups.values(), strict=True):
        if (number := len({run.origin.program for run in group})) > 1:
            yield f"{name}: its runs are of {number} programs, no repetitions: what workload.argv names has changed"
        if (number := len({run.origin.image for run in group})) > 1:
            yield f"{name}: its runs are of {number} images, no repetitions: what runtime.image names has changed"
        for key, texts in _disagreements([run.origin.decided for run in group]):
            yield f"{name}: its runs are no repetitions: {key} was decided to be {texts}"


def _notes(runs: Sequence[_Run], differences: Sequence[Difference]) -> Iterator[str]:
    degraded = [run for run in runs if run.summary.outcome == "degraded"]
    if degraded:
        kinds: dict[str, list[str]] = {}
        for reason in (reason for run in degraded for reason in run.summary.reasons):
            kinds.setdefault(kind_of_reason(reason), []).append(reason)
        reasons = "; ".join(max(alike, key=magnitude_of_reason) for alike in kinds.values())
        yield f"{len(degraded)} of {len(runs)} runs are degraded: {reasons}"
    versions = {run.origin.code or run.origin.commit for run in runs}
    if len(versions) > 1:
        yield f"the runs were made by {len(versions)} versions of the testbed or its packages"
    # Of what a spec leaves to the machine the rest (buckets, dilation) follows from the spec, which settings differ in.
    made_by = {run.origin.decided.get("delay_backend") for run in runs if flat(run.spec).get("link.backend") == AUTO}
    if len(backends := sorted(str(each) for each in made_by - {None})) > 1:
        yield (
            f"link.backend: auto was decided to be {' or '.join(backends)}, so part of a difference may be theirs; "
            f"--set link.backend={backends[0]} makes all alike"
        )
    if any(found.basis == "one run" for found in differences):
        yield "one run of a setting: how much runs differ from each other is unknown; --set repeat=5 makes five"


def _setting(name: str, group: Sequence[_Run], metric: Metric) -> Setting:
    made = sorted(group, key=lambda run: run.summary.started_at)
    values = tuple(RunValues(run.summary.started_at, _values(run, metric)) for run in made)
    means = [each.mean for each in values]
    return Setting(name=name, summaries=tuple(run.summary for run in made), values=values, mean=sum(means) / len(means))


def _values(run: _Run, metric: Metric) -> Sequence[float]:
    """The series of an iteration's times; of other quantities the run's one number."""
    summary = run.summary
    if metric == "iteration_time_s" and summary.iteration_time_s:
        return _iteration_times_s(run)
    found = {
        "iteration_time_s": None,
        "samples_per_s": summary.samples_per_s,
        "compute_time_s": summary.compute_time_s,
        "exposed_communication_s": summary.exposed_communication_s,
        "allreduce_time_s": summary.allreduce.time_s if summary.allreduce else None,
        "command_time_s": summary.command.time_s if summary.command else None,
    }[metric]
    if found is None:
        raise SpecError(f"{run.path}: the run has no {metric}")
    return [found]


def _iteration_times_s(run: _Run) -> list[float]:
    summary = run.summary
    frame: pl.DataFrame = load_frame(run.path, "iterations")
    rows = measured_iterations(frame, summary)
    every = summary.synchronisation.every if summary.synchronisation else None
    return [float(each) for each in by_rounds(rows, every)["time_s"]]


def _names(groups: Mapping[str, Sequence[_Run]]) -> list[str]:
    specs = [flat(group[0].spec) for group in groups.values()]
    keys = [key for key in _differing(specs) if key != "name"]
    kinds = [key for key in keys if key.endswith(".kind")]
    # Where a kind differs, its own options differ as a matter of course.
    keys = [key for key in keys if key in kinds or not any(key.startswith(kind.removesuffix("kind")) for kind in kinds)]
    named = [
        ", ".join(f"{key.removesuffix('.kind')}={_shown(spec, key)}" for key in keys if key in spec) for spec in specs
    ]
    if len(set(named)) < len(named) or not all(named):
        digests = [key[:8] for key in groups]
        digests = digests if len(set(digests)) == len(digests) else list(groups)
        named = [f"{group[0].summary.name} {each}" for each, group in zip(digests, groups.values(), strict=True)]
    return named


def _shown(spec: Mapping[str, Any], key: str) -> str:
    """A setting's value: a file's contents by its path and a digest, what else is long by its beginning and one."""
    value = spec.get(key)
    text = str(value)
    is_contents = key in _CONTENTS and value is not None
    if not is_contents and len(text) <= _MOST_CHARACTERS:
        return text
    begin = str(spec.get(_FILE)) if is_contents else f"{text[:_MOST_CHARACTERS]}..."
    return f"{begin} ({hashlib.sha256(text.encode()).hexdigest()[:8]})"


def _differing(specs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Paths of values. A file's path is none of them: its contents are, wherever it lies."""
    keys = dict.fromkeys(key for spec in specs for key in spec if key != _FILE)
    return [key for key in keys if len({json.dumps(spec.get(key), default=str) for spec in specs}) > 1]
