"""How the verdict learns what ended a run, and which error that was."""

import pytest

from testbed.errors import CalibrationError, Interrupted, MissingRequirementError, RunFailedError, TestbedError
from testbed.runner.run import _end_of, _first_cause


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RunFailedError("w1 was killed"), "failed"),
        (CalibrationError("w0 -> s0 is slow"), "not calibrated"),
        (MissingRequirementError("no netem"), "unsupported"),
    ],
)
def test_each_error_ends_a_run_in_its_own_way(error: TestbedError, kind: str) -> None:
    assert _end_of(error) == (kind, str(error))
    assert _end_of(Interrupted("SIGHUP")) == ("failed", "interrupted by SIGHUP")


def _removed_badly(cause: BaseException) -> None:
    try:
        try:
            raise cause
        finally:
            raise OSError("first")
    finally:
        raise OSError("last")


def test_what_went_wrong_while_the_rest_was_removed_hides_no_cause() -> None:
    cause = RunFailedError("the holder of w1 has ended")
    with pytest.raises(OSError, match="last") as caught:
        _removed_badly(cause)
    assert _first_cause(caught.value) is cause
    assert _first_cause(ValueError("alone")) is None
