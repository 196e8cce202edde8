"""The documents of a record that say what was requested and where it ran, read quickly: of thousands of records."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from testbed.errors import SpecError
from testbed.system import environment
from testbed.system.environment import DECIDING_SYSCTLS


class Origin(NamedTuple):
    """Where a record comes from."""

    commit: str
    """Of the testbed that ran it."""
    machine: str
    """Processor, cores, kernel, and whether the emulation was spread over several: numbers of unlike machines are not
    compared."""
    settings: Mapping[str, object]
    """What a machine may have now and not later, by name: how many cores could be used, and sysctls; without what its
    record did not say yet, or the kernel has not."""
    code: str | None
    """Digest of the testbed's sources, and Python's and the packages' versions; None: these changed under the process
    that made it, so that it is of no version, or records did not say it yet."""
    program: str | None
    """Of a command: digest of the files that its arguments name; None: it is none, or its record did not say it yet."""
    image: str | None
    """What the image of its containers was, whatever its name; None: it runs in none, or nobody could say."""
    decided: Mapping[str, object]
    """What the spec left to the machine (testbed.plan.plan.Plan.decided), by the paths of its values; empty: it is no
    run's, or its record did not say it yet."""

    def unlike(self, other: "Origin") -> tuple[str, ...]:
        """In what this one differs from the other, so that their numbers may differ, too. Of settings and of what was
        decided only that is compared which both say."""
        found = []
        if self.machine != other.machine:
            found.append(f"another machine ({self.machine})")
        if self.code != other.code:
            found.append("another version of the code or its packages")
        if self.program != other.program:
            found.append("another program")
        if self.image != other.image:
            found.append(f"another image ({self.image or 'none, or unknown'})")
        settings, decided = _differences(self.settings, other.settings), _differences(self.decided, other.decided)
        return (*found, *settings, *decided)


def origin_of(environment: Mapping[str, Any]) -> Origin:
    """What a record's environment.json says, or testbed.system.environment.describe() of this machine now. Raises
    KeyError for what it does not say, but for what records of other versions did not."""
    sources = environment.get("code_sha256")
    num_machines = environment.get("num_machines", 1)
    several = f", one of {num_machines} machines" if num_machines > 1 else ""
    versions = {"python": environment["python"], **environment["packages"]}
    return Origin(
        commit=str(environment["commit"]),
        machine=f"{environment['cpu']}, {environment['num_cores']} cores, Linux {environment['kernel']}{several}",
        settings=_settings(environment),
        code=None if sources is None else f"{sources} {json.dumps(versions, sort_keys=True)}",
        program=environment.get("program_sha256"),
        image=environment.get("runtime", {}).get("image_id"),
        decided=flat(environment.get("decided", {})),
    )


def _settings(environment: Mapping[str, Any]) -> dict[str, object]:
    sysctls = environment.get("sysctls", {})
    said = {
        "usable cores": environment.get("num_usable_cores"),
        **{name: sysctls.get(name) for name in DECIDING_SYSCTLS},
    }
    return {name: value for name, value in said.items() if value is not None}


def _differences(these: Mapping[str, object], others: Mapping[str, object]) -> Iterator[str]:
    """In what two mappings differ, of what both have."""
    for name in these:
        if name in others and these[name] != others[name]:
            yield f"{name} {value_text(these[name])} instead of {value_text(others[name])}"


def value_text(value: object) -> str:
    """Of a value of :class:`Origin`'s mappings; a list, which may be long, by its number of elements and a digest."""
    if isinstance(value, list):
        return f"{len(value)} ({hashlib.sha256(json.dumps(value).encode()).hexdigest()[:8]})"
    return f"{value:g}" if isinstance(value, float) else str(value)


def origin_here() -> Origin:
    """Of what this process would make now: its code is what it has imported, and settings may have changed since."""
    return _origin_at_first()._replace(settings=_settings(environment.settings()))


@cache
def _origin_at_first() -> Origin:
    return origin_of(environment.describe())


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


def flat(spec: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A resolved spec by the paths of its values: `link.rate`."""
    found: dict[str, Any] = {}
    for key, each in spec.items():
        path = f"{prefix}{key}"
        if isinstance(each, Mapping) and each:
            found |= flat(each, f"{path}.")
        else:
            found[path] = each
    return found


def origin(record: Path) -> Origin:
    """What environment.json says. Raises SpecError when it cannot be read."""
    path = record / "environment.json"
    try:
        return origin_of(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SpecError(f"{path} cannot be read: {type(error).__name__}: {error}") from error


def recorded_schema_version(record: Path) -> object:
    """The version that a record's summary was written in, before it is read as today's. Raises SpecError."""
    path = record / "summary.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))["schema_version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SpecError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
