"""How an experiment is named in Python: a file, a spec that comes with the package, plain data, or an experiment; and
what is changed in it."""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed.errors import SpecError
from testbed.experiment.experiment import Experiment, naming, parse_override, read, set_value, validate
from testbed.experiment.shipped import spec_path
from testbed.experiment.sweep import Sweep, sweep_of

Spec = str | Path | Mapping[str, Any] | Experiment
"""A YAML file, or its name where it comes with the package; plain data as such a file has them; or an experiment."""
Overrides = Mapping[str, Any] | Sequence[str]
"""Values by path, `{"link.rate": "1gbit"}`, or as on the command line, `["link.rate=1gbit"]`."""


def experiment_of(spec: Spec, overrides: Overrides = ()) -> Experiment:
    """Raises SpecError that names every wrong field and what is allowed."""
    data, name, _ = _read(spec)
    for _, (path, value) in _settings(overrides):
        set_value(data, path, value)
    with naming(name):
        return validate(data)


def sweep_of_spec(spec: Spec, overrides: Overrides = ()) -> Sweep:
    """Raises SpecError that names every point that is no experiment, or if there is but one and nothing is repeated."""
    data, name, folder = _read(spec)
    swept = sweep_of(data, _settings(overrides), name=name, folder=folder)
    if swept.is_single_run:
        raise SpecError(
            f'{name}: nothing varies; list values under `sweep`, such as {{"sweep.link.rate": ["100mbit", "1gbit"]}}, '
            "or use testbed.run"
        )
    return swept


def _read(spec: Spec) -> tuple[dict[Any, Any], object, Path]:
    """Its data, what errors call it, and where paths in it begin."""
    if isinstance(spec, Experiment):
        return spec.dump(), spec.name, Path()
    if isinstance(spec, Mapping):
        return copy.deepcopy(dict(spec)), "spec", Path()
    if not isinstance(spec, str | Path):
        raise SpecError(f"a spec is a file, a name, a mapping or an Experiment; this is a {type(spec).__name__}")
    path = spec_path(Path(spec))
    return read(path), path, path.parent


def _settings(overrides: Overrides) -> list[tuple[str, tuple[str, Any]]]:
    """Each as it is written, its path and its value. Raises SpecError."""
    if isinstance(overrides, str):
        raise SpecError(f'overrides are a mapping or a list, such as ["link.rate=1gbit"]; this is {overrides!r}')
    if not isinstance(overrides, Mapping):
        return [(text, parse_override(text)) for text in overrides]
    for path in overrides:
        if not isinstance(path, str) or not all(path.split(".")):
            raise SpecError(f"overrides: {path!r} is no path of a setting, such as link.rate")
    return [(f"{path}={value}", (path, copy.deepcopy(value))) for path, value in overrides.items()]
