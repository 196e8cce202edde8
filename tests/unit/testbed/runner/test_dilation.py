from collections.abc import Callable

import pytest

from testbed.errors import SpecError
from testbed.experiment.experiment import Experiment, validate
from testbed.record.reader import Record
from testbed.record.summary import Summary
from testbed.runner.dilation import at_dilations, validate_dilation

SPEC = {"name": "t", "workers": 2, "workload": "synthetic"}


def test_a_spec_is_run_at_k_twice_and_four_times_as_much() -> None:
    assert [each.dilation for each in at_dilations(validate(SPEC))] == [1, 2, 4]
    assert [each.dilation for each in at_dilations(validate({**SPEC, "dilation": 1.5}))] == [1.5, 3, 6]
    assert [each.dilation for each in at_dilations(validate(SPEC), (8, 2.5))] == [1, 8, 2.5]


def test_what_cannot_be_compared_is_refused_before_anything_runs() -> None:
    with pytest.raises(SpecError, match=r"^workload: training computes"):
        at_dilations(validate({**SPEC, "workload": "training"}))
    with pytest.raises(SpecError, match=r"^dilation: 200 .* at most 150"):
        at_dilations(validate({**SPEC, "dilation": 200, "link": {"rate": "1gbit"}}))
    with pytest.raises(SpecError, match=r"^link\.rate: .*at dilation 4"):
        at_dilations(validate({**SPEC, "link": {"rate": "3mbit"}}))
    with pytest.raises(SpecError, match="multiple 2 of the dilation is given twice"):
        at_dilations(validate(SPEC), (2, 4, 2))


@pytest.mark.parametrize(("slower", "agreement"), [(1.0, "agrees"), (1.2, "differs")])
def test_runs_go_in_turns_and_are_compared(record: Callable[..., Record], slower: float, agreement: str) -> None:
    ran: list[float] = []

    def run(experiment: Experiment) -> Summary:
        assert experiment.dilation != "auto"
        ran.append(experiment.dilation)
        found = record().summary
        assert found.iteration_time_s is not None
        mean_s = found.iteration_time_s.mean * (1 + len(ran) / 1e4) * (slower if experiment.dilation == 4 else 1)
        times = found.iteration_time_s.model_copy(update={"mean": mean_s})
        return found.model_copy(update={"iteration_time_s": times, "dilation": float(experiment.dilation)})

    found = validate_dilation(validate(SPEC), repeat=3, run=run)
    assert ran == [1, 2, 4] * 3
    assert found.agreement == agreement
    assert len(found.to_json()["runs"]) == 9
    assert found.to_json()["agreement"] == agreement


def test_a_run_that_cannot_be_trusted_leaves_no_answer(record: Callable[..., Record]) -> None:
    broken = record().summary.model_copy(update={"outcome": "invalid"})
    assert validate_dilation(validate(SPEC), repeat=1, run=lambda _: broken).agreement is None
    without = record().summary.model_copy(update={"iteration_time_s": None})
    found = validate_dilation(validate(SPEC), repeat=2, run=lambda _: without)
    assert (found.compared, found.not_compared, found.agreement) == ((), (), None)


def test_where_a_run_has_no_scaling_factor_iteration_times_are_compared(record: Callable[..., Record]) -> None:
    whole = record().summary.model_copy(update={"scaling_factor": 0.9})
    runs = iter([whole] * 5 + [whole.model_copy(update={"scaling_factor": None})])
    found = validate_dilation(validate(SPEC), repeat=2, run=lambda _: next(runs))
    assert found.agreement == "agrees"
    assert {each.measure for each in found.compared} == {"iteration_time_s"}
    assert found.to_json()["not_compared"] == ["scaling_factor"]
    assert validate_dilation(validate(SPEC), repeat=2, run=lambda _: whole).not_compared == ()
