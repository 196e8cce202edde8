"""A sweep runs what has no result yet, stops for nothing but an interruption, and keeps what is done."""

import fcntl
import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar

import polars as pl
import pytest
from rich.console import Console

from testbed.errors import Interrupted, MissingRequirementError, RunFailedError, SpecError
from testbed.experiment.experiment import Experiment
from testbed.experiment.sweep import Sweep, expand
from testbed.record.summary import Outcome, Summary
from testbed.report.comparison.points import Comparison
from testbed.runner import program
from testbed.runner.attempts import FILE, MAX_LOST, Attempts
from testbed.runner.engines.base import (
    Attempt,
    Engine,
    Event,
    Executor,
    Finished,
    Gone,
    Late,
    Lost,
    Ready,
    Session,
    parse_engine,
)
from testbed.runner.sweep import exit_code, run_sweep
from testbed.runner.sweep_points import found, plan_points, require_points, reuse_texts
from testbed.store.compare import records_of
from testbed.store.differences import RunValues, difference
from testbed.store.reuse import Reuse
from testbed.system.command_files import files_digest
from tests.cheap_runs import MANUAL_CHANGE, CheapRuns, OutcomeOf, blank_pictures

RATES = ["100mbit", "200mbit", "1gbit"]


@pytest.fixture(autouse=True)
def _blank_pictures() -> Iterator[None]:
    with blank_pictures():
        yield


def sweep_of(**keys: Any) -> Sweep:
    return expand({"name": "x", "workers": 2, "sweep": {"link.rate": RATES}, **keys})


def by_rate(outcomes: Mapping[float, Outcome | type[BaseException]]) -> OutcomeOf:
    """Valid where nothing else is said."""
    return lambda experiment, _: outcomes.get(experiment.link.rate_bps, "valid")


def execute(
    sweep: Sweep,
    runs: CheapRuns,
    *,
    reuse: Reuse = "same",
    num_retries: int = 0,
    now_s: Callable[[], float] = lambda: 0.0,
) -> tuple[Comparison, str]:
    text, plans = StringIO(), plan_points(sweep)
    comparison = found(sweep, plans, output=runs.output, reuse=reuse, num_retries=num_retries)
    console = Console(file=text, width=100)
    return run_sweep(comparison, plans, run=runs, console=console, now_s=now_s), text.getvalue()


def test_every_point_runs_in_seeded_order_and_says_which_of_how_many_it_is(tmp_path: Path) -> None:
    runs, clock = CheapRuns(tmp_path), iter(range(0, 1000, 30))
    comparison, text = execute(sweep_of(), runs, now_s=lambda: next(clock))
    assert runs.rates == [2e8, 1e9, 1e8]
    assert "[1/3] link.rate=200mbit" in text
    assert "[2/3] link.rate=1gbit   about" in text
    assert [point.outcome for point in comparison.points] == ["valid"] * 3
    assert exit_code(comparison) == 0
    assert pl.read_csv(comparison.directory / "sweep.csv")["iteration_time_s"].to_list() == [1.0, 0.5, 0.1]
    written = json.loads((comparison.directory / "sweep.json").read_text())
    assert [Path(point["runs"][0]["record"]).is_dir() for point in written["points"]] == [True] * 3
    assert (written["order_seed"], written["reuse"], written["finished"]) == (1, "same", True)


def test_repetitions_go_round_by_round(tmp_path: Path) -> None:
    runs = CheapRuns(tmp_path)
    comparison, _ = execute(sweep_of(repeat=2, order_seed=2), runs)
    assert runs.rates == [2e8, 1e8, 1e9, 1e9, 1e8, 2e8]
    first, second = (tuple(RunValues(run.started_at, [1.0]) for run in point.runs) for point in comparison.points[:2])
    assert difference(first, second).basis == "pairs"


def test_the_numbers_are_written_after_every_run(tmp_path: Path) -> None:
    states = []

    class Looking(CheapRuns):
        def __call__(self, experiment: Experiment) -> Summary:
            (path,) = tmp_path.glob("*/sweep.json")
            document = json.loads(path.read_text())
            states.append((document["finished"], sum(len(point["runs"]) for point in document["points"])))
            return super().__call__(experiment)

    execute(sweep_of(), Looking(tmp_path))
    assert states == [(False, 0), (False, 1), (False, 2)]


def test_a_result_that_stands_is_not_made_again(tmp_path: Path) -> None:
    execute(sweep_of(), CheapRuns(tmp_path, by_rate({1e8: "degraded"})))
    again = CheapRuns(tmp_path)
    comparison, text = execute(sweep_of(), again)
    assert (again.rates, "3 runs with a result reused" in text) == ([], True)
    assert comparison.frame()["iteration_time_s"].to_list() == [1.0, 0.5, 0.1]
    fresh = CheapRuns(tmp_path)
    execute(sweep_of(), fresh, reuse="none")
    assert len(fresh.rates) == 3


def test_what_another_code_has_made_is_reused_only_where_that_is_wanted_and_is_called_so(tmp_path: Path) -> None:
    execute(sweep_of(), CheapRuns(tmp_path, code_sha256="another"))
    swept = sweep_of()
    refused = found(swept, plan_points(swept), output=tmp_path)
    assert [point.outcome for point in refused.points] == ["not run"] * 3
    assert reuse_texts(refused) == [
        "3 results not reused: another version of the code or its packages (--reuse any does)"
    ]
    runs = CheapRuns(tmp_path)
    comparison, _ = execute(swept, runs, reuse="any")
    assert runs.rates == []
    reason = "another version of the code or its packages"
    assert comparison.reasons == [f"counted although made otherwise, 3 runs: {reason}"]
    written = json.loads((comparison.directory / "sweep.json").read_text())
    assert written["reuse"] == "any"
    assert [point["runs"][0]["unlike"] for point in written["points"]] == [[reason]] * 3
    execute(swept, runs)
    assert len(runs.rates) == 3, "by default they are made here"


def test_a_run_whose_links_somebody_changed_is_no_result_of_its_spec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    swept = sweep_of()
    for rate in (0, 1):
        CheapRuns(tmp_path, link_changes=[MANUAL_CHANGE])(swept.points[rate].experiment)
    CheapRuns(tmp_path, link_changes=[MANUAL_CHANGE.model_copy(update={"source": "schedule"})])(
        swept.points[2].experiment
    )
    beginning = found(swept, plan_points(swept), output=tmp_path)
    assert [point.outcome for point in beginning.points] == ["not run", "not run", "valid"]
    assert reuse_texts(beginning) == [
        "1 run with a result reused (--reuse none makes all again)",
        "2 results not reused: links changed manually while it ran (--reuse any does)",
    ]
    comparison = found(swept, plan_points(swept), output=tmp_path, reuse="any")
    assert comparison.finished
    assert comparison.reasons == ["counted although made otherwise, 2 runs: links changed manually while it ran"]
    comparison, _ = execute(swept, CheapRuns(tmp_path, link_changes=[MANUAL_CHANGE]))
    assert comparison.reasons == ["counted although made otherwise, 2 runs: links changed manually while it ran"]


def test_results_that_were_planned_otherwise_are_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the spec leaves to the machine, decided otherwise there: by another fit, say."""
    monkeypatch.setattr("os.geteuid", lambda: 0)
    swept = sweep_of()
    (decided,) = {json.dumps({**plan.decided, "dilation": 20.0}) for plan in plan_points(swept)}
    runs = CheapRuns(tmp_path, decided=json.loads(decided))
    comparison, _ = execute(swept, runs)
    difference_text = "dilation 20 instead of 1"
    assert {texts for point in comparison.points for texts in point.unlike.values()} == {(difference_text,)}
    again = CheapRuns(tmp_path, decided={**json.loads(decided), "dilation": 1.0})
    comparison, text = execute(swept, again)
    assert f"3 results not reused: {difference_text} (--reuse any does)" in text
    assert [bool(point.unlike) for point in comparison.points] == [False] * 3
    assert not execute(swept, CheapRuns(tmp_path))[0].procedure.not_reused


def test_another_user_finds_roots_results_whatever_was_decided_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the machine carries has been measured by root, say, for whom alone it is kept."""
    swept = sweep_of()
    (decided,) = {json.dumps({**plan.decided, "dilation": 20.0}) for plan in plan_points(swept)}
    for point in swept.points:
        CheapRuns(tmp_path, decided=json.loads(decided))(point.experiment)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    beginning = found(swept, plan_points(swept), output=tmp_path)
    assert [point.outcome for point in beginning.points] == ["valid"] * 3
    assert reuse_texts(beginning) == [
        "3 runs with a result reused (--reuse none makes all again)",
        "of these only root can tell whether what the spec leaves to this machine would be decided alike now",
    ]
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert [point.outcome for point in found(swept, plan_points(swept), output=tmp_path).points] == ["not run"] * 3


def test_results_of_a_command_are_made_again_when_its_script_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script, argv = tmp_path / "ddp.py", ["python", "ddp.py"]
    swept = sweep_of(workload={"kind": "command", "argv": argv})

    def swept_again(**options: Any) -> tuple[int, list[str]]:
        """How many runs were made, and what was said of those that were not."""
        runs = CheapRuns(tmp_path / "results", program_sha256=files_digest(argv, tmp_path))
        said = reuse_texts(found(swept, plan_points(swept), output=runs.output, **options))
        execute(swept, runs, **options)
        return len(runs.rates), said

    script.write_text("print(1)\n")
    assert swept_again() == (3, [])
    assert swept_again() == (0, ["3 runs with a result reused (--reuse none makes all again)"])
    script.write_text("print(1 + 1)\n")
    assert swept_again(reuse="any")[0] == 0
    assert swept_again() == (3, ["3 results not reused: another program (--reuse any does)"])
    script.write_text("print(1)\n")
    assert swept_again()[0] == 0, "what was made with it is there"


def test_runs_of_a_script_that_is_edited_while_the_sweep_goes_on_are_said_to_be_of_another_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script, argv = tmp_path / "ddp.py", ["python", "ddp.py"]
    script.write_text("print()\n")

    class Edited(CheapRuns):
        def __call__(self, experiment: Experiment) -> Summary:
            self.environment |= {"program_sha256": files_digest(argv, tmp_path)}
            made = super().__call__(experiment)
            script.write_text(f"{script.read_text()}print()\n")
            return made

    runs = Edited(tmp_path / "results")
    comparison, _ = execute(sweep_of(workload={"kind": "command", "argv": argv}), runs)
    assert runs.rates == [2e8, 1e9, 1e8]
    assert comparison.reasons == ["counted although made otherwise, 2 runs: another program"]
    written = json.loads((comparison.directory / "sweep.json").read_text())
    unlike = [point["runs"][0]["unlike"] for point in written["points"]]
    assert unlike == [["another program"], [], ["another program"]]


def test_an_image_that_the_first_run_fetches_is_no_other_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = ["true"]
    runs = CheapRuns(tmp_path, program_sha256=files_digest(argv, Path.cwd()), runtime={"image_id": "sha256:a"})
    monkeypatch.setattr(program, "image_id", lambda _: "sha256:a" if runs.rates else None)
    workload = {"kind": "command", "argv": argv}
    comparison, _ = execute(sweep_of(workload=workload, runtime={"kind": "docker", "image": "x"}), runs)
    assert comparison.finished
    assert comparison.reasons == []


def test_results_of_a_command_that_do_not_say_of_which_program_they_are_are_made_again(tmp_path: Path) -> None:
    swept = sweep_of(workload={"kind": "command", "argv": ["true"]})
    execute(swept, CheapRuns(tmp_path))
    again = CheapRuns(tmp_path)
    execute(swept, again)
    assert len(again.rates) == 3


def test_valid_results_come_before_degraded_ones_and_new_ones_before_old_ones(tmp_path: Path) -> None:
    outcomes: list[Outcome] = ["valid", "degraded", "valid", "degraded"]
    execute(sweep_of(repeat=4), CheapRuns(tmp_path, lambda _, number: outcomes[number]))
    for repeat, expected in ((1, ["valid"]), (2, ["valid", "valid"]), (3, ["valid", "valid", "degraded"])):
        swept = sweep_of(repeat=repeat)
        for point in found(swept, plan_points(swept), output=tmp_path).points:
            assert [run.outcome for run in point.runs] == expected
            assert [run.started_at for run in point.runs] == sorted(run.started_at for run in point.runs)


def test_a_point_that_fails_stops_no_other_and_runs_again_next_time(tmp_path: Path) -> None:
    comparison, _ = execute(sweep_of(), CheapRuns(tmp_path, by_rate({1e8: "failed", 2e8: "invalid"})))
    assert [point.outcome for point in comparison.points] == ["failed", "invalid", "valid"]
    assert exit_code(comparison) == 1
    assert comparison.frame()["iteration_time_s"].to_list() == [None, None, 0.1]
    again = CheapRuns(tmp_path, by_rate({2e8: "invalid"}))
    comparison, _ = execute(sweep_of(), again)
    assert (again.rates, exit_code(comparison)) == ([2e8, 1e8], 4)


def test_an_invalid_run_is_repeated_up_to_the_limit_and_said(tmp_path: Path) -> None:
    def once(experiment: Experiment, number: int) -> Outcome:
        return "invalid" if experiment.link.rate_bps == 2e8 and number == 0 else "valid"

    runs = CheapRuns(tmp_path, once)
    comparison, text = execute(sweep_of(), runs, num_retries=1)
    assert runs.rates == [2e8, 1e9, 1e8, 2e8]
    assert "[4/4] link.rate=200mbit   again, since it was invalid (1 of at most 1)" in text
    assert (exit_code(comparison), comparison.points[1].outcome) == (0, "valid")
    assert comparison.reasons == ["link.rate=200mbit: invalid, and repeated: because"]
    assert [path.name for path in records_of([str(comparison.directory)], output=tmp_path)] == [
        Path(point.counted[0].record).name for point in comparison.points
    ], "compare leaves out what was repeated"
    stubborn = CheapRuns(tmp_path, by_rate({2e8: "invalid"}))
    comparison, _ = execute(sweep_of(), stubborn, reuse="none", num_retries=2)
    assert (stubborn.rates.count(2e8), exit_code(comparison)) == (3, 4)


@pytest.mark.parametrize("reuse", ["same", "none"])
def test_an_interruption_keeps_what_is_done_and_the_same_command_goes_on(tmp_path: Path, reuse: Reuse) -> None:
    old = CheapRuns(tmp_path)
    if reuse == "none":
        execute(sweep_of(), old)
        for path in tmp_path.glob("x-*/summary.json"):
            path.write_text(path.read_text().replace("2100-01-01", "2000-01-01"))
        (made,) = tmp_path.glob(f"*/{FILE}")
        made.write_text(re.sub(r'"begun_at": "\d{4}', '"begun_at": "2000', made.read_text()))
    text = StringIO()
    sweep, runs = sweep_of(), CheapRuns(tmp_path, by_rate({1e9: Interrupted, 2e8: "degraded"}))
    comparison = found(sweep, plan_points(sweep), output=tmp_path, reuse=reuse)
    with pytest.raises(Interrupted):
        run_sweep(comparison, plan_points(sweep), run=runs, console=Console(file=text, width=100))
    assert "1 of 3 runs done and kept; the same command runs the others" in text.getvalue()
    written = json.loads((comparison.directory / "sweep.json").read_text())
    assert [point["outcome"] for point in written["points"]] == ["not run", "degraded", "not run"]
    assert not written["finished"]
    rest = CheapRuns(tmp_path)
    comparison, _ = execute(sweep, rest, reuse=reuse)
    assert rest.rates == [1e9, 1e8]
    assert [point.outcome for point in comparison.points] == ["valid", "degraded", "valid"]


@pytest.mark.parametrize("reuse", ["same", "none"])
def test_what_failed_before_an_interruption_is_not_made_again_and_stays_listed(tmp_path: Path, reuse: Reuse) -> None:
    bad: dict[float, Outcome | type[BaseException]] = {2e8: "failed", 1e9: "unsupported"}
    with pytest.raises(Interrupted):
        execute(sweep_of(), CheapRuns(tmp_path, by_rate({**bad, 1e8: Interrupted})), reuse=reuse)
    rest = CheapRuns(tmp_path)
    comparison, _ = execute(sweep_of(), rest, reuse=reuse)
    assert rest.rates == [1e8], "that it failed by an interruption counts for nothing"
    assert [point.outcome for point in comparison.points] == ["valid", "failed", "unsupported"]


def test_a_sweep_is_finished_when_its_page_is_written(tmp_path: Path) -> None:
    execute(sweep_of(), CheapRuns(tmp_path), reuse="none")
    (path,) = tmp_path.glob("*/sweep.html")
    path.unlink()
    path.mkdir()
    for number_of_runs in (3, 0):
        runs = CheapRuns(tmp_path)
        with pytest.raises(MissingRequirementError, match=r"cannot write .*sweep\.html"):
            execute(sweep_of(), runs, reuse="none")
        assert len(runs.rates) == number_of_runs
        assert not json.loads(path.with_suffix(".json").read_text())["finished"]
    path.rmdir()
    runs = CheapRuns(tmp_path)
    execute(sweep_of(), runs, reuse="none")
    assert (runs.rates, path.is_file()) == ([], True)
    assert json.loads(path.with_suffix(".json").read_text())["finished"]


def test_a_run_that_another_command_made_since_is_not_the_sweeps(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        execute(sweep_of(), CheapRuns(tmp_path, by_rate({1e9: Interrupted})), reuse="none")
    for point in sweep_of().points:
        CheapRuns(tmp_path)(point.experiment)
    rest = CheapRuns(tmp_path)
    execute(sweep_of(), rest, reuse="none")
    assert rest.rates == [1e8], "of the one that was interrupted nobody can tell"


def test_a_sweep_that_begins_anew_is_not_the_one_that_was_interrupted(tmp_path: Path) -> None:
    """`--reuse none` after an interruption of a sweep without it takes nothing of that one."""
    sweep = sweep_of()
    comparison = found(sweep, plan_points(sweep), output=tmp_path)
    interrupted = CheapRuns(tmp_path, by_rate({1e9: Interrupted, 2e8: "invalid"}))
    with pytest.raises(Interrupted):
        run_sweep(comparison, plan_points(sweep), run=interrupted, console=Console(file=StringIO()))
    path = comparison.directory / "sweep.json"
    path.write_text(path.read_text().replace(comparison.procedure.begun_at, "2000-01-01T00:00:00+00:00"))
    attempts = path.with_name(FILE)
    attempts.write_text(re.sub(r'(?<="begun_at": ")[^"]*', "2000-01-01T01:00:00+00:00", attempts.read_text()))
    gone_on = found(sweep, plan_points(sweep), output=tmp_path)
    assert gone_on.procedure.begun_at == "2000-01-01T00:00:00+00:00"
    assert [len(point.runs) for point in gone_on.points] == [0, 1, 0], "it was tried"
    assert [point.runs for point in found(sweep, plan_points(sweep), output=tmp_path, reuse="none").points] == [()] * 3
    path.write_text(path.read_text().replace("2000-01-01T00", "2000-01-02T00"))
    assert [len(point.runs) for point in found(sweep, plan_points(sweep), output=tmp_path).points] == [0, 0, 0]


def test_a_document_that_somebody_has_changed_is_named(tmp_path: Path) -> None:
    sweep = sweep_of()
    comparison, _ = execute(sweep, CheapRuns(tmp_path))
    path = comparison.directory / "sweep.json"
    for text in ('{"points": [', "[]", "{}"):
        path.write_text(text)
        with pytest.raises(SpecError, match=r"sweep\.json cannot be read: .*; remove it"):
            found(sweep, plan_points(sweep), output=tmp_path)
    path.write_text('{"schema_version": 2}')
    assert found(sweep, plan_points(sweep), output=tmp_path).finished, "of a version that knew of no interruption"


def test_repeat_asks_for_so_many_runs_of_each_point(tmp_path: Path) -> None:
    execute(sweep_of(), CheapRuns(tmp_path))
    more = CheapRuns(tmp_path)
    comparison, _ = execute(sweep_of(repeat=2), more)
    assert more.rates == [1e8, 1e9, 2e8]
    assert [len(point.runs) for point in comparison.points] == [2, 2, 2]


def test_every_point_is_planned_before_the_first_runs() -> None:
    sweep = expand({"name": "x", "sweep": {"seed": [1, 2], "workers_per_host": [1, 4]}})
    with pytest.raises(SpecError, match=r"workers_per_host: 4 .*\[seed=1 workers_per_host=4 and 1 more points\]"):
        plan_points(sweep)


def test_what_a_workload_cannot_is_said_with_the_point() -> None:
    sweep = expand({"name": "x", "workers": 2, "sweep": {"workload": ["training", "allreduce"]}})
    with pytest.raises(SpecError, match=r"allreduce has no iterations.*\[workload=allreduce\]"):
        require_points(sweep, plan_points(sweep))


def test_what_is_missing_on_the_machine_is_said_with_the_point() -> None:
    sweep = expand({"name": "x", "sweep": {"channel.congestion": ["nonesuch"]}})
    with pytest.raises(MissingRequirementError, match=r"(?s)\[channel.congestion=nonesuch\]"):
        require_points(sweep, plan_points(sweep))


class Elsewhere(Engine):
    """Two machines, of which each attempt's fate is known beforehand: its number among all, and what is heard of it."""

    runs_here: ClassVar[bool] = False
    over_s: ClassVar[float] = 0.01
    fates: Mapping[int, str] = {}

    @contextmanager
    def open(self, session: Session) -> Iterator[Executor]:
        yield Machines(session, self.fates)


class Machines:
    def __init__(self, session: Session, fates: Mapping[int, str]) -> None:
        self.session = session
        self.fates = fates
        self.num_begun = 0
        self.events: deque[Event] = deque([Ready(machine="a"), Ready(machine="b")])

    def start(self, attempt: Attempt, experiment: Experiment) -> None:
        listed = json.loads((self.session.directory / FILE).read_text())["attempts"]
        assert [each["end"] for each in listed if each["number"] == attempt.number] == ["open"], "it is on disk before"
        self.num_begun += 1
        finished = Finished(
            number=attempt.number,
            summary=CheapRuns(self.session.directory / "incoming" / str(attempt.number))(experiment),
            is_moved_in=False,
        )
        match self.fates.get(self.num_begun):
            case "lost":
                self.events += [Lost(number=attempt.number, reason="it burnt")]
            case "late":
                self.events += [Lost(number=attempt.number, reason="silence"), finished]
                self.events += [Late(number=attempt.number, reason="it came back")]
            case "gone":
                self.events += [Lost(number=attempt.number, reason="it burnt")]
                self.events += [Gone(machine=attempt.machine, reason="it burnt")]
                return
            case _:
                self.events += [finished]
        self.events += [Ready(machine=attempt.machine)]

    def next_event(self) -> Event:
        if not self.events:
            raise RunFailedError("no machine is left")
        return self.events.popleft()


def on_machines(output: Path, fates: Mapping[int, str], **keys: Any) -> tuple[Comparison, str]:
    sweep, text = sweep_of(**keys), StringIO()
    plans = plan_points(sweep)
    comparison = found(sweep, plans, output=output)
    console = Console(file=text, width=200)
    done = run_sweep(
        comparison, plans, run=CheapRuns(output), console=console, engine=Elsewhere.model_construct(fates=fates)
    )
    return done, text.getvalue()


def test_records_of_other_machines_are_moved_in_and_say_where_they_were_made(tmp_path: Path) -> None:
    comparison, text = on_machines(tmp_path, {}, repeat=2)
    assert text.count("[1/6]") == text.count("[6/6]") == 1
    assert comparison.finished
    runs = [run for point in comparison.points for run in point.runs]
    assert len(runs) == len(list(tmp_path.glob("*/summary.json"))) == 6
    assert all(Path(run.record).parent == tmp_path for run in runs)
    written = json.loads((comparison.directory / "sweep.json").read_text())
    machines = [run["machine"] for point in written["points"] for run in point["runs"]]
    assert sorted(set(machines)) == ["a", "b"]
    assert comparison.reasons == ["made on machines alike: a (3 runs), b (3 runs)"]
    again = found(sweep_of(repeat=2), plan_points(sweep_of(repeat=2)), output=tmp_path)
    assert [point.machines for point in again.points] == [point.machines for point in comparison.points]


def test_a_result_that_was_just_moved_in_when_the_sweep_was_killed_counts_by_whatever_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep, plans = sweep_of(), plan_points(sweep_of())
    begun = found(sweep, plans, output=tmp_path, reuse="none")
    runs, console, elsewhere = CheapRuns(tmp_path), Console(file=StringIO()), Elsewhere.model_construct(fates={})

    def killed(attempts: Attempts, number: int, record: str) -> None:
        raise Interrupted

    monkeypatch.setattr(Attempts, "accept", killed)
    with pytest.raises(Interrupted):
        run_sweep(begun, plans, run=runs, console=console, engine=elsewhere)
    (moved_in,) = tmp_path.glob("x-*/summary.json")
    moved_in.write_text(re.sub(r'"started_at": "\d{4}', '"started_at": "2000', moved_in.read_text()))
    gone_on = found(sweep, plans, output=tmp_path, reuse="none")
    assert [Path(run.record) for point in gone_on.points for run in point.runs] == [moved_in.parent]


def test_a_machine_that_is_lost_costs_its_point_another_attempt_and_is_said(tmp_path: Path) -> None:
    comparison, text = on_machines(tmp_path, {2: "gone"})
    assert [len(point.runs) for point in comparison.points] == [1, 1, 1]
    assert "without b: it burnt" in text
    written = json.loads((comparison.directory / "sweep.json").read_text())
    assert written["notes"] == ["attempt 3, link.rate=1gbit on b: lost: it burnt", "without b: it burnt"]
    assert comparison.reasons[0] == "made on machines alike: a (3 runs)"


def test_a_result_that_comes_after_its_attempt_was_lost_is_refused(tmp_path: Path) -> None:
    comparison, text = on_machines(tmp_path, {1: "late"})
    assert "refused: attempt 2 is not expected" in text
    assert [len(point.runs) for point in comparison.points] == [1, 1, 1]
    assert len(list(tmp_path.glob("*/summary.json"))) == 3
    assert comparison.procedure.notes == (
        "attempt 2, link.rate=200mbit on a: lost, and refused when it came back: silence; it came back",
    )


def test_a_point_that_is_lost_again_and_again_is_given_up_and_the_others_are_done(tmp_path: Path) -> None:
    fates = dict.fromkeys((1, 2, 3), "lost")
    with pytest.raises(RunFailedError, match=f"lost {MAX_LOST} times each and given up.*\n  link.rate="):
        on_machines(tmp_path, fates, sweep={"link.rate": ["100mbit"]}, repeat=2)
    comparison, _ = on_machines(tmp_path, {}, sweep={"link.rate": ["100mbit"]}, repeat=2)
    assert comparison.finished, "the same command tries again"


def test_another_process_at_the_same_sweep_is_refused(tmp_path: Path) -> None:
    comparison, _ = execute(sweep_of(), CheapRuns(tmp_path))
    with (comparison.directory / "lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(MissingRequirementError, match="another process is at this sweep"):
            execute(sweep_of(), CheapRuns(tmp_path), reuse="none")
    execute(sweep_of(), CheapRuns(tmp_path), reuse="none")


def test_results_that_another_process_has_made_since_they_were_looked_for_are_not_made_again(tmp_path: Path) -> None:
    swept = sweep_of()
    plans = plan_points(swept)
    looked = found(swept, plans, output=tmp_path)
    execute(swept, CheapRuns(tmp_path))
    with pytest.raises(MissingRequirementError, match="another process was at this sweep after its results had been"):
        run_sweep(looked, plans, run=CheapRuns(tmp_path), console=Console(file=StringIO()))
    assert len(list(tmp_path.glob("*/summary.json"))) == 3
    again, text = execute(swept, CheapRuns(tmp_path))
    assert again.finished
    assert "3 runs with a result reused" in text


def test_an_engine_is_a_word_or_a_mapping() -> None:
    assert parse_engine("local").runs_here
    assert parse_engine("{kind: ray, address: 10.0.0.1:6379}").model_dump() == {"address": "10.0.0.1:6379"}
    for text, said in {
        "slurm": "'slurm' is not a engine; allowed: local, ray",
        "{kind: ray, port: 1}": "port: Extra inputs .*; allowed: local with no options, ray with address",
        "{": "--engine {",
        "2020-13-45": "--engine 2020-13-45: is not YAML: month must be in 1..12",
        "{kind: ray, kind: local}": "'kind' stands twice",
    }.items():
        with pytest.raises(SpecError, match=said.replace("{", r"\{").replace("(", r"\(")):
            parse_engine(text)


def test_machines_do_not_choose_their_dilation() -> None:
    keys = {"name": "x", "workers": 2, "workload": "synthetic", "dilation": 3, "sweep": {"link.rate": ["1gbit"]}}
    (plan,) = plan_points(expand(keys))
    assert parse_engine("ray").unsupported([plan]) == []
    automatic = replace(plan, dilation_reason="time runs 3 times slower: as this machine has it")
    (said,) = parse_engine("ray").unsupported([plan, automatic, automatic])
    assert said.startswith("dilation: auto goes by what each machine was measured to carry")
    assert said.endswith("--set dilation=3, as this machine would choose")
    assert parse_engine("local").unsupported([automatic]) == []
