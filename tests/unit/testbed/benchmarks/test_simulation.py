"""The list of runs that the flow simulation is held to, and what is said of each."""

from pathlib import Path

import pytest

from testbed.benchmarks import simulation, training
from testbed.benchmarks.simulation import benchmarks, cases, emulated, graph_of_jobs, job_of
from testbed.errors import RunFailedError
from testbed.plan.plan import make_plan
from testbed.record.summary import Summary
from testbed.theory.simulation.simulate import simulate


def test_the_list_has_four_topologies_four_to_sixteen_workers_and_two_jobs() -> None:
    listed = cases()
    assert len({job_of(name, case).topology.kind for name, case in listed.items()}) >= 4
    assert {4, 16} <= {case["workers"] for case in listed.values()} <= set(range(4, 17))
    two = [case for case in listed.values() if case.get("jobs") == 2]
    assert len({str(case.get("topology")) for case in two}) >= 3


@pytest.mark.parametrize("name", cases())
def test_each_is_simulated_and_planned_on_the_same_links(name: str, tmp_path: Path) -> None:
    case = cases()[name]
    num_jobs = case.get("jobs", 1)
    simulated = simulate(job_of(name, case), num_jobs=num_jobs)
    plan = make_plan(emulated(name, case, tmp_path))
    assert simulated.num_jobs * simulated.num_workers == plan.experiment.workers
    assert simulated.iteration_time_s > simulation.FORWARD_S + simulation.BACKWARD_S
    links = {each.name for each in simulated.busiest}
    assert links <= {each.name for each in plan.directions}


def test_jobs_share_links_and_nothing_else() -> None:
    graph = graph_of_jobs(2, 3)
    assert graph.groups == {"world": tuple(range(6)), "job0": (0, 1, 2), "job1": (3, 4, 5)}
    assert [nodes[-1].group for nodes in graph.ranks] == ["job0"] * 3 + ["job1"] * 3
    case = cases()["two_jobs_dumbbell"]
    one, two = (simulate(job_of("x", case), num_jobs=num_jobs).iteration_time_s for num_jobs in (1, 2))
    assert two > 1.5 * one


def test_an_error_is_of_a_run_that_stands(monkeypatch: pytest.MonkeyPatch, summary: Summary) -> None:
    simulated_s = simulate(job_of("star_4", cases()["star_4"])).iteration_time_s
    assert summary.iteration_time_s is not None
    times = summary.iteration_time_s.model_copy(update={"mean": 1.25 * simulated_s})
    found = summary.model_copy(update={"outcome": "valid", "reasons": [], "iteration_time_s": times})
    monkeypatch.setattr(training, "run_experiment", lambda *_, **__: found)
    (row,) = benchmarks()["star_4"]()
    assert row["value"] == pytest.approx(0.2)
    assert not row["holds"]
    found = found.model_copy(update={"outcome": "invalid", "reasons": ["other programs had 60 %"]})
    with pytest.raises(RunFailedError, match="the run is invalid: other programs had 60 %"):
        list(benchmarks()["star_4"]())
