"""Read back by MLflow's own client, from a store of files."""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from testbed.errors import MissingRequirementError
from testbed.record.reader import load
from testbed.tracking import mlflow
from testbed.tracking.mlflow import write
from testbed.tracking.numbers import Tracked, tracked
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


def test_what_a_living_process_writes_is_left_to_it(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two track the same record at once: the second finds the first at work, or both begin and one of them stays."""
    run, client = tracked(load(RECORD)), reader(place)
    write_numbers = mlflow._write_numbers
    seen: list[bool] = []

    def interrupted_by_another(client: "MlflowClient", run_id: str, run: Tracked) -> None:
        monkeypatch.setattr(mlflow, "_write_numbers", write_numbers)
        seen.append(write(run, place))
        write_numbers(client, run_id, run)

    monkeypatch.setattr(mlflow, "_write_numbers", interrupted_by_another)
    assert write(run, place)
    assert seen == [False]
    experiment_id = client.get_experiment_by_name(run.name).experiment_id
    (found,) = client.search_runs([experiment_id])
    assert found.info.status == "FINISHED"


@pytest.mark.parametrize("first_to_end", ["own", "other"])
def test_of_two_that_have_both_begun_one_stays(place: str, monkeypatch: pytest.MonkeyPatch, first_to_end: str) -> None:
    run, client = tracked(load(RECORD)), reader(place)
    is_there = mlflow._is_there
    others: list[bool] = []

    def other(client: "MlflowClient", experiment_id: str, run: Tracked) -> bool:
        """The other one looks, and finds nothing, after this one has."""
        found = is_there(client, experiment_id, run)
        monkeypatch.setattr(mlflow, "_is_there", is_there)
        if first_to_end == "other":
            others.append(write(run, place))
        return found

    monkeypatch.setattr(mlflow, "_is_there", other)
    assert write(run, place) is (first_to_end == "own")
    if first_to_end == "own":
        monkeypatch.setattr(mlflow, "_is_there", lambda *_: False)
        assert not write(run, place), "it had looked before the first one began"
    (found,) = client.search_runs([client.get_experiment_by_name(run.name).experiment_id])
    assert found.info.status == "FINISHED"


@pytest.mark.parametrize(
    ("writer", "removed"),
    [
        (lambda: f"{mlflow._place()} {os.getpid()} 1 0", True),  # a pid that another process has by now
        (lambda: f"elsewhere/1 1 1 {int(time.time()) - 60}", False),
        (lambda: f"elsewhere/1 1 1 {int(time.time()) - 3600}", True),
        (lambda: "nonsense", True),
    ],
)
def test_an_interrupted_run_is_known_by_who_wrote_it(place: str, writer: Callable[[], str], removed: bool) -> None:
    run, client = tracked(load(RECORD)), reader(place)
    half = client.create_run(client.create_experiment(run.name), tags={**run.tags, "testbed.writer": writer()})
    assert write(run, place) is removed
    assert client.get_run(half.info.run_id).info.lifecycle_stage == ("deleted" if removed else "active")


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
