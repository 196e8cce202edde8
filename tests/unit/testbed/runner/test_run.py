"""How the verdict learns what ended a run, and which error that was; what a record says of a command's program."""

from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, NoReturn

import pytest
from rich.console import Console

from testbed.calibration.cache import Mode
from testbed.errors import CalibrationError, Interrupted, MissingRequirementError, RunFailedError, TestbedError
from testbed.experiment.experiment import validate
from testbed.plan.plan import make_plan
from testbed.report.terminal.summary import LiveProgress
from testbed.runner.run import RunStoppedError, _end_of, _first_cause, _Run
from testbed.store.documents import origin, origin_here, origin_of
from testbed.store.reuse import unlike
from testbed.system.command_files import files_digest


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


def begun(output: Path, **keys: Any) -> _Run:
    return _Run(
        make_plan(validate({"name": "x", "workers": 2, **keys})),
        output=output / "results",
        progress=LiveProgress(Console(file=StringIO())),
        captured={},
        snap_bytes=0,
        calibration_mode=Mode.CLASS,
        on_line=None,
        stdin=None,
        live=None,
        engine=None,
    )


@pytest.mark.parametrize("moments", [(True, False), (False, True), (False, False)])
def test_a_run_whose_process_began_with_other_sources_says_so_and_is_of_no_version(
    moments: Sequence[bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether they had changed when it began, or had when it ended."""

    def no_session(*_: Any, **__: Any) -> NoReturn:
        raise RunFailedError("no session")

    answers = iter(moments)
    monkeypatch.setattr("testbed.runner.run.code_changed", lambda: next(answers))
    monkeypatch.setattr("testbed.runner.run.session", no_session)
    with pytest.raises(RunStoppedError) as stopped:
        begun(tmp_path, metrics={"port": None}).execute()
    summary = stopped.value.summary
    assert any("sources were changed" in reason for reason in summary.reasons) == any(moments)
    assert (origin(Path(summary.record)).code is None) == any(moments)
    assert bool(unlike(Path(summary.record), origin_here())) == any(moments)


def test_a_command_s_record_says_of_which_program_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ddp.py").write_text("print(1)\n")

    def environment(**keys: Any) -> Mapping[str, Any]:
        return begun(tmp_path, **keys).environment

    argv = ["python", "ddp.py"]
    found = environment(workload={"kind": "command", "argv": argv})
    assert found["program_sha256"] == files_digest(argv, tmp_path)
    assert origin_of(found).program is not None
    assert "program_sha256" not in environment(workload="synthetic")
    assert origin_of(environment(workload="synthetic", dilation=2)).decided["dilation"] == 2.0
