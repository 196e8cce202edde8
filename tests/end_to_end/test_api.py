"""`import testbed` for real: in a notebook, where a loop is running and somebody may interrupt, and in a thread."""

import threading
import time
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.manager import start_new_kernel
from nbclient import NotebookClient

import testbed
from testbed.api.progress import Step
from testbed.api.runs import Run
from testbed.hosts.clean import leftovers
from testbed.record.status import alive_runs, read_status
from testbed.system.run_state import RUN_ROOT
from tests.axes import ROOT
from tests.verdicts import assert_no_fault_of_the_links

pytestmark = [pytest.mark.privileged, pytest.mark.timeout(300)]

SHORT = {
    "workload.pace": {"forward": "20ms", "backward": "40ms"},
    "workload.iterations": 4,
    "workload.warmup": 2,
    "workload.compute_only": 1,
    "link.rate": "1gbit",
    "workers": 2,
    "metrics.port": None,
}


@pytest.fixture
def jupyter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it writes for itself goes with the test."""
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))


@pytest.mark.usefixtures("jupyter")
def test_the_notebook_runs_to_its_end_and_shows_its_pictures(tmp_path: Path) -> None:
    notebook = nbformat.read(ROOT / "examples" / "notebook.ipynb", as_version=4)
    client = NotebookClient(
        notebook, timeout=200, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    shown = [output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", ())]
    pictures = [data["image/svg+xml"] for data in shown if "image/svg+xml" in data]
    assert len(pictures) == 2
    assert all("quickstart" in picture for picture in pictures), "the verdict is in each"
    assert any("| iteration | " in data.get("text/markdown", "") for data in shown)
    records = [Run(path.parent) for path in tmp_path.glob("results/*/summary.json")]
    for run in records:
        assert_no_fault_of_the_links(run.outcome, run.reasons)
        assert leftovers(run.run_id) == []
    if all(run.stands for run in records):
        assert len(records) == 2, "one by itself, and of the sweep's two points one was there already"


@pytest.mark.usefixtures("jupyter")
def test_interrupting_a_cell_removes_everything_and_the_kernel_goes_on(tmp_path: Path) -> None:
    known = set(alive_runs())
    manager, client = start_new_kernel(cwd=str(tmp_path))
    try:
        long = {**SHORT, "workload.iterations": 1000}
        code = f"import testbed\ntestbed.run('quickstart', {long!r})"
        # Else what is requested just after an error is aborted with what was queued before it.
        request = client.execute(code, stop_on_error=False)
        run_id = measuring(known)
        manager.interrupt_kernel()
        reply = reply_to(client, request)
        assert (reply["status"], reply["ename"]) == ("error", "KeyboardInterrupt")
        assert leftovers(run_id) == []
        assert not (RUN_ROOT / run_id).exists()
        (record,) = (Run(path.parent) for path in tmp_path.glob("results/*/summary.json"))
        assert record.outcome == "failed"
        assert "SIGINT" in record.reasons[0]
        again = client.execute(f"made = testbed.run('quickstart', {SHORT!r})\nassert made.summary.num_iterations == 4")
        assert reply_to(client, again)["status"] == "ok"
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def measuring(known: set[str]) -> str:
    """The id of a run that is none of these, once it measures iterations."""
    deadline_s = time.monotonic() + 90
    while True:
        for run_id in set(alive_runs()) - known:
            status = read_status(run_id)
            if status is not None and status.phase == "measured":
                return run_id
        assert time.monotonic() < deadline_s, "the run did not reach its iterations"
        time.sleep(0.05)


def reply_to(client: Any, message: str) -> dict[str, Any]:
    deadline_s = time.monotonic() + 90
    while time.monotonic() < deadline_s:
        reply = client.get_shell_msg(timeout=90)
        if reply["parent_header"]["msg_id"] == message:
            return dict(reply["content"])
    raise AssertionError("the kernel did not answer")


def test_a_run_in_a_thread_is_heard_and_two_follow_each_other(tmp_path: Path) -> None:
    """In threads that end: what is started for all runs must not end with the first."""
    steps: list[Step] = []
    made: list[Run] = []

    def work() -> None:
        made.append(testbed.run("quickstart", SHORT, output=tmp_path, on_progress=steps.append))

    for _ in range(2):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(120)
    assert len(made) == 2
    assert [step.phase for step in steps if step.iteration is None][:2] == ["deploy", "calibrate"]
    assert Step(phase="measured", iteration=4, num_iterations=4, loss=steps[-2].loss) in steps
    assert made[0].summary.parameters_sha256 == made[1].summary.parameters_sha256
    assert testbed.results(output=tmp_path).frame.height == 2


def test_what_a_listener_raises_ends_the_run_and_is_raised(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def enough(step: Step) -> None:
        if step.phase == "measured" and step.iteration == 2:
            raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        testbed.run("quickstart", SHORT, output=tmp_path, on_progress=enough)
    (record,) = (Run(path.parent) for path in tmp_path.glob("*/summary.json"))
    assert record.outcome == "failed"
    assert record.reasons[0] == "on_progress raised LookupError: enough"
    assert leftovers(record.run_id) == []
    assert capfd.readouterr() == ("", ""), "nothing is printed unless it is requested"
