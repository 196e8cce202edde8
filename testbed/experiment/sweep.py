"""A spec that is many runs: `sweep:` lists values by path, every combination is one experiment. Pure.

    sweep:
      link.rate: [100mbit, 1gbit]
      compression: [none, {kind: top_k, ratio: 1%}]
      collective, stack: [[ring, null], [halving_doubling, null], [ring, gloo]]    # vary together
    repeat: 3

The last axis varies fastest. `where` leaves combinations out (testbed.experiment.where). `repeat` asks for as many runs
of each point with the same seed: what differs between them is the machine, not the question. Another question is
another seed: `seed: [1, 2, 3]` under `sweep`. In which order the runs are made is drawn from `order_seed`.
"""

import copy
import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, Final

from testbed.errors import SpecError
from testbed.experiment.claims import Claim, parse_claims
from testbed.experiment.experiment import (
    SWEEP_KEYS,
    Experiment,
    anchor,
    naming,
    parse_override,
    read,
    set_value,
    validate,
)
from testbed.experiment.where import is_run, parse_where
from transports.docstrings import DescribedSchema

MAX_POINTS: Final = 1000
MAX_COMBINATIONS: Final = 100_000
"""Of which `where` may leave so many points as are allowed."""
MAX_REPEAT: Final = 1000
MAX_ORDER_SEED: Final = 2**32 - 1
_NUM_ERRORS: Final = 10
"""More distinct errors than this are counted, not listed."""


@dataclass(frozen=True, slots=True)
class Axis:
    """What varies, and through which values."""

    paths: tuple[str, ...]
    """One, or several that vary together."""
    values: tuple[tuple[Any, ...], ...]
    """As the spec writes them; each with one value for each path."""


@dataclass(frozen=True, slots=True)
class Point:
    """One experiment of a sweep."""

    settings: Mapping[str, Any]
    """What was set for it, by path, as the spec writes it."""
    experiment: Experiment

    @property
    def text(self) -> str:
        """`link.rate=1gbit compression=top_k(ratio=1%)`."""
        return settings_text(self.settings)


@dataclass(frozen=True, slots=True)
class Sweep:
    """Every point of a spec."""

    name: str
    axes: tuple[Axis, ...]
    repeat: int
    order_seed: int
    """Draws the order of the runs."""
    points: tuple[Point, ...]
    """Those that `where` leaves."""
    claims: tuple[Claim, ...] = ()
    """What the spec says will be found."""
    left_out: tuple[Claim, ...] = ()
    """What it says beside, of which `quick` has left no points, or none to compare."""

    @property
    def is_single_run(self) -> bool:
        """Whether nothing varies and nothing is repeated: `testbed run` does it."""
        return not self.axes and self.repeat == 1

    def sha256(self) -> str:
        """Identifies the set of questions."""
        return hashlib.sha256("".join(point.experiment.sha256() for point in self.points).encode()).hexdigest()


def settings_text(settings: Mapping[str, Any]) -> str:
    """`link.rate=1gbit compression=top_k(ratio=1%)`."""
    return " ".join(f"{path}={value_text(value)}" for path, value in settings.items()) or "as written"


def value_text(value: Any) -> str:
    """A value in few characters: `top_k(ratio=1%)`, `bytes=1MiB`, `null`, `1gbit`; of a trace that is written out, the
    name of its file."""
    if isinstance(value, Mapping):
        if "file" in value and ("layers" in value or "graph" in value):
            return value_text(value["file"])
        options = {key: item for key, item in value.items() if key != "kind"}
        inside = ",".join(f"{key}={value_text(item)}" for key, item in options.items())
        kind = str(value.get("kind", ""))
        return f"{kind}({inside})" if kind and inside else kind or inside or "{}"
    if isinstance(value, list | tuple):
        return f"[{','.join(value_text(item) for item in value)}]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def load_sweep(path: Path, overrides: Sequence[str] = (), *, quick: bool = False) -> Sweep:
    """Read a YAML spec, with or without `sweep`, and apply overrides: `path=value`, `sweep.path=[value, ...]`, or
    `where.path=value`.

    With `quick` those that the spec lists under `quick` come first, and claims of which they leave no point, or no two
    sides to compare, are `left_out`. Raises SpecError that names the path and the value of every point that is no
    experiment.
    """
    given = [(text, parse_override(text)) for text in overrides]

    def loaded(*, quick: bool) -> Sweep:
        data = read(path)
        return sweep_of(data, [*_quick(data, quick), *given], name=path, folder=path.parent)

    found = loaded(quick=quick)
    if not quick:
        return found
    whole = loaded(quick=False)
    here, everywhere = ([point.settings for point in sweep.points] for sweep in (found, whole))
    left_out = tuple(claim for claim in found.claims if not claim.can_be_taken(here) and claim.can_be_taken(everywhere))
    kept = tuple(claim for claim in found.claims if claim not in left_out)
    return replace(found, claims=kept, left_out=left_out)


def sweep_of(
    data: dict[Any, Any], settings: Sequence[tuple[str, tuple[str, Any]]], *, name: object, folder: Path
) -> Sweep:
    """The sweep of plain data, which are changed, with settings: each as it was written, its path and its value.

    Paths of files in `sweep` and `where` begin at the folder; errors of points begin with the name. Raises SpecError.
    """
    swept = data.get("sweep")
    if isinstance(swept, dict):
        data["sweep"] = {key: _anchored(str(key), values, folder) for key, values in swept.items()}
    if "where" in data:
        data["where"] = _anchored_where(data["where"], folder)
    for override, (key, value) in settings:
        part, _, axis = key.partition(".")
        if part in ("sweep", "where") and axis:
            present = data.get(part) or {}
            if not isinstance(present, Mapping):
                raise SpecError(f"--set {override}: `{part}` is no mapping here; set it as a whole: --set '{part}=...'")
            data[part] = {**present, axis: value}
            continue
        if any(key == varied or key.startswith(f"{varied}.") for varied in _paths_of(data.get("sweep"))):
            raise SpecError(f"--set {override}: {key} is varied by `sweep`; narrow it with --set 'sweep.PATH=[VALUE]'")
        set_value(data, key, value)
    with naming(name):
        return expand(data)


def _quick(data: Mapping[Any, Any], wanted: bool) -> list[tuple[str, tuple[str, Any]]]:
    """What the spec says to set for fewer or shorter runs, as overrides. Raises SpecError."""
    listed = data.get("quick", {})
    if not isinstance(listed, Mapping) or not all(isinstance(key, str) for key in listed):
        raise SpecError(f"quick: a mapping from paths to values, such as workload.iterations: 5 (got {listed!r})")
    return [(f"quick.{key}", (key, value)) for key, value in listed.items()] if wanted else []


def expand(data: Mapping[Any, Any]) -> Sweep:
    """Every combination of what is listed under `sweep`, checked. Raises SpecError."""
    base = {key: value for key, value in data.items() if key not in SWEEP_KEYS}
    repeat = _whole(data, "repeat", 1, MAX_REPEAT)
    order_seed = _whole(data, "order_seed", 0, MAX_ORDER_SEED)
    axes = _axes(data.get("sweep", {}))
    points: list[Point] = []
    errors = PointErrors()
    for settings in _combinations(axes, data.get("where", {})):
        # `collective` before `collective.segment_bytes`, or the first would undo the second.
        changed = copy.deepcopy(base)
        for path, value in sorted(settings.items(), key=lambda item: item[0].count(".")):
            set_value(changed, path, copy.deepcopy(value))
        try:
            point = Point(settings, validate(changed))
            _refuse_without_effect(point)
            points.append(point)
        except SpecError as error:
            errors.add(settings, error)
    errors.raise_if_any()
    _refuse_twins(points)
    name = points[0].experiment.name
    claims = parse_claims(data.get("claims", []))
    return Sweep(name=name, axes=axes, repeat=repeat, order_seed=order_seed, points=tuple(points), claims=claims)


def _refuse_without_effect(point: Point) -> None:
    topology = point.experiment.topology
    if "link.rate" in point.settings and topology.sets_rates:
        raise SpecError(
            f"link.rate: topology {topology.kind} says the rate of every link between its hosts and switches, so that "
            "it changes nothing; allowed: `links.w*-s*.rate`"
        )


def _whole(data: Mapping[Any, Any], key: str, least: int, most: int) -> int:
    value = data.get(key, 1)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise SpecError(f"{key}: a whole number, {least} to {most} (got {value!r})")
    return value


def _combinations(axes: Sequence[Axis], where: object) -> list[dict[str, Any]]:
    """The settings of every point that is run, by path. Raises SpecError."""
    conditions = parse_where(
        where,
        {path: [values[index] for values in axis.values] for axis in axes for index, path in enumerate(axis.paths)},
    )
    num_combinations = prod(len(axis.values) for axis in axes)
    most = MAX_COMBINATIONS if conditions else MAX_POINTS
    if num_combinations > most:
        raise SpecError(f"sweep: the lists make {num_combinations:,} points; allowed: at most {most:,}")
    combinations = [
        {
            path: value
            for axis, values in zip(axes, combination, strict=True)
            for path, value in zip(axis.paths, values, strict=True)
        }
        for combination in itertools.product(*(axis.values for axis in axes))
    ]
    kept = [settings for settings in combinations if is_run(settings, conditions)]
    if not kept:
        raise SpecError("where: no combination of what `sweep` lists fits")
    if len(kept) > MAX_POINTS:
        raise SpecError(f"where: it leaves {len(kept):,} points; allowed: at most {MAX_POINTS:,}")
    return kept


class PointErrors:
    """What is wrong with points; an error that many have is reported once, with the first of them."""

    def __init__(self) -> None:
        self._points: dict[str, list[str]] = {}

    def add(self, settings: Mapping[str, Any], error: SpecError) -> None:
        """Add an error of the point with these settings."""
        for line in str(error).splitlines():
            self._points.setdefault(line, []).append(settings_text(settings) if settings else "")

    def raise_if_any(self) -> None:
        """Raises SpecError with a line for each thing that is wrong."""
        lines = []
        for line, points in list(self._points.items())[:_NUM_ERRORS]:
            others = f" and {len(points) - 1} more points" if len(points) > 1 else ""
            lines.append(f"{line} [{points[0]}{others}]" if points[0] else line)
        if len(self._points) > _NUM_ERRORS:
            lines.append(f"and {len(self._points) - _NUM_ERRORS} more errors")
        if lines:
            raise SpecError("\n".join(lines))


def _anchored(path: str, values: Any, folder: Path) -> Any:
    """Values of a file's sweep, with the paths in them beginning at the file's folder."""
    if path not in ("topology", "topology.path") or not isinstance(values, list):
        return values
    holders = [{"topology": value if path == "topology" else {"path": value}} for value in values]
    for holder in holders:
        anchor(holder, folder)
    return [holder["topology"] if path == "topology" else holder["topology"]["path"] for holder in holders]


def _anchored_where(where: Any, folder: Path) -> Any:
    """The same for `where`, which names the same values."""
    if isinstance(where, list):
        return [_anchored_where(condition, folder) for condition in where]
    if not isinstance(where, Mapping):
        return where
    listed = {key: value if isinstance(value, list) else [value] for key, value in where.items()}
    return {key: _anchored(str(key), values, folder) for key, values in listed.items()}


def _paths_of(swept: Any) -> list[str]:
    return [path for key in swept for path in _split(key)] if isinstance(swept, Mapping) else []


def _split(key: Any) -> tuple[str, ...]:
    return tuple(path.strip() for path in str(key).split(","))


def _axes(swept: Any) -> tuple[Axis, ...]:
    if not isinstance(swept, Mapping):
        raise SpecError(f"sweep: a mapping from paths to lists, such as link.rate: [100mbit, 1gbit] (got {swept!r})")
    axes = tuple(_axis(key, values) for key, values in swept.items())
    paths = [path for axis in axes for path in axis.paths]
    for path in paths:
        if paths.count(path) > 1:
            raise SpecError(f"sweep.{path}: it varies twice; name it once")
    return axes


def _axis(key: Any, values: Any) -> Axis:
    paths = _split(key)
    for path in paths:
        if not all(path.split(".")) or path in ("name", *SWEEP_KEYS):
            raise SpecError(f"sweep.{key}: {path!r} is no path of a setting, such as link.rate")
    if isinstance(values, Mapping):
        written = next((f"{key}.{inner}" for inner in values), f"{key}.PATH")
        raise SpecError(f"sweep.{key}: write the whole path as one key with a list of values: `{written}: [...]`")
    if not isinstance(values, list) or not values:
        raise SpecError(f"sweep.{key}: a list of at least one value (got {values!r})")
    if len(paths) == 1:
        return Axis(paths, tuple((value,) for value in values))
    for value in values:
        if not isinstance(value, list) or len(value) != len(paths):
            raise SpecError(f"sweep.{key}: each value is a list of {len(paths)}, one for each path (got {value!r})")
    return Axis(paths, tuple(tuple(value) for value in values))


def _refuse_twins(points: Sequence[Point]) -> None:
    seen: dict[str, Point] = {}
    for point in points:
        twin = seen.setdefault(point.experiment.sha256(), point)
        if twin is not point:
            raise SpecError(
                f"sweep: [{twin.text}] and [{point.text}] are the same experiment; leave one out, or use `repeat`"
            )


def sweep_schema() -> dict[str, Any]:
    """The JSON schema of a spec of many runs."""
    schema = Experiment.model_json_schema(by_alias=True, schema_generator=DescribedSchema)
    schema["properties"]["sweep"] = {
        "type": "object",
        "description": "Lists of values by path, `link.rate: [100mbit, 1gbit]`; every combination is one run of "
        "`testbed sweep`. Several paths that vary together: `collective, stack: [[ring, null], [ring, gloo]]`.",
        "additionalProperties": {"type": "array", "minItems": 1},
    }
    condition = {"type": "object", "minProperties": 1}
    schema["properties"]["where"] = {
        "description": "Which combinations of `sweep` are run: those that have these values, by path (a list is one of "
        "them); of a list of such mappings, those that fit one. `{collective: ring, channel: [tcp, udp]}`.",
        "anyOf": [{"type": "object"}, {"type": "array", "items": condition, "minItems": 1}],
    }
    schema["properties"]["repeat"] = {
        "type": "integer",
        "description": "Runs of each point, with the same seed.",
        "minimum": 1,
        "maximum": MAX_REPEAT,
        "default": 1,
    }
    schema["properties"]["order_seed"] = {
        "type": "integer",
        "description": "Draws the order in which the points of each round of repetitions are run.",
        "minimum": 0,
        "maximum": MAX_ORDER_SEED,
        "default": 1,
    }
    return schema
