"""MLflow: an experiment for each spec's name, a run for each record.

The spec's values are its parameters, the verdict its tags; a run whose numbers do not stand has the status FAILED.
MLflow's own reports about its use are switched off meanwhile.
"""

import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from testbed.errors import MissingRequirementError
from testbed.system.processes import ProcessIdentity
from testbed.system.run_state import boot_id
from testbed.tracking.numbers import Tracked

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

_T = TypeVar("_T")
_ENVIRONMENT: Final = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_ALLOW_FILE_STORE": "true"}
"""Whoever names a folder wants its files there, although MLflow recommends a database."""
_BATCH: Final = 100
"""Parameters that one request may have; of metrics it may have 1000."""
_LONGEST: Final = 5000
"""Characters of a tag; a parameter may have 6000. What is longer ends in an ellipsis."""
_WRITER: Final = "testbed.writer"
"""A tag: which process writes it, and since when. Whoever finds a run that has not ended sees whether it will."""
_ABANDONED_S: Final = 600.0
"""So long after its beginning a run that another machine writes counts as interrupted."""
_under_way: Final[set[str]] = set()
"""Runs of MLflow that threads of this process write."""


def write(run: Tracked, place: str) -> bool:
    """Write a run to a tracking URI (`http://...`, `file:...`, a folder; `sqlite:///...` takes the whole of MLflow);
    False where it is there already, or another process writes it. Raises MissingRequirementError."""
    with _environment():
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException

        try:
            client = MlflowClient(tracking_uri=place)
            experiment = client.get_experiment_by_name(run.name)
            experiment_id = experiment.experiment_id if experiment else client.create_experiment(run.name)
            return not _is_there(client, experiment_id, run) and _write(client, experiment_id, run)
        except (MlflowException, OSError) as failure:
            raise MissingRequirementError(f"MLflow at {place}: {failure}") from failure


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
    """Whether it was written, or is being written; what an interruption has left of it is removed."""
    there = False
    for each in _found(client, experiment_id, run):
        if each.info.status == "RUNNING" and _is_abandoned(each):
            client.delete_run(each.info.run_id)
        else:
            there = True
    return there


def _found(client: "MlflowClient", experiment_id: str, run: Tracked) -> "list[Run]":
    return list(client.search_runs([experiment_id], f"tags.`testbed.run_id` = '{run.tags['testbed.run_id']}'"))


def _is_abandoned(unfinished: "Run") -> bool:
    """Whether nobody writes it any more."""
    place, _, rest = unfinished.data.tags.get(_WRITER, "").partition(" ")
    try:
        pid, start_time, since_s = (int(number) for number in rest.split())
    except ValueError:
        return True
    if place != _place():
        return time.time() - since_s > _ABANDONED_S
    identity = ProcessIdentity(pid, start_time)
    return unfinished.info.run_id not in _under_way if identity == ProcessIdentity.own() else not identity.alive()


def _place() -> str:
    """Where pids mean the same: a boot of a machine, and a namespace of pids."""
    return f"{boot_id()}/{Path('/proc/self/ns/pid').stat().st_ino}"


def _write(client: "MlflowClient", experiment_id: str, run: Tracked) -> bool:
    """False where another writer has begun meanwhile and is left to it."""
    identity = ProcessIdentity.own()
    writer = f"{_place()} {identity.pid} {identity.start_time} {round(time.time())}"
    tags = {name: _cut(value) for name, value in run.tags.items()} | {_WRITER: writer}
    run_id = client.create_run(experiment_id, _milliseconds(run.began_s), tags, run.run_name).info.run_id
    _under_way.add(run_id)
    try:
        _write_numbers(client, run_id, run)
        # Two that looked at once have both found nothing and begun: one of them stays.
        others = [each for each in _found(client, experiment_id, run) if each.info.run_id != run_id]
        if any(_comes_first(other, run_id) for other in others):
            client.delete_run(run_id)
            return False
        client.set_terminated(run_id, "FINISHED" if run.stands else "FAILED", _milliseconds(run.ended_s))
    finally:
        _under_way.discard(run_id)
    return True


def _comes_first(other: "Run", run_id: str) -> bool:
    """Of two runs of one record, whether the other one stays."""
    return other.info.status != "RUNNING" or (other.info.run_id < run_id and not _is_abandoned(other))


def _write_numbers(client: "MlflowClient", run_id: str, run: Tracked) -> None:
    from mlflow.entities import Metric, Param

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
