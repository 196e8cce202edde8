"""Read back by MLflow's own client, from a store of files."""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from testbed.errors import MissingRequirementError
from testbed.record.reader import load
from testbed.tracking.mlflow import write
from testbed.tracking.numbers import tracked
from tests.unit.testbed.tracking.test_numbers import RECORD, judged

if TYPE_CHECKING:
    from mlflow import MlflowClient


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """As for whoever keeps files: MLflow's client wants that said, too."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return (tmp_path / "mlruns").as_uri()


def reader(place: str) -> "MlflowClient":
    """MLflow's client, which takes more than a second to import: whoever only collects this file does without."""
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=place)


def test_everything_is_read_back(place: str) -> None:
    run = tracked(load(RECORD))
    before = dict(os.environ)
    assert write(run, place)
    assert dict(os.environ) == before
    client = reader(place)
    experiment = client.get_experiment_by_name("quickstart")
    assert experiment is not None
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.run_name == run.run_name
    assert found.info.status == "FINISHED"
    assert found.info.start_time == round(1000 * run.began_s)
    assert found.data.params == {name: str(value) for name, value in run.parameters.items()}
    assert found.data.tags.items() >= run.tags.items()
    assert set(found.data.metrics) == {*run.series, *run.totals}
    for name, values in run.series.items():
        history = sorted(client.get_metric_history(found.info.run_id, name), key=lambda metric: metric.step)
        assert [metric.step for metric in history] == [each.step for each in values]
        assert [metric.value for metric in history] == pytest.approx([each.value for each in values])
        assert [metric.timestamp for metric in history] == [round(1000 * each.at_s) for each in values]


def test_a_run_that_does_not_stand_has_failed_and_its_numbers_are_named_so(tmp_path: Path, place: str) -> None:
    write(tracked(judged(tmp_path, "invalid", "the links were slower")), place)
    client = reader(place)
    (found,) = client.search_runs([client.get_experiment_by_name("quickstart").experiment_id])
    assert found.info.status == "FAILED"
    assert found.data.tags["testbed.outcome"] == "invalid"
    assert found.data.tags["testbed.reasons"] == "the links were slower"
    assert all(name.startswith("invalid/") for name in found.data.metrics)


def test_a_run_is_written_once_and_what_was_cut_short_is_written_again(place: str) -> None:
    run = tracked(load(RECORD))
    client = reader(place)
    experiment_id = client.create_experiment(run.name)
    half = client.create_run(experiment_id, tags=dict(run.tags))
    assert write(run, place)
    assert not write(run, place)
    (found,) = client.search_runs([experiment_id])
    assert found.info.run_id != half.info.run_id


def test_paths_with_signs_that_mlflow_does_not_take_and_long_values_are_written_all_the_same(place: str) -> None:
    parameters: dict[str, str | float | bool] = {
        "links.w0->s0.rate": "10mbit",
        "hosts.w*.cpu": 2,
        "workload.layers": "7," * 5000,
    }
    write(replace(tracked(load(RECORD)), parameters=parameters), place)
    client = reader(place)
    (found,) = client.search_runs([client.get_experiment_by_name("quickstart").experiment_id])
    assert found.data.params["links.w0-_3e_s0.rate"] == "10mbit"
    assert found.data.params["hosts.w_2a_.cpu"] == "2"
    assert found.data.params["workload.layers"].endswith("7, ...")


def test_a_store_of_files_needs_nothing_said_beside_its_name(tmp_path: Path) -> None:
    assert write(tracked(load(RECORD)), str(tmp_path / "mlruns"))
    assert list((tmp_path / "mlruns").glob("*/*/metrics/run/scaling_factor"))


def test_a_server_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(MissingRequirementError, match=r"MLflow at http://127\.0\.0\.1:9: "):
        write(tracked(load(RECORD)), "http://127.0.0.1:9")
