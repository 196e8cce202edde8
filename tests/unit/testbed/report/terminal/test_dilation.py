"""A comparison of dilations as a person reads it."""

import io

from rich.console import Console

from testbed.report.terminal.dilation import render_validation
from testbed.verdict.dilation import compare, overall


def rendered(second_s: list[float]) -> str:
    stream = io.StringIO()
    first_s = [0.5, 0.501][: len(second_s)]
    compared = compare({1: {"iteration_time_s": first_s}, 2: {"iteration_time_s": second_s}})
    console = Console(file=stream, width=200)
    render_validation(compared, overall(compared), 0.03, console, not_compared=["scaling_factor"])
    return stream.getvalue()


def test_the_answer_and_what_it_rests_on_are_shown() -> None:
    agreeing, differing = rendered([0.5, 0.5005]), rendered([0.8, 0.8001])
    assert "agrees: the answer does not depend on how slow time runs (tolerance 3 %)" in agreeing
    assert "iteration time" in agreeing
    assert "scaling factor: not compared, a run has none" in agreeing
    assert "differs: something that time does not stretch" in differing
    assert "1.59" in differing


def test_a_single_run_has_no_interval() -> None:
    text = rendered([0.5])
    assert "inf" not in text
    assert "undecided" in text
