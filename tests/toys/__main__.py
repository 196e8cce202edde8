"""`python -m tests.toys KEYS`: plan with these keys of a spec, given as JSON, one after the other; find every word
in the schema, in what is allowed, and in the doctor's list. Prints nothing, ends with status 0, or says what failed."""

import io
import json
import sys

from rich.console import Console

from switch_agg.dataplanes.base import data_plane, data_planes
from testbed.experiment.delay_backends.base import delay_backends
from testbed.experiment.experiment import Experiment, validate
from testbed.machine.doctor import missing_for_backend, missing_for_data_plane, plan_here
from testbed.report.terminal.plan import render_plan
from testbed.report.terminal.setup import setup_text


def main(keys_json: str) -> None:
    schema = json.dumps(Experiment.model_json_schema())
    for kind, keys in json.loads(keys_json).items():
        experiment = validate({"name": "toy", **keys})
        assert Experiment.model_validate(experiment.dump()) == experiment, kind
        assert kind in json.dumps(experiment.dump()), kind
        assert f'"{kind}"' in schema, kind
        plan = plan_here(experiment)
        json.dumps(plan.to_json())
        shown = io.StringIO()
        render_plan(plan, Console(file=shown, width=200))
        assert shown.getvalue(), kind
        assert setup_text(experiment), kind
    for kind in (each for each in delay_backends() if each.startswith("toy")):
        assert missing_for_backend(kind) == "", kind
    for kind in (each for each in data_planes() if each.startswith("toy")):
        assert data_plane(kind).kind == kind
        assert missing_for_data_plane(kind) == "", kind


main(sys.argv[1])
