from pathlib import Path

from testbed.live.outcome import ending
from tests.unit.testbed.conftest import Scenario, make_record


def test_an_ending_says_what_the_summary_says(tmp_path: Path) -> None:
    summary = make_record(tmp_path, Scenario(num_iterations=10), outcome="degraded", reasons=["because"]).summary
    found = ending(summary)
    assert (found.outcome, found.meaning) == ("degraded", "The numbers stand, with reservations.")
    assert found.reasons == ["because"]
    assert found.headline.startswith("4 workers spend")
    assert summary.iteration_time_s is not None
    assert (found.iteration_time_s, found.record) == (summary.iteration_time_s.mean, str(tmp_path))
