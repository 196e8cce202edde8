"""The testbed: spec -> plan -> deploy -> calibrate -> run -> record -> report.

From Python: `testbed.run`, `testbed.sweep`, `testbed.load`, `testbed.results`, `testbed.compare`, `testbed.predict`
(testbed.api.calls). Importing this package imports none of what these need; their first use does.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from testbed.api.calls import compare, load, predict, results, run, sweep

__all__ = ["compare", "load", "predict", "results", "run", "sweep"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from testbed.api import calls

    function = globals()[name] = getattr(calls, name)
    return function


def __dir__() -> list[str]:
    return [*globals(), *__all__]
