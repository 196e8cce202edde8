"""What the recorder keeps of the borders between phases; the rest is in tests/end_to_end/."""

from pathlib import Path
from typing import Any, cast

from testbed.experiment.experiment import validate
from testbed.measure.observations import Observations
from testbed.plan.plan import make_plan
from testbed.record.writer import RecordWriter
from testbed.runner.recorder import Recorder


class FollowedLinks:
    begun = True
    late_s = 0.0

    def forget_late(self) -> None:
        self.late_s = 0.0

    def check(self) -> None:
        """Nothing has failed."""


def test_changes_are_late_for_the_iterations_in_which_they_were(tmp_path: Path) -> None:
    """What was caught up with in warm-up, and what comes late while processes end, decides no number."""
    links, observations = FollowedLinks(), Observations()
    nobody: Any = None
    recorder = Recorder(
        plan=make_plan(validate({"name": "x", "workers": 2})),
        epoch_s=0.0,
        writer=RecordWriter(tmp_path),
        exporter=nobody,
        progress=nobody,
        links=cast("Any", links),
        observations=observations,
        workers=dict,
        processes=dict,
        hosts=dict,
    )
    links.late_s = 1.0
    recorder.on_barrier("measure")
    assert links.late_s == 0.0
    links.late_s = 0.01
    recorder.on_barrier("done")
    links.late_s = 2.0
    assert observations.changes_late_s == 0.01
