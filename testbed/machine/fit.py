"""What `testbed fit` found on this machine and what `testbed bench predictions` then found it to be off by, kept beside
its budget."""

import hashlib
import inspect
import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from functools import reduce
from statistics import fmean
from typing import Any, Final, NamedTuple

import testbed.plan.prediction
import testbed.theory.fit
import testbed.theory.lone_exchange
import transports.collectives.timing
from switch_agg.native.cache import cache_directory
from testbed.calibration.cache import machine_digest
from testbed.errors import MissingRequirementError
from testbed.theory.fit import CHANNEL_PARAMETERS, PARAMETERS, Fit
from testbed.theory.reach import Expected, Reach
from transports.collectives.costs import DEFAULT_COSTS, ChannelCosts, Costs

_FILE: Final = "fit.json"
_MODEL: Final = (
    transports.collectives.timing,
    testbed.plan.prediction,
    testbed.theory.fit,
    testbed.theory.lone_exchange,
)
"""What parameters mean, and predictions: those that were fitted to another model are none of this one's."""


class ValidatedPoint(NamedTuple):
    """One comparison of a prediction with a measurement that no fit has seen."""

    error: float
    """Predicted over measured, less 1."""
    reach: Reach
    """Of that point."""


def _digest() -> str:
    """Of the machine, what makes links on it, and the model."""
    sources = "".join(inspect.getsource(module) for module in _MODEL)
    return f"{machine_digest()}-{hashlib.sha256(sources.encode()).hexdigest()[:16]}"


def keep_fit(fit: Fit) -> None:
    """In the user's cache, for :func:`known_costs`; what an earlier fit was found to be off by is forgotten. Raises
    MissingRequirementError when it cannot be written."""
    _keep(
        {
            "machine": _digest(),
            "costs": asdict(fit.costs),
            "residuals": list(fit.residuals),
            "reach": asdict(fit.reach),
            "validated": {},
        }
    )


def keep_validation(points: Mapping[str, ValidatedPoint]) -> None:
    """Beside the fit that was validated, by their names, what was measured before included; nothing where there is no
    fit."""
    if (found := _found()) is not None:
        kept = {name: {"error": point.error, "reach": asdict(point.reach)} for name, point in points.items()}
        _keep({**found, "validated": {**found["validated"], **kept}})


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
        costs = found["costs"]
        whole = all(isinstance(costs[name], float) and costs[name] > 0 for name in PARAMETERS)
        whole &= costs["num_cores"] is None or costs["num_cores"] >= 1
        whole &= all(each[name] > 0 for each in costs["channels"] for name in CHANNEL_PARAMETERS)
        named = set(costs) == {each.name for each in fields(Costs)}
        _costs(found)
        _expected(found)
        return found if whole and named and found["machine"] == _digest() else None
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError):
        return None


def _costs(found: Mapping[str, Any]) -> Costs:
    costs = found["costs"]
    return Costs(**{**costs, "channels": tuple(ChannelCosts(**each) for each in costs["channels"])})


def _expected(found: Mapping[str, Any]) -> Expected:
    fitted, points = Reach.of_json(found["reach"]), found["validated"].values()
    if not points:
        errors = [abs(float(residual)) for residual in found["residuals"]]
        return Expected(fmean(errors), "residuals of the fit", len(errors), fitted)
    reach = reduce(Reach.joined, (Reach.of_json(point["reach"]) for point in points), fitted)
    return Expected(fmean(abs(float(point["error"])) for point in points), "validation", len(points), reach)


def known_costs() -> Costs:
    """What was fitted on this machine with this code; the defaults if nothing was, or the file is not whole."""
    found = _found()
    return DEFAULT_COSTS if found is None else _costs(found)


def expected_error() -> Expected | None:
    """Of predictions with :func:`known_costs`, and where it holds: by the points that were compared so far, or, as long
    as none was, by the residuals. None with the defaults, which nobody has compared with this machine."""
    found = _found()
    return None if found is None else _expected(found)
