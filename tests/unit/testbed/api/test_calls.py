"""`import testbed`: what it costs, what its functions return and refuse; runs are in tests/end_to_end/test_api.py."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import testbed
from testbed.api.sweeps import SweepResult
from testbed.errors import MissingRequirementError, SpecError


@pytest.fixture
def output(tmp_path: Path) -> Path:
    for version in (2, 3):
        shutil.copytree(f"tests/records/version_{version}", tmp_path / "results" / f"r{version}")
    return tmp_path / "results"


def test_importing_it_imports_nothing_until_something_is_used() -> None:
    script = (
        "import sys, testbed\n"
        "assert {'run', 'sweep', 'load', 'results', 'compare', 'predict'} <= set(dir(testbed))\n"
        "assert not {'polars', 'torch', 'pydantic', 'rich', 'yaml', 'testbed.api'} & set(sys.modules), sys.modules\n"
        "testbed.load\n"
        "assert 'polars' in sys.modules and 'torch' not in sys.modules\n"
        "import testbed.runner\n"
        "assert callable(testbed.run)\n"
        "testbed.rnu\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr.splitlines()[-1] == "AttributeError: module 'testbed' has no attribute 'rnu'"


def test_results_are_rows_and_runs(output: Path) -> None:
    found = testbed.results(output=output)
    assert len(found) == 2
    assert found.frame["name"].to_list() == ["quickstart", "hashemi-knee"], "newest first"
    assert found.frame["record"].to_list() == [str(output / "r3"), str(output / "r2")]
    assert [run.summary.name for run in found] == ["quickstart", "hashemi-knee"]
    assert found["r2"].path == found[1].path == output / "r2"
    assert found.table("iterations")["run_id"].n_unique() == 2
    assert found.table("runs").equals(found.frame)
    assert "valid" in repr(found)
    assert "<table" in found._repr_mimebundle_()["text/html"]
    one = testbed.results("workers = ?", parameters=[2], output=output)
    assert [run.summary.name for run in one] == ["hashemi-knee"]
    assert len(testbed.results(output=output, limit=1)) == 1
    nothing = testbed.results("workers = 99", output=output)
    assert (len(nothing), nothing.frame.height, nothing.table("links").height) == (0, 0, 0)


def test_what_cannot_be_read_is_named_and_disturbs_no_other(output: Path) -> None:
    (output / "r2" / "summary.json").write_text("{")
    found = testbed.results(output=output)
    assert [each.record for each in found.problems] == ["r2"]
    assert len(found) == 1
    assert "1 left out" in repr(found)


def test_a_table_that_cannot_be_read_is_named_and_disturbs_no_other(output: Path) -> None:
    (output / "r2" / "links.parquet").unlink()
    found = testbed.results(output=output)
    with pytest.warns(testbed.errors.ResultWarning, match=r"left out: r2: .*links\.parquet cannot be read"):
        assert found.table("links")["run_id"].unique().to_list() == [found["r3"].run_id]
    with pytest.raises(SpecError, match=r"links\.parquet cannot be read"):
        testbed.results("record = 'r2'", output=output).table("links")


@pytest.mark.parametrize(
    ("which", "error", "words"),
    [("zz", SpecError, "none of the runs"), ("r", SpecError, "several of the runs"), (2, IndexError, "tuple index")],
)
def test_a_run_that_is_not_there_is_an_error(
    output: Path, which: int | str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        testbed.results(output=output)[which]


def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no such directory"):
        testbed.results(output=tmp_path / "nowhere")
    with pytest.raises(SpecError, match="no such column"):
        testbed.results("nonsense = 1", output=tmp_path)
    with pytest.raises(SpecError, match="limit: at least 1"):
        testbed.results(output=tmp_path, limit=0)
    with pytest.raises(SpecError, match="calibrate: 'no' is none of full, class, cached"):
        testbed.run("quickstart", output=tmp_path, calibrate="no")  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="retries"):
        testbed.sweep("link_speed", output=tmp_path, retries=-1)
    with pytest.raises(SpecError, match="reuse: 'some' is none of same, any, none"):
        testbed.sweep("link_speed", output=tmp_path, reuse="some")  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="metric: 'speed' is none of"):
        testbed.compare("a", "b", metric="speed", output=tmp_path)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="w9-s0"):
        testbed.run("quickstart", output=tmp_path, capture=["w9-s0"])
    assert list(tmp_path.iterdir()) in ([], [tmp_path / "index.db"])


def test_what_this_machine_cannot_do_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(MissingRequirementError, match="needs root"):
        testbed.run("quickstart", output=tmp_path)
    with pytest.raises(MissingRequirementError, match=r"needs root.*\n\[link\.rate=25mbit\]"):
        testbed.sweep("link_speed", output=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_runs_are_compared_by_themselves_or_their_names(output: Path) -> None:
    first, second = testbed.load(output / "r2"), testbed.load(output / "r3")
    with pytest.raises(SpecError, match="different questions"):
        testbed.compare(first, second)
    found = testbed.compare(first, "r3", metric="allreduce_time_s", force=True, output=output)
    assert found.frame.height == 2


def test_a_prediction_needs_no_root_and_no_run() -> None:
    slow, fast = (testbed.predict("quickstart", {"link.rate": rate}) for rate in ("100mbit", "1gbit"))
    assert slow.iteration_time_s > fast.iteration_time_s > 0.3
    with pytest.raises(SpecError, match="has no iterations"):
        testbed.predict({"name": "x", "workload": {"kind": "allreduce", "sizes": ["1MiB"]}})


def test_a_sweep_that_is_whole_is_read_and_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a point that did not stand: the warning says so."""
    from tests.cheap_runs import CheapRuns

    runs = CheapRuns(tmp_path, lambda experiment, _: "degraded" if experiment.link.rate_bps == 1e9 else "valid")
    monkeypatch.setattr("testbed.api.calls._runner", lambda *_, **__: runs)
    monkeypatch.setattr("testbed.runner.sweep_points.require_points", lambda *_: None)
    spec = {"name": "speeds", "workers": 2, "sweep": {"link.rate": ["100mbit", "1gbit"]}}
    for number in (2, 2):
        with pytest.warns(testbed.errors.ResultWarning, match=r"speeds, 2 points: 1 valid, 1 DEGRADED"):
            result: SweepResult = testbed.sweep(spec, output=tmp_path)
        assert len(runs.rates) == number, "what has a result is not run again"
    assert result.frame["outcome"].to_list() == ["valid", "degraded"]


def test_a_sweep_s_runs_are_found_from_wherever_the_process_is_by_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.cheap_runs import CheapRuns

    monkeypatch.setattr("testbed.api.calls._runner", lambda *_, output, **__: CheapRuns(output))
    monkeypatch.setattr("testbed.runner.sweep_points.require_points", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    Path("results").mkdir()
    spec = {"name": "speeds", "workers": 2, "sweep": {"link.rate": ["100mbit", "1gbit"]}}
    made = testbed.sweep(spec, output="results")
    known = testbed.sweep(spec, output="results")
    monkeypatch.chdir("/")
    for result in (made, known):
        records = [Path(summary.record) for point in result.points for summary in point.runs]
        assert [record.parent for record in records] == [tmp_path / "results"] * 2
        assert all((record / "summary.json").is_file() for record in records)
