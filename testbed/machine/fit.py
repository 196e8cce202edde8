"""What `testbed fit` found on this machine, kept beside its budget."""

import json
from dataclasses import asdict, fields
from typing import Any, Final, Literal, NamedTuple

from testbed.calibration.cache import cache_directory, machine_digest
from testbed.errors import MissingRequirementError
from testbed.theory.fit import Fit
from transports.collectives.timing import DEFAULT_COSTS, Costs

_FILE: Final = "fit.json"


class Expected(NamedTuple):
    """By how much predictions were off where they were compared with measurements: the mean of the magnitudes."""

    error: float
    source: Literal["residuals of the fit", "validation"]


def keep_fit(fit: Fit) -> None:
    """In the user's cache, for :func:`known_costs`; what an earlier fit was found to be off by is forgotten. Raises
    MissingRequirementError when it cannot be written."""
    _keep({"machine": machine_digest(), "costs": asdict(fit.costs), "mean_error": fit.mean_error})


def keep_validation(mean_error: float) -> None:
    """Beside the fit that was validated, by all listed points; nothing where there is none."""
    if (found := _found()) is not None:
        _keep({**found, "validated_mean_error": mean_error})


def _keep(kept: dict[str, Any]) -> None:
    path = cache_directory() / _FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        partial.replace(path)
    except OSError as failure:
        raise MissingRequirementError(f"cannot write {path}: {failure.strerror}; set XDG_CACHE_HOME") from failure


def _found() -> dict[str, Any] | None:
    """What is kept for this machine and this code, whole."""
    try:
        found: dict[str, Any] = json.loads((cache_directory() / _FILE).read_text(encoding="utf-8"))
        costs, numbers = found["costs"], ("host_latency_s", "message_s", "addition_s_per_byte", "link_share")
        whole = all(isinstance(costs[name], float) and costs[name] > 0 for name in numbers)
        named = set(costs) == {each.name for each in fields(Costs)}
        return found if whole and named and found["machine"] == machine_digest() else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def known_costs() -> Costs:
    """What was fitted on this machine with this code; the defaults if nothing was, or the file is not whole."""
    found = _found()
    return DEFAULT_COSTS if found is None else Costs(**found["costs"])


def expected_error() -> Expected | None:
    """Of predictions with :func:`known_costs`; None with the defaults, which nobody has compared with this machine."""
    found = _found()
    if found is None:
        return None
    if (validated := found.get("validated_mean_error")) is not None:
        return Expected(float(validated), "validation")
    return Expected(float(found["mean_error"]), "residuals of the fit")
