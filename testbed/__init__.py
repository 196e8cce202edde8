"""The testbed: spec -> plan -> deploy -> calibrate -> run -> record -> report.

From Python: `testbed.run`, `testbed.sweep`, `testbed.load`, `testbed.results`, `testbed.compare`, `testbed.predict`
(testbed.api.calls), and what they raise, `testbed.errors`. Importing this package imports nothing that takes time:
these are found when they are first used.
"""

from typing import TYPE_CHECKING

from testbed import errors

__all__ = ["compare", "errors", "load", "predict", "results", "run", "sweep"]

if TYPE_CHECKING:
    from testbed.api.calls import compare, load, predict, results, run, sweep
else:  # whoever checks types sees these names and no others

    def __getattr__(name):
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from testbed.api import calls

        function = globals()[name] = getattr(calls, name)
        return function

    def __dir__():
        return sorted({*globals(), *__all__})
