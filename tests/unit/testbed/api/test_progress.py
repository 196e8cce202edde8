"""Steps of a run for a function, whose own errors end the run and are not the testbed's."""

from io import StringIO

import pytest
from rich.console import Console

from testbed.api.progress import Heard, Step
from testbed.errors import RunFailedError
from testbed.report.terminal.summary import LiveProgress


def test_steps_are_handed_on_and_shown() -> None:
    steps: list[Step] = []
    shown = StringIO()
    heard = Heard(steps.append, LiveProgress(Console(file=shown)))
    heard.phase("deploy")
    heard.iteration("measured", 2, 6, 0.5)
    heard.links([("w0-s0", 0.5)])
    heard.say("a word")
    assert steps == [Step(phase="deploy"), Step(phase="measured", iteration=2, num_iterations=6, loss=0.5)]
    assert "deploy" in shown.getvalue()
    assert "a word" in shown.getvalue()


def test_what_the_function_raises_is_kept_and_it_hears_no_more() -> None:
    called = []

    def enough(step: Step) -> None:
        called.append(step)
        raise ValueError("enough")

    heard = Heard(enough, LiveProgress(Console(file=StringIO()), enabled=False))
    with pytest.raises(RunFailedError, match="on_progress raised ValueError: enough"):
        heard.phase("deploy")
    heard.phase("tear down")
    assert len(called) == 1
    assert isinstance(heard.error, ValueError)
