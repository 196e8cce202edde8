"""The documents of a record that say what was requested and where it ran, read quickly: of thousands of records."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from testbed.errors import SpecError


class Origin(NamedTuple):
    """Where a record comes from."""

    commit: str
    """Of the testbed that ran it."""
    machine: str
    """Processor, cores, kernel: numbers of unlike machines are not compared."""


def resolved_spec(record: Path) -> dict[str, Any]:
    """The spec with every default. Raises SpecError when it cannot be read."""
    path = record / "spec.yaml"
    try:
        # We wrote it; libyaml's parser takes a tenth of the time of the one that refuses people's slips.
        spec = yaml.load(path.read_bytes(), Loader=yaml.CSafeLoader)
    except (OSError, yaml.YAMLError, ValueError) as error:
        raise SpecError(f"{path}: {' '.join(str(error).split())}") from error
    if not isinstance(spec, dict):
        raise SpecError(f"{path}: not a mapping")
    return spec


def origin(record: Path) -> Origin:
    """What environment.json says. Raises SpecError when it cannot be read."""
    path = record / "environment.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return Origin(str(found["commit"]), f"{found['cpu']}, {found['num_cores']} cores, Linux {found['kernel']}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SpecError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
