"""Simulations as a person and a script read them."""

import io

from rich.console import Console

from testbed.experiment.experiment import validate
from testbed.report.terminal.simulation import REACH, render_simulation, simulation_json
from testbed.theory.simulation.simulate import simulate


def test_what_was_simulated_is_said_with_what_was_not() -> None:
    found = simulate(validate({"name": "x", "workload": "synthetic", "topology": "dumbbell"}), num_iterations=2)
    stream = io.StringIO()
    render_simulation(found, Console(file=stream, width=300))
    text = stream.getvalue()
    assert f"an iteration of {found.num_workers} workers on dumbbell takes" in text
    assert "a worker alone computes for 300 ms: a scaling factor of" in text
    assert REACH in text
    reported = simulation_json(found)
    assert reported["iterations_s"] == [list(found.iterations_s[0])]
    assert reported["scaling_factor"] == found.scaling_factor


def test_computing_that_nobody_knows_is_left_out() -> None:
    stream = io.StringIO()
    render_simulation(simulate(validate({"name": "x"})), Console(file=stream, width=300))
    assert "the spec does not say how long computing takes" in stream.getvalue()
