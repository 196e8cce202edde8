"""MLflow: an experiment for each spec's name, a run for each record.

The spec's values are its parameters, the verdict its tags; a run whose numbers do not stand has the status FAILED.
MLflow's own reports about its use are switched off meanwhile.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from testbed.errors import MissingRequirementError
from testbed.tracking.numbers import Tracked

if TYPE_CHECKING:
    from mlflow import MlflowClient

_T = TypeVar("_T")
_ENVIRONMENT: Final = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_ALLOW_FILE_STORE": "true"}
"""Whoever names a folder wants its files there, although MLflow recommends a database."""
_BATCH: Final = 100
"""Parameters that one request may have; of metrics it may have 1000."""
_LONGEST: Final = 5000
"""Characters of a tag; a parameter may have 6000. What is longer ends in an ellipsis."""


def write(run: Tracked, place: str) -> bool:
    """Write a run to a tracking URI (`http://...`, `file:...`, a folder; `sqlite:///...` takes the whole of MLflow);
    False where it is there already. Raises MissingRequirementError."""
    with _environment():
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException

        try:
            client = MlflowClient(tracking_uri=place)
            experiment = client.get_experiment_by_name(run.name)
            experiment_id = experiment.experiment_id if experiment else client.create_experiment(run.name)
            if _is_there(client, experiment_id, run):
                return False
            _write(client, experiment_id, run)
        except (MlflowException, OSError) as failure:
            raise MissingRequirementError(f"MLflow at {place}: {failure}") from failure
    return True


@contextmanager
def _environment() -> Iterator[None]:
    known = {name: os.environ.get(name) for name in _ENVIRONMENT}
    os.environ.update(_ENVIRONMENT)
    try:
        yield
    finally:
        for name, value in known.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _is_there(client: "MlflowClient", experiment_id: str, run: Tracked) -> bool:
    """Whether it was written; what an interruption has left of it is removed."""
    written = False
    for each in client.search_runs([experiment_id], f"tags.`testbed.run_id` = '{run.tags['testbed.run_id']}'"):
        if each.info.status == "RUNNING":
            client.delete_run(each.info.run_id)
        else:
            written = True
    return written


def _write(client: "MlflowClient", experiment_id: str, run: Tracked) -> None:
    from mlflow.entities import Metric, Param

    tags = {name: _cut(value) for name, value in run.tags.items()}
    begun = client.create_run(experiment_id, _milliseconds(run.began_s), tags, run.run_name)
    run_id = begun.info.run_id
    params = [Param(_key(name), _cut(str(value))) for name, value in run.parameters.items()]
    metrics = [Metric(name, value, _milliseconds(run.ended_s), 0) for name, value in run.totals.items()]
    metrics += [
        Metric(name, each.value, _milliseconds(each.at_s), each.step)
        for name, values in run.series.items()
        for each in values
    ]
    for some_params in _parts(params):
        client.log_batch(run_id, params=some_params)
    for some_metrics in _parts(metrics):
        client.log_batch(run_id, metrics=some_metrics)
    client.set_terminated(run_id, "FINISHED" if run.stands else "FAILED", _milliseconds(run.ended_s))


def _key(path: str) -> str:
    """MLflow's names have letters, digits and a few signs: `links.w0->s0.rate` is `links.w0-_3e_s0.rate`."""
    return re.sub(r"[^\w\-. /]", lambda found: f"_{ord(found[0]):x}_", path)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 4]} ..."


def _parts(values: Sequence[_T]) -> Iterator[Sequence[_T]]:
    for begin in range(0, len(values), _BATCH):
        yield values[begin : begin + _BATCH]


def _milliseconds(at_s: float) -> int:
    return round(1000 * at_s)
