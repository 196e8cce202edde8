"""What `testbed fit` found on this machine, kept beside its budget."""

import json
from dataclasses import asdict, fields
from typing import Any, Final

from testbed.calibration.cache import cache_directory, machine_digest
from testbed.errors import EnvironmentLacksError
from testbed.theory.fit import Fit
from transports.collectives.timing import DEFAULT_COSTS, Costs

_FILE: Final = "fit.json"


def keep_fit(fit: Fit) -> None:
    """In the user's cache, for :func:`known_costs`. Raises EnvironmentLacksError when it cannot be written."""
    path = cache_directory() / _FILE
    kept = {"machine": machine_digest(), "costs": asdict(fit.costs), "mean_error": fit.mean_error}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        partial.replace(path)
    except OSError as refusal:
        raise EnvironmentLacksError(f"cannot write {path}: {refusal.strerror}; set XDG_CACHE_HOME") from refusal


def known_costs() -> Costs:
    """What was fitted on this machine with this code; the defaults if nothing was, or the file is not whole."""
    try:
        found: dict[str, Any] = json.loads((cache_directory() / _FILE).read_text(encoding="utf-8"))
        if found["machine"] != machine_digest():
            return DEFAULT_COSTS
        costs = found["costs"]
        numbers = all(isinstance(costs[name], float) and costs[name] > 0 for name in _NUMBERS)
        return Costs(**costs) if numbers and set(costs) == {each.name for each in fields(Costs)} else DEFAULT_COSTS
    except (OSError, ValueError, TypeError, KeyError):
        return DEFAULT_COSTS


_NUMBERS: Final = ("host_latency_s", "message_s", "addition_s_per_byte", "link_share")
